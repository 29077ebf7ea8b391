"""Rows are kept as they were delivered, evenly spread over all that was read, by position alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.data.loader import Loaded
from marin_pipeline.data.order import Batch
from marin_pipeline.data.sequences import Rows
from marin_pipeline.train.kept import Kept

MOST = 8


def kept_after(sizes: Sequence[int], first: int = 0, needed: range | None = None) -> Kept:
    """Batches of these sizes have passed; the tokens of a row are its position."""
    kept = Kept(MOST)
    for step, size in enumerate(sizes):
        own = np.array(range(size) if needed is None else needed)
        tokens = np.stack([first + own] * 2, axis=1).astype(np.int32)
        ids = Batch(np.arange(first, first + size) % 3, np.zeros(size, np.int64), np.zeros(size, np.int64))
        kept.add(first, Loaded(step, ids, Rows(tokens, tokens + 1), own))
        first += size
    return kept


def positions(kept: Kept) -> list[int]:
    sources, rows = kept.spread()
    found = [int(row.inputs[0]) for row in rows if row is not None]
    assert [place % 3 for place in found] == sources
    return found


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(sizes=SIZES, first=st.integers(0, 10**6))
def test_as_many_as_asked_for_are_kept_in_order_and_each_once(sizes: list[int], first: int):
    found = positions(kept_after(sizes, first))
    assert len(found) == min(MOST, sum(sizes))
    assert sorted(set(found)) == found
    assert first <= found[0] <= found[-1] < first + sum(sizes)


@given(sizes=SIZES, first=st.integers(0, 10**6))
def test_the_size_of_a_batch_makes_no_difference(sizes: list[int], first: int):
    assert positions(kept_after(sizes, first)) == positions(kept_after([1] * sum(sizes), first))


@given(batches=st.integers(20, 400), size=st.integers(1, 64))
def test_no_stretch_of_what_was_read_is_left_out_or_favored(batches: int, size: int):
    found = positions(kept_after([size] * batches))
    # Between two of them lie at most three stretches of twice their average distance, less one row.
    edges = [0, *found, size * batches]
    assert max(np.diff(edges)) <= 6 * size * batches / MOST


def test_rows_of_all_places_of_a_batch_are_kept():
    found = np.concatenate([positions(kept_after([8] * 100, first)) for first in range(0, 400_000, 4000)])
    counts = np.bincount(found % 8, minlength=8)
    # 800 rows, 100 of each place; 60 to 140 is four standard deviations.
    assert 60 < counts.min() <= counts.max() < 140


def test_the_same_rows_whichever_of_them_a_process_reads():
    whole = positions(kept_after([10] * 30))
    half = kept_after([10] * 30, needed=range(3, 7))
    assert positions_of(half) == [place if place % 10 in range(3, 7) else None for place in whole]
    assert half.spread()[0] == [place % 3 for place in whole]


def positions_of(kept: Kept) -> list[int | None]:
    return [None if row is None else int(row.inputs[0]) for row in kept.spread()[1]]


def test_a_row_is_a_copy():
    tokens = np.zeros((1, 4), np.int32)
    kept, one = Kept(MOST), np.zeros(1, np.int64)
    kept.add(0, Loaded(0, Batch(one, one, one), Rows(tokens, tokens, tokens), one))
    tokens += 1
    row = kept.spread()[1][0]
    assert row is not None
    assert row.documents is not None
    assert not np.any([row.inputs, row.targets, row.documents])
