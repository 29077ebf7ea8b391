"""Reading from real servers: by ranges, through the cache, and never other bytes than were committed."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store.manifest import Entry, Manifest
from marin_pipeline.store.objects import ObjectStore, Wanted, open_objects
from marin_pipeline.store.output import SMALL, FileSet
from tests.stores import new_prefix

SIZE = SMALL + 3_456_789


@pytest.fixture(params=["gs", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    return open_objects(new_prefix(request, request.param))


def put(objects: ObjectStore, name: str, data: bytes) -> Entry:
    writer = objects.writer(f"a/{name}")
    writer.write(data)
    return Entry(name, f"a/{name}", *writer.close())


def files(objects: ObjectStore, *entries: Entry) -> FileSet:
    return FileSet(objects, Manifest(tuple(sorted(entries, key=lambda entry: entry.path))), "the output of x")


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "objects").glob("*/*"))


def test_a_large_file_is_read_by_ranges(objects: ObjectStore, tmp_path: Path) -> None:
    data = random.Random(0).randbytes(SIZE)
    with files(objects, put(objects, "x", data)).open("x") as file:
        assert file.read() == data
        for position in (SIZE - 10, 0, SIZE // 2, SIZE):
            file.seek(position)
            assert file.read(100) == data[position : position + 100]
    assert kept(tmp_path) == []


def test_a_replaced_file_is_told_by_whoever_reads_all_of_it_or_fetches_it(objects: ObjectStore, tmp_path: Path) -> None:
    data = bytearray(random.Random(0).randbytes(SIZE))
    large, small = put(objects, "large", bytes(data)), put(objects, "small", bytes(data[:100]))
    data[99] ^= 1
    put(objects, "large", bytes(data))
    put(objects, "small", bytes(data[:100]))
    found = files(objects, large, small)
    for name in ("large", "small"):
        with pytest.raises(CorruptOutput, match=rf"/a/{name}: its bytes are not those that were committed"):
            found.open(name).read()
        with pytest.raises(CorruptOutput, match=rf"/a/{name}: its bytes are not those that were committed"):
            found.local(name)
    objects.delete("a/large")
    for call in (found.open, found.local):
        with pytest.raises(CorruptOutput, match=r"/a/large: the committed file .*missing|no such object"):
            call("large")
    assert kept(tmp_path) == []


def test_parquet_is_read_by_ranges(objects: ObjectStore, tmp_path: Path) -> None:
    table = pa.table({"n": range(1_500_000), "m": [number * 7919 % 1_500_007 for number in range(1_500_000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100_000, use_dictionary=False, compression="none")
    entry = put(objects, "x.parquet", sink.getvalue())
    assert entry.size > SMALL
    with files(objects, entry).open("x.parquet") as file, pq.ParquetFile(file) as parquet:
        assert parquet.read_row_group(7, columns=["n"])["n"].to_pylist() == [*range(700_000, 800_000)]
    with files(objects, entry).open("x.parquet") as file:
        assert pq.read_table(file).equals(table)
    assert kept(tmp_path) == []


def test_many_files_of_all_sizes_are_fetched_together(objects: ObjectStore, tmp_path: Path) -> None:
    chance = random.Random(3)
    data = {f"parts/{number:02}": chance.randbytes(size) for number, size in enumerate([0, 1, 70 * 2**20] + [500] * 40)}
    found = files(objects, *(put(objects, name, each) for name, each in data.items()))
    folder = found.local("parts")
    assert {f"parts/{path.name}": path.read_bytes() for path in folder.iterdir()} == data
    assert len(kept(tmp_path)) == len(data)
    with pytest.raises(FileNotFoundError) as told:
        objects.fetch([Wanted("a/nothing", 1, "0" * 64)])
    assert told.value.filename == "a/nothing"
