"""The n-gram models against a plain reading of their formula."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.evaluate.ngrams import END, MAXIMUM_ORDER, SYMBOLS, NgramModel

TEXTS = st.lists(st.text("ab\n\0\xff", max_size=12).map(lambda text: text.encode("latin-1")), max_size=5)
ORDERS = st.integers(1, 5)


class Reference:
    """The formula of the module, word for word."""

    def __init__(self, texts: Sequence[bytes], order: int) -> None:
        self.order = order
        self.seen = [ngram for text in texts for ngram in self.ngrams(text)]

    def ngrams(self, text: bytes) -> list[tuple[int, ...]]:
        symbols = [END] * (self.order - 1) + [*text, END]
        return [tuple(symbols[place : place + self.order]) for place in range(len(text) + 1)]

    def likelihood(self, symbol: int, context: tuple[int, ...]) -> float:
        lower = self.likelihood(symbol, context[1:]) if context else 1 / SYMBOLS
        after = [ngram[-1] for ngram in self.seen if ngram[self.order - 1 - len(context) : -1] == context]
        if not after:
            return lower
        types = len(set(after))
        return (after.count(symbol) + types * lower) / (len(after) + types)

    def nats(self, text: bytes) -> float:
        return -math.fsum(math.log(self.likelihood(ngram[-1], ngram[:-1])) for ngram in self.ngrams(text))


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, ORDERS)
def test_losses_are_those_of_the_formula(training: list[bytes], held_out: list[bytes], order: int) -> None:
    found = NgramModel([training], order).nats(held_out)
    assert found.shape == (order, len(held_out))
    for row in range(order):
        reference = Reference(training, row + 1)
        assert found[row] == pytest.approx([reference.nats(text) for text in held_out], rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.binary(max_size=6), ORDERS)
def test_probabilities_of_what_may_follow_sum_to_one(training: list[bytes], prefix: bytes, order: int) -> None:
    model = NgramModel([training], order)
    # A byte more costs its own loss, and shifts the end: leave the end's loss out on both sides.
    ended = model.nats([prefix])[-1, 0]
    open_end = ended - _end_loss(model, prefix)
    longer = [prefix + bytes([byte]) for byte in range(256)]
    next_losses = [model.nats([text])[-1, 0] - _end_loss(model, text) - open_end for text in longer]
    assert math.fsum(math.exp(-loss) for loss in [*next_losses, ended - open_end]) == pytest.approx(1, abs=1e-9)


def _end_loss(model: NgramModel, text: bytes) -> float:
    context = tuple(([END] * (model.order - 1) + [*text])[len(text) :])
    likelihood = 1 / SYMBOLS
    for length, level in enumerate(model.levels):
        shorter = context[len(context) - length :]
        number = sum(symbol * SYMBOLS**place for place, symbol in enumerate(reversed(shorter)))
        place = np.flatnonzero(level.contexts == number)
        if len(place):
            total, types = int(level.totals[place[0]]), int(level.types[place[0]])
            count = int(level.counts[level.ngrams == number * SYMBOLS + END].sum())
            likelihood = (count + types * likelihood) / (total + types)
    return -math.log(likelihood)


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS, st.integers(0, 5), ORDERS)
def test_batches_change_nothing(training: list[bytes], held_out: list[bytes], cut: int, order: int) -> None:
    whole = NgramModel([training], order)
    divided = NgramModel([training[:cut], [], training[cut:]], order)
    assert np.array_equal(whole.nats(held_out), divided.nats(held_out))
    parts = [whole.nats(held_out[:cut]), whole.nats(held_out[cut:])]
    assert np.array_equal(whole.nats(held_out), np.concatenate(parts, axis=1))


def test_without_training_text_all_symbols_are_equally_likely() -> None:
    assert NgramModel([], 3).nats([b"abc", b""]) == pytest.approx(np.log(SYMBOLS) * np.array([[4, 1]] * 3))


def test_the_longest_ngrams_fit_their_numbers() -> None:
    text = bytes([255] * 20)
    found = NgramModel([[text]], MAXIMUM_ORDER).nats([text])[-1, 0]
    assert found == pytest.approx(Reference([text], MAXIMUM_ORDER).nats(text), rel=1e-12)
    assert SYMBOLS**MAXIMUM_ORDER < 2**63 <= SYMBOLS ** (MAXIMUM_ORDER + 1)


@pytest.mark.parametrize("order", [0, MAXIMUM_ORDER + 1])
def test_orders_out_of_range_are_refused(order: int) -> None:
    with pytest.raises(InputError, match=f"order={order}.*between 1 and {MAXIMUM_ORDER}"):
        NgramModel([], order)
