"""Shingles: the hashes of runs of words, equal to counting them one by one."""

from __future__ import annotations

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.data.shingles import share_in, shingles, union

TEXTS = st.lists(st.sampled_from(["a", "B", "é", "ß", "\ud800", "x" * 5]), max_size=30).map(" \n".join)


def _one_by_one(text: str, words: int) -> set[int]:
    split = text.lower().split()
    joined = [" ".join(split[start : start + words]) for start in range(len(split) - words + 1)]
    return {xxhash.xxh3_64_intdigest(shingle.encode("utf-8", "surrogatepass")) for shingle in joined}


@given(TEXTS, st.integers(1, 10))
def test_shingles_are_the_hashes_of_all_runs_of_words(text: str, words: int) -> None:
    assert shingles(text, words).tolist() == sorted(_one_by_one(text, words))


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_share_is_that_of_sets(text: str, other: str, words: int) -> None:
    found, known = _one_by_one(text, words), _one_by_one(other, words)
    expected = len(found & known) / len(found) if found else 0.0
    assert share_in(shingles(text, words), shingles(other, words)) == expected


def test_case_and_white_space_do_not_count() -> None:
    assert np.array_equal(shingles("One two THREE", 3), shingles(" one\n\ttwo  three ", 3))


def test_a_text_shorter_than_a_shingle_has_none() -> None:
    for text in ("", " ", "word", "\0", "seven words are one word too few"):
        assert len(shingles(text, 8)) == 0


@given(st.lists(TEXTS, max_size=4))
def test_union_is_that_of_sets(texts: list[str]) -> None:
    expected = sorted(set().union(*(_one_by_one(text, 2) for text in texts)))
    assert union([shingles(text, 2) for text in texts]).tolist() == expected
