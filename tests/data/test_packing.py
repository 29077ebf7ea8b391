"""The packing plan: each token in one place of one row, documents whole, and few rows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.packing import Plan, make_plan, open_plan, write_plan
from marin_pipeline.data.packing_ledger import PackedPart, PackingLedger, ledger_digest
from marin_pipeline.data.token_ledger import Ledger
from tests.data.packing_references import best_fit_decreasing, first_fit

LENGTHS = st.lists(st.integers(0, 40), max_size=40)


def planned(lengths: list[int] | np.ndarray, sequence_length: int) -> Plan:
    return make_plan(np.cumsum([0, *lengths]), sequence_length)


def filled(plan: Plan) -> np.ndarray:
    """Targets of each row."""
    return np.array([plan.pieces[a:b, 1].sum() for a, b in zip(plan.places[:-1], plan.places[1:], strict=True)], int)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(1, 17))
def test_each_token_is_in_one_place_and_no_row_is_overfull(lengths: list[int], sequence_length: int) -> None:
    plan = planned(lengths, sequence_length)
    covered = np.zeros(sum(lengths), int)
    for start, length in plan.pieces.tolist():
        assert length >= 1
        covered[start : start + length] += 1
    assert (covered == 1).all()
    assert all(0 < held <= sequence_length for held in filled(plan))
    assert plan.places[0] == 0
    assert plan.places[-1] == len(plan.pieces)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(1, 17))
def test_documents_are_whole_and_the_rest_of_a_longer_one_is_first_in_its_row(
    lengths: list[int], sequence_length: int
) -> None:
    plan = planned(lengths, sequence_length)
    starts = set(np.cumsum([0, *lengths])[:-1][np.array(lengths, int) > 0].tolist())
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths)
    for row, (begin, end) in enumerate(zip(plan.places[:-1], plan.places[1:], strict=True)):
        for place, (start, length) in enumerate(plan.pieces[begin:end].tolist()):
            document = owner[start]
            # A piece is a row, or it goes on to the end of its document.
            assert length == sequence_length or start + length == ends[document]
            assert start + length <= ends[document]
            continued = start not in starts
            assert continued == (place == 0 and row < plan.continued)
            if lengths[document] <= sequence_length:
                assert length == lengths[document]


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(1, 17))
def test_rows_are_filled_as_by_a_slow_best_fit(lengths: list[int], sequence_length: int) -> None:
    assert sorted(filled(planned(lengths, sequence_length)).tolist()) == best_fit_decreasing(lengths, sequence_length)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["uniform", "short", "long tail"])
def test_no_more_is_wasted_than_by_first_fit(seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    lengths = {
        "uniform": random.integers(1, 100, 600),
        "short": random.integers(1, 20, 600),
        "long tail": random.lognormal(3.5, 1.0, 600).astype(int) + 1,
    }[kind]
    assert planned(lengths, 100).rows <= first_fit(lengths.tolist(), 100)


def test_of_equal_documents_the_earlier_one_is_placed_first() -> None:
    plan = planned([5, 5, 5, 5, 3], 10)
    assert plan.places.tolist() == [0, 2, 4, 5]
    assert plan.pieces.tolist() == [[0, 5], [5, 5], [10, 5], [15, 5], [20, 3]]


def test_the_rest_of_a_long_document_opens_a_row_that_short_ones_fill() -> None:
    plan = planned([4, 25, 7, 10], 10)
    rows = [plan.pieces[a:b].tolist() for a, b in zip(plan.places[:-1], plan.places[1:], strict=True)]
    assert plan.continued == 2
    # The second piece of the long one, its rest and a short one, its first piece, and the document of a row.
    assert rows[:4] == [[[14, 10]], [[24, 5], [0, 4]], [[4, 10]], [[36, 10]]]
    assert rows[4:] == [[[29, 7]]]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 3, 0]])
def test_documents_without_tokens_take_no_place(lengths: list[int]) -> None:
    plan = planned(lengths, 4)
    assert plan.rows == min(1, sum(lengths))
    assert plan.pieces.tolist() == [[0, 3]] * plan.rows


@pytest.mark.parametrize("sequence_length", [0, -1])
def test_a_row_without_positions_is_refused(sequence_length: int) -> None:
    with pytest.raises(InputError, match=f"sequence length {sequence_length}: it must be at least 1"):
        planned([3], sequence_length)


def test_a_million_documents_are_planned_in_seconds() -> None:
    lengths = np.random.default_rng(0).integers(1, 4096, 1_000_000)
    began = time.process_time()
    plan = planned(lengths, 4096)
    assert time.process_time() - began < 20
    assert lengths.sum() / (plan.rows * 4096) > 0.998


def test_a_plan_reads_back_and_equal_plans_are_equal_bytes(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 500)
    plan = planned(lengths, 32)
    digests = [write_plan(tmp_path / name, planned(lengths, 32)) for name in ("a.npy", "b.npy")]
    assert digests[0] == digests[1]
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    found = open_plan(str(tmp_path / "a.npy"), plan.rows, plan.continued, digests[0])
    np.testing.assert_array_equal(found.places, plan.places)
    np.testing.assert_array_equal(found.pieces, plan.pieces)
    with pytest.raises(InputError, match=r"b\.npy: sha256 .* the plan has changed; pack the tokens again"):
        open_plan(str(tmp_path / "b.npy"), plan.rows, plan.continued, "0" * 64)
    with pytest.raises(InputError, match=r"c\.npy: the plan cannot be read"):
        open_plan(str(tmp_path / "c.npy"), plan.rows, plan.continued, digests[0])


PARTS = tuple(PackedPart(f"part-{place}.npy", 3 + place, 1, 6, 5, 40 + place, "a" * 64) for place in range(3))
LEDGER = PackingLedger(PARTS, 16, "b" * 64)


def test_the_ledger_reads_back_and_finds_the_part_of_a_row() -> None:
    assert PackingLedger.from_json(LEDGER.to_json()) == LEDGER
    assert (LEDGER.rows, LEDGER.documents, LEDGER.tokens) == (12, 15, 123)
    assert LEDGER.efficiency == 123 / (12 * 16)
    assert [LEDGER.part_of_row(row) for row in range(12)] == [0] * 3 + [1] * 4 + [2] * 5


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"first_row": 7', '"first_row": 8', "part-2.npy is said to begin at row 8, but the parts before it end at 7"),
        ('"rows": 4', '"rows": 5', "part-2.npy is said to begin at row 7"),
        ('"rows": 12', '"rows": 13', "rows is said to be 13, but its parts give 12"),
        ('"tokens": 41', '"tokens": 42', "tokens is said to be 123, but its parts give 124"),
        ('"tokens": 41', '"tokens": -1', "part-1.npy has a count"),
        ("bbbb", "bxbb", "the digest of the token ledger is not 64 hex"),
        ("aaaa", "axaa", "part-0.npy has a digest"),
        ('"sequence_length": 16', '"sequence_length": 0', "sequence length 0"),
        ('"version": 1', '"version": 2', "a plan of version 2"),
        ('"continued": 1', '"extra": 1', "not a packing plan"),
        ("{", "", "not a packing plan"),
    ],
)
def test_a_changed_ledger_is_told(old: str, new: str, told: str) -> None:
    text = LEDGER.to_json()
    assert old in text
    with pytest.raises(InputError, match=f"plan/packing.json: .*{told}"):
        PackingLedger.from_json(text.replace(old, new, 1), "plan/packing.json")


def test_a_plan_belongs_to_one_token_ledger() -> None:
    tokens = Ledger((), "uint16", 2048, 0, "c" * 64)
    replace(LEDGER, token_ledger=ledger_digest(tokens)).check_tokens(tokens, "packing.json")
    with pytest.raises(InputError, match=r"packing.json: the plan was made for other tokens"):
        LEDGER.check_tokens(tokens, "packing.json")
    assert ledger_digest(Ledger.from_json(tokens.to_json())) == ledger_digest(tokens)
    assert json.loads(LEDGER.to_json())["efficiency"] == LEDGER.efficiency


def test_a_row_far_longer_than_all_documents_takes_no_more_memory() -> None:
    assert planned([3, 5, 2], 2**40).rows == 1
