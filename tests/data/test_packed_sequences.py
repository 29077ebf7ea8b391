"""Rows of whole documents: each token is a target once, and a plan is read beside its own tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.packed_sequences import PackedSequences
from marin_pipeline.data.packing_ledger import PACKING_FILE
from marin_pipeline.data.schema import Packing
from marin_pipeline.data.sequences import NO_TARGET
from marin_pipeline.data.token_store import TokenStore
from steps.pack import pack
from tests.data.token_stores import write_store

END = 0

PARTS = st.lists(st.lists(st.lists(st.integers(1, 99), max_size=14), min_size=1, max_size=7), min_size=1, max_size=4)
"""Documents without the token that ends them."""


def packed(
    folder: Path, parts: Sequence[Sequence[Sequence[int]]], sequence_length: int
) -> tuple[TokenStore, Artifact[Packing]]:
    """A token store of these documents, each with its end, and its plan."""
    (folder / "tokens").mkdir(parents=True)
    tokens = write_store(folder / "tokens", [[[*ids, END] for ids in part] for part in parts], vocabulary=100)
    ctx = test_context(folder / "packing")
    value = pack.fn(ctx, tokens=tokens, sequence_length=sequence_length)
    return TokenStore(tokens), local_artifact(ctx.out, value)


@settings(max_examples=60, deadline=None)
@given(PARTS, st.integers(1, 9))
def test_every_token_is_a_target_once_and_follows_its_own_document(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[list[int]]], sequence_length: int
) -> None:
    store, packing = packed(tmp_path_factory.mktemp("packed"), parts, sequence_length)
    sequences = PackedSequences(store, packing)
    flat = store.read(0, store.tokens)
    starts = set(store.offsets[:-1].tolist())
    rows = sequences.read(np.arange(len(sequences)))
    assert rows.documents is not None
    assert rows.inputs.shape == rows.targets.shape == rows.documents.shape == (len(sequences), sequence_length)
    assert {array.dtype for array in (rows.inputs, rows.targets, rows.documents)} == {np.dtype(np.int32)}
    seen = np.zeros(store.tokens, int)
    for number in range(len(sequences)):
        row = sequences.row(number)
        inputs, targets, documents = rows.inputs[number], rows.targets[number], rows.documents[number]
        place = 0
        for piece, (start, length) in enumerate(zip(row.starts.tolist(), row.lengths.tolist(), strict=True), 1):
            seen[start : start + length] += 1
            assert targets[place : place + length].tolist() == flat[start : start + length].tolist()
            before = END if start in starts else flat[start - 1]
            assert inputs[place : place + length].tolist() == [before, *flat[start : start + length - 1].tolist()]
            assert documents[place : place + length].tolist() == [piece] * length
            assert row.continued or start in starts or piece > 1
            place += length
        assert inputs[place:].tolist() == [END] * (sequence_length - place)
        assert targets[place:].tolist() == [NO_TARGET] * (sequence_length - place)
        assert not documents[place:].any()
    assert (seen == 1).all()
    assert packing.value.tokens == store.tokens == int((rows.targets != NO_TARGET).sum())
    some = np.random.default_rng(0).integers(0, len(sequences), 5)
    again = sequences.read(some)
    np.testing.assert_array_equal(again.inputs, rows.inputs[some])
    np.testing.assert_array_equal(again.targets, rows.targets[some])


def test_a_document_opens_with_its_end_token_whatever_lies_before_it(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    # Documents that nothing ends, as no step makes them: what lies before the second one is a token of the first.
    tokens = write_store(tmp_path / "tokens", [[[5, 6, 7], [8, 9], list(range(11, 22))]], vocabulary=100)
    ctx = test_context(tmp_path / "packing")
    packing = local_artifact(ctx.out, pack.fn(ctx, tokens=tokens, sequence_length=8))
    rows = PackedSequences(TokenStore(tokens), packing).read(np.arange(packing.value.rows))
    assert rows.inputs.tolist() == [[18, 19, 20, 0, 5, 6, 0, 8], [0, *range(11, 18)]]
    assert rows.targets.tolist() == [[19, 20, 21, 5, 6, 7, 8, 9], [*range(11, 19)]]
    assert rows.documents is not None
    assert rows.documents.tolist() == [[1, 1, 1, 2, 2, 2, 3, 3], [1] * 8]


def test_threads_read_what_one_reader_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    parts = [[random.integers(1, 99, length).tolist() for length in random.integers(0, 40, 50)] for _ in range(4)]
    store, packing = packed(tmp_path, parts, 16)
    expected = PackedSequences(store, packing).read(np.arange(packing.value.rows))
    sequences = PackedSequences(store, packing)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda row: sequences.read(np.array([row])), range(len(sequences))))
    np.testing.assert_array_equal(np.concatenate([rows.inputs for rows in read]), expected.inputs)
    np.testing.assert_array_equal(np.concatenate([rows.targets for rows in read]), expected.targets)


PLAIN = [[[1, 2, 3], [4, 5]], [[6] * 20, [7]]]


def test_a_row_that_the_plan_does_not_have_is_refused(tmp_path: Path) -> None:
    sequences = PackedSequences(*packed(tmp_path, PLAIN, 8))
    rows = len(sequences)
    assert sequences.read(np.empty(0, np.int64)).inputs.shape == (0, 8)
    for ids in ([0, rows], [-1, 0]):
        with pytest.raises(InputError, match=rf"rows {min(ids)} to {max(ids)} were asked of a .* that has {rows}"):
            sequences.read(np.array(ids))
    with pytest.raises(InputError, match=f"row {rows} of a packing plan that has {rows}"):
        sequences.row(rows)
    with pytest.raises(InputError, match="rows of a packing plan must be whole numbers"):
        sequences.read(np.array([0.5]))
    wrong: Any = 0.5
    for method in (sequences.row, sequences.pieces, sequences.sequences_of):
        with pytest.raises(InputError, match=r": \w+ is 0\.5 \(float\): give a whole number"):
            method(wrong)


def test_the_plan_of_other_tokens_is_refused(tmp_path: Path) -> None:
    _, packing = packed(tmp_path / "a", PLAIN, 8)
    # As many tokens and documents, and one of them is another.
    other, _ = packed(tmp_path / "b", [PLAIN[0], [[6] * 20, [8]]], 8)
    with pytest.raises(InputError, match="the plan was made for other tokens"):
        PackedSequences(other, packing)


def test_a_changed_or_missing_plan_stops_the_read_and_is_named(tmp_path: Path) -> None:
    store, packing = packed(tmp_path, PLAIN, 8)
    file = Path(packing / "part-1.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    sequences = PackedSequences(store, packing)
    sequences.read(np.array([0]))
    last = np.array([len(sequences) - 1])
    with pytest.raises(InputError, match=r"part-1\.npy: sha256 .* the plan has changed; pack the tokens again"):
        sequences.read(last)
    file.unlink()
    with pytest.raises(InputError, match=r"part-1\.npy: the plan is missing"):
        sequences.read(last)


def test_another_ledger_than_that_of_the_output_is_refused(tmp_path: Path) -> None:
    store, packing = packed(tmp_path, PLAIN, 8)
    folder = Path(packing / PACKING_FILE).parent
    for name in ("sequence_length", "rows", "documents", "tokens"):
        said = replace(packing.value, **{name: getattr(packing.value, name) + 1})
        with pytest.raises(InputError, match=rf"packing\.json: {name} is .* not its ledger; pack the tokens again"):
            PackedSequences(store, local_artifact(folder, said))
    Path(packing / PACKING_FILE).write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"packing\.json: no readable packing plan"):
        PackedSequences(store, packing)
