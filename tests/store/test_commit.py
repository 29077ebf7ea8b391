"""Commits, invalidations and failures: one winner a number, the current one is the first that nobody ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import inventory, layout
from marin_pipeline.store.commit import (
    Commit,
    Failure,
    InputRecord,
    Invalidation,
    accept,
    acceptances,
    invalidate,
    is_accepted,
    look,
    look_many,
    publish_commit,
    record_failure,
    write_spec,
)
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.resolved import read_entry
from tests.faults.faulty_objects import FaultyObjects, nth

ID, KEY = "project/step", "ab" * 32
COMMIT = Commit(
    number=1,
    attempt="one",
    fence=1,
    manifest="m" * 64,
    output="o" * 64,
    compared="o" * 64,
    inputs={"data": InputRecord("k" * 64, "d" * 64, None)},
    resolved="r" * 64,
    code="c" * 64,
    pieces={"piece": "p" * 64},
    arguments={"x": 1},
    fingerprint={"python": "3"},
    started="2026-01-31T23:59:59.123456Z",
    finished="2026-02-01T00:00:00.000000Z",
    seconds=1.5,
    bytes=10,
)


@pytest.fixture
def objects(prefix: str) -> ObjectStore:
    return open_objects(prefix)


def damage(objects: ObjectStore, path: str, data: bytes = b"\x00") -> None:
    objects.delete(path)
    objects.create(path, data)


def test_a_commit_reads_back_as_it_was_written(objects: ObjectStore) -> None:
    assert publish_commit(objects, ID, KEY, COMMIT) == (COMMIT, True)
    assert look(objects, ID, KEY).commit == COMMIT


def test_the_second_commit_of_a_number_loses_and_a_difference_is_recorded(objects: ObjectStore) -> None:
    publish_commit(objects, ID, KEY, COMMIT)
    same = replace(COMMIT, attempt="two")
    assert publish_commit(objects, ID, KEY, same) == (COMMIT, False)
    assert objects.names(f"{layout.step(ID, KEY)}/divergences") == []
    other = replace(COMMIT, attempt="three", output="x" * 64)
    assert publish_commit(objects, ID, KEY, other) == (COMMIT, False)
    assert objects.read(layout.divergence(ID, KEY, "three")) is not None


def test_a_divergence_is_recorded_though_the_store_does_not_answer_at_once(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_pipeline.store.objects.WAITS", (0, 0))
    publish_commit(objects, ID, KEY, COMMIT)
    other = replace(COMMIT, attempt="two", output="x" * 64)
    for fault in ("before", "after"):
        faulty = FaultyObjects(objects, nth("create", "divergences/two.json", fault))
        assert publish_commit(faulty, ID, KEY, other) == (COMMIT, False)
        assert faulty.faults
        assert objects.names(f"{layout.step(ID, KEY)}/divergences") == ["two.json"]
        objects.delete(f"{layout.step(ID, KEY)}/divergences")


@pytest.mark.parametrize("fault", ["after", "denied after"])
def test_a_commit_whose_reply_was_lost_is_ours(objects: ObjectStore, fault: str) -> None:
    faulty = FaultyObjects(objects, nth("create", "commits/1.json", fault))  # pyright: ignore[reportArgumentType]
    assert publish_commit(faulty, ID, KEY, COMMIT) == (COMMIT, True)
    assert faulty.faults


def test_an_invalidation_ends_a_commit_and_the_next_number_counts(objects: ObjectStore) -> None:
    publish_commit(objects, ID, KEY, COMMIT)
    invalidate(objects, ID, KEY, 1, Invalidation("forced", "why not", "now"))
    found = look(objects, ID, KEY)
    assert (found.number, found.commit, found.invalidation) == (2, None, Invalidation("forced", "why not", "now"))
    second = replace(COMMIT, number=2, attempt="two")
    publish_commit(objects, ID, KEY, second)
    assert look(objects, ID, KEY).commit == second


def test_an_invalidation_counts_because_it_exists_whatever_it_holds(objects: ObjectStore) -> None:
    publish_commit(objects, ID, KEY, COMMIT)
    objects.create(layout.invalidation(ID, KEY, 1), b"garbage")
    found = look(objects, ID, KEY)
    assert found.number == 2
    assert found.invalidation is not None
    assert "cannot be read" in found.invalidation.text


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"null", b"\xff\xfe", b'{"schema": 1, "inputs": {}}', b'{"schema": 1, "inputs": 3}']
)
def test_a_damaged_commit_is_seen_named_and_can_be_ended(objects: ObjectStore, data: bytes) -> None:
    damage(objects, layout.commit(ID, KEY, 1), data)
    found = look(objects, ID, KEY)
    assert found.commit is None
    assert found.number == 1
    assert "commits/1.json: not a commit" in found.damage
    assert "--force" in found.damage
    invalidate(objects, ID, KEY, 1, Invalidation("forced", "", "now"))
    assert look(objects, ID, KEY).number == 2
    assert not look(objects, ID, KEY).damage


def test_records_without_end_decide_no_more_than_damaged_ones(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))

    def endless(path: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / path).open("wb") as file:
            file.truncate(2**40)

    endless(layout.failure(ID, KEY, "one"))
    failure = look(objects, ID, KEY).failure
    assert failure is not None
    assert "cannot be read" in failure.message
    endless(layout.commit(ID, KEY, 1))
    found = look(objects, ID, KEY)
    assert (found.number, found.commit) == (1, None)
    assert "commits/1.json: has more than 67,108,864 bytes, which no such object has" in found.damage
    assert "`--force` the step" in found.damage
    endless(layout.invalidation(ID, KEY, 1))
    found = look(objects, ID, KEY)
    assert (found.number, found.damage) == (2, "")
    endless(layout.accepted(ID, KEY, 1, "c" * 64))
    assert is_accepted(objects, ID, KEY, 1, "c" * 64)
    assert acceptances(objects, ID, KEY) == []
    endless(layout.resolved("e" * 64))
    assert read_entry(objects, "e" * 64) is None
    endless(layout.spec(ID, KEY))
    (state,) = inventory.read_states(objects).values()
    assert any("spec.json: not a spec" in each for each in state.damaged)


def test_a_commit_of_a_newer_schema_is_not_taken_for_damage_to_be_forced(objects: ObjectStore) -> None:
    damage(objects, layout.commit(ID, KEY, 1), b'{"schema": 2}')
    assert "written by a newer version" in look(objects, ID, KEY).damage


def test_the_last_failure_is_shown_and_a_damaged_one_stops_nobody(objects: ObjectStore) -> None:
    for attempt in ("20260101", "20260102"):
        record_failure(objects, ID, KEY, Failure(attempt, "user", f"failed {attempt}", "", "now"))
    failure = look(objects, ID, KEY).failure
    assert failure is not None
    assert failure.message == "failed 20260102"
    damage(objects, layout.failure(ID, KEY, "20260102"))
    failure = look(objects, ID, KEY).failure
    assert failure is not None
    assert "cannot be read" in failure.message


def test_a_damaged_lease_does_not_hide_what_else_is_known(objects: ObjectStore) -> None:
    objects.create(layout.lease(ID, KEY), b"garbage")
    assert look(objects, ID, KEY).leased is None


def test_another_spec_under_the_same_key_is_refused_with_a_remedy(objects: ObjectStore) -> None:
    write_spec(objects, ID, KEY, b"spec")
    write_spec(objects, ID, KEY, b"spec")
    with pytest.raises(CorruptOutput, match=r"spec\.json: is not the spec of abab.*delete it and run again"):
        write_spec(objects, ID, KEY, b"other")


def test_accepted_drift_holds_for_its_code_only(objects: ObjectStore) -> None:
    accept(objects, ID, KEY, 1, "c" * 64, "a comment moved", "now")
    accept(objects, ID, KEY, 1, "c" * 64, "again", "now")
    assert is_accepted(objects, ID, KEY, 1, "c" * 64)
    assert not is_accepted(objects, ID, KEY, 1, "d" * 64)
    assert not is_accepted(objects, ID, KEY, 2, "c" * 64), "what was accepted of one output holds for no other"


def test_one_batch_looks_as_many_single_looks(objects: ObjectStore) -> None:
    keys = [(ID, f"{number:064x}"[::-1]) for number in range(100)]
    for id, key in keys[::2]:
        publish_commit(objects, id, key, COMMIT)
    found = look_many(objects, keys)
    assert found == {key: look(objects, id, key) for id, key in keys}


def test_a_commit_under_another_key_is_damage(objects: ObjectStore) -> None:
    other = "cd" * 32
    publish_commit(objects, ID, KEY, replace(COMMIT, key=KEY))
    found = objects.read(layout.commit(ID, KEY, 1))
    assert found is not None
    objects.create(layout.commit(ID, other, 1), found.data)
    assert look(objects, ID, KEY).commit is not None
    assert "is the commit of abababab" in look(objects, ID, other).damage
