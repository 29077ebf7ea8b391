"""The packing plan of one part of a token store: which pieces of its documents fill each row.

Whole documents are placed by best-fit decreasing: the longest first, each in the fullest row that has room for it. A
document longer than a row is cut into pieces of a row, which stand alone, and a rest. The rest is first in its row,
since its first input is the token before it; so a row has one rest at most, and every rest opens a row.

The plan is a function of the documents' lengths and their order, and equal plans are equal bytes. Planning takes about
a second a million documents, and holds some 100 bytes a piece.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marin_pipeline.core.errors import InputError


@dataclass(frozen=True)
class Plan:
    """The rows of one part."""

    places: np.ndarray
    """Where each row's pieces begin in `pieces`: int64 of shape `(rows + 1,)`; the last one is the number of pieces."""
    pieces: np.ndarray
    """First target and number of targets of each piece: int64 of shape `(pieces, 2)`. Positions are counted from the
    part's first token."""
    continued: int
    """Rows whose first piece begins within a document; they come before all others."""

    @property
    def rows(self) -> int:
        return len(self.places) - 1


def make_plan(offsets: np.ndarray, sequence_length: int) -> Plan:
    """Pack the documents of a part.

    Args:
        offsets: where documents start, and the number of tokens at the end: int64 of shape `(documents + 1,)`.
        sequence_length: positions of a row.

    Raises:
        InputError: for a sequence length below 1.
    """
    if sequence_length < 1:
        raise InputError(f"sequence length {sequence_length}: it must be at least 1")
    offsets = np.asarray(offsets, np.int64)
    starts = offsets[:-1]
    full, rest = np.divmod(np.diff(offsets), sequence_length)
    # Pieces that fill a row: those that begin within a document, then those that begin one.
    number = np.arange(full.sum()) - np.repeat(np.cumsum(full) - full, full)
    alone = np.repeat(starts, full) + number * sequence_length
    within, begin = alone[number > 0], alone[number == 0]
    cut = np.flatnonzero((full > 0) & (rest > 0))
    whole = np.flatnonzero((full == 0) & (rest > 0))
    whole = whole[np.argsort(-rest[whole], kind="stable")]

    continued = len(within) + len(cut)
    placed = _best_fit(rest[whole], sequence_length - rest[cut], sequence_length)
    # Rows that a rest opened come before those of one piece that begins a document, the rest after.
    placed += len(within) + np.where(placed < len(cut), 0, len(begin))
    row = np.concatenate((np.arange(continued), continued + np.arange(len(begin)), placed))
    start = np.concatenate((within, offsets[cut + 1] - rest[cut], begin, starts[whole]))
    length = np.concatenate(
        (np.full(len(within), sequence_length), rest[cut], np.full(len(begin), sequence_length), rest[whole])
    )
    follows = np.arange(len(row)) >= continued
    # Within a row by position: short documents come at every place, and reads go forward.
    order = np.lexsort((start, follows, row))
    rows = int(row.max(initial=-1)) + 1
    places = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(row, minlength=rows))))
    return Plan(places, np.stack((start[order], length[order]), axis=1), continued)


def _best_fit(lengths: np.ndarray, free: np.ndarray, sequence_length: int) -> np.ndarray:
    """The row of each piece, int64 of shape `(len(lengths),)`.

    Args:
        lengths: of the pieces, descending, each from 1 to the sequence length.
        free: positions left in rows that are open already, numbered from 0; further rows follow them.
        sequence_length: positions of a row.
    """
    # The rows with equally much room are a linked list, of which the first one is taken next.
    first: dict[int, int] = {}
    following = array("q", bytes(8 * len(free)))
    for row in range(len(free) - 1, -1, -1):
        room = int(free[row])
        following[row] = first.get(room, -1)
        first[room] = row
    rooms = sorted(room for room in first if room)
    rows, taken = array("q"), array("q")
    distinct, counts = np.unique(lengths, return_counts=True)
    for length, count in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while count:
            tightest = bisect_left(rooms, length)
            if tightest < len(rooms):
                room = rooms[tightest]
                row = first[room]
                first[room] = following[row]
                if first[room] < 0:
                    del rooms[tightest]
            else:
                room, row = sequence_length, len(following)
                following.append(-1)
            # As long as another piece of this length fits into the row, no row is tighter.
            fitting = min(count, room // length)
            rows.append(row)
            taken.append(fitting)
            count -= fitting
            room -= fitting * length
            if room:
                if first.get(room, -1) < 0:
                    insort(rooms, room)
                following[row] = first.get(room, -1)
                first[room] = row
    return np.repeat(np.frombuffer(rows, np.int64), np.frombuffer(taken, np.int64))


def write_plan(path: Path, plan: Plan) -> str:
    """Write a plan as one npy file of int64: `places`, then `pieces` row by row; the sha256 of the file, 64 hex."""
    np.save(path, np.concatenate((plan.places, plan.pieces.ravel())).astype("<i8"))
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_plan(path: str, rows: int, continued: int, sha256: str) -> Plan:
    """The plan of a file, of which only what is looked at is in memory; the digest of all of it is compared first.

    Args:
        path: of the file.
        rows: rows of the plan.
        continued: rows that begin within a document.
        sha256: of the file, 64 hex.

    Raises:
        InputError: when the file is missing, or not the one that was written.
    """
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: the plan cannot be read ({error.strerror}); pack the tokens again") from error
    if found != sha256:
        raise InputError(
            f"{path}: sha256 {found[:16]}…, written was {sha256[:16]}…: the plan has changed; pack the tokens again"
        )
    values = np.load(path, mmap_mode="r")
    return Plan(values[: rows + 1], values[rows + 1 :].reshape(-1, 2), continued)
