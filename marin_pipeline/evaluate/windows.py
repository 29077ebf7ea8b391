"""How documents of any length become rows of a fixed length, each target scored exactly once.

A document is predicted from a fresh context: the end-of-document token, then its tokens, then the end of the document
as the last target. One longer than a row continues in rows that overlap by half, and only their new half is scored:
every target has at least half a row of context, or all that precedes it in its document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """A row of one document."""

    document: int
    inputs: np.ndarray
    """int32, at most a row long."""
    targets: np.ndarray
    """int32, as long as `inputs`."""
    skipped: int
    """Targets at the beginning that another row scores."""


@dataclass(frozen=True)
class Batch:
    """Rows of one length, filled up with empty ones: int32 and bool arrays `(rows, length)` and the rows' documents."""

    inputs: np.ndarray
    targets: np.ndarray
    scored: np.ndarray
    documents: np.ndarray
    """`(rows,)`, -1 for an empty row."""


def windows(documents: Sequence[np.ndarray], end_of_document: int, length: int) -> Iterator[Window]:
    """The rows of all documents, in order.

    Args:
        documents: token ids of each, the end-of-document token included.
        length: most targets a row.
    """
    stride = max(1, length // 2)
    for index, ids in enumerate(documents):
        stream = np.array([end_of_document, *ids], np.int32)
        count = len(stream) - 1
        begin = 0
        while True:
            end = min(begin + length, count)
            yield Window(index, stream[begin:end], stream[begin + 1 : end + 1], length - stride if begin else 0)
            if end == count:
                break
            begin += stride


def batches(rows: Sequence[Window], length: int, tokens: int, multiple: int) -> Iterator[Batch]:
    """The rows in batches of two shapes, long and short, so that little is computed on padding.

    Args:
        rows: what `windows` made.
        length: targets of a long row; a short one has a quarter.
        tokens: about how many a batch holds.
        multiple: number of rows is a multiple of this, so that devices share a batch evenly.
    """
    short = max(1, length // 4)
    for size, chosen in (
        (short, [row for row in rows if len(row.inputs) <= short]),
        (length, [row for row in rows if len(row.inputs) > short]),
    ):
        count = max(1, tokens // size // multiple) * multiple
        for first in range(0, len(chosen), count):
            yield _batch(chosen[first : first + count], count, size)


def _batch(rows: Sequence[Window], count: int, size: int) -> Batch:
    inputs, targets = np.zeros((count, size), np.int32), np.zeros((count, size), np.int32)
    scored, documents = np.zeros((count, size), bool), np.full(count, -1)
    for index, row in enumerate(rows):
        used = len(row.inputs)
        inputs[index, :used], targets[index, :used] = row.inputs, row.targets
        scored[index, row.skipped : used] = True
        documents[index] = row.document
    return Batch(inputs, targets, scored, documents)
