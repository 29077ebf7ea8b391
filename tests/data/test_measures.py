"""Measures of documents: equal to counting document by document, whatever else is in the batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.data.measures import MEASURES, measure
from marin_pipeline.data.repetition import WordArray

WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), max_size=30)
ODD = ["", " ", "\0", "word", "a\0b c", "\n\n\n", "{", "...", "\u2028", "🙂 🙂"]


def _grams(words: list[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def _top_share(words: list[str], length: int) -> float:
    counts = Counter(_grams(words, length))
    repeated = [(count, sum(map(len, gram))) for gram, count in counts.items() if count > 1]
    count, characters = max(repeated, default=(0, 0))
    return min(1.0, count * characters / max(1, sum(map(len, words))))


def _duplicate_share(words: list[str], length: int) -> float:
    seen: set[tuple[str, ...]] = set()
    covered: set[int] = set()
    for start, gram in enumerate(_grams(words, length)):
        if gram in seen:
            covered |= set(range(start, start + length))
        seen.add(gram)
    return sum(len(words[place]) for place in covered) / max(1, sum(map(len, words)))


@settings(deadline=None)
@given(st.lists(WORDS, max_size=5), st.integers(1, 6))
def test_repetition_equals_counting_one_by_one(documents: list[list[str]], length: int) -> None:
    words = WordArray(documents)
    assert words.top_share(length).tolist() == pytest.approx([_top_share(one, length) for one in documents])
    assert words.duplicate_share(length).tolist() == pytest.approx([_duplicate_share(one, length) for one in documents])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(max_size=50) | st.sampled_from(ODD), max_size=6))
def test_a_document_is_measured_alike_alone_and_in_any_batch(texts: list[str]) -> None:
    together = measure(texts)
    for place, text in enumerate(texts):
        alone = measure([text])
        assert {name: alone[name][0] for name in MEASURES} == {name: together[name][place] for name in MEASURES}


def test_no_measure_of_an_odd_document_is_undefined() -> None:
    for values in measure(ODD).values():
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    assert all(len(values) == 0 for values in measure([]).values())


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("words", "one two\nthree", 3),
        ("mean_word_length", "a bbb", 2),
        ("alphabetic_words", "a 1 b2 --", 0.5),
        ("stop_words", "The the OF cat", 2),
        ("hashes_per_word", "# a ## b", 3 / 4),
        ("ellipses_per_word", "a... b…", 1),
        ("bullet_lines", "- a\n\n  * b\nc\nd", 0.5),
        ("ellipsis_lines", "a...\nb …\nc\nd", 0.5),
        ("javascript_lines", "Enable JavaScript\nnow", 0.5),
        ("policy_lines", "Our Privacy Policy\nand\nsite uses cookies\nend", 0.5),
        ("duplicate_lines", "a\nb\na\n\nb", 0.5),
        ("duplicate_line_characters", "aaa\nb\n aaa", 3 / 7),
        ("duplicate_paragraphs", "a\nb\n\nc\n\na\nb\n \nd", 0.25),
        ("duplicate_paragraph_characters", "aaa\n\nb\n\naaa", 3 / 7),
        ("sentences", "One. Two! (Three?) e.g.x v1.2", 3),
        ("curly_brackets", "{a} }", 3),
        ("lorem_ipsum", "Lorem ipsum dolor", 1),
        ("top_2_gram", "a b a b c", 4 / 5),
        ("duplicate_5_grams", "a b c d e a b c d e", 0.5),
    ],
)
def test_a_measure_is_what_its_name_says(name: str, text: str, expected: float) -> None:
    assert measure([text])[name][0] == pytest.approx(expected)
