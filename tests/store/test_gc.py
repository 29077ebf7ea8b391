"""Collecting garbage: a commit that is believed never has missing bytes, and what a root reaches stays."""

from __future__ import annotations

import datetime
import itertools
import json
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_pipeline import Artifact
from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import StoreError
from marin_pipeline.run.history import all_runs
from marin_pipeline.run.shards import read_shard, shard_output
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now, utc, written
from marin_pipeline.store.commit import Commit, Invalidation, invalidate, look
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.gc import Collection, collect
from marin_pipeline.store.lease import Holder, LeaseRecord, Waiting
from marin_pipeline.store.listed import FOLDERS
from marin_pipeline.store.names import current_names, drop_root, give_name, key_folders
from marin_pipeline.store.objects import ObjectInfo, ObjectStore, open_objects
from marin_pipeline.store.verify import Verifier
from tests.faults.faulty_objects import FaultyObjects
from tests.run.conftest import in_each_store, inline
from tests.run.sample_steps import add, joined, number, resumable, squares, times, words
from tests.run.sessions import Bench, digests, outcomes

__all__ = ["in_each_store", "inline"]

GRACE = datetime.timedelta(days=7)


def later(days: float) -> Callable[[], datetime.datetime]:
    return lambda: utc() + datetime.timedelta(days=days)


def collected(bench: Bench, days: float, objects: ObjectStore | None = None) -> Collection:
    """A pass that deletes, some days from now."""
    return collect(objects or bench.objects, GRACE, delete=True, clock=later(days))


def twice(bench: Bench, days: float) -> Collection:
    """Two passes a grace period apart: what the first one ends the second one deletes."""
    collected(bench, days)
    return collected(bench, days + 8)


def problems(objects: ObjectStore) -> list[str]:
    """What is wrong with what is believed."""
    verifier = Verifier(objects, "full")
    found = [verified for id, short in key_folders(objects) if (verified := verifier.verify(id, short))]
    return [str(finding) for verified in found for finding in verified.findings]


def believed(bench: Bench, artifact: Artifact[Any]) -> bool:
    assert artifact.declaration is not None
    return look(bench.objects, artifact.declaration.step.id, artifact.key).commit is not None


def attempts(bench: Bench, artifact: Artifact[Any]) -> list[str]:
    assert artifact.declaration is not None
    folder = f"{layout.step(artifact.declaration.step.id, artifact.key)}/attempts"
    # SeaweedFS goes on naming a folder for some seconds when all in it has been deleted.
    return [name for name in bench.objects.names(folder) if not bench.url or bench.objects.list(f"{folder}/{name}")]


def shards(bench: Bench) -> list[ObjectInfo]:
    return [info for info in bench.objects.list("shards") if info.path != layout.listed("shards")]


def kinds(collection: Collection) -> set[tuple[str, str]]:
    return {(item.kind, item.action) for item in collection.items}


def ran(bench: Bench, experiment: str, *targets: Artifact[Any]) -> None:
    assert replace(bench.session(list(targets)), experiment=f"tests/{experiment}").run().ok


def replaced(bench: Bench) -> tuple[Artifact[Any], Artifact[Any]]:
    """An output that no root reaches any more, and the one that took its place."""
    old, new = add(numbers=[number(value=1)]), add(numbers=[number(value=2)])
    ran(bench, "a", old)
    ran(bench, "a", new)
    return old, new


def test_what_nothing_reaches_is_ended_first_and_deleted_a_grace_period_later(in_each_store: Bench) -> None:
    old, new = replaced(in_each_store)
    assert not collected(in_each_store, 6).items, "younger than the grace period"
    assert kinds(collected(in_each_store, 8)) == {("output", "end")}
    assert not believed(in_each_store, old)
    assert attempts(in_each_store, old), "who looked before has the grace period to finish"
    assert not collected(in_each_store, 14).items
    assert kinds(collected(in_each_store, 16)) == {("attempt", "delete")}
    assert not attempts(in_each_store, old)
    assert believed(in_each_store, new)
    assert not collected(in_each_store, 30).items
    assert not problems(in_each_store.objects)


class Lying(Forwarding):
    """A store in whose place something else answers a listing: of it there is what passes."""

    def __init__(self, objects: ObjectStore, folder: str, passes: Callable[[str], bool]) -> None:
        super().__init__(objects)
        self._folder, self._passes = folder, passes

    def list(self, folder: str) -> list[ObjectInfo]:
        found = super().list(folder)
        return [info for info in found if self._passes(info.path)] if folder == self._folder else found


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_listing_that_does_not_show_what_is_there_ends_nothing(
    in_each_store: Bench, folder: str, before: bool
) -> None:
    """Whether a pass has been there before or not."""
    bench = in_each_store
    old, new = replaced(bench)
    if before:
        assert not collected(bench, 1).items
    there = {info.path for name in FOLDERS for info in bench.objects.list(name)}
    with pytest.raises(StoreError, match=rf"/{folder}: .*not show {folder}/~listed.*may not be the store"):
        collected(bench, 30, Lying(bench.objects, folder, lambda path: False))
    marks = {layout.listed(name) for name in FOLDERS}
    assert {info.path for name in FOLDERS for info in bench.objects.list(name)} == there | marks
    assert believed(bench, old)
    assert believed(bench, new)
    if before:
        with pytest.raises(StoreError, match="may not be the store"):
            collect(Lying(bench.objects, folder, lambda path: False), GRACE, clock=later(30))
    assert collected(bench, 30).items


def test_the_listing_of_a_key_that_breaks_off_deletes_none_of_its_attempts(inline: Bench) -> None:
    old, _ = replaced(inline)
    collected(inline, 8)
    assert old.declaration is not None
    folder = layout.step(old.declaration.step.id, old.key)
    with pytest.raises(StoreError, match=rf"does not show {folder}/lease.json"):
        collected(inline, 16, Lying(inline.objects, folder, lambda path: "/attempts/" in path))
    assert attempts(inline, old)
    collected(inline, 16)
    assert not attempts(inline, old)


def test_where_a_pass_has_been_nothing_else_is_listed(inline: Bench) -> None:
    replaced(inline)
    before = list(key_folders(inline.objects)), current_names(inline.objects).keys(), len(all_runs(inline.objects))
    collected(inline, 0)
    assert (inline.prefix / "names" / layout.LISTED).exists()
    after = list(key_folders(inline.objects)), current_names(inline.objects).keys(), len(all_runs(inline.objects))
    assert after == before


def test_a_dry_pass_says_the_same_and_changes_nothing(inline: Bench, tmp_path: Path) -> None:
    replaced(inline)
    (inline.prefix / "tmp" / "1d" / "left").write_text("scratch")

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in inline.prefix.rglob("*") if path.is_file()}

    for days in (8, 16):
        before = files()
        dry = collect(inline.objects, GRACE, clock=later(days))
        assert files() == before
        assert not dry.deleted
        assert collected(inline, days).items == dry.items
    assert dry.items


def test_everything_that_was_ended_is_made_again_by_the_next_run_that_asks(in_each_store: Bench) -> None:
    old, _ = replaced(in_each_store)
    first = in_each_store.run(old)
    ran(in_each_store, "a", add(numbers=[number(value=3)]))
    ran(in_each_store, "bench", add(numbers=[number(value=3)]))
    for days in (8, 16):
        collected(in_each_store, days)
        assert not believed(in_each_store, old)
    assert in_each_store.reasons(old) == {
        "number": "invalidated: collected: gc: no root reached it",
        "add": "invalidated: collected: gc: no root reached it",
    }
    again = in_each_store.run(old)
    assert outcomes(again) == {"number": "done", "add": "done"}
    assert digests(again) == digests(first)


def test_what_was_the_newest_run_in_the_grace_period_is_kept(inline: Bench) -> None:
    old, _ = replaced(inline)
    records = sorted((inline.prefix / "experiments").rglob("*.json"))
    assert len(records) == 2
    newest = json.loads(records[-1].read_text())
    # As if the second run had ended nine days from now, when the first one had been the newest for as long.
    records[-1].write_bytes(dumps({**newest, "finished": (utc() + datetime.timedelta(days=9)).isoformat()}))
    shutil.rmtree(inline.prefix / "names")
    assert not collected(inline, 15).items
    assert collected(inline, 17).items
    assert not believed(inline, old)


def test_a_name_that_a_person_gave_keeps_its_key_and_all_that_it_needs(inline: Bench) -> None:
    old, _ = replaced(inline)
    assert old.declaration is not None
    record = give_name(inline.objects, "kept/for-good", old.declaration.step.id, old.key)
    assert not twice(inline, 8).items
    drop_root(inline.objects, "kept/for-good@1")
    assert not twice(inline, 3).items, "dropped within the grace period; and it is the latest number of its name"
    (inline.prefix / layout.names(record.owner, record.name) / "1.json").unlink()
    assert kinds(collected(inline, 24)) == {("output", "end")}


def test_the_latest_number_of_a_name_is_a_root_and_the_one_before_is_not_for_ever(inline: Bench) -> None:
    first, second = number(value=1).named("shared"), number(value=2).named("shared")
    for experiment, each in (("a", first), ("b", second)):
        ran(inline, experiment, each)
    shutil.rmtree(inline.prefix / "experiments")
    assert not collected(inline, 6).items
    assert kinds(collected(inline, 8)) == {("output", "end")}
    assert not believed(inline, first)
    assert believed(inline, second)


def begin(bench: Bench, *artifacts: Artifact[Any]) -> Path:
    """The record of a run that has begun."""
    steps = {each.name: (each.declaration.step.id, each.key) for each in artifacts if each.declaration is not None}
    path = bench.prefix / "experiments" / "tests" / "begun" / f"{now().replace(':', '')}-{uuid.uuid4().hex[:6]}.begun"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps({"schema": 1, "steps": steps}))
    return path


def test_a_run_that_has_begun_keeps_what_it_counts_on_while_it_is_young_or_at_work(inline: Bench) -> None:
    old, new = replaced(inline)
    begin(inline, old)
    assert not collected(inline, 6).items
    assert new.declaration is not None
    waiting = Waiting(inline.objects, layout.lease("tests/at-work", "ab" * 32), 30)
    lease = waiting.attempt()
    assert lease is not None
    path = begin(inline, old)
    tree = json.loads(path.read_text())
    tree["steps"]["working"] = ["tests/at-work", "ab" * 32]
    path.write_bytes(dumps(tree))
    assert not collected(inline, 8).items
    lease.release()
    assert kinds(collected(inline, 8)) == {("output", "end")}


def test_a_run_that_begins_while_outputs_are_ended_keeps_what_it_counts_on(inline: Bench) -> None:
    """It begins when the roots have been read, and the lease of what it needs is being taken."""
    old, _ = replaced(inline)
    assert old.declaration is not None
    lease = layout.lease(old.declaration.step.id, old.key)

    def begins(operation: str, path: str) -> None:
        # From fourteen days on a record of now is old; it is dated then.
        if operation == "swap" and path == lease and not list((inline.prefix / "experiments").rglob("*abcdef.begun")):
            begun = begin(inline, old)
            when = (utc() + datetime.timedelta(days=8)).strftime("%Y-%m-%dT%H%M%S.000000Z-abcdef.begun")
            begun.rename(begun.with_name(when))

    collected(inline, 8, FaultyObjects(inline.objects, begins))
    assert list((inline.prefix / "experiments").rglob("*abcdef.begun"))
    assert believed(inline, old)


def test_a_step_at_work_loses_nothing(inline: Bench) -> None:
    (inline.counts / "break").touch()
    assert not inline.run(resumable(parts=3)).ok
    step = resumable(parts=3)
    assert step.declaration is not None
    lease = Waiting(inline.objects, layout.lease(step.declaration.step.id, step.key), 30).attempt()
    assert lease is not None
    assert not twice(inline, 8).items
    lease.release()
    assert kinds(collected(inline, 8)) == {("attempt", "delete"), ("work", "delete")}
    (inline.counts / "break").unlink()
    assert inline.run(step).ok


def test_parts_of_a_killed_step_are_kept_for_the_grace_period(inline: Bench) -> None:
    (inline.counts / "break").touch()
    assert not inline.run(resumable(parts=3)).ok
    inline.ran()
    assert not collected(inline, 6).items
    (inline.counts / "break").unlink(missing_ok=True)
    assert inline.run(resumable(parts=3)).ok
    assert inline.ran()["made-part-0"] == 0


def test_parts_that_were_made_just_before_the_lease_was_free_stay(inline: Bench) -> None:
    (inline.counts / "break").touch()
    step = resumable(parts=3)
    assert not inline.run(step).ok
    assert step.declaration is not None
    lease = layout.lease(step.declaration.step.id, step.key)
    (record,) = [info.path for info in inline.objects.list("steps") if info.path.endswith("part-0/record.json")]
    young = f"{written(later(8)())[:19].replace('-', '').replace(':', '')}-0a1b2c3d"

    def works(operation: str, path: str) -> None:
        if operation == "swap" and path == lease:
            inline.objects.create(f"{record.removesuffix('part-0/record.json')}part-1/{young}/data.txt", b"")

    assert ("work", "delete") not in kinds(collected(inline, 8, FaultyObjects(inline.objects, works)))
    assert inline.objects.read(record) is not None


def test_the_lease_of_a_dead_process_of_another_machine_is_taken_over_after_a_life(inline: Bench) -> None:
    old, _ = replaced(inline)
    assert old.declaration is not None
    path = inline.prefix / layout.lease(old.declaration.step.id, old.key)
    holder = Holder("f" * 32, "somebody", "elsewhere", "another boot", 1, "1")
    path.write_bytes(LeaseRecord(3, 5, holder).dumps())
    slept: list[float] = []

    def beats(seconds: float) -> None:
        slept.append(seconds)
        path.write_bytes(LeaseRecord(3, 5 + len(slept), holder).dumps())

    assert collect(inline.objects, GRACE, delete=True, clock=later(8), life=0.01, sleep=beats).items == []
    items = collect(inline.objects, GRACE, delete=True, clock=later(8), life=0.01, sleep=time.sleep).items
    assert {item.kind for item in items} == {"output"}
    assert slept == [0.01, 0.01]


def test_shards_that_an_output_points_into_stay_and_others_go_in_two_steps(inline: Bench) -> None:
    ran(inline, "a", squares(numbers=[2, 3]))
    ran(inline, "a", squares(numbers=[3, 4]))
    assert not collected(inline, 6).items
    first = collected(inline, 8)
    assert kinds(first) == {("output", "end")}, "the files of an ended output are named for a grace period more"
    second = collected(inline, 16)
    assert sorted((item.kind, item.action) for item in second.items) == [("attempt", "delete"), ("shard", "end")]
    third = collected(inline, 24)
    assert kinds(third) == {("shard", "delete")}
    assert len(list((inline.prefix / "shards").rglob("record.json"))) == 2
    assert not problems(inline.objects)
    inline.ran()
    ran(inline, "a", joined(squares=squares(numbers=[2, 3])))
    assert inline.ran() == {"squares": 1, "square": 1, "joined": 1}
    assert not list((inline.prefix / "gc").rglob("*.json")), "what passes noted goes with what they noted"


def test_an_attempt_that_may_have_read_a_shard_before_it_was_ended_keeps_its_files(inline: Bench) -> None:
    """It commits an output that points into the shard, a long time after the record of the shard has gone."""
    made = squares(numbers=[2])
    inline.run(made)
    result = shards(inline)
    shutil.rmtree(inline.prefix / "experiments")
    shutil.rmtree(inline.prefix / "names")
    lease = Waiting(inline.objects, layout.lease("tests/long", "ab" * 32), 30).attempt()
    assert lease is not None
    attempt = f"{layout.attempt('tests/long', 'ab' * 32, '20200101T000000-00000000')}/log/log.txt"
    inline.objects.create(attempt, b"")
    inline.objects.create(layout.spec("tests/long", "ab" * 32), b"{}")
    for days in (8, 16, 24, 32):
        collected(inline, days)
    assert not [info for info in shards(inline) if info.path.endswith("record.json")]
    assert len(shards(inline)) == len(result)
    lease.release()
    collected(inline, 40)
    assert not shards(inline)


def test_a_shard_that_was_taken_before_it_was_ended_stays_though_its_record_has_gone(inline: Bench) -> None:
    ran(inline, "a", squares(numbers=[2]))
    (record,) = [info.path for info in shards(inline) if info.path.endswith("/record.json")]
    inline.objects.delete(record)
    ended = {
        "schema": 1,
        "at": "2020-01-01T00:00:00.000000Z",
        "seen": [],
        "ended": [record.removesuffix("/record.json")],
    }
    inline.objects.create(layout.collection("2020-01-01T000000Z-abcdef"), dumps(ended))
    assert not twice(inline, 8).items
    assert not problems(inline.objects)


def test_a_step_that_took_a_shard_before_it_was_ended_can_still_hand_it_on(inline: Bench) -> None:
    inline.run(squares(numbers=[2]))
    (record,) = [info.path for info in shards(inline) if info.path.endswith("/record.json")]
    key = record.split("/")[2]
    for folder in ("experiments", "names"):
        shutil.rmtree(inline.prefix / folder)
    collected(inline, 8)
    assert ("shard", "end") in kinds(collected(inline, 16))
    assert read_shard(inline.objects, key, int) is None
    assert shard_output(inline.objects, key).local("square.txt").read_text() == "4"
    collected(inline, 24)
    with pytest.raises(StoreError, match="the shard has gone"):
        shard_output(inline.objects, key)


def test_scratch_goes_when_it_is_older_than_its_days_since_it_was_first_seen(inline: Bench) -> None:
    ran(inline, "a", number(value=1))
    for path in ("tmp/1d/file", "tmp/30d/folder/inner", "tmp/2d/20200101T000000-aa"):
        inline.objects.create(path, b"scratch")
    report = collected(inline, 0)
    assert [item.path for item in report.items] == ["tmp/2d/20200101T000000-aa"]
    assert [each.partition(",")[0] for each in report.kept] == ["tmp/: 14 bytes of scratch"]
    assert [item.path for item in collected(inline, 2).items] == ["tmp/1d/file"]
    assert not collected(inline, 29).items
    assert [item.path for item in collected(inline, 31).items] == ["tmp/30d/folder"]


@pytest.mark.parametrize("data", [b"\x00", b"[]", b"{}", b"[" * 100_000])
@pytest.mark.parametrize("folder", ["experiments", "names", "roots"])
def test_a_root_that_cannot_be_read_keeps_every_output_and_is_told(inline: Bench, folder: str, data: bytes) -> None:
    replaced(inline)
    place = {
        "experiments": "experiments/x/9.json",
        "names": "names/somebody/x@/1.json",
        "roots": "roots/somebody/x@1.json",
    }
    inline.objects.create(place[folder], data)
    report = collected(inline, 8)
    assert not report.items
    assert any(place[folder] in each and "no output is ended" in each for each in report.kept)
    inline.objects.delete(place[folder])
    assert collected(inline, 8).items


@pytest.mark.parametrize("damaged", ["commits/1.json", "attempts/*/manifest.json", "spec.json", "lease.json"])
@pytest.mark.parametrize("data", [b"\x00", b"{}", b"[" * 100_000])
def test_a_damaged_record_keeps_what_it_might_name_and_is_told(inline: Bench, damaged: str, data: bytes) -> None:
    ran(inline, "a", squares(numbers=[2]))
    ran(inline, "a", squares(numbers=[3]))
    made = squares(numbers=[2])
    assert made.declaration is not None
    (file,) = (inline.prefix / layout.step(made.declaration.step.id, made.key)).glob(damaged)
    file.write_bytes(data)
    before = len(shards(inline))
    for days in (8, 16, 24, 32):
        report = collected(inline, days)
    if (damaged, data) != ("spec.json", b"{}"):
        assert len(shards(inline)) == before
        assert any(file.name in each for each in report.kept)


def test_beside_runs_without_any_grace_what_is_believed_is_whole(inline: Bench) -> None:
    """Steps may have to run again; an output never loses bytes while it counts."""
    checking, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []
    ended = 0

    def collect_on() -> None:
        nonlocal ended
        while not stop.is_set():
            with checking:
                try:
                    ended += len(collect(inline.objects, datetime.timedelta(0), delete=True).items)
                except BaseException as error:  # noqa: BLE001 - shown by the test
                    errors.append(error)
                    return
            time.sleep(0.001)

    thread = threading.Thread(target=collect_on)
    thread.start()
    chance = random.Random(1)
    try:
        for runs in itertools.count():
            if (runs >= 25 and ended > 20) or errors or runs >= 500:
                break
            made = squares(numbers=chance.sample(range(8), 3))
            inline.run([joined(squares=made), add(numbers=[number(value=chance.randint(0, 3))])])
            with checking:
                assert not problems(inline.objects)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert ended > 20  # else nothing was collected beside them


def adopted(bench: Bench) -> tuple[Artifact[Any], Artifact[Any]]:
    """An output, and an equal one of another key that was taken from it."""
    source = add(numbers=[number(value=2)]).named("source")
    taken = add(numbers=[times(count=words(text="a b"))]).named("taken")
    ran(bench, "a", source)
    ran(bench, "b", taken)
    assert taken.declaration is not None
    commit = look(bench.objects, taken.declaration.step.id, taken.key).commit
    assert commit is not None
    assert commit.adopted_from is not None
    return source, taken


def test_what_was_adopted_keeps_what_it_was_taken_from(inline: Bench) -> None:
    source, taken = adopted(inline)
    ran(inline, "a", number(value=9))
    shutil.rmtree(inline.prefix / "names")
    for days in (8, 16, 24):
        collected(inline, days)
    assert believed(inline, source)
    assert believed(inline, taken)
    assert not problems(inline.objects)


def test_what_is_young_and_was_adopted_keeps_what_it_was_taken_from(inline: Bench) -> None:
    source, taken = adopted(inline)
    for folder in ("names", "experiments"):
        shutil.rmtree(inline.prefix / folder)
    assert source.declaration is not None
    assert taken.declaration is not None
    (file,) = (inline.prefix / layout.step(taken.declaration.step.id, taken.key)).glob("commits/1.json")
    commit = Commit.loads(file.read_bytes(), "")
    file.write_bytes(replace(commit, finished=written(later(5)())).dumps())
    collected(inline, 8)
    assert believed(inline, source)
    assert believed(inline, taken)
    assert not problems(inline.objects)
    collected(inline, 16)
    assert not believed(inline, source)
    assert not believed(inline, taken)


def test_what_fell_with_what_it_was_adopted_from_is_collected_and_then_there_is_nothing_to_say(inline: Bench) -> None:
    source, taken = adopted(inline)
    assert source.declaration is not None
    invalidate(inline.objects, source.declaration.step.id, source.key, 1, Invalidation("invalidated", "x", now()))
    assert not believed(inline, taken)
    none = datetime.timedelta(0)
    dry = collect(inline.objects, none, clock=later(1))
    assert [(item.kind, item.action) for item in dry.items] == [("attempt", "delete")] * 2
    assert collect(inline.objects, none, delete=True, clock=later(1)).items == dry.items
    assert not attempts(inline, source)
    assert not attempts(inline, taken)
    after = collect(inline.objects, none, clock=later(1))
    assert (after.items, after.kept) == ([], [])
    assert inline.run([source, taken]).ok
    assert not problems(inline.objects)


class Killed(BaseException):
    pass


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_whatever_is_collected_and_whenever_it_is_killed_what_is_believed_is_whole(seed: int, tmp_path: Path) -> None:
    """Random graphs, random roots, random ages; a pass is killed at a random operation and followed by another."""
    chance = random.Random(seed)
    patch = pytest.MonkeyPatch()
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    bench = Bench.at(folder, "inline", patch)
    try:
        pool: list[Artifact[Any]] = [number(value=value) for value in range(3)]
        pool += [squares(numbers=chance.sample(range(6), 2))]
        for _ in range(chance.randint(1, 4)):
            pool.append(add(numbers=chance.sample([each for each in pool if each.kind is int], 2)))
        # Equal to each other, and made from other keys: whichever comes second is adopted.
        equal = [add(numbers=[number(value=2), each]) for each in (times(count=words(text="a b")), number(value=2))]
        for each in chance.sample(equal, chance.randint(0, 2)):
            ran(bench, str(chance.randint(0, 2)), each)
        pool += equal
        pool.append(joined(squares=pool[3]))
        for _ in range(chance.randint(1, 4)):
            chosen = chance.sample(pool, chance.randint(1, 2))
            force = [chosen[0].key] if chance.random() < 0.3 else []
            session = replace(bench.session(chosen, force=force), experiment=f"tests/{chance.randint(0, 2)}")
            assert session.run().ok
        for each in pool:
            assert each.declaration is not None
            if believed(bench, each) and chance.random() < 0.2:
                give_name(bench.objects, f"kept{chance.randint(0, 2)}", each.declaration.step.id, each.key)
        for lost in ("names", "experiments"):
            if chance.random() < 0.5:
                shutil.rmtree(bench.prefix / lost)
        grace = chance.choice([datetime.timedelta(0), GRACE])
        days = 0.0
        for _ in range(4):
            days += chance.choice([0, 3, 8])
            remaining = chance.randint(0, 40)

            def killed(operation: str, path: str) -> None:
                nonlocal remaining
                remaining -= operation in ("create", "swap", "delete")
                if remaining < 0:
                    raise Killed

            try:
                faulty = FaultyObjects(bench.objects, killed)
                collect(faulty, grace, delete=True, clock=later(days))
            except Killed:
                for lease in bench.prefix.rglob("lease.json"):
                    record = LeaseRecord.loads(lease.read_bytes(), "")
                    lease.write_bytes(replace(record, owner=None).dumps())
            assert not problems(bench.objects)
        assert not collect(bench.objects, grace, delete=True, clock=later(days)).kept
        assert not problems(bench.objects)
        dry = Collection(False)
        for _ in range(6):
            days += 8
            dry = collect(bench.objects, grace, clock=later(days))
            assert collect(bench.objects, grace, delete=True, clock=later(days)).items == dry.items
            assert not problems(bench.objects)
        assert not dry.items, "passes come to an end"
        again = bench.run(pool)
        assert again.ok
        assert not problems(open_objects(str(bench.prefix)))
    finally:
        patch.undo()
