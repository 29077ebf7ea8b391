"""What a process loads of a project is what its files say, whatever bytecode lies beside them."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import environment

EXPERIMENT = """
from marin_pipeline import Context, main, step
{imported}

@step
def computed(ctx: Context) -> int:
    from helper import f
    return f(0)

def build():
    return computed()

if __name__ == "__main__":
    main(build)
"""


def write_fixed(file: Path, text: str) -> None:
    """A file as an image build leaves it: its time says nothing."""
    file.write_text(text)
    os.utime(file, (10**9, 10**9))


def keeping_bytecode(folder: Path) -> dict[str, str]:
    found = environment(folder / "store")
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def run(folder: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, str(folder / "exp.py"), "--json", *arguments]
    done = subprocess.run(command, env=keeping_bytecode(folder), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    (step,) = json.loads(done.stdout.splitlines()[-1])["steps"]
    return step


def value(step: dict[str, object]) -> object:
    assert step["status"] == "done", step
    return json.loads(Path(str(step["path"]), "value.json").read_text())


def stale(folder: Path, imported: str = "") -> None:
    """An experiment with a helper whose bytecode is of an earlier state, of one time and size with the present one."""
    helper = folder / "helper.py"
    write_fixed(folder / "exp.py", EXPERIMENT.format(imported=imported))
    write_fixed(helper, "def f(x): return x+1\n")
    py_compile.compile(str(helper), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    write_fixed(helper, "def f(x): return x+7\n")


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_bytecode_of_an_earlier_state_is_not_run(tmp_path: Path, backend: str) -> None:
    stale(tmp_path)
    assert value(run(tmp_path, "--backend", backend)) == 7


def test_bytecode_that_is_never_checked_is_not_run(tmp_path: Path) -> None:
    stale(tmp_path)
    helper = tmp_path / "helper.py"
    py_compile.compile(str(helper), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    helper.write_text("def f(x): return x + 8\n")
    assert value(run(tmp_path, "--backend", "local")) == 8


def test_where_the_driver_has_run_such_bytecode_the_step_is_refused(tmp_path: Path) -> None:
    stale(tmp_path, imported="import helper")
    step = run(tmp_path, "--backend", "inline")
    assert step["status"] == "failed"
    assert "remove the __pycache__ beside it" in json.dumps(step)
    # A worker has not.
    assert value(run(tmp_path, "--backend", "local")) == 7


def test_only_what_a_digest_covers_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import json, marin_pipeline.run.driver, numpy\n")
    program = (
        "import sys\n"
        "from importlib.machinery import SourceFileLoader\n"
        "compiled, compile_source = [], SourceFileLoader.source_to_code\n"
        "def noting(self, data, path, **options):\n"
        "    compiled.append(path)\n"
        "    return compile_source(self, data, path, **options)\n"
        "from marin_pipeline.run import loaded, worker\n"
        "SourceFileLoader.source_to_code = noting\n"
        "loaded.watch()\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import helper\n"
        "print(*compiled)\n"
    )
    extra = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    command = [sys.executable, "-c", program, str(tmp_path)]
    compiled = [
        subprocess.run(command, env={**keeping_bytecode(tmp_path), **extra}, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert len(compiled[0].stdout.split()) > 1
    assert compiled[1].stdout.split() == [str(tmp_path / "helper.py")]
