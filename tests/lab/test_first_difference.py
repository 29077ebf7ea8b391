"""Where two files begin to differ is told as a reader would look for it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.lab.comparison import Difference
from marin_pipeline.lab.first_difference import Side, first_difference
from marin_pipeline.store.manifest import Entry
from marin_pipeline.store.objects import ObjectStore, open_objects


def sides(folder: Path, name: str, old: bytes, new: bytes) -> tuple[Side, Side]:
    return side(open_objects(str(folder / "old")), name, old), side(open_objects(str(folder / "new")), name, new)


def side(objects: ObjectStore, name: str, data: bytes) -> Side:
    content = ContentHash()
    content.update(data)
    objects.create(f"out/{name}", data)
    return Side(objects, Entry(name, f"out/{name}", len(data), content.hexdigest()))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"one\ntwo\nthree\n", b"one\ntoo\nthree\n", "line 2, byte 5: 'two' → 'too'"),
        (b"one\n", b"one\ntwo\n", "line 2, byte 4: '' → 'two'"),
        ("Grüße\nalt".encode(), "Grüße\nneu".encode(), "line 2, byte 8: 'alt' → 'neu'"),
        (b"\0\1\2\3", b"\0\1\7\3", "byte 2: 02 03 → 07 03"),
        (b"\0\1", b"\0\1\2", "byte 2: the end → 02"),
        (b"same", b"same", "none: the bytes in the stores are equal"),
    ],
)
def test_a_line_of_text_or_a_byte(tmp_path: Path, old: bytes, new: bytes, told: str) -> None:
    assert first_difference(*sides(tmp_path, "file.txt", old, new)) == told


@pytest.mark.parametrize("at", [0, 1, 2**20 - 1, 2**20, 5 * 2**20 + 17])
def test_one_byte_far_into_a_large_file(tmp_path: Path, at: int) -> None:
    old = bytes(range(1, 251)) * (6 * 2**20 // 250)
    new = bytearray(old)
    new[at] ^= 0xFF
    assert f"byte {at:,}: " in first_difference(*sides(tmp_path, "file.bin", old, bytes(new)))


def test_a_field_of_json(tmp_path: Path) -> None:
    old = json.dumps({"loss": {"a": [1, 2, 3]}, "name": "x"}).encode()
    new = json.dumps({"loss": {"a": [1, 2.5, 3]}, "name": "x"}).encode()
    assert first_difference(*sides(tmp_path, "value.json", old, new)) == "value.loss.a[1]: 2 → 2.5"


def test_what_is_called_json_and_is_none_is_compared_by_its_bytes(tmp_path: Path) -> None:
    assert first_difference(*sides(tmp_path, "x.json", b"{", b"[")) == "line 1, byte 0: '{' → '['"


def test_a_row_of_a_table(tmp_path: Path) -> None:
    def table(changed: str) -> bytes:
        rows = pa.table({"id": [str(row) for row in range(3000)], "text": ["a"] * 2000 + [changed] + ["b"] * 999})
        pq.write_table(rows, tmp_path / "table.parquet")
        return (tmp_path / "table.parquet").read_bytes()

    assert first_difference(*sides(tmp_path, "t.parquet", table("x"), table("y"))) == "row 2000, text: 'x' → 'y'"


def test_a_table_with_more_rows_or_other_columns(tmp_path: Path) -> None:
    def table(columns: dict[str, list[int]], compression: str = "snappy") -> bytes:
        pq.write_table(pa.table(columns), tmp_path / "table.parquet", compression=compression)
        return (tmp_path / "table.parquet").read_bytes()

    one, two = table({"a": [1, 2]}), table({"a": [1, 2, 3]})
    assert first_difference(*sides(tmp_path / "rows", "t.parquet", one, two)) == "row 2: one has 2 rows, the other 3"
    other = table({"b": [1, 2]})
    told = first_difference(*sides(tmp_path / "columns", "t.parquet", one, other))
    assert told == "columns: a int64 → b int64"
    zipped = table({"a": [1, 2]}, compression="zstd")
    told = first_difference(*sides(tmp_path / "bytes", "t.parquet", one, zipped))
    assert told == "the rows are equal, and written in other bytes"


def test_bytes_that_are_missing_in_the_store_are_said(tmp_path: Path) -> None:
    old, new = sides(tmp_path, "a.txt", b"a", b"b")
    old.objects.delete("out/a.txt")
    assert "cannot be shown" in first_difference(old, new)


def test_tables_that_were_compared_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[pq.ParquetFile] = []

    class Noted(pq.ParquetFile):
        def __init__(self, source: Path) -> None:
            super().__init__(source)
            opened.append(self)

    def table(values: list[int]) -> bytes:
        pq.write_table(pa.table({"count": values}), tmp_path / "table.parquet")
        return (tmp_path / "table.parquet").read_bytes()

    monkeypatch.setattr(pq, "ParquetFile", Noted)
    assert first_difference(*sides(tmp_path, "t.parquet", table([1]), table([2]))) == "row 0, count: 1 → 2"
    assert [file.closed for file in opened] == [True, True]


def test_sizes_that_round_to_one_text_are_told_in_bytes() -> None:
    def told(*sizes: int) -> str:
        return str(Difference("all.txt", "different", (sizes[0], sizes[1]), ("0", "1")))

    assert told(83_210, 83_240) == "all.txt (83,210 B → 83,240 B)"
    assert told(83_210, 93_210) == "all.txt (83.2 kB → 93.2 kB)"
    assert told(83_210, 83_210) == "all.txt (83.2 kB, other bytes)"
