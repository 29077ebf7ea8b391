"""A user's own text: each row comes out or is counted, and a file that is not whole is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.readers import CHUNK_BYTES, Rejection, Row, RowKeys, read_rows, supported

KEYS = RowKeys()
GOOD = {"text": "A first text.", "name": "one", "where": "web"}


def _read(path: Path, keys: RowKeys = KEYS, name: str | None = None) -> list[Row | Rejection]:
    return list(read_rows(path, name or path.name, keys))


def _reasons(rows: list[Row | Rejection]) -> list[str | None]:
    return [row.reason if isinstance(row, Rejection) else None for row in rows]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "broken_json"),
        (b"[" * 100_000, "broken_json"),
        (b'{"text": "\xff"}', "invalid_utf8"),
        (b"3", "not_an_object"),
        (b'{"content": "x"}', "missing_text"),
        (b'{"text": null}', "missing_text"),
        (b'{"text": 3}', "wrong_type"),
        (b'{"text": ["a"]}', "wrong_type"),
        (b'{"text": ""}', "empty"),
        (b'{"text": " \\n"}', "empty"),
        (b'{"text": "a\\u0000b"}', "nul_byte"),
        (b'{"text": "a\\ud800b"}', "lone_surrogate"),
    ],
)
def test_a_bad_line_is_rejected_by_name_and_row_and_the_next_is_read(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n\n" + json.dumps(GOOD).encode())
    rows = _read(path)
    assert _reasons(rows) == [None, reason, None]
    assert [row.number for row in rows] == [1, 2, 4]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text": "t", "where": "web"}, "missing_id"),
        ({"text": "t", "name": "one"}, "missing_source"),
        ({"text": "t", "name": True, "where": "web"}, "wrong_type"),
        ({"text": "t", "name": "one", "where": 3}, "wrong_type"),
        ({"text": "t", "name": "\ud800", "where": "web"}, "lone_surrogate"),
    ],
)
def test_id_and_source_are_read_by_their_keys_or_rejected(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (GOOD, {"text": "t", "name": 7, "where": "web"}, fields)))
    first, second, third = _read(path, RowKeys("text", "name", "where"))
    assert first == Row(1, "A first text.", "one", "web")
    assert second == Row(2, "t", "7", "web")
    assert isinstance(third, Rejection)
    assert third.reason == reason


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40) | JSON_VALUES.map(lambda value: json.dumps(value).encode()), max_size=10))
def test_no_line_whatever_is_in_it_ends_the_reading(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "data.jsonl"
    content = b"\n".join([json.dumps(GOOD).encode(), *lines])
    path.write_bytes(content)
    assert len(_read(path)) == sum(bool(line.strip()) for line in content.split(b"\n"))


def test_line_separators_inside_a_string_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    text = "one\u2028two\x85three\r\nfour" + "x" * (3 * CHUNK_BYTES)
    path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n" + json.dumps(GOOD) + "\n", newline="\n")
    assert [row.text for row in _read(path) if isinstance(row, Row)] == [text, GOOD["text"]]


@pytest.mark.parametrize(
    "ending", ["jsonl", "json", "jsonl.gz", "json.zst", "txt", "txt.gz", "txt.zst", "parquet", "JSONL.GZ"]
)
def test_every_supported_format_gives_the_same_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"data.{ending}"
    text = "A first text.\nÜber alles, ∑ and 🙂."
    ending = ending.lower()
    if ending == "parquet":
        pq.write_table(pa.table({"text": [text]}), path)
    else:
        content = text.encode() if ending.startswith("txt") else json.dumps({"text": text}).encode()
        compress = {"gz": gzip.compress, "zst": zstandard.compress}.get(ending.rpartition(".")[2], bytes)
        path.write_bytes(compress(content))
    assert supported(path.name)
    assert _read(path) == [Row(1, text, None, None)]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfText")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "Text"}')
    assert _read(tmp_path / "a.txt") == _read(tmp_path / "b.jsonl") == [Row(1, "Text", None, None)]


def test_zstd_frames_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.zst"
    line = json.dumps(GOOD).encode() + b"\n"
    path.write_bytes(zstandard.compress(line) * 3)
    assert len(_read(path)) == 3


@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_a_truncated_file_is_named_and_never_taken_for_a_short_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"data.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": ["text"] * 100}), path)
    else:
        content = "".join(json.dumps({"text": f"{place * 7919}"}) + "\n" for place in range(1000)).encode()
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else zstandard.compress(content))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=rf"data\.{ending}.*again"):
        _read(path)


def test_text_that_is_not_utf8_is_rejected_in_each_format(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    column = pa.array([b"caf\xe9", b"fine"]).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "b.parquet")
    assert _reasons(_read(tmp_path / "a.txt")) == ["invalid_utf8"]
    assert _reasons(_read(tmp_path / "b.parquet")) == ["invalid_utf8", None]


def test_parquet_rows_are_judged_like_lines(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    text = pa.array(["good", None, "", "a\0b"]).dictionary_encode()
    pq.write_table(pa.table({"text": text, "name": [1, 2, 3, 4]}), path)
    rows = _read(path, RowKeys("text", "name"))
    assert rows[0] == Row(1, "good", "1", None)
    assert _reasons(rows) == [None, "missing_text", "empty", "nul_byte"]
    assert _reasons(_read(path, RowKeys("name"))) == ["wrong_type"] * 4


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_wrong_text_key_names_the_keys_that_are_there(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"data.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"content": ["a"], "url": ["b"]}), path)
    else:
        path.write_text('{"content": "a", "url": "b"}\n')
    with pytest.raises(InputError, match=r"'text'.*content, url.*text_key"):
        _read(path)


def test_a_json_array_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('[{"text": "a"}]')
    with pytest.raises(InputError, match=r"JSON array.*one object a line"):
        _read(tmp_path / "data.json")


@pytest.mark.parametrize("name", ["a.csv", "a", "a.gz", "a.parquet.gz", ".txt"])
def test_other_files_are_not_supported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    assert not supported(name)
    with pytest.raises(InputError, match="supported are"):
        _read(tmp_path / name)
