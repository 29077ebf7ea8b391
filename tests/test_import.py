"""Importing the public package is light: nothing heavy is loaded, and every public name is there on demand."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import marin_pipeline
from tests.conftest import ROOT

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
