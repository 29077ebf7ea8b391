"""Byte n-gram models, baselines that a trained model has to beat: counted on training text, scored on held-out text.

Interpolated Witten-Bell smoothing (Witten and Bell 1991, method C; Chen and Goodman 1998, section 2.4):

    p(w | c) = (count(c w) + types(c) p(w | c')) / (count(c) + types(c))

where `types(c)` is how many symbols were seen after the context `c`, `c'` is `c` without its first symbol, and below
the empty context all symbols are equally likely. The symbols are the 256 bytes and the end of a document, whose loss
counts as that of a byte does; ends also stand before a document, so that no context reaches into another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from marin_pipeline.core.errors import InputError

END = 256
"""The symbol that ends every document."""
SYMBOLS = 257
MAXIMUM_ORDER = 7
"""257 ** 7 is below 2 ** 63, so an n-gram fits an int64: its symbols are digits in base 257, the last one lowest."""
BATCH_BYTES = 4 * 2**20
"""Text that is counted at a time: some 40 bytes of memory each."""


class Level(NamedTuple):
    """What was counted of n-grams of one length. All arrays are int64."""

    ngrams: np.ndarray
    """Those seen, sorted."""
    counts: np.ndarray
    """How often each."""
    contexts: np.ndarray
    """The distinct n-grams without their last symbol, sorted."""
    totals: np.ndarray
    """How often each context was seen."""
    types: np.ndarray
    """How many symbols were seen after each."""


class NgramModel:
    """A model of one order, which holds those of all lower orders.

    Args:
        batches: training text, utf-8, in batches of some `BATCH_BYTES`; how it is divided changes nothing.
        order: longest n-gram, from 1 to `MAXIMUM_ORDER`: one less is the length of the context.

    Raises:
        InputError: when the order is out of range.
    """

    def __init__(self, batches: Iterable[Sequence[bytes]], order: int) -> None:
        if not 1 <= order <= MAXIMUM_ORDER:
            raise InputError(f"order={order}: the order of a byte n-gram model lies between 1 and {MAXIMUM_ORDER}")
        self.order = order
        empty = np.empty(0, np.int64)
        counted = [(empty, empty)] * order
        for texts in batches:
            for index, ngrams in enumerate(_Stream(texts, order).ngrams()):
                counted[index] = _sum_equal(*counted[index], *np.unique(ngrams, return_counts=True))
        self.levels = [_level(ngrams, counts) for ngrams, counts in counted]

    def nats(self, texts: Sequence[bytes]) -> np.ndarray:
        """Losses of documents, ends included: float64 of shape `(order, documents)`; row k is of order k + 1."""
        stream = _Stream(texts, self.order)
        likelihood = np.full(len(stream.targets), 1 / SYMBOLS)
        losses = np.zeros((self.order, len(texts)))
        for index, (level, ngrams) in enumerate(zip(self.levels, stream.ngrams(), strict=True)):
            counts = _look_up(level.ngrams, level.counts, ngrams)
            contexts = ngrams // SYMBOLS
            totals = _look_up(level.contexts, level.totals, contexts)
            types = _look_up(level.contexts, level.types, contexts)
            # A context that was never seen says nothing: the shorter one's likelihood stays.
            np.divide(counts + types * likelihood, totals + types, out=likelihood, where=totals > 0)
            losses[index] = np.bincount(stream.documents, -np.log(likelihood), minlength=len(texts))
        return losses


class _Stream:
    """Documents as one array of symbols, `order - 1` ends before each."""

    def __init__(self, texts: Sequence[bytes], order: int) -> None:
        lengths = np.array([len(text) for text in texts], np.int64)
        joined = bytes(order - 1) + b"".join(text + bytes(order) for text in texts)
        ends = np.cumsum(lengths + order) - 1
        self._symbols = np.frombuffer(joined, np.uint8).astype(np.int64)
        self._order = order
        self.documents = np.repeat(np.arange(len(texts)), lengths + 1)
        """The document of each predicted symbol."""
        self.targets = np.arange(len(self.documents)) + (order - 1) * (self.documents + 1)
        """Positions of the predicted symbols: all bytes, and one end a document."""
        between = np.ones(len(joined), bool)
        between[self.targets] = False
        between[ends] = True
        self._symbols[between] = END

    def ngrams(self) -> Iterable[np.ndarray]:
        """For each length up to the order, the n-gram that ends at each predicted symbol."""
        ngrams = np.zeros(len(self.targets), np.int64)
        for length in range(self._order):
            ngrams = ngrams + self._symbols[self.targets - length] * SYMBOLS**length
            yield ngrams


def _level(ngrams: np.ndarray, counts: np.ndarray) -> Level:
    contexts, first, types = np.unique(ngrams // SYMBOLS, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first) if len(first) else counts
    return Level(ngrams, counts, contexts, totals, types)


def _sum_equal(
    ngrams: np.ndarray, counts: np.ndarray, others: np.ndarray, their_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Two sorted tables of counts as one."""
    joined = np.concatenate([ngrams, others])
    order = np.argsort(joined, kind="stable")
    distinct, first = np.unique(joined[order], return_index=True)
    both = np.concatenate([counts, their_counts])[order]
    return distinct, np.add.reduceat(both, first) if len(first) else both


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where there is none. `keys` is sorted."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
