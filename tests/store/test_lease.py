"""One holder a lease; taken over only when its holder is gone; a lost one says so."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store.lease import Lease, LeaseRecord, Waiting, is_alive, is_dead, read_lease, this_process
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.faults.faulty_objects import FaultyObjects, nth

PATH = "lease.json"


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def objects(prefix: str) -> ObjectStore:
    return open_objects(prefix)


def taken(objects: ObjectStore) -> Lease:
    lease = Waiting(objects, PATH, 10).attempt()
    assert lease is not None
    return lease


def record(objects: ObjectStore) -> LeaseRecord:
    found = objects.read(PATH)
    assert found is not None
    return LeaseRecord.loads(found.data, PATH)


def test_only_one_of_two_gets_it_and_the_other_learns_who_has_it(objects: ObjectStore) -> None:
    lease = taken(objects)
    waiting = Waiting(objects, PATH, 10)
    assert waiting.attempt() is None
    assert waiting.holder == record(objects).owner
    lease.release()
    assert waiting.attempt() is not None


def test_the_fence_grows_at_each_acquisition_and_the_beat_at_each_renewal(objects: ObjectStore) -> None:
    lease = taken(objects)
    assert (record(objects).fence, record(objects).beat) == (1, 0)
    assert lease.renew()
    assert (record(objects).fence, record(objects).beat) == (1, 1)
    lease.release()
    assert taken(objects).fence == 2


def test_a_holder_that_beats_is_never_taken_over(objects: ObjectStore) -> None:
    lease, clock = taken(objects), Clock()
    waiting = Waiting(objects, PATH, 10, clock)
    for _ in range(5):
        assert waiting.attempt() is None
        clock.now += 9
        lease.renew()
    assert waiting.attempt() is None


def test_a_holder_that_was_silent_for_a_whole_life_is_taken_over_and_learns_it(objects: ObjectStore) -> None:
    lease, clock = taken(objects), Clock()
    waiting = Waiting(objects, PATH, 10, clock)
    assert waiting.attempt() is None
    clock.now = 9.9
    assert waiting.attempt() is None
    clock.now = 10
    assert waiting.attempt() is not None
    assert not lease.lost
    assert not lease.renew()
    assert lease.lost
    assert record(objects).fence == 2


def test_a_holder_that_no_longer_exists_is_taken_over_at_once(objects: ObjectStore) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = replace(this_process(), pid=child.pid, started=Path(f"/proc/{child.pid}/stat").read_text().split()[21])
    assert not is_dead(holder)
    objects.create(PATH, LeaseRecord(4, 0, holder).dumps())
    assert Waiting(objects, PATH, 1000).attempt() is None
    child.communicate(b"\n")
    assert is_dead(holder)
    assert read_lease(objects, PATH) is None
    assert taken(objects).fence == 5


def test_a_later_process_with_the_same_id_is_not_the_holder() -> None:
    assert is_dead(replace(this_process(), started="1"))
    assert not is_alive(replace(this_process(), started="1"))
    assert is_alive(this_process())


def test_a_holder_on_another_machine_is_never_called_dead() -> None:
    assert not is_dead(replace(this_process(), machine="elsewhere", pid=1, started="1"))
    assert not is_alive(replace(this_process(), machine="elsewhere"))


def test_a_released_lease_is_not_renewed_by_a_late_beat(objects: ObjectStore) -> None:
    lease = taken(objects)
    lease.release()
    before = record(objects)
    assert not lease.renew()
    assert record(objects) == before
    assert not lease.lost


def test_a_lease_that_was_lost_is_not_released_for_the_next_holder(objects: ObjectStore) -> None:
    lease, clock = taken(objects), Clock()
    waiting = Waiting(objects, PATH, 1, clock)
    waiting.attempt()
    clock.now = 1
    assert waiting.attempt() is not None
    lease.release()
    assert record(objects).owner is not None


@pytest.mark.parametrize("fault", ["denied after", "after"])
def test_a_renewal_whose_reply_was_lost_does_not_lose_the_lease(objects: ObjectStore, fault: str) -> None:
    faulty = FaultyObjects(objects, nth("swap", PATH, fault))  # pyright: ignore[reportArgumentType]
    lease = taken(faulty)
    if fault == "after":
        with pytest.raises(StoreError, match="the reply was lost"):
            lease.renew()
    assert lease.renew()
    assert lease.renew()
    lease.release()
    assert record(objects).owner is None


def test_an_acquisition_whose_reply_was_lost_is_an_acquisition(objects: ObjectStore) -> None:
    lease = Waiting(FaultyObjects(objects, nth("create", PATH, "denied after")), PATH, 10).attempt()
    assert lease is not None
    lease.release()
    assert Waiting(FaultyObjects(objects, nth("swap", PATH, "denied after")), PATH, 10).attempt() is not None


def test_a_store_that_cannot_be_written_does_not_turn_a_release_into_an_error(objects: ObjectStore) -> None:
    lease = taken(FaultyObjects(objects, nth("swap", PATH, "full")))
    lease.release()
    assert record(objects).owner is not None


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"fence": 1}', json.dumps({"fence": 1, "beat": 1, "owner": 3}).encode()]
)
def test_a_damaged_lease_is_named_with_its_remedy(objects: ObjectStore, damage: bytes) -> None:
    objects.create(PATH, damage)
    with pytest.raises(CorruptOutput, match=r"lease\.json: not a lease .*; delete this file when no run is at work"):
        Waiting(objects, PATH, 10).attempt()
