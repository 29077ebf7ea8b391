"""Some of the rows that training reads, kept as the loader delivered them and spread evenly over all that was read.

Which ones follows from positions alone: of each stretch of equal length one, by a hash. Stretches grow as the run does,
and a row that is kept for a long stretch was kept for the short ones before.
"""

from __future__ import annotations

import numpy as np

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


def _row(rows: Rows, place: int) -> Rows:
    documents = None if rows.documents is None else rows.documents[place].copy()
    return Rows(rows.inputs[place].copy(), rows.targets[place].copy(), documents)
