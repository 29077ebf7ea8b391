"""Some of the rows that training reads, kept as the loader delivered them and spread evenly over all that was read.

Which ones follows from positions alone: of each stretch of equal length one, by a hash. Stretches grow as the run does,
and a row that is kept for a long stretch was kept for the short ones before.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.data.loader import Loaded
from marin_pipeline.data.mixing import GOLDEN, mix64
from marin_pipeline.data.sequences import Rows


class Kept:
    """Keeps from `most` to twice `most` rows of those that pass, once that many have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._level = 0
        self._rows: dict[int, tuple[int, Rows | None]] = {}
        """By position in the order: the row's source and, where this process read it, the row."""
        self.first: int | None = None
        """The first position that passed."""

    def add(self, first: int, loaded: Loaded) -> None:
        """Note a batch whose first row is at position `first`; batches come one after another."""
        if self.first is None:
            self.first = first
        stop = first + len(loaded.batch)
        picked = self._picked(first, stop)
        while len(self._rows) + len(picked) > 2 * self._most:
            self._level += 1
            chosen = set(self._picked(self.first, first).tolist())
            self._rows = {position: row for position, row in self._rows.items() if position in chosen}
            picked = self._picked(first, stop)
        for position in picked.tolist():
            number = position - first
            place = int(np.searchsorted(loaded.needed, number))
            read = place < len(loaded.needed) and loaded.needed[place] == number
            self._rows[position] = (int(loaded.batch.sources[number]), _row(loaded.rows, place) if read else None)

    def spread(self) -> tuple[list[int], list[Rows | None]]:
        """At most `most` of the rows, evenly spread: their sources, and the rows (None: another process has it)."""
        rows = list(self._rows.values())
        count = min(self._most, len(rows))
        chosen = [rows[number * len(rows) // count] for number in range(count)]
        return [source for source, _ in chosen], [row for _, row in chosen]

    def to_bytes(self) -> bytes:
        """What is kept, for a later process that goes on."""
        rows = {position: row for position, (_, row) in self._rows.items() if row is not None}
        arrays: dict[str, Any] = {
            "level": self._level,
            "first": -1 if self.first is None else self.first,
            "positions": np.array(list(self._rows), np.int64),
            "sources": np.array([source for source, _ in self._rows.values()], np.int64),
            "read": np.array(list(rows), np.int64),
        }
        for name in ("inputs", "targets", "documents"):
            found = [getattr(row, name) for row in rows.values()]
            if found and found[0] is not None:
                arrays[name] = np.stack(found)
        file = io.BytesIO()
        np.savez(file, **arrays)
        return file.getvalue()

    def restore(self, content: bytes) -> None:
        """Go on with what an earlier process kept.

        Raises:
            CorruptOutput: for other bytes than `to_bytes` gave.
        """
        try:
            with np.load(io.BytesIO(content)) as arrays:
                read = {int(position): place for place, position in enumerate(arrays["read"])}
                named = [arrays.get(name) for name in ("inputs", "targets", "documents")]
                self._rows = {
                    position: (source, _rows(named, read[position]) if position in read else None)
                    for position, source in zip(arrays["positions"].tolist(), arrays["sources"].tolist(), strict=True)
                }
                first = int(arrays["first"])
                self._level, self.first = int(arrays["level"]), None if first < 0 else first
        except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
            raise CorruptOutput(
                f"rows kept for the gap alarm cannot be read ({error}); use another checkpoint"
            ) from error

    def _picked(self, first: int, stop: int) -> np.ndarray:
        """The positions of `[first, stop)` that stand for their stretch, ascending."""
        if stop <= first:
            return np.empty(0, np.int64)
        # From the stretch down to the position: of two halves one, by a bit.
        picked = np.arange(first >> self._level, (stop - 1 >> self._level) + 1, dtype=np.int64)
        for level in range(self._level, 0, -1):
            bits = mix64(picked.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(level)) & np.uint64(1)
            picked = 2 * picked + bits.astype(np.int64)
        return picked[(picked >= first) & (picked < stop)]


def _rows(arrays: Sequence[np.ndarray | None], place: int) -> Rows:
    inputs, targets, documents = arrays
    if inputs is None or targets is None:
        raise ValueError("rows without inputs or targets")
    return Rows(inputs[place], targets[place], None if documents is None else documents[place])


def _row(rows: Rows, place: int) -> Rows:
    documents = None if rows.documents is None else rows.documents[place].copy()
    return Rows(rows.inputs[place].copy(), rows.targets[place].copy(), documents)
