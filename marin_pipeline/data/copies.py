"""Copies of documents, whatever their script, punctuation, spacing and case, and however long the other text is.

Texts are compared by their letters and digits alone: compatible characters made one (NFKC), case folded, and all else
dropped, white space and what cannot be seen with it. A shingle is a run of consecutive such characters; a text with
fewer is one shingle, equal to that of no other text. Equal shingles have equal hashes, whatever the machine.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np

CHARACTERS = 32
"""Characters of a shingle by default: five or six English words."""

_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Fillers of Hangul: letters by their category, and never seen (Default_Ignorable_Code_Point)."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def letters_of(text: str) -> str:
    """The letters and digits of a text, in order, without regard to case and to how a character is spelled."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(each for each in folded if each.isalnum() and each not in _FILLERS)


def character_shingles(letters: str, characters: int = CHARACTERS) -> np.ndarray:
    """The distinct shingles of what `letters_of` gave, sorted: uint64 of shape `(shingles,)`, empty for no letters."""
    if not letters:
        return np.empty(0, np.uint64)
    mixed = _mixed(np.frombuffer(letters.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64))
    length = min(characters, len(mixed))
    windows = len(mixed) - length + 1
    # A whole text begins otherwise than a window does, so that it is not found within longer ones.
    hashes = np.full(windows, len(mixed) if length < characters else 0, np.uint64)
    for place in range(length):
        hashes *= _MULTIPLIER
        hashes += mixed[place : place + windows]
    return np.unique(hashes)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: code points that differ a little differ everywhere."""
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(multiplier)
    return values ^ (values >> np.uint64(31))


class Sketch(NamedTuple):
    """Shingles of documents with the documents that they are of."""

    shingles: np.ndarray
    """uint64 of shape `(n,)`, sorted; one that occurs in several documents is there for each."""
    owners: np.ndarray
    """uint32 of shape `(n,)`: the place of the document of each, ascending where shingles are equal."""
    letters: np.ndarray
    """int64 of shape `(documents,)`: letters and digits of each document."""


def sketch(texts: list[str], characters: int = CHARACTERS) -> Sketch:
    """The sketch of documents, from what `letters_of` gave of each."""
    found = [character_shingles(letters, characters) for letters in texts]
    owners = np.repeat(np.arange(len(found), dtype=np.uint32), [len(each) for each in found])
    shingles = np.concatenate([np.empty(0, np.uint64), *found])
    order = np.argsort(shingles, kind="stable")
    return Sketch(shingles[order], owners[order], np.array([len(letters) for letters in texts], np.int64))


def merged(sketches: list[Sketch]) -> Sketch:
    """One sketch of the documents of several, in order."""
    starts = np.cumsum([0, *(len(each.letters) for each in sketches)])
    shingles = np.concatenate([np.empty(0, np.uint64), *(each.shingles for each in sketches)])
    owners = np.concatenate(
        [np.empty(0, np.uint32)]
        + [each.owners + np.uint32(start) for each, start in zip(sketches, starts[:-1].tolist(), strict=True)]
    )
    order = np.argsort(shingles, kind="stable")
    letters = np.concatenate([np.empty(0, np.int64), *(each.letters for each in sketches)])
    return Sketch(shingles[order], owners[order], letters)


class Index:
    """Documents to look for in others."""

    def __init__(self, documents: Sketch) -> None:
        self._documents = documents
        self._sizes = np.bincount(documents.owners, minlength=len(documents.letters))

    def shares(self, found: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """What the shingles of one text and the documents here share.

        Returns:
            The share of `found` that occurs in any document; the places of the documents with any of it, ascending;
            and the share of the shingles of each that is among `found`.
        """
        known = self._documents.shingles
        if not len(found) or not len(known):
            return 0.0, np.empty(0, np.int64), np.empty(0)
        first = np.searchsorted(known, found)
        hit = known[np.minimum(first, len(known) - 1)] == found
        first = first[hit]
        times = np.searchsorted(known, found[hit], "right") - first
        rows = np.arange(times.sum()) + np.repeat(first - np.cumsum(times) + times, times)
        owners, counts = np.unique(self._documents.owners[rows], return_counts=True)
        places = owners.astype(np.int64)
        return float(np.count_nonzero(hit) / len(found)), places, counts / self._sizes[places]
