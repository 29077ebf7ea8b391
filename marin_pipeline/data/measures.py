"""What the document filters of Gopher and C4 look at, measured for many documents at once.

Measures are numbers without a threshold; `steps/quality_filter.py` holds the rules. Words are runs without white
space, lines are those with something on them, paragraphs are separated by blank lines. A measure of a document
without words is 0.
"""

from __future__ import annotations

import re

import numpy as np

from marin_pipeline.data.repetition import WordArray

TOP_LENGTHS = (2, 3, 4)
DUPLICATE_LENGTHS = (5, 6, 7, 8, 9, 10)
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Rae et al. 2021, appendix A.1.1."""
BULLETS = ("•", "‣", "◦", "●", "▪", "-", "*", "–")
ELLIPSES = ("...", "…")
POLICY_NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
"""Raffel et al. 2020, section 2.2."""
_BLANK_LINES = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")

LINE_MEASURES = (
    "bullet_lines",
    "ellipsis_lines",
    "javascript_lines",
    "policy_lines",
    "duplicate_lines",
    "duplicate_line_characters",
    "duplicate_paragraphs",
    "duplicate_paragraph_characters",
    "sentences",
    "curly_brackets",
    "lorem_ipsum",
)
WORD_MEASURES = ("words", "mean_word_length", "alphabetic_words", "stop_words", "hashes_per_word", "ellipses_per_word")
REPETITION_MEASURES = tuple(f"top_{n}_gram" for n in TOP_LENGTHS) + tuple(
    f"duplicate_{n}_grams" for n in DUPLICATE_LENGTHS
)
MEASURES = (*WORD_MEASURES, *LINE_MEASURES, *REPETITION_MEASURES)


def measure(texts: list[str]) -> dict[str, np.ndarray]:
    """All measures of a batch of texts: for each name in `MEASURES` a float64 array of shape `(texts,)`."""
    words = WordArray([text.split() for text in texts])
    found = {**_word_measures(words, texts), **_line_measures(texts)}
    found |= {f"top_{length}_gram": words.top_share(length) for length in TOP_LENGTHS}
    found |= {f"duplicate_{length}_grams": words.duplicate_share(length) for length in DUPLICATE_LENGTHS}
    return {name: found[name] for name in MEASURES}


def _word_measures(words: WordArray, texts: list[str]) -> dict[str, np.ndarray]:
    count = np.maximum(1, words.lengths)
    alphabetic = np.fromiter((any(map(str.isalpha, word)) for word in words.vocabulary), bool, len(words.vocabulary))
    lower = [word.lower() for word in words.vocabulary]
    stop_words = np.zeros(words.documents)
    for stop_word in STOP_WORDS:
        matches = np.fromiter((word == stop_word for word in lower), bool, len(lower))
        stop_words += words.sum(matches[words.ids]) > 0
    hashes = np.array([text.count("#") for text in texts], np.float64)
    ellipses = np.array([sum(map(text.count, ELLIPSES)) for text in texts], np.float64)
    return {
        "words": words.lengths.astype(np.float64),
        "mean_word_length": words.document_characters / count,
        "alphabetic_words": words.sum(alphabetic[words.ids]) / count,
        "stop_words": stop_words,
        "hashes_per_word": hashes / count,
        "ellipses_per_word": ellipses / count,
    }


def _line_measures(texts: list[str]) -> dict[str, np.ndarray]:
    table = np.array([_lines_of(text) for text in texts], np.float64).reshape(len(texts), len(LINE_MEASURES))
    return dict(zip(LINE_MEASURES, table.T, strict=True))


def _lines_of(text: str) -> tuple[float, ...]:
    """The measures of `LINE_MEASURES` of one text, in that order."""
    lower = text.lower()
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    paragraphs = [paragraph for paragraph in map(str.strip, _BLANK_LINES.split(text)) if paragraph]
    lower_lines = (
        lower.split("\n") if "javascript" in lower or any(notice in lower for notice in POLICY_NOTICES) else []
    )
    count = max(1, len(lines))
    return (
        sum(line.startswith(BULLETS) for line in lines) / count,
        sum(line.endswith(ELLIPSES) for line in lines) / count,
        sum("javascript" in line for line in lower_lines) / count,
        sum(any(notice in line for notice in POLICY_NOTICES) for line in lower_lines) / count,
        *_duplicates(lines),
        *_duplicates(paragraphs),
        len(_SENTENCE_END.findall(text)),
        text.count("{") + text.count("}"),
        lower.count("lorem ipsum"),
    )


def _duplicates(pieces: list[str]) -> tuple[float, float]:
    """Share of pieces that occurred before, and share of characters in them."""
    distinct = set(pieces)
    if len(distinct) == len(pieces):
        return 0.0, 0.0
    characters = sum(map(len, pieces))
    return (len(pieces) - len(distinct)) / len(pieces), (characters - sum(map(len, distinct))) / characters
