"""What a run keeps of its order gives the same order again, or is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.order_record import OrderRecord, SourceRecord
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream

MIXTURE = Mixture(
    (Source("web", max_epochs=2, expected_tokens=900), Source("code", max_epochs=None)),
    (Phase(0, {"web": 0.9, "code": 0.1}), Phase(800, {"code": 1})),
)
SOURCES = {"code": SourceRecord(500, 31, False), "web": SourceRecord(900, 56, True)}


def record(seed: int = 3, shuffle: Shuffle = Shuffle()) -> OrderRecord:
    return OrderRecord(SOURCES, MIXTURE, 4, 16, seed, shuffle, False, 40)


@given(st.integers(0, 2**32 - 1), st.sampled_from([Shuffle(), Shuffle(1), Shuffle(4, 2)]))
def test_an_order_that_was_read_back_reads_the_same(seed: int, shuffle: Shuffle) -> None:
    made = TrainingOrder(Stream(MIXTURE, 16), {"web": 56, "code": 31}, 4, seed, shuffle)
    found = OrderRecord.from_json(record(seed, shuffle).to_json())
    assert (found.sources, found.separate, found.steps) == (SOURCES, False, 40)
    for step in range(0, 40, 3):
        ours, theirs = found.order().batch(step), made.batch(step)
        assert made.digest(theirs) == found.order().digest(ours)
        assert np.array_equal(ours.epochs, theirs.epochs)


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(record().to_json()), **fields})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not the record of an order"),
        ("[]", "not the record of an order"),
        (changed(sources={"web": {"tokens": 1}}), "not the record of an order"),
        (changed(more=1), "not the record of an order"),
        (changed(shuffle={"name": "feistel-9"}), "permuted by 'feistel-9', which is not known here"),
        (changed(shuffle={"name": "feistel-1", "block": 4, "window": 2}), "which is not known here"),
        (changed(mixture={"sources": ["web"], "phases": [{"start": 0, "weights": {"web": "1/2"}}]}), "sum to 1/2"),
    ],
)
def test_what_is_no_such_record_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        OrderRecord.from_json(text, "train/data.json")
