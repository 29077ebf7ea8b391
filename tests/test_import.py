"""Importing the public package is light: nothing heavy is loaded, and every public name is there on demand."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys

import pytest

import marin_pipeline
from tests.conftest import ROOT
from tests.core.pythons import VERSIONS, printed, python, start

HEAVY = (
    "jax",
    "ray",
    "pyarrow",
    "fsspec",
    "datasets",
    "numpy",
    "haliax",
    "optax",
    "tensorstore",
    "tokenizers",
    "draccus",
    "rich",
)
DECLARING = """
from marin_pipeline import *
from marin_pipeline import Artifact, Context, Documents, Runtime, Tokens, TrainState, main, run, step
"""


def modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json, sys; print(json.dumps(list(sys.modules)))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_importing_loads_nothing_heavy() -> None:
    loaded = modules_after("import marin_pipeline")
    assert "marin_pipeline" in loaded
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith(("marin_pipeline.run", "marin_pipeline.store"))}


def test_every_public_name_loads_nothing_heavy() -> None:
    assert not modules_after(DECLARING) & set(HEAVY)


CORE = sorted(path.stem for path in (ROOT / "marin_pipeline" / "core").glob("[a-z]*.py"))
LOADED = "import importlib, json, sys; from pathlib import Path\n" + "".join(
    f"importlib.import_module('marin_pipeline.core.{name}')\n" for name in CORE
)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_core_runs_where_nothing_is_installed(version: str) -> None:
    program = f"{LOADED}print(json.dumps([sorted(sys.modules), sorted(sys.stdlib_module_names)]))"
    loaded, standard = json.loads(printed(start(python(version), "-c", program, path=(ROOT,), folder=ROOT, seed="0")))
    assert {f"marin_pipeline.core.{name}" for name in CORE} <= set(loaded)
    others = {name.partition(".")[0] for name in loaded} - {*standard, "__main__", "marin_pipeline"}
    assert [name for name in others if not name.startswith("_sysconfigdata")] == []  # a part of sysconfig


def test_the_core_names_nothing_but_the_standard_library_and_itself() -> None:
    """Inside functions too; but for what makes a dtype from its name, for a value that holds one."""
    found: set[tuple[str, str]] = set()
    for name in CORE:
        for node in ast.walk(ast.parse((ROOT / "marin_pipeline" / "core" / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.add((name, node.module or ""))
            elif isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names}
    foreign = {
        (name, module)
        for name, module in found
        if not f"{module}.".startswith("marin_pipeline.core.")
        and module.partition(".")[0] not in sys.stdlib_module_names
    }
    # The type checker alone reads _typeshed.
    assert {each for each in foreign if each[1] != "_typeshed"} == {("dtypes", "numpy")}


def cpu_seconds(program: str) -> float:
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return spent() - before


def test_importing_costs_less_than_150_ms_of_cpu() -> None:
    cpu_seconds("import marin_pipeline")
    extra = min(cpu_seconds("import marin_pipeline") for _ in range(5)) - min(cpu_seconds("pass") for _ in range(5))
    assert extra < 0.15


def test_every_public_name_is_there() -> None:
    assert sorted(marin_pipeline.__all__) == sorted(set(marin_pipeline.__all__)) == dir(marin_pipeline)
    for name in marin_pipeline.__all__:
        assert getattr(marin_pipeline, name) is not None


@pytest.mark.parametrize("module", ["marin_pipeline.core.marks", "marin_pipeline.core.step", "marin_pipeline.cli"])
def test_ctrl_c_while_an_experiment_imports_the_package_ends_it_without_a_word(module: str) -> None:
    program = f"""
import os, signal, sys, time

class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)

sys.meta_path.insert(0, Interrupting())
from marin_pipeline import Artifact, main, step
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
