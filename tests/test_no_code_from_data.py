"""Reading a store or a bundle runs no code that it brings: no pickle, no eval, no import by a name in data."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment

PACKAGES = [ROOT / "marin_pipeline", ROOT / "steps"]

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle", "runpy", "code"}
"""Whose readers run what they read, or which run code."""

CALLS = {"eval", "exec", "compile", "__import__"}

ATTRIBUTES = {"import_module", "exec_module", "load_module", "run_path", "run_module", "unsafe_load", "full_load"}

ALLOWED = {
    ("marin_pipeline/__init__.py", "import_module"): "a public name, from a table in that file",
    ("marin_pipeline/core/dtypes.py", "import_module"): "ml_dtypes, by a name that is written there",
    ("marin_pipeline/core/reading.py", "import_module"): "arguments of a task, never what was read from a store",
    ("marin_pipeline/run/task.py", "import_module"): "the step that this process was given to run",
    ("marin_pipeline/run/task.py", "exec_module"): "the program that this process was given to run",
    ("marin_pipeline/run/golden.py", "import_module"): "the step library's own modules",
    ("marin_pipeline/store/s3_client.py", "import_module"): "boto3, by a name that is written there",
}
"""Places that load code, and whose code it is."""


def suspects(file: Path) -> Iterator[tuple[str, int]]:
    """What a file uses that could run code, with its line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names if name.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in MODULES:
            yield node.module, node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield node.attr, node.lineno
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_pattern = isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "re.compile"
            if (name in CALLS and isinstance(node.func, ast.Name)) or (name in {"eval", "exec"} and not is_pattern):
                yield name, node.lineno
            if name == "load" and ast.unparse(node.func) in ("yaml.load", "torch.load"):
                yield ast.unparse(node.func), node.lineno
            if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                yield "allow_pickle", node.lineno
            if any(keyword.arg == "trust_remote_code" for keyword in node.keywords):
                yield "trust_remote_code", node.lineno


def test_no_file_runs_what_it_reads() -> None:
    found = {
        (str(file.relative_to(ROOT)), what): line
        for package in PACKAGES
        for file in package.rglob("*.py")
        for what, line in suspects(file)
    }
    assert found.keys() - ALLOWED.keys() == set(), "see ALLOWED"
    assert ALLOWED.keys() - found.keys() == set(), "these are gone: take them out of ALLOWED"


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "eval('1')", "exec('1')", "__import__('x')", "yaml.load(x)",
     "importlib.import_module(name)", "np.load(x, allow_pickle=True)", "spec.loader.exec_module(m)"],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(text)
    assert list(suspects(file))


PLANTED = """
from pathlib import Path
from dataclasses import dataclass
(Path(__file__).parent / "it_ran").write_text("")
@dataclass(frozen=True)
class Evil:
    x: int = 1
    def __post_init__(self):
        (Path(__file__).parent / "it_was_made").write_text("")
"""
PROGRAM = """
from typing import Any
from marin_pipeline import Artifact, Context, main, step
@step
def make(ctx: Context) -> Any:
    return {"x": 1}
@step
def use(ctx: Context, made: Artifact[Any]) -> str:
    return f"{type(made.value['kind']).__name__} {made.value['kind'].x}"
if __name__ == "__main__":
    main(use(made=make()))
"""
READ = """
import sys
from marin_pipeline import load
found = load("make", prefix=sys.argv[1]).value["kind"]
print(type(found).__name__, found.x)
"""


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(file), *arguments],
        cwd=file.parent,
        env=environment(file.parent / "store"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("identity", ["planted:Evil", "antigravity:Evil", "package/lazy:Evil", "package:Evil"])
def test_a_value_that_names_a_class_imports_no_module(identity: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(
        "def __getattr__(name):\n    from planted import Evil\n    return Evil\n"
    )
    (tmp_path / "package" / "lazy.py").write_text(PLANTED)
    program, read = tmp_path / "program.py", tmp_path / "read.py"
    program.write_text(PROGRAM)
    read.write_text(("import package\n" if identity == "package:Evil" else "") + READ)
    done = run(program, "--until", "make")
    assert done.returncode == 0, done.stderr
    _plant(tmp_path / "store", {"kind": {"~data": identity, "fields": {"x": 7}}})
    shown = run(read, str(tmp_path / "store"))
    assert shown.stdout == "Record 7\n", shown.stderr
    done = run(program, "--json")
    summary = json.loads(done.stdout.splitlines()[-1])
    (used,) = [step for step in summary["steps"] if step["name"] == "use"]
    assert used["status"] == "done", done.stderr
    assert json.loads((Path(used["path"]) / "value.json").read_text()) == "Record 7"
    assert not list(tmp_path.rglob("it_*"))


def _plant(store: Path, value: object) -> None:
    """Give a store's only output another value, with all digests that belong to it: what an untrusted person can do."""
    import dataclasses
    import hashlib

    from marin_pipeline.core.canonical import dumps
    from marin_pipeline.store.commit import Commit
    from marin_pipeline.store.manifest import Manifest

    (path,) = store.glob("steps/**/commits/1.json")
    commit = Commit.loads(path.read_bytes(), "here")
    (manifest_path,) = store.glob("steps/**/manifest.json")
    (value_path,) = store.glob("steps/**/value.json")
    data = dumps(value)
    value_path.write_bytes(data)
    (entry,) = Manifest.loads(manifest_path.read_bytes(), "here").entries
    entry = dataclasses.replace(entry, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest = Manifest((entry,))
    manifest_path.write_bytes(manifest.dumps())
    digest = hashlib.sha256(manifest.dumps()).hexdigest()
    changed = dataclasses.replace(
        commit, manifest=digest, output=manifest.output_digest, compared=manifest.output_digest
    )
    path.write_bytes(changed.dumps())
