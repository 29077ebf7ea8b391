"""Sequences that are cut from a store, beside a slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.data.sequences import Sequences
from marin_pipeline.data.token_store import TokenStore
from tests.data.token_stores import write_store

PARTS = st.lists(st.lists(st.lists(st.integers(1, 99), max_size=9), min_size=1, max_size=5), min_size=1, max_size=4)
"""Documents without the token that ends them."""


@settings(max_examples=40, deadline=None)
@given(PARTS, st.integers(1, 7))
def test_attention_stays_within_a_document_that_the_token_before_it_opens(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[list[int]]], sequence_length: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    ended = [[[*ids, 0] for ids in part] for part in parts]
    store = TokenStore(write_store(folder, ended, vocabulary=100))
    sequences = Sequences(store, sequence_length, separate=True)
    flat = [token for part in ended for document in part for token in document]
    # The token at a position is an input of the document of the token after it.
    owner = [place for place, document in enumerate(d for part in ended for d in part) for _ in document]
    rows = sequences.read(np.arange(len(sequences)))
    assert rows.documents is not None
    for row in range(len(sequences)):
        window = range(row * sequence_length, (row + 1) * sequence_length)
        assert rows.inputs[row].tolist() == [flat[place] for place in window]
        assert rows.targets[row].tolist() == [flat[place + 1] for place in window]
        owners = [owner[place + 1] for place in window]
        numbers = {document: number for number, document in enumerate(dict.fromkeys(owners), 1)}
        assert rows.documents[row].tolist() == [numbers[document] for document in owners]
    assert Sequences(store, sequence_length).read(np.arange(len(sequences))).documents is None
