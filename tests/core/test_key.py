"""Keys: as docs/keys.md says, and equal on every Python, under every hash seed, for a program and for a module."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy
import pytest

from marin_pipeline import Chain, Context, step
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.key import SCHEMA, key_of, spec_bytes
from tests.conftest import ROOT

DOCUMENT = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"```python\n(# example/recipes.py\n.*?)```", DOCUMENT, re.DOTALL)[0]
VECTORS = re.findall(r"^\| `(.+?)` \| `(\{.+\})` \| `([0-9a-f]{64})` \|$", DOCUMENT, re.MULTILINE)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of docs/keys.md, in a project of its own, which is the current folder."""
    folder = tmp_path_factory.mktemp("keys") / "example"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "example"\n')
    (folder / "hello.txt").write_text("hello\n")
    (folder / "recipes.py").write_text(RECIPES)
    found = importlib.util.spec_from_file_location("recipes", folder / "recipes.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "recipes", module)
        patch.chdir(folder)
        found.loader.exec_module(module)
        yield module


def test_the_document_has_its_vectors() -> None:
    assert len(VECTORS) >= 25
    assert len({key for _, _, key in VECTORS}) >= 23


@pytest.mark.parametrize(("call", "spec", "key"), VECTORS, ids=[call for call, _, _ in VECTORS])
def test_the_vectors_of_the_document_are_ours(recipes: ModuleType, call: str, spec: str, key: str) -> None:
    made = eval(call, {**vars(recipes), "numpy": numpy, "ml_dtypes": ml_dtypes})
    assert made.declaration.spec.decode("ascii") == spec
    assert made.key == key
    assert hashlib.sha256(spec.encode()).hexdigest() == key


def test_a_spec_holds_four_entries_and_nothing_else() -> None:
    spec = spec_bytes("p/s", {"version": 3}, {"b": 1, "a": 2.0})
    assert spec == b'{"arguments":{"a":2.0,"b":1},"code":{"version":3},"schema":1,"step":"p/s"}'
    assert SCHEMA == 1
    assert key_of(spec) == hashlib.sha256(spec).hexdigest()


# The same everywhere

PROGRAM = '''
"""An experiment that needs the standard library alone."""

import datetime
import enum
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

from marin_pipeline import Artifact, Context, Runtime, absent_when, step


class Mode(enum.Enum):
    FAST = "f"


@dataclass(frozen=True)
class Options:
    names: frozenset[str] = frozenset({"a", "b", "c", "d"})
    mode: Mode = Mode.FAST
    table: dict[str, float] = field(default_factory=lambda: {"z": 1, "a": 1e-7})
    seed: Annotated[int, absent_when(0)] = 0
    when: datetime.datetime = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)


@step
def follows_source(ctx: Context, options: Options = Options(), anything: Any = {"x", "y", "\\u00e9"}) -> int:
    return 1


@step(version=3)
def follows_number(ctx: Context, made: Artifact[int], text: str = "\\u00e9", workers: Runtime[int] = 1) -> int:
    return 2


def keys():
    first = follows_source()
    second = follows_number(made=first)
    return [first.key, second.key, first.declaration.spec.decode(), second.declaration.spec.decode()]


if __name__ == "__main__":
    import json

    print(json.dumps(keys()))
'''
IMPORTER = "import json, program; print(json.dumps(program.keys()))"


def pythons() -> dict[str, str]:
    """Interpreters of the supported versions that really run here."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.11", "3.12", "3.13"):
        for python in [*map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))), shutil.which(f"python{version}")]:
            if version not in found and python and _runs(python):
                found[version] = python
    return found


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", "pass"], capture_output=True, check=False).returncode == 0


PYTHONS = pythons()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    (folder / "pyproject.toml").write_text('[project]\nname = "golden-keys"\n')
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM).lstrip())
    return folder


def keys(project: Path, python: str, arguments: list[str], seed: int) -> list[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{project}",
        "PYTHONHASHSEED": str(seed),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


GOLDEN = {
    "options": '"options":{"fields":{"mode":{"name":"FAST","~enum":"program:Mode"},"names":{"~set":["a","b","c","d"]},'
    '"table":{"a":1e-07,"z":1.0},"when":{"~datetime":"2024-01-01T00:00:00+00:00"}},"~data":"program:Options"}',
    "anything": '"anything":{"~set":["\\u00e9","x","y"]}',
}


@pytest.mark.parametrize("version", PYTHONS)
def test_keys_are_equal_on_every_python_and_under_every_hash_seed(project: Path, version: str) -> None:
    reference = keys(project, sys.executable, [str(project / "program.py")], 0)
    for seed, arguments in ((0, ["-c", IMPORTER]), (1, [str(project / "program.py")]), (2, ["-c", IMPORTER])):
        assert keys(project, PYTHONS[version], arguments, seed) == reference
    first, second, first_spec, second_spec = reference
    assert first_spec.startswith(
        '{"arguments":{' + GOLDEN["anything"] + "," + GOLDEN["options"] + '},"code":{"source":"'
    )
    assert first_spec.endswith('"},"schema":1,"step":"program.follows_source"}')
    assert second_spec == (
        f'{{"arguments":{{"made":{{"~artifact":"{first}"}},"text":"\\u00e9"}},"code":{{"version":3}},"schema":1,'
        '"step":"golden_keys/follows_number"}'
    )
    assert [first, second] == [hashlib.sha256(spec.encode()).hexdigest() for spec in (first_spec, second_spec)]


# Chains


def constant(arguments: Any) -> Chain:
    def recipe(steps: int) -> list[dict[str, Any]]:
        return [{"from": 0, "to": steps, "rate": arguments["rate"]}]

    return Chain(initial={"seed": arguments["seed"]}, step=arguments["steps"], recipe=recipe)


@step(version=1, chain=constant)
def train(ctx: Context, steps: int, rate: float = 0.1, seed: int = 0, note: str = "") -> int:
    return steps


def unkeyable(arguments: Any) -> Chain:
    return Chain(initial=None, step=1, recipe=lambda steps: {"schedule": unkeyable})


def fractional(arguments: Any) -> Chain:
    return Chain(initial=None, step=arguments["steps"] / 2, recipe=lambda steps: [])


def test_a_longer_run_passes_through_the_shorter_one() -> None:
    long, short = train(steps=200).declaration, train(steps=100, note="shorter").declaration
    assert long is not None
    assert short is not None
    assert long.key != short.key
    assert key_of(long.spec_at(100)) == short.key == key_of(short.spec)
    other = train(steps=200, rate=0.2).declaration
    assert other is not None
    assert other.spec_at(100) != short.spec


def plain(ctx: Context, steps: int = 3) -> int:
    return 1


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            unkeyable,
            r"step plain \(test_key.py:\d+\): recipe\[schedule\]: the function unkeyable has no stable identity",
        ),
        (fractional, r"step plain \(test_key.py:\d+\): the chain's step is 1.5; it must be an int from 0 on"),
    ],
)
def test_a_chain_that_cannot_be_keyed_is_refused(chain: Callable[..., Chain], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        step(version=1, chain=chain)(plain)()
