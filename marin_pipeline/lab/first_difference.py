"""Where two files begin to differ: the field of JSON, the row of a table, the line of a text, else the byte.

For people, so that a reproduction that came out otherwise can be followed to its cause. Files are read in blocks, and
whole only where they are small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from marin_pipeline.core.errors import MarinError
from marin_pipeline.run.explain import changes, shown
from marin_pipeline.store.manifest import Entry
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import verified

READ_WHOLE = 64 * 2**20
"""Bytes of a JSON file or a table that is read whole; of a larger one the byte is told."""

LINE = 160
"""Characters of a line that are shown, from a little before the difference on."""

BEFORE = 60
"""Bytes of a line before the difference that are kept to be shown."""


@dataclass(frozen=True)
class Side:
    """A file of an output, in its store."""

    objects: ObjectStore
    entry: Entry


def first_difference(old: Side, new: Side) -> str:
    """Where two files of one path differ first, for people; what stands in the way where that cannot be told."""
    try:
        found = None
        if max(old.entry.size, new.entry.size) <= READ_WHOLE:
            if old.entry.path.endswith(".json"):
                found = _in_json(old, new)
            elif old.entry.path.endswith(".parquet"):
                found = _in_table(old, new)
        return found or _in_bytes(_blocks(old), _blocks(new)) or "none: the bytes in the stores are equal"
    except (MarinError, OSError) as error:
        return f"cannot be shown: {error}"


def _blocks(side: Side) -> Iterator[bytes]:
    return side.objects.blocks(side.entry.object)


def _in_json(old: Side, new: Side) -> str | None:
    try:
        trees = [json.loads(verified(side.objects, side.entry).read_bytes()) for side in (old, new)]
    except (ValueError, RecursionError):
        return None
    change = next(changes(trees[0], trees[1], "value"), None)
    return None if change is None else f"{change.path}: {shown(change.old)} → {shown(change.new)}"


def _in_table(old: Side, new: Side) -> str | None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return None
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(pq.ParquetFile(verified(side.objects, side.entry))) for side in (old, new)]
            if files[0].schema_arrow != files[1].schema_arrow:
                return f"columns: {_columns(files[0])} → {_columns(files[1])}"
            row = 0
            for left, right in zip_longest(*(file.iter_batches(batch_size=1024) for file in files)):
                if left is None or right is None or not left.equals(right):
                    return _in_rows(left, right, row, [file.metadata.num_rows for file in files])
                row += left.num_rows
    except pa.ArrowException:
        return None
    return "the rows are equal, and written in other bytes"


def _columns(file: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in file.schema_arrow)


def _in_rows(left: Any, right: Any, row: int, counts: list[int]) -> str:
    for number, (one, two) in enumerate(zip_longest(*(side.to_pylist() if side else [] for side in (left, right)))):
        if one is None or two is None:
            return f"row {row + number}: one has {counts[0]:,} rows, the other {counts[1]:,}"
        for name in one:
            if repr(one[name]) != repr(two[name]):
                return f"row {row + number}, {name}: {_short(repr(one[name]))} → {_short(repr(two[name]))}"
    return f"rows {row} and following: equal values, of other types or signs"


def _short(text: str) -> str:
    return text if len(text) <= LINE else f"{text[:LINE]}…"


def _in_bytes(left: Iterator[bytes], right: Iterator[bytes]) -> str | None:
    """The first byte that differs, and its line where both are text; None where none does."""
    offset, line, before = 0, 1, b""
    one = two = b""
    while True:
        one, two = one or next(left, b""), two or next(right, b"")
        shared = _shared(one, two)
        line += one.count(b"\n", 0, shared)
        before = (before + one[:shared][-BEFORE:])[-BEFORE:]
        offset += shared
        one, two = one[shared:], two[shared:]
        if one and two:
            break
        # One of the two is used up; the other one, or both, may go on.
        one, two = one or next(left, b""), two or next(right, b"")
        if not one and not two:
            return None
        if not one or not two:
            break
    texts = [_line(before, rest) for rest in (one, two)]
    if None in texts:
        return f"byte {offset:,}: {one[:8].hex(' ') or 'the end'} → {two[:8].hex(' ') or 'the end'}"
    return f"line {line:,}, byte {offset:,}: {texts[0]!r} → {texts[1]!r}"


def _shared(one: bytes, two: bytes) -> int:
    """How many bytes two blocks begin with alike."""
    low, high = 0, min(len(one), len(two))
    if one[:high] == two[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _line(before: bytes, rest: bytes) -> str | None:
    """The line around a difference; None where the bytes are no text."""
    line = before.rpartition(b"\n")[2] + rest[: LINE - BEFORE].partition(b"\n")[0]
    if b"\0" in before + rest[:LINE] or not _is_text(line):
        return None
    return line.lstrip(bytes(range(0x80, 0xC0))).decode("utf-8", "ignore")  # a character may be cut at both ends


def _is_text(line: bytes) -> bool:
    """Whether bytes are UTF-8 but for characters that are cut at their ends."""
    text = line.lstrip(bytes(range(0x80, 0xC0)))
    for cut in range(4):
        try:
            text[: len(text) - cut].decode()
            return all(byte >= 32 or byte in (9, 13) for byte in text)
        except UnicodeDecodeError:
            continue
    return False
