"""Cells of a grid run at most as many at once as was said, and hold nothing else up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from marin_pipeline import Artifact, Context, grid, load, run, step
from tests.conftest import Program
from tests.run.sample_steps import number
from tests.run.sessions import Bench, outcomes

SWEEP = """
from marin_pipeline import Artifact, Context, Experiment, grid, main, step

@step
def fit(ctx: Context, rate: float, seed: int, data: Artifact[int]) -> float:
    return rate * seed + data.value

@step
def data(ctx: Context, size: int) -> int:
    return size

def build(size: int = 1) -> Experiment:
    return Experiment("sweep", [grid(fit, rate=[1e-3, 3e-3], seed=[0, 1], data=data(size=size))])

if __name__ == "__main__":
    main(build)
"""


@step
def meets(ctx: Context, cell: int, folder: str) -> int:
    """How many of its kind are running, itself among them, seen for long enough that another one would come."""
    here = Path(folder) / f"{cell}"
    here.touch()
    time.sleep(0.1)
    found = len(list(Path(folder).iterdir()))
    here.unlink()
    return found


@step
def waits_for(ctx: Context, file: str) -> int:
    while not Path(file).exists():
        time.sleep(0.01)
    return 1


@step
def touches(ctx: Context, file: str) -> int:
    Path(file).touch()
    return 1


def test_at_most_as_many_cells_run_at_once_as_was_said(local: Bench, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    sweep = grid(meets, cell=list(range(6)), folder=str(tmp_path / "cells"), at_most=1)
    made = run(sweep, prefix=str(local.prefix), max_parallel=2, quiet=True)
    assert [artifact.value for artifact in made.artifacts] == [1] * 6
    assert made[3].value == 1
    assert list(made) == list(sweep)


def test_cells_that_wait_hold_nothing_else_up(local: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = grid(waits_for, file=[str(gate), f"{tmp_path}/./gate"], at_most=1)
    result = local.run([*slow.artifacts, touches(file=str(gate))], max_parallel=2)
    assert set(outcomes(result).values()) == {"done"}


def test_cells_are_found_by_name_and_an_override_moves_one(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "sweep.py"
    file.write_text(SWEEP)
    ran = program(file, "--json")
    assert ran.code == 0, ran.err
    assert {"fit/rate-1e-3/seed-0", "fit/rate-3e-3/seed-1"} < set(ran.summary)
    assert load("fit/rate-3e-3/seed-1", prefix=str(tmp_path / "store")).value == 1.003
    lines = program(file, "plan", "--json", "fit/rate-1e-3/seed-0.rate=2e-3").events
    assert [line["name"] for line in lines if line["status"] == "run"] == ["fit/rate-1e-3/seed-0"]
    assert program(file, "plan", "--check", "--size", "2").code == 3


def test_a_grid_may_be_a_target_beside_artifacts(inline: Bench) -> None:
    sweep = grid(number, value=[1, 2])
    found = run([sweep, number(value=3).named("three")], prefix=str(inline.prefix), backend="inline", quiet=True)
    assert [each.value for each in found] == [1, 2, 3]
    added: Artifact[int] = run(number(value=3), prefix=str(inline.prefix), backend="inline", quiet=True)
    assert added.value == 3


def test_a_limit_needs_a_group() -> None:
    with pytest.raises(TypeError, match="name both"):
        grid(number, value=[1]).artifacts[0].using(number(value=1).resources.__class__(at_most=1))
