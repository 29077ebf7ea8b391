"""A user's own text, read row by row: JSON lines, Parquet and plain text, the first and last also as .gz and .zst.

Every row comes out, as text or as a rejection with a named reason; a row never ends the reading. A file that cannot
be read as a whole (truncated, not what its name says) is an error that names it, for half a file is not what the user
meant.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import excerpt, fault, text_bytes

COMPRESSIONS = (".gz", ".zst")
FORMATS = (".jsonl", ".json", ".txt", ".parquet")
CHUNK_BYTES = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RowKeys:
    """Which fields of a JSON object, or columns of a Parquet file, mean what."""

    text: str = "text"
    """The text of the document."""
    id: str | None = None
    """Its name in its source; without one, it is named by file and row."""
    source: str | None = None
    """Its source; without one, the source that the step was given."""


class Row(NamedTuple):
    """A row whose text can be a document."""

    number: int
    """Counted from 1."""
    text: str
    id: str | None
    source: str | None


class Rejection(NamedTuple):
    """A row that cannot become a document."""

    number: int
    reason: str
    """`broken_json`, `empty`, `invalid_utf8`, `lone_surrogate`, `missing_id`, `missing_source`, `missing_text`,
    `not_an_object`, `nul_byte` or `wrong_type`."""
    detail: str
    """What was found there."""
    bytes: int
    """UTF-8 bytes of its text, as far as there is one."""


def supported(name: str) -> bool:
    """Whether a file of this name can be read."""
    suffix, compression = _format(name)
    return suffix in FORMATS and not (suffix == ".parquet" and compression)


def read_rows(path: str | os.PathLike[str], name: str, keys: RowKeys) -> Iterator[Row | Rejection]:
    """The rows of a file, in order.

    Args:
        path: where the file lies.
        name: its name for the user; its endings say how it is read.
        keys: fields or columns; plain text has none, and is one row.

    Raises:
        InputError: when the file cannot be read, or when not one of its rows has the text key.
    """
    suffix, compression = _format(name)
    if not supported(name):
        raise InputError(
            f"{name}: cannot be read by its name; supported are {', '.join(FORMATS)}, "
            "all but .parquet also with .gz or .zst"
        )
    if suffix == ".parquet":
        return _parquet_rows(path, name, keys)
    chunks = _chunks(path, name, compression)
    return _text_row(chunks) if suffix == ".txt" else _json_rows(chunks, name, keys)


def _format(name: str) -> tuple[str, str]:
    pure = PurePosixPath(name.lower())
    compression = pure.suffix if pure.suffix in COMPRESSIONS else ""
    return PurePosixPath(pure.stem if compression else pure.name).suffix, compression


def _chunks(path: str | os.PathLike[str], name: str, compression: str) -> Iterator[bytes]:
    """The decompressed bytes of a file."""
    import zstandard

    try:
        if compression == ".zst":
            yield from _zstd_chunks(path)
            return
        with gzip.open(path, "rb") if compression == ".gz" else open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{name}: cannot be read to its end ({error}); fetch or write the file again") from error


def _zstd_chunks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Frame by frame: the library's own stream readers take a truncated file for a whole one."""
    import zstandard

    frame = None
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            while chunk:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the last zstd frame is not complete")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines by line feed alone: U+2028 and others may stand inside a JSON string."""
    tail: list[bytes] = []
    for chunk in chunks:
        head, *rest = chunk.split(b"\n")
        tail.append(head)
        if rest:
            yield b"".join(tail)
            yield from rest[:-1]
            tail = [rest[-1]]
    yield b"".join(tail)


def _judged(number: int, text: Any, id: Any, source: Any, keys: RowKeys) -> Row | Rejection:
    """A row, if its fields have the right types and its text can be a document."""
    for field, key, value in (("text", keys.text, text), ("id", keys.id, id), ("source", keys.source, source)):
        if key is not None and value is None:
            return Rejection(number, f"missing_{field}", f"no value under {key!r}", 0)
        if field == "id" and type(value) is int:
            id = value = str(value)
        if key is not None and not isinstance(value, str):
            return Rejection(number, "wrong_type", f"{key!r} is of type {type(value).__name__}", 0)
    reason = fault(text)
    if reason is None and any(fault(name) == "lone_surrogate" for name in (id, source) if name is not None):
        reason = "lone_surrogate"
    return Rejection(number, reason, excerpt(text), text_bytes(text)) if reason else Row(number, text, id, source)


def _text_row(chunks: Iterable[bytes]) -> Iterator[Row | Rejection]:
    content = b"".join(chunks).removeprefix(BYTE_ORDER_MARK)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        yield Rejection(1, "invalid_utf8", _undecodable(content, error), len(content))
    else:
        yield _judged(1, text, None, None, RowKeys())


def _undecodable(content: bytes, error: UnicodeDecodeError) -> str:
    around = content[max(0, error.start - 40) : error.start + 40].decode("utf-8", "backslashreplace")
    return f"byte {error.start}: {around}"


def _json_rows(chunks: Iterable[bytes], name: str, keys: RowKeys) -> Iterator[Row | Rejection]:
    seen: set[str] = set()
    objects = with_text = 0
    for number, line in enumerate(_lines(chunks), 1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
            if line.lstrip().startswith(b"["):
                raise InputError(
                    f"{name}: a JSON array; write one object a line instead (jq -c '.[]' FILE > FILE.jsonl)"
                )
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            yield Rejection(number, "invalid_utf8", _undecodable(line, error), len(line))
            continue
        except (ValueError, RecursionError) as error:
            yield Rejection(number, "broken_json", f"{error}: {line[:80].decode('utf-8', 'backslashreplace')}", 0)
            continue
        if not isinstance(row, dict):
            yield Rejection(number, "not_an_object", line[:80].decode("utf-8", "backslashreplace"), 0)
            continue
        objects += 1
        with_text += keys.text in row
        if len(seen) < 20:
            seen.update(row)
        text, id, source = (None if key is None else row.get(key) for key in (keys.text, keys.id, keys.source))
        yield _judged(number, text, id, source, keys)
    if objects and not with_text:
        raise _no_text_key(name, keys, seen)


def _no_text_key(name: str, keys: RowKeys, seen: Iterable[str]) -> InputError:
    there = excerpt(", ".join(sorted(seen))) or "none"
    return InputError(
        f"{name}: no row has the text key {keys.text!r}; keys there: {there}; name the right one with text_key=..."
    )


def _parquet_rows(path: str | os.PathLike[str], name: str, keys: RowKeys) -> Iterator[Row | Rejection]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(os.fspath(path)) as file:
            present = file.schema_arrow.names
            if keys.text not in present:
                raise _no_text_key(name, keys, present)
            wanted = [key for key in (keys.text, keys.id, keys.source) if key in present]
            twice = [key for key in wanted if present.count(key) > 1]
            if twice:
                raise InputError(
                    f"{name}: has {present.count(twice[0])} columns named {twice[0]!r}; rename or drop one"
                )
            number = 0
            for batch in file.iter_batches(256, columns=wanted, use_threads=False):
                columns = [
                    _values(batch.column(key)) if key in wanted else [None] * len(batch)
                    for key in (keys.text, keys.id, keys.source)
                ]
                for text, id, source in zip(*columns, strict=True):
                    number += 1
                    undecodable = next((value for value in (text, id, source) if isinstance(value, _Undecodable)), None)
                    if undecodable is not None:
                        yield Rejection(number, "invalid_utf8", undecodable.detail, undecodable.bytes)
                    else:
                        yield _judged(number, text, id, source, keys)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name}: cannot be read as Parquet ({error}); fetch or write the file again") from error


class _Undecodable(NamedTuple):
    detail: str
    bytes: int


def _values(column: Any) -> list[Any]:
    """Python values of an Arrow column; Arrow does not check that its strings are UTF-8, so this does."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.to_pylist()
    return [None if value is None else _decoded(value) for value in column.cast(pa.large_binary()).to_pylist()]


def _decoded(value: bytes) -> str | _Undecodable:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return _Undecodable(_undecodable(value, error), len(value))
