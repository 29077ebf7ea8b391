"""What every object store promises. A store's own tests are this class with the store as its fixture `objects`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest

from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store.lease import Waiting
from marin_pipeline.store.manifest import publish_all
from marin_pipeline.store.objects import FileToPublish, Found, ObjectInfo, ObjectStore, Wanted, put, together

AT_ONCE = 8
"""Threads that race."""


def raced(call: Callable[[int], Any]) -> list[Any]:
    """What a call gives in threads that make it at the same moment; each gets its number."""
    start = Barrier(AT_ONCE)

    def run(number: int) -> Any:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, range(AT_ONCE)))


def read(objects: ObjectStore, path: str) -> Found:
    found = objects.read(path)
    assert found is not None, path
    return found


class Conformance:
    """The promises."""

    suite = "conformance"
    """What its tests are counted as."""

    rounds = 30
    """How often threads race in a test: fewer where a server takes a second to settle a race."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError

    # Objects that are not there --------------------------------------------------------------------------------------

    def test_an_object_that_is_not_there_reads_as_none(self, objects: ObjectStore) -> None:
        assert objects.read("a/b.json") is None
        assert objects.list("a") == []
        assert objects.names("a") == []

    def test_an_object_that_is_larger_than_it_can_be_is_not_read(self, objects: ObjectStore) -> None:
        for path, size in (("a/small", 10), ("a/large", 3_000_000)):
            objects.create(path, bytes(size))
            found = objects.read(path, size)
            assert found is not None
            assert len(found.data) == size
            with pytest.raises(CorruptOutput, match=rf"{path}: has more than {size - 1:,} bytes, which no such"):
                objects.read(path, size - 1)

    def test_a_record_that_could_not_be_read_back_is_not_written(self, objects: ObjectStore) -> None:
        with pytest.raises(StoreError, match="a/b: would have 11 bytes, more than the 10 that are read back"):
            put(objects, "a/b", bytes(11), 10)
        assert objects.read("a/b") is None
        objects.create("a/b", bytes(11))
        with pytest.raises(CorruptOutput, match="has more than 10 bytes"):
            put(objects, "a/b", b"other", 10)

    def test_a_local_file_of_a_missing_object_is_refused(self, objects: ObjectStore) -> None:
        with pytest.raises(FileNotFoundError):
            objects.fetch([Wanted("nothing", 0, "")])
        with pytest.raises(FileNotFoundError):
            list(objects.blocks("nothing"))

    @pytest.mark.parametrize("size", [0, 10, 3_000_000])
    def test_a_range_has_the_bytes_that_are_there_and_no_others(self, objects: ObjectStore, size: int) -> None:
        data = bytes(number % 251 for number in range(size))
        objects.create("a/b", data)
        for start, stop in ((0, 1), (2, 7), (3, 3), (7, 3), (size, None), (size + 5, None), (size - 2, size + 9)):
            if start >= 0:
                assert b"".join(objects.blocks("a/b", start, stop)) == data[start:stop], (start, stop)
        for start, stop in ((0, 0), (5, 5), (7, 3), (3, None), (3, 9)):
            with pytest.raises(FileNotFoundError):
                list(objects.blocks("a/nothing", start, stop))

    def test_swap_of_an_object_that_is_not_there_writes_nothing(self, objects: ObjectStore) -> None:
        assert not objects.swap("nowhere/lease.json", b"x", "1")
        assert objects.read("nowhere/lease.json") is None
        version = objects.create("lease.json", b"x")
        assert version is not None
        objects.delete("lease.json")
        assert objects.swap("lease.json", b"y", version) is None
        assert objects.read("lease.json") is None

    # Create ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("data", [b"", b"\x00\xff", b"x" * 3_000_000], ids=["empty", "binary", "3 MB"])
    def test_create_writes_once_and_never_again(self, objects: ObjectStore, data: bytes) -> None:
        assert objects.create("a/b.json", data) is not None
        assert objects.create("a/b.json", b"second") is None
        assert objects.create("a/b.json", data) is None
        assert read(objects, "a/b.json").data == data

    def test_of_those_that_create_at_the_same_time_one_wins_and_its_bytes_are_there(self, objects: ObjectStore) -> None:
        for round in range(self.rounds):
            path = f"commits/{round}.json"
            versions = raced(lambda number: objects.create(path, f"{number}".encode()))  # noqa: B023 - called at once
            (winner,) = [number for number, version in enumerate(versions) if version is not None]
            assert read(objects, path) == Found(f"{winner}".encode(), versions[winner])

    def test_put_tells_who_was_first(self, objects: ObjectStore) -> None:
        assert put(objects, "a", b"mine").data == b"mine"
        assert put(objects, "a", b"theirs").data == b"mine"
        assert put(objects, "a", b"mine") == read(objects, "a")

    def test_all_who_put_at_the_same_time_are_told_the_same(self, objects: ObjectStore) -> None:
        for round in range(-(-self.rounds // 3)):
            told = raced(lambda number: put(objects, f"{round}", f"{number}".encode()))  # noqa: B023 - called at once
            assert set(told) == {read(objects, f"{round}")}

    def test_what_was_deleted_can_be_created(self, objects: ObjectStore) -> None:
        objects.create("a", b"1")
        objects.delete("a")
        assert objects.create("a", b"2") is not None
        assert read(objects, "a").data == b"2"

    # Compare and swap ------------------------------------------------------------------------------------------------

    def test_the_version_that_a_write_returns_is_the_one_that_is_read_and_that_swap_accepts(
        self, objects: ObjectStore
    ) -> None:
        version = objects.create("lease.json", b"0")
        for number in range(1, 5):
            assert version is not None
            assert read(objects, "lease.json").version == version
            earlier, version = version, objects.swap("lease.json", f"{number}".encode(), version)
            assert version is not None
            assert version != earlier
            assert read(objects, "lease.json") == Found(f"{number}".encode(), version)
            assert objects.swap("lease.json", b"too late", earlier) is None
            assert read(objects, "lease.json") == Found(f"{number}".encode(), version)

    def test_a_published_object_has_a_version_that_swap_accepts(self, objects: ObjectStore) -> None:
        folder = objects.folder("a/out")
        (folder / "x").write_bytes(b"1")
        publish_all(objects, "a/out")
        assert objects.create("a/out/x", b"2") is None
        assert objects.swap("a/out/x", b"2", read(objects, "a/out/x").version) is not None
        assert read(objects, "a/out/x").data == b"2"

    def test_of_those_that_swap_one_version_at_the_same_time_one_wins(self, objects: ObjectStore) -> None:
        version = objects.create("lease.json", b"start")
        for round in range(self.rounds):
            seen = version or ""
            versions = raced(lambda number: objects.swap("lease.json", f"{round} {number}".encode(), seen))  # noqa: B023
            (winner,) = [number for number, each in enumerate(versions) if each is not None]
            version = versions[winner]
            assert read(objects, "lease.json") == Found(f"{round} {winner}".encode(), version)

    def test_no_update_is_lost(self, objects: ObjectStore) -> None:
        objects.create("counter", b"0")

        wanted = -(-self.rounds // 3)

        def count(number: int) -> None:
            done = 0
            while done < wanted:
                found = read(objects, "counter")
                done += objects.swap("counter", str(int(found.data) + 1).encode(), found.version) is not None

        raced(count)
        assert int(read(objects, "counter").data) == wanted * AT_ONCE

    def test_a_lease_that_many_want_at_the_same_time_has_one_holder(self, objects: ObjectStore) -> None:
        for fence in range(1, 1 + -(-self.rounds // 3)):
            leases = raced(lambda number: Waiting(objects, "lease.json", 1000).attempt())
            (lease,) = [each for each in leases if each is not None]
            assert lease.fence == fence
            assert lease.renew()
            lease.release()

    # Lists, folders, deletion ----------------------------------------------------------------------------------------

    def test_list_has_all_objects_below_a_folder_with_their_sizes(self, objects: ObjectStore) -> None:
        for path, data in (("a/z.txt", b"12"), ("a/b/c.txt", b"1"), ("ab/d.txt", b"")):
            objects.create(path, data)
        assert [(info.path, info.size) for info in objects.list("a")] == [("a/b/c.txt", 1), ("a/z.txt", 2)]
        assert objects.names("a") == ["b", "z.txt"]

    def test_what_is_said_of_one_object_is_what_a_listing_says(self, objects: ObjectStore) -> None:
        for path, data in (("a/b/ü.txt", b"12"), ("a/b/c/d", b""), ("e", b"1")):
            objects.create(path, data)
        for info in [*objects.list("a/b"), ObjectInfo("e", 1)]:
            found = objects.info(info.path)
            assert found is not None
            assert (found.path, found.size) == (info.path, info.size)
            assert info.path == "e" or found.checksum == info.checksum
        for path in ("nothing", "a/nothing", "a/b", "a/b/c"):
            assert objects.info(path) is None

    def test_forgotten_scratch_is_empty_and_what_was_published_stays(self, objects: ObjectStore) -> None:
        (objects.folder("a/out") / "x").write_bytes(b"1")
        publish_all(objects, "a/out")
        objects.forget("a/out")
        assert objects.in_place or not list(objects.folder("a/out").iterdir())
        assert read(objects, "a/out/x").data == b"1"

    def test_what_was_written_is_read_and_listed_at_once_by_everybody(self, objects: ObjectStore) -> None:
        def write(number: int) -> None:
            for index in range(10):
                path = f"shards/{number}/{index}"
                version = objects.create(path, path.encode())
                assert read(objects, path) == Found(path.encode(), version or "")
                assert path in [info.path for info in objects.list("shards")]
                assert f"{index}" in objects.names(f"shards/{number}")

        raced(write)
        assert len(objects.list("shards")) == 10 * AT_ONCE
        together(objects, *(lambda number=number: objects.delete(f"shards/{number}") for number in range(AT_ONCE)))
        assert objects.list("shards") == []
        assert objects.read("shards/0/0") is None

    def test_delete_removes_an_object_or_a_folder_and_nothing_else(self, objects: ObjectStore) -> None:
        for path in ("a/b/c", "a/b/d", "a/bc"):
            objects.create(path, b"x")
        objects.delete("a/b")
        objects.delete("a/not there")
        assert [info.path for info in objects.list("a")] == ["a/bc"]
        objects.delete("a/bc")
        assert objects.read("a/bc") is None

    def test_many_may_delete_one_folder_at_the_same_time(self, objects: ObjectStore) -> None:
        for round in range(-(-self.rounds // 3)):
            for number in range(20):
                objects.create(f"work/{round}/{number % 5}/{number}", b"x")
            raced(lambda number: objects.delete(f"work/{round}"))  # noqa: B023 - called at once
            assert objects.list(f"work/{round}") == []

    def test_published_files_are_objects_with_the_same_bytes(self, objects: ObjectStore) -> None:
        folder = objects.folder("attempts/1/out")
        names = ["deep/odd  name '\"?#%2F.txt", "deep/er/ünï", "empty", "-rf", "a\\b"]
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(name.encode() if name != "empty" else b"")
        publish_all(objects, "attempts/1/out")
        listed = {info.path: info.size for info in objects.list("attempts/1/out")}
        assert listed.keys() == {f"attempts/1/out/{name}" for name in names}
        for name in names:
            path = f"attempts/1/out/{name}"
            data = b"" if name == "empty" else name.encode()
            assert listed[path] == len(data)
            assert b"".join(objects.blocks(path)) == data
            assert read(objects, path).data == data

    @pytest.mark.parametrize(
        ("said", "there"),
        [(10, 20), (20, 10), (10, 0), (10, 9 * 2**20), (9 * 2**20, 9 * 2**20 + 1), (9 * 2**20, 8 * 2**20)],
    )
    def test_a_file_that_is_written_while_it_is_published_is_refused(
        self, objects: ObjectStore, said: int, there: int
    ) -> None:
        file = objects.folder("a/out") / "log"
        file.write_bytes(bytes(there))
        with pytest.raises(StoreError, match="log: was written while it was published; end what writes it"):
            objects.publish("a/out", [FileToPublish("log", file, said)])
        assert objects.in_place or objects.read("a/out/log") is None

    # Writers ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("end", ["close", "abort"])
    def test_a_writer_that_has_ended_takes_nothing_more(self, objects: ObjectStore, end: str) -> None:
        writer = objects.writer("a/stream")
        assert writer.write(b"12") == 2
        assert objects.list("a") == []
        getattr(writer, end)()
        for call in (lambda: writer.write(b"3"), writer.close):
            with pytest.raises(ValueError, match="takes nothing more"):
                call()
        writer.abort()
        found = objects.read("a/stream")
        assert (None if found is None else found.data) == (b"12" if end == "close" else None)

    def test_the_end_of_a_block_ends_its_writer(self, objects: ObjectStore) -> None:
        with objects.writer("a/whole") as writer:
            writer.write(b"12")
        with suppress(ZeroDivisionError), objects.writer("a/none") as writer:
            writer.write(b"12")
            _ = 1 // 0
        with objects.writer("a/closed") as writer:
            assert writer.close().size == 0
        with objects.writer("a/aborted") as writer:
            writer.abort()
        assert [(info.path, info.size) for info in objects.list("a")] == [("a/closed", 0), ("a/whole", 2)]

    def test_what_is_published_again_is_replaced_and_the_rest_stays(self, objects: ObjectStore) -> None:
        folder = objects.folder("a/records")
        (folder / "log").write_bytes(b"1")
        publish_all(objects, "a/records")
        objects.create("a/manifest.json", b"{}")
        (folder / "log").write_bytes(b"22")
        publish_all(objects, "a/records")
        assert b"".join(objects.blocks("a/records/log")) == b"22"
        assert [(info.path, info.size) for info in objects.list("a")] == [("a/manifest.json", 2), ("a/records/log", 2)]

    def test_an_empty_folder_is_no_object(self, objects: ObjectStore) -> None:
        publish_all(objects, "a/out")
        assert objects.list("a") == []
