"""What counts as a root: whatever was one at some moment of the grace period."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline.core.canonical import dumps
from marin_pipeline.store import layout
from marin_pipeline.store.clock import written
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.roots import Roots, read_roots

NOW = datetime.datetime(2026, 6, 30, 12, tzinfo=datetime.UTC)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(str(tmp_path))


def key(number: int) -> tuple[str, str]:
    return "tests/step", f"{number:016x}{0:048x}"


def day(ago: float) -> datetime.datetime:
    return NOW - datetime.timedelta(days=ago)


def run_record(objects: ObjectStore, started: float, finished: float, number: int, experiment: str = "e/x") -> None:
    """A run that made one key, by how many days ago it was."""
    name = written(day(started)).replace(":", "")
    tree = {"schema": 1, "finished": written(day(finished)), "steps": {"step": key(number)}}
    objects.create(f"{layout.runs(experiment)}/{name}-abcdef.json", dumps(tree))


def begun(objects: ObjectStore, started: float, number: int, suffix: str = ".begun") -> str:
    path = f"{layout.runs('e/x')}/{written(day(started)).replace(':', '')}-abcdef{suffix}"
    objects.create(path, dumps({"schema": 1, "steps": {"step": key(number)}}))
    return path


def roots(objects: ObjectStore, held: Callable[[str], bool] = lambda folder: False) -> set[int]:
    found = read(objects, held)
    assert not found.unreadable
    return {int(folder.rpartition("/")[2], 16) for folder in found.folders}


def read(objects: ObjectStore, held: Callable[[str], bool] = lambda folder: False) -> Roots:
    return read_roots(objects, day(7), held, {})


def test_the_newest_run_of_each_experiment_however_old(objects: ObjectStore) -> None:
    run_record(objects, 300, 300, 1)
    run_record(objects, 200, 200, 2)
    run_record(objects, 900, 900, 3, "other")
    assert roots(objects) == {2, 3}


def test_runs_that_are_young_and_the_one_that_was_the_newest_before_them(objects: ObjectStore) -> None:
    for ago in (30, 20, 6, 3):
        run_record(objects, ago, ago, ago)
    assert roots(objects) == {20, 6, 3}


def test_a_long_run_that_ended_just_now_though_others_began_later(objects: ObjectStore) -> None:
    run_record(objects, 40, 1, 1)
    run_record(objects, 30, 30, 2)
    run_record(objects, 20, 20, 3)
    assert roots(objects) == {1, 3}


def test_the_latest_number_of_a_name_and_those_that_were_it_in_the_grace_period(objects: ObjectStore) -> None:
    for number, ago in ((1, 90), (2, 60), (3, 5)):
        id, full = key(number)
        record = {"id": id, "key": full, "at": written(day(ago))}
        objects.create(f"{layout.names('ada', 'a/b')}/{number}.json", dumps(record))
    assert roots(objects) == {2, 3}


@pytest.mark.parametrize(("dropped", "expected"), [(None, {1}), (5, {1}), (8, set[int]())])
def test_a_given_name_until_a_grace_period_after_it_was_dropped(
    objects: ObjectStore, dropped: int | None, expected: set[int]
) -> None:
    id, full = key(1)
    objects.create(layout.root("ada", "a/b", 1), dumps({"id": id, "key": full}))
    if dropped is not None:
        objects.create(layout.root_end("ada", "a/b", 1), dumps({"at": written(day(dropped))}))
    assert roots(objects) == expected


@pytest.mark.parametrize("suffix", [".begun", ".json.begun"])
def test_a_run_that_has_begun_while_it_is_young_or_one_of_its_leases_is_held(objects: ObjectStore, suffix: str) -> None:
    begun(objects, 1, 1, suffix)
    begun(objects, 20, 2, suffix)
    assert roots(objects) == {1}
    assert roots(objects, held=lambda folder: folder == layout.step(*key(2))) == {1, 2}


def test_a_begun_run_says_nothing_once_it_has_ended(objects: ObjectStore) -> None:
    begun(objects, 20, 2)
    run_record(objects, 20, 20, 2)
    run_record(objects, 10, 10, 3)
    assert roots(objects, held=lambda folder: True) == {3}


@pytest.mark.parametrize(
    "tree", [{}, {"steps": 3}, {"steps": {"a": 3}}, {"steps": {"a": [1, 2]}}, {"steps": {"a": ["x"]}}, {"steps": [3]}]
)
def test_a_record_that_names_no_key_is_told(objects: ObjectStore, tree: Any) -> None:
    objects.create("experiments/e/x.json", dumps(tree))
    objects.create("experiments/e/y.begun", dumps(tree))
    assert len(read(objects).unreadable) == 2
