"""The ledger: it comes back as it was written, and one that was changed, or is of another tokenizer, is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.token_ledger import Ledger, TokenPart, token_dtype

COUNTS = st.integers(0, 2**40)
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
PARTS = st.lists(
    st.builds(TokenPart, st.text(), COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, DIGESTS, DIGESTS),
    max_size=5,
    unique_by=lambda part: part.name,
)
PART = TokenPart("part-0", 10, 3, 40, 1, 0, "0" * 64, "1" * 64)
LEDGER = Ledger((PART, replace(PART, name="part-1", tokens=7), replace(PART, name="part-2")), "uint16", 64, 0, "a" * 64)


@settings(max_examples=50, deadline=None)
@given(PARTS, DIGESTS, st.integers(1, 2**20))
def test_a_ledger_round_trips(parts: list[TokenPart], tokenizer: str, vocabulary: int) -> None:
    ledger = Ledger(tuple(parts), token_dtype(vocabulary), vocabulary, 0, tokenizer)
    assert Ledger.from_json(ledger.to_json()) == ledger


@given(PARTS)
def test_every_token_and_document_is_in_the_part_that_bisection_finds(parts: list[TokenPart]) -> None:
    small = tuple(replace(part, tokens=part.tokens % 7, documents=part.documents % 5) for part in parts)
    ledger = Ledger(small, "uint16", 64, 0, "a" * 64)
    assert [ledger.part_of_token(place) for place in range(ledger.tokens)] == [
        place for place, part in enumerate(small) for _ in range(part.tokens)
    ]
    assert [ledger.part_of_document(place) for place in range(ledger.documents)] == [
        place for place, part in enumerate(small) for _ in range(part.documents)
    ]


def test_its_file_says_where_each_part_begins() -> None:
    parts = json.loads(LEDGER.to_json())["parts"]
    assert [(part["first_token"], part["first_document"]) for part in parts] == [(0, 0), (10, 3), (17, 6)]
    assert (LEDGER.tokens, LEDGER.documents, LEDGER.bytes, LEDGER.truncated, LEDGER.empty) == (27, 9, 120, 3, 0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"tokens": 7', '"tokens": 8', r"part-2 is said to begin at token 17 .* but the parts before it end at 18"),
        ('"tokens": 7', '"tokens": -7', "part-1 has a count"),
        ('"tokens": 7', '"tokens": 7.0', "part-1 has a count"),
        ('"first_document": 3', '"first_document": 4', "part-1 is said to begin"),
        ('"documents": 3', '"dokuments": 3', "not a ledger"),
        ('"' + "0" * 64, '"g' + "0" * 63, "part-0 has a digest"),
        ("uint16", "uint32", "uint32 is not the type of 64 ids"),
        ("{", "", "not a ledger"),
        ('"version": 2', '"version": 3', "a ledger of version 3, where version 2"),
        (',\n "version": 2', "", "a ledger of version 1, where version 2"),
    ],
)
def test_a_changed_ledger_is_refused_with_what_to_do(old: str, new: str, said: str) -> None:
    text = LEDGER.to_json()
    assert old in text
    with pytest.raises(InputError, match=rf"^tokens/ledger.json: .*{said}.*again"):
        Ledger.from_json(text.replace(old, new, 1), "tokens/ledger.json")


def test_another_tokenizer_is_refused_and_the_same_is_not() -> None:
    LEDGER.check_tokenizer("a" * 64, "tokenizer.json")
    with pytest.raises(InputError, match=r"tokenizer.json: another tokenizer \(sha256 bbb.* the tokens \(aaa"):
        LEDGER.check_tokenizer("b" * 64, "tokenizer.json")
