"""Slow packers, to hold the fast one against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cut(lengths: Iterable[int], sequence_length: int) -> tuple[int, list[int], list[int]]:
    """Rows that one piece fills, the rests of longer documents, and shorter documents in order."""
    alone, rests, whole = 0, [], []
    for length in lengths:
        full, rest = divmod(length, sequence_length)
        alone += full
        if rest:
            (rests if full else whole).append(rest)
    return alone, rests, whole


def best_fit_decreasing(lengths: Sequence[int], sequence_length: int) -> list[int]:
    """What is filled of each row, in ascending order."""
    alone, rests, whole = cut(lengths, sequence_length)
    filled = list(rests)
    for length in sorted(whole, reverse=True):
        fits = [row for row, held in enumerate(filled) if held + length <= sequence_length]
        if fits:
            filled[max(fits, key=lambda row: filled[row])] += length
        else:
            filled.append(length)
    return sorted([sequence_length] * alone + filled)


def first_fit(lengths: Sequence[int], sequence_length: int) -> int:
    """Rows that are needed when each document, in order, is put into the first row that has room for it."""
    alone, rests, whole = cut(lengths, sequence_length)
    filled = list(rests)
    for length in whole:
        for row, held in enumerate(filled):
            if held + length <= sequence_length:
                filled[row] += length
                break
        else:
            filled.append(length)
    return alone + len(filled)
