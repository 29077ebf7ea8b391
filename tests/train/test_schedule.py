"""Schedules against their closed forms."""

from __future__ import annotations

import math

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.train.schedule import Schedule, Shape


def test_warm_up_rises_linearly_and_ends_at_the_peak():
    schedule = Schedule.make("constant", steps=30, warmup=20, final_fraction=0.05)
    assert [schedule.factor(step) for step in range(20)] == [(step + 1) / 20 for step in range(20)]
    assert schedule.factor(20) == schedule.factor(10**9) == 1.0


@pytest.mark.parametrize(
    ("shape", "half"), [("cosine", 0.1 + 0.9 * 0.5), ("linear", 0.1 + 0.9 * 0.5), ("constant", 1.0)]
)
def test_shapes_after_the_warm_up(shape: Shape, half: float):
    schedule = Schedule.make(shape, steps=110, warmup=10, final_fraction=0.1)
    assert schedule.factor(9) == schedule.factor(10) == 1.0
    assert schedule.factor(60) == pytest.approx(half)


def test_cosine_and_linear_values():
    cosine = Schedule.make("cosine", steps=100, warmup=0, final_fraction=0.2)
    linear = Schedule.make("linear", steps=100, warmup=0, final_fraction=0.2)
    for step in (0, 1, 37, 99):
        assert cosine.factor(step) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi * step / 100)) / 2)
        assert linear.factor(step) == pytest.approx(1 - 0.8 * step / 100)


def test_a_run_shorter_than_its_warm_up_never_reaches_the_peak():
    schedule = Schedule.make("cosine", steps=5, warmup=20, final_fraction=0.0)
    assert [schedule.factor(step) for step in range(5)] == [0.05, 0.1, 0.15, 0.2, 0.25]


def test_no_factor_after_the_horizon():
    with pytest.raises(InputError, match="step 100"):
        Schedule.make("cosine", steps=100, warmup=10, final_fraction=0.0).factor(100)


@pytest.mark.parametrize(("warmup", "fraction"), [(-1, 0.0), (0, 1.5), (0, -0.1)])
def test_impossible_arguments_are_refused(warmup: int, fraction: float):
    with pytest.raises(InputError):
        Schedule.make("cosine", steps=10, warmup=warmup, final_fraction=fraction)
