"""Letters, their shingles, and what documents share of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.data.copies import Index, character_shingles, letters_of, merged, sketch

LETTERS = st.text("ab", max_size=12)


def test_letters_are_what_is_left_of_a_text_without_case_and_spelling() -> None:
    assert letters_of("Ｔhe\u200b ＳTRAẞE,\n①-ﬁ\u00adne!") == "thestrasse1fine"
    assert letters_of("e\u0301") == letters_of("É") == "é"
    assert letters_of("— … !?") == ""


def test_the_hash_of_a_shingle_is_that_of_exact_integers() -> None:
    def mixed(value: int) -> int:
        for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ (value >> shift)) * multiplier % 2**64
        return value ^ (value >> 31)

    value = 0
    for letter in "中a":
        value = (value * 0x9E3779B97F4A7C15 + mixed(ord(letter))) % 2**64
    assert character_shingles("中a", 2).tolist() == [value]


@given(a=LETTERS, b=LETTERS, characters=st.integers(1, 5))
def test_shingles_are_equal_where_the_runs_of_letters_are(a: str, b: str, characters: int) -> None:
    def runs(text: str) -> set[str]:
        if len(text) < characters:
            return {f"whole {text}"} if text else set()
        return {text[start : start + characters] for start in range(len(text) - characters + 1)}

    found = [character_shingles(text, characters) for text in (a, b)]
    assert [len(each) for each in found] == [len(runs(a)), len(runs(b))]
    assert len(np.intersect1d(found[0], found[1])) == len(runs(a) & runs(b))


@given(texts=st.lists(LETTERS, max_size=6), text=LETTERS, cut=st.integers(0, 6))
def test_shares_are_those_of_sets_however_the_documents_are_divided(texts: list[str], text: str, cut: int) -> None:
    index = Index(merged([sketch(texts[:cut], 3), sketch(texts[cut:], 3)]))
    share, places, shares = index.shares(character_shingles(text, 3))
    sets = [set(character_shingles(each, 3).tolist()) for each in texts]
    mine = set(character_shingles(text, 3).tolist())
    assert share == (len(mine & set[int]().union(*sets)) / len(mine) if mine else 0.0)
    expected = {place: len(each & mine) / len(each) for place, each in enumerate(sets) if each & mine}
    assert dict(zip(places.tolist(), shares.tolist(), strict=True)) == expected


@pytest.mark.parametrize("filler", "\u115f\u1160\u3164\uffa0\u200b\u00ad\u180b")
def test_what_is_never_seen_is_no_letter(filler: str) -> None:
    assert letters_of(filler.join("some words")) == "somewords"
