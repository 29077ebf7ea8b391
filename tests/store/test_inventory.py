"""What lies in a store, read without believing it: what cannot be read is told."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from marin_pipeline.core.canonical import dumps
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name
from marin_pipeline.store.commit import Commit, InputRecord, Invalidation, invalidate, publish_commit
from marin_pipeline.store.inventory import KeyState, key_folder, read_state, read_states
from marin_pipeline.store.manifest import Entry, Manifest
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.store.test_commit import COMMIT, ID, KEY


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(str(tmp_path))


def committed(objects: ObjectStore, number: int, attempt: str, inputs: dict[str, str] | None = None) -> Commit:
    """A commit whose manifest names a file of its own and one of a shard."""
    own = f"{layout.attempt(ID, KEY, attempt)}/out/a"
    manifest = Manifest((Entry("a", own, 1, "a" * 64), Entry("b", f"shards/bb/{number}/b", 1, "b" * 64))).dumps()
    objects.create(layout.manifest(ID, KEY, attempt), manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    records = {role: InputRecord(key, "d" * 64, None) for role, key in (inputs or {}).items()}
    commit = replace(COMMIT, number=number, attempt=attempt, manifest=digest, inputs=records)
    publish_commit(objects, ID, KEY, commit)
    return commit


def state(objects: ObjectStore) -> KeyState:
    (found,) = read_states(objects).values()
    assert read_state(objects, ID, KEY[:16]) == found
    return found


def test_current_and_ended_commits_and_what_their_manifests_name_elsewhere(objects: ObjectStore) -> None:
    committed(objects, 1, "one")
    invalidate(objects, ID, KEY, 1, Invalidation("forced", "", "2026-01-01"))
    second = committed(objects, 2, "two")
    found = state(objects)
    assert (found.path, found.number, found.current) == (layout.step(ID, KEY), 2, second)
    assert found.ended == {"one": "2026-01-01"}
    assert found.refers == {"one": {"shards/bb/1/b"}, "two": {"shards/bb/2/b"}}
    assert set(found.below("attempts")) == {"one", "two"}


def test_it_needs_the_inputs_of_its_commit_and_the_artifacts_of_its_spec(objects: ObjectStore) -> None:
    committed(objects, 1, "one", inputs={"data": "1" * 64})
    spec = {"arguments": {"x": [{"~artifact": "2" * 64}, {"path": "a", "~artifact": "3" * 64}]}}
    objects.create(layout.spec(ID, KEY), dumps(spec))
    assert state(objects).needs == {"1" * 64, "2" * 64, "3" * 64}


def test_a_key_of_which_nothing_was_made_needs_nothing_that_is_unknown(objects: ObjectStore) -> None:
    objects.create(layout.lease(ID, KEY), b"")
    assert not state(objects).needs_unknown
    objects.create(f"{layout.attempt(ID, KEY, 'zero')}/copied/{attempt_name()}", b"")
    objects.create(f"{layout.attempt(ID, KEY, 'zero')}/out/a", b"")
    assert not state(objects).needs_unknown, "it was copied as the bytes of another key's output"
    objects.create(f"{layout.attempt(ID, KEY, 'one')}/out/a", b"")
    assert state(objects).needs_unknown


@pytest.mark.parametrize("damaged", [layout.commit(ID, KEY, 1), layout.manifest(ID, KEY, "one")])
@pytest.mark.parametrize("gone", [False, True])
def test_what_counts_and_cannot_be_read_may_name_anything(objects: ObjectStore, damaged: str, gone: bool) -> None:
    committed(objects, 1, "one")
    if gone and damaged.endswith("commits/1.json"):
        committed(objects, 2, "two")
    objects.delete(damaged)
    if not gone:
        objects.create(damaged, b"\x00")
    found = state(objects)
    assert found.refers_unknown
    assert found.damaged


def test_what_has_ended_and_cannot_be_read_is_only_in_the_way(objects: ObjectStore) -> None:
    committed(objects, 1, "one")
    objects.create(layout.invalidation(ID, KEY, 1), b"\x00")
    assert state(objects).ended == {"one": ""}
    objects.delete(layout.commit(ID, KEY, 1))
    objects.create(layout.commit(ID, KEY, 1), b"\x00")
    found = state(objects)
    assert (found.number, found.ended, found.refers_unknown, found.damaged) == (2, {}, False, [])


def test_the_folder_of_a_key_is_told_from_any_object_in_it() -> None:
    assert key_folder(f"{layout.attempt('a/b.c', KEY, 'one')}/out/x") == layout.step("a/b.c", KEY)
    assert key_folder("shards/ab/abcdef/one/x") is None
