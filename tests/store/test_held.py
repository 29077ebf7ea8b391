"""Whose work is going on: a lease that nobody renews is given up after a life, by one's own clock."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from marin_pipeline.store.held import held_keys
from marin_pipeline.store.lease import Holder, LeaseRecord, read_lease, this_process
from marin_pipeline.store.objects import ObjectStore, open_objects

LIFE = 0.02
ELSEWHERE = Holder("f" * 32, "somebody", "elsewhere", "another boot", 1, "1")


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    found = open_objects(str(tmp_path))
    me = this_process()
    holders = {
        "free": None,
        "mine": me,
        "dead": replace(me, started="0"),
        "elsewhere": ELSEWHERE,
        "unknown": replace(ELSEWHERE, machine=""),
    }
    for name, holder in holders.items():
        found.create(f"steps/{name}/lease.json", LeaseRecord(1, 1, holder).dumps())
    return found


def names(folders: set[str]) -> set[str]:
    return {folder.removeprefix("steps/") for folder in folders}


def test_at_one_look_whoever_may_be_at_work_counts(objects: ObjectStore) -> None:
    before = {info.path: objects.read(info.path) for info in objects.list("steps")}
    held, problems = held_keys(objects, LIFE, time.sleep, take_over=False)
    assert names(held) == {"mine", "elsewhere", "unknown"}
    assert not problems
    assert {info.path: objects.read(info.path) for info in objects.list("steps")} == before


def test_after_a_life_without_a_beat_a_lease_of_another_machine_is_freed(objects: ObjectStore) -> None:
    slept: list[float] = []

    def beats(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)
        path = "steps/elsewhere/lease.json"
        found = objects.read(path)
        assert found is not None
        assert objects.swap(path, LeaseRecord(1, 2, ELSEWHERE).dumps(), found.version)

    held, _ = held_keys(objects, LIFE, beats, take_over=True)
    assert names(held) == {"mine", "elsewhere"}
    assert slept == [LIFE]
    assert read_lease(objects, "steps/unknown/lease.json") is None


def test_a_lease_that_cannot_be_read_counts_as_held_and_is_told(objects: ObjectStore) -> None:
    objects.create("steps/odd/lease.json", b"[" * 100_000)
    held, problems = held_keys(objects, LIFE, time.sleep, take_over=False)
    assert "steps/odd" in held
    (problem,) = problems
    assert "steps/odd/lease.json: not a lease" in problem
