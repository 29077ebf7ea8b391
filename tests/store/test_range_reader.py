"""A file of a remote store is read without fetching it whole, and wrong bytes are told before the last are handed
out.
"""

from __future__ import annotations

import io
import random
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_pipeline import Artifact
from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.manifest import Entry, Manifest
from marin_pipeline.store.objects import NoAnswer
from marin_pipeline.store.output import SMALL, CommittedOutput, FileSet
from marin_pipeline.store.pages import write_manifest
from marin_pipeline.store.range_reader import BUFFER, JUMP, MOST, RangeReader
from tests.store.far_objects import FarObjects
from tests.store.test_commit import COMMIT, ID, KEY

SIZE = SMALL + 12_345_678


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarObjects:
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    return FarObjects(tmp_path / "far")


@pytest.fixture
def data() -> bytes:
    return random.Random(0).randbytes(SIZE)


def put(objects: FarObjects, path: str, data: bytes) -> Entry:
    content = ContentHash()
    content.update(data)
    writer = objects.writer(path)
    writer.write(data)
    writer.close()
    objects.calls.clear()
    return Entry(path.rpartition("/")[2], path, len(data), content.hexdigest())


def ahead_of(file: BinaryIO) -> Future[bytes]:
    """What a file's reader fetches ahead."""
    assert isinstance(file, io.BufferedReader)
    assert isinstance(file.raw, RangeReader)
    assert file.raw._ahead is not None
    return file.raw._ahead


def opened(objects: FarObjects, *entries: Entry) -> BinaryIO:
    """The first of them, as its reader opens it."""
    return FileSet(objects, Manifest(entries), "the output of x").open(entries[0].path)


def calls(objects: FarObjects) -> list[str]:
    found = [operation for operation, _ in objects.calls]
    objects.calls.clear()
    return found


def test_a_large_file_is_read_by_ranges_and_not_fetched(objects: FarObjects, data: bytes, tmp_path: Path) -> None:
    with opened(objects, put(objects, "a/x", data)) as file:
        assert file.read(3) == data[:3]
        assert calls(objects) in (["blocks"], ["blocks"] * 2)  # the piece, and the next one
        assert file.read() == data[3:]
        assert file.read() == b""
    assert 3 <= len(calls(objects)) <= 6
    assert not (tmp_path / "cache" / "objects").exists()


def test_any_way_of_reading_gives_the_bytes_that_are_there(objects: FarObjects, data: bytes) -> None:
    chance = random.Random(1)
    with opened(objects, put(objects, "a/x", data)) as file:
        position = 0
        for _ in range(300):
            what = chance.choice(("seek", "back", "read", "read", "line", "into", "end"))
            if what == "seek":
                position = file.seek(chance.randrange(SIZE + 10))
            elif what == "back":
                position = file.seek(-min(position, chance.randrange(10_000)), io.SEEK_CUR)
            elif what == "end":
                position = file.seek(-chance.randrange(100_000), io.SEEK_END)
            size = chance.choice((1, 100, BUFFER, JUMP + 1, MOST + 1)) if what in ("read", "into") else 0
            expected = data[position : position + size]
            if what == "into":
                buffer = bytearray(size)
                count = file.readinto(buffer)  # pyright: ignore[reportAttributeAccessIssue]
                assert (count, bytes(buffer[:count])) == (len(expected), expected)
            elif what == "line":
                expected = data[position : data.find(b"\n", position) + 1 or SIZE]
                assert file.readline() == expected
            else:
                assert file.read(size) == expected
            position += len(expected)
            assert file.tell() == position


def test_a_small_file_and_one_that_is_at_hand_are_read_from_the_cache(objects: FarObjects, data: bytes) -> None:
    small, large = put(objects, "a/small", data[:SMALL]), put(objects, "a/large", data)
    assert opened(objects, small).read() == data[:SMALL]
    assert opened(objects, small).read() == data[:SMALL]
    assert calls(objects) == ["download"]
    FileSet(objects, Manifest((large,)), "x").local("large")
    assert calls(objects) == ["download"]
    assert opened(objects, large).read() == data
    assert calls(objects) == []


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
@pytest.mark.parametrize("step", [1_000_000, 7_000_000, -1])
def test_who_reads_to_the_end_never_gets_the_last_of_wrong_bytes(
    objects: FarObjects, data: bytes, tmp_path: Path, at: int, step: int
) -> None:
    entry = put(objects, "a/x", data)
    changed = bytearray(data)
    changed[at] ^= 1
    (tmp_path / "far" / "a" / "x").write_bytes(changed)
    got = 0
    with opened(objects, entry) as file:
        with pytest.raises(CorruptOutput, match=r"a/x: its bytes are not those that were committed .*--force"):  # noqa: PT012
            while block := file.read(step):
                got += len(block)
        assert got < SIZE
        with pytest.raises(CorruptOutput, match="sha256 differs"):
            file.read(1)


def test_a_file_of_another_size_or_none_is_told_when_it_is_opened(
    objects: FarObjects, data: bytes, tmp_path: Path
) -> None:
    entry = put(objects, "a/x", data)
    (tmp_path / "far" / "a" / "x").write_bytes(data[:-1])
    with pytest.raises(CorruptOutput, match=rf"a/x: has {SIZE - 1} bytes, but {SIZE} were committed"):
        opened(objects, entry)
    (tmp_path / "far" / "a" / "x").unlink()
    with pytest.raises(CorruptOutput, match="a/x: the committed file is missing"):
        opened(objects, entry)


def test_a_file_that_shrinks_or_goes_while_it_is_read_is_told(objects: FarObjects, data: bytes, tmp_path: Path) -> None:
    entry = put(objects, "a/x", data)
    for problem in ("ends at byte", "is missing"):
        with opened(objects, entry) as file:
            file.read(10)
            wait([ahead_of(file)])  # else it could be in the middle of the file that is changed
            if problem == "is missing":
                (tmp_path / "far" / "a" / "x").unlink()
            else:
                (tmp_path / "far" / "a" / "x").write_bytes(data[: SMALL + 5])
            with pytest.raises(CorruptOutput, match=problem):
                file.read()
        (tmp_path / "far" / "a" / "x").write_bytes(data)


def test_where_the_store_says_something_else_of_the_bytes_the_whole_of_them_decides(
    objects: FarObjects, data: bytes
) -> None:
    """As when an output was copied from another kind of store, whose checksums are others."""
    entry = replace(put(objects, "a/x", data), checksum="crc32c of another store")
    with opened(objects, entry) as file:
        assert file.read() == data
    assert calls(objects) == ["download"]


def test_a_break_in_the_line_is_not_seen_by_the_reader(
    objects: FarObjects, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, plain, count = put(objects, "a/x", data), objects._blocks, 0

    def broken(path: str, start: int, stop: int | None):
        nonlocal count
        count += 1
        for block in plain(path, start, stop):
            yield block
            if count % 2:
                raise NoAnswer("the connection was broken")

    monkeypatch.setattr(objects, "_blocks", broken)
    with opened(objects, entry) as file:
        assert file.read() == data


def test_who_jumps_about_is_fetched_little_more_than_is_read(
    objects: FarObjects, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pieces after each jump, as the columns of a table are read."""
    entry, plain, sizes = put(objects, "a/x", data), objects.blocks, list[int]()

    def blocks(path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        assert stop is not None
        sizes.append(stop - start)
        return plain(path, start, stop)

    monkeypatch.setattr(objects, "blocks", blocks)
    chance, size = random.Random(0), 2 * JUMP
    with opened(objects, entry) as file:
        for _ in range(40):
            at = file.seek(chance.randrange(SIZE - size))
            assert file.read(JUMP) + file.read(JUMP) == data[at : at + size]
    assert sum(sizes) < 2 * 40 * size


def test_memory_is_bounded_whatever_the_size(objects: FarObjects) -> None:
    entry = put(objects, "a/x", bytes(200 * 2**20))
    tracemalloc.start()
    with opened(objects, entry) as file:
        while file.read(2**20):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * MOST


def test_an_output_is_read_as_text_and_by_pyarrow(objects: FarObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_pipeline.store.output.SMALL", 1000)
    table = pa.table({"n": range(500_000), "text": [f"{number:05x}" for number in range(500_000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100_000)
    out = f"{layout.attempt(ID, KEY, 'one')}/out"
    text = "grün\n".encode() * 1000
    entries = [put(objects, f"{out}/table.parquet", sink.getvalue()), put(objects, f"{out}/text.txt", text)]
    digest = write_manifest(objects, ID, KEY, "one", Manifest(tuple(entries)))
    commit: Commit = replace(COMMIT, attempt="one", manifest=digest)
    artifact: Artifact[None] = Artifact(KEY, output=CommittedOutput(objects, ID, KEY, commit))
    with (artifact / "text.txt").open("r") as text:
        assert [*text] == ["grün\n"] * 1000
    assert "blocks" in calls(objects)
    with (artifact / "table.parquet").open() as file, pq.ParquetFile(file) as parquet:
        assert parquet.read_row_group(2, columns=["n"])["n"].to_pylist() == [*range(200_000, 300_000)]
        assert parquet.read().equals(table)
    assert set(calls(objects)) == {"blocks"}
    with pytest.raises(InputError, match=r"has no file 'tables'; it has table.parquet, text.txt"):
        (artifact / "tables").open()
    with pytest.raises(InputError, match="can only be read"):
        (artifact / "text.txt").open("w")


def test_a_folder_is_fetched_in_one_batch(objects: FarObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        replace(put(objects, f"a/parts/{number}", b"%d" % number), path=f"parts/{number}") for number in range(9)
    ]
    batches: list[int] = []
    plain = objects.fetch
    monkeypatch.setattr(objects, "fetch", lambda wanted: batches.append(len(wanted)) or plain(wanted))
    folder = FileSet(objects, Manifest(tuple(entries)), "x").local("parts")
    assert [path.read_text() for path in sorted(folder.iterdir())] == [str(number) for number in range(9)]
    assert batches == [9]
