"""The fingerprint says what a step has computed with, and takes nothing for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Program

EXPERIMENT = """
import jax
from marin_pipeline import Context, main, step

@step
def adds(ctx: Context, numbers: list[int]) -> int:
    return sum(jax.tree.leaves(numbers))

@step
def computes(ctx: Context, numbers: list[int]) -> int:
    return int(jax.numpy.sum(jax.numpy.array(numbers)))

def build(which: str) -> object:
    return {"adds": adds, "computes": computes}[which](numbers=[1, 2])

if __name__ == "__main__":
    main(build)
"""


@pytest.mark.parametrize(
    ("which", "platform", "told"), [("adds", "cuda", False), ("adds", "cpu", False), ("computes", "cpu", True)]
)
def test_devices_are_named_where_a_step_has_taken_them_and_never_asked_for(
    which: str, platform: str, told: bool, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.py"
    file.write_text(EXPERIMENT)
    ran = program(file, "--which", which, "--backend", "inline", extra={"JAX_PLATFORMS": platform})
    assert ran.code == 0, ran.err
    [commit] = (tmp_path / "store").glob("steps/**/commits/1.json")
    assert ('"devices":["cpu:cpu"' in commit.read_text()) is told
