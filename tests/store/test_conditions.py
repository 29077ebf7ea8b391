"""A store that does not keep conditional writes is refused, unless a person says that nobody else writes there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.conditions import SingleWriter, writable
from marin_pipeline.store.memory_objects import MemoryObjects
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.conftest import Program
from tests.faults.faulty_objects import FaultyObjects, nth
from tests.faults.proxy import line_to
from tests.servers import Server
from tests.store.conformance import Conformance
from tests.stores import BUCKET

HELLO = """
from marin_pipeline import Artifact, Context, main, step

@step
def count_words(ctx: Context, text: str) -> int:
    (ctx.out / "words.txt").write_text(text)
    return len(text.split())

@step
def multiply(ctx: Context, count: Artifact[int], times: int) -> int:
    return count.value * times

if __name__ == "__main__":
    main(multiply(count=count_words(text="a b c"), times=2))
"""


MAPPED = """
from marin_pipeline import Artifact, Context, main, step

def look(shard, item: int) -> int:
    assert shard.streams._objects.single_writer, "the shard's process"
    return item

@step
def total(ctx: Context, count: int) -> int:
    assert ctx._objects.single_writer, "the step's process"
    return sum(each.value for each in ctx.map(look, range(count)))

if __name__ == "__main__":
    main(total(count=3))
"""


class Ignoring(MemoryObjects):
    """A store as others see it, that ignores the conditions that it is told to ignore."""

    shared = True

    def __init__(self, *ignored: str) -> None:
        super().__init__("ignoring://")
        self._ignored = ignored

    def create(self, path: str, data: bytes) -> str | None:
        if "create" in self._ignored and (found := self.read(path)) is not None:
            return super().swap(path, data, found.version)
        return super().create(path, data)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        found = self.read(path)
        if "swap" in self._ignored and found is not None:
            version = found.version
        return super().swap(path, data, "" if "right swap" in self._ignored else version)


@pytest.mark.parametrize(
    ("ignored", "told"),
    [
        ("create", "it wrote over an object that was to be created only if it was not there"),
        ("swap", "it replaced an object that had been written since it was read"),
        ("right swap", "it did not replace an object whose version was still the one that was read"),
    ],
)
def test_what_the_store_did_is_said_and_nothing_is_left(ignored: str, told: str) -> None:
    objects = Ignoring(ignored)
    with pytest.raises(StoreError, match=rf"ignoring://: .*{told}.*add --single-writer"):
        writable(objects, single_writer=False)
    assert objects.list("tmp") == []


def test_a_store_that_keeps_them_is_taken_as_it_is(gs_prefix: str, tmp_path: Path) -> None:
    for objects in (open_objects(gs_prefix), open_objects(str(tmp_path)), MemoryObjects("memory://x"), Ignoring()):
        for single_writer in (False, True):
            assert writable(objects, single_writer=single_writer) is objects
            assert objects.list("tmp") == []


@pytest.mark.parametrize("operation", ["create", "swap"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_reply_that_was_lost_is_not_taken_for_a_condition_that_was_ignored(operation: str, number: int) -> None:
    objects = FaultyObjects(Ignoring(), nth(operation, "", "denied after", number))
    writable(objects, single_writer=False)
    assert objects.faults


class TestSingleWriter(Conformance):
    """One writer at a time finds all that a store promises."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return SingleWriter(Ignoring("create", "swap"))

    @pytest.mark.skip(reason="it is for one writer")
    def test_of_those_that_create_at_the_same_time_one_wins_and_its_bytes_are_there(
        self, objects: ObjectStore
    ) -> None: ...

    @pytest.mark.skip(reason="it is for one writer")
    def test_all_who_put_at_the_same_time_are_told_the_same(self, objects: ObjectStore) -> None: ...

    @pytest.mark.skip(reason="it is for one writer")
    def test_of_those_that_swap_one_version_at_the_same_time_one_wins(self, objects: ObjectStore) -> None: ...

    @pytest.mark.skip(reason="it is for one writer")
    def test_no_update_is_lost(self, objects: ObjectStore) -> None: ...

    @pytest.mark.skip(reason="it is for one writer")
    def test_a_lease_that_many_want_at_the_same_time_has_one_holder(self, objects: ObjectStore) -> None: ...


@pytest.fixture
def deaf_server(gs_server: Server) -> Iterator[str]:
    """A real server that is not told the conditions; its URL."""
    with line_to(gs_server.url) as line:
        line.requests = lambda data: data.replace(b"ifGenerationMatch", b"ifGenerationXatch")
        yield line.url


def test_a_run_on_a_server_that_ignores_conditions_is_refused_and_goes_on_with_single_writer(
    program: Program, deaf_server: str, tmp_path: Path
) -> None:
    file = tmp_path / "hello.py"
    file.write_text(HELLO)
    prefix = f"gs://{BUCKET}/{uuid.uuid4().hex}"
    arguments = ("--prefix", prefix)
    extra = {"STORAGE_EMULATOR_HOST": deaf_server}
    refused = program(file, *arguments, extra=extra)
    assert refused.code == 1
    assert f"{prefix}: the store does not keep conditional writes (it wrote over an object" in refused.err
    assert "--single-writer" in refused.err
    planned = program(file, "plan", *arguments, extra=extra)
    assert planned.code == 0, planned.err
    done = program(file, *arguments, "--single-writer", "--json", extra=extra)
    assert done.code == 0, done.err
    assert {step["status"] for step in done.summary.values()} == {"done"}
    again = program(file, *arguments, "--json", extra=extra)
    assert {step["status"] for step in again.summary.values()} == {"cached"}
    forced = program(file, *arguments, "--single-writer", "--force", "multiply", "--json", extra=extra)
    assert {name: step["status"] for name, step in forced.summary.items()} == {
        "count_words": "cached",
        "multiply": "done",
    }


def test_workers_look_before_they_write_too(program: Program, deaf_server: str, gs_prefix: str, tmp_path: Path) -> None:
    file = tmp_path / "mapped.py"
    file.write_text(MAPPED)
    arguments = ("--prefix", gs_prefix, "--single-writer", "--json")
    done = program(file, *arguments, extra={"STORAGE_EMULATOR_HOST": deaf_server})
    assert done.code == 0, done.err
    assert {step["status"] for step in done.summary.values()} == {"done"}
