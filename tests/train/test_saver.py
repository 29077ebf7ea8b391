"""Temporary checkpoints: two are kept, the newest readable one is found, and nothing restarts from step 0 by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marin_pipeline import test_context
from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.train.checkpoint import HostArray, Snapshot
from marin_pipeline.train.saver import Earlier, Period, Saver, Work, resume


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return test_context(tmp_path).work


def snapshot(step: int, seed: int = 0) -> Snapshot:
    return Snapshot(step, {"x": HostArray((("a", 3),), np.full(3, step + 1, np.float32))}, b"", described(step, seed))


def described(step: int, seed: int = 0) -> dict[str, object]:
    return {"recipe": {"seed": seed, "pieces": [{"to": step}]}}


def save(work: Work, *steps: int) -> None:
    with Saver(work, Period(steps=1)) as saver:
        for step in steps:
            saver.save(snapshot(step))


def damage(work: Work, item: str) -> None:
    next(path for path in work.open(item).rglob("c/0")).write_bytes(b"short")


def test_the_two_newest_are_kept_and_the_newest_is_used(work: Work):
    save(work, 10, 20, 30)
    assert work.items() == ["step-00000020", "step-00000030"]
    log: list[str] = []
    found = resume(work, None, described, last=100, log=log.append)
    assert found is not None
    assert found.step == 30
    assert log == ["going on from checkpoint step-00000030"]


def test_without_any_the_run_begins(work: Work):
    assert resume(work, None, described, last=100, log=print) is None


def test_a_damaged_one_yields_aloud_to_the_one_before(work: Work):
    save(work, 10, 20)
    damage(work, "step-00000020")
    log: list[str] = []
    found = resume(work, None, described, last=100, log=log.append)
    assert found is not None
    assert found.step == 10
    assert "step-00000020 cannot be used" in log[0]
    assert work.items() == ["step-00000010"]


def test_when_all_are_damaged_the_run_stops(work: Work):
    save(work, 10, 20)
    damage(work, "step-00000010")
    damage(work, "step-00000020")
    with pytest.raises(CorruptOutput, match="not restarted from step 0"):
        resume(work, None, described, last=100, log=print)
    assert len(work.items()) == 2


def test_one_of_another_recipe_is_refused_with_the_difference(work: Work):
    save(work, 10)
    with pytest.raises(InputError, match=r"recipe\.seed: 0, expected 1"):
        resume(work, None, lambda step: described(step, seed=1), last=100, log=print)


@pytest.mark.parametrize(("earlier_step", "used"), [(5, 10), (15, 15), (101, 10)])
def test_the_later_of_checkpoint_and_earlier_state_is_used(work: Work, earlier_step: int, used: int):
    save(work, 10)
    earlier = Earlier(earlier_step, lambda: snapshot(earlier_step))
    found = resume(work, earlier, described, last=100, log=print)
    assert found is not None
    assert found.step == used


def test_an_earlier_state_made_from_something_else_is_passed_over_aloud(work: Work):
    log: list[str] = []
    earlier = Earlier(15, lambda: snapshot(15, seed=9))
    assert resume(work, earlier, described, last=100, log=log.append) is None
    assert "recipe.seed: 9, expected 0" in log[0]


def test_a_save_that_fails_is_not_passed_over_in_silence(work: Work):
    broken = Snapshot(1, {"x": HostArray((("a", 3),), np.zeros(3, np.float32))}, b"", {"bad": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"), Saver(work, Period(steps=1)) as saver:
        saver.save(broken)
    assert work.items() == []


def test_periods():
    assert Period.parse("60s") == Period(seconds=60.0)
    assert Period.parse("0.5 s") == Period(seconds=0.5)
    assert Period.parse("100 steps") == Period(steps=100)
    for text in ("", "100", "0s", "1.5 steps", "-3 steps", "1h"):
        with pytest.raises(InputError, match="checkpoint_every"):
            Period.parse(text)


def test_due_by_count(work: Work):
    with Saver(work, Period(steps=10)) as saver:
        saver.begin(5)
        assert [step for step in range(5, 30) if saver.due(step)] == list(range(15, 30))
