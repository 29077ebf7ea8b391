"""How much a document repeats itself in word n-grams, for many documents at once.

All documents of a batch are one array of words, so a measure costs one sort a length of n-gram instead of a loop over
documents. Results are those of counting document by document: n-grams that cross a boundary are left out, and equal
n-grams are found by 64-bit hashes, of which no two in a batch collide in practice.
"""

from __future__ import annotations

import numpy as np

from marin_pipeline.data.mixing import mix64

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)


class WordArray:
    """The words of a batch of documents, one after another."""

    def __init__(self, documents: list[list[str]]) -> None:
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(word, len(numbers)) for words in documents for word in words]
        self.vocabulary = list(numbers)
        """The distinct words of the batch."""
        self.ids = np.array(ids, np.int64)
        """For each word of the batch, its place in `vocabulary`."""
        self.documents = len(documents)
        self.lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        """Words of each document."""
        self.document = np.repeat(np.arange(self.documents), self.lengths)
        """For each word, its document."""
        self.characters = np.fromiter(map(len, self.vocabulary), np.int64, len(numbers))[self.ids]
        """For each word, its characters."""
        self.document_characters = self.sum(self.characters)
        """Characters of the words of each document, white space left out."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over the words of each document of a value for each word: int64 of shape `(documents,)`."""
        return np.bincount(self.document, values, self.documents).astype(np.int64)

    def _hashes(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts of the n-grams that lie in one document, and for each a hash of it and its document."""
        starts = np.arange(max(0, len(self.ids) - length + 1))
        starts = starts[self.document[starts] == self.document[starts + length - 1]]
        hashes = self.document[starts].astype(np.uint64)
        for place in range(length):
            hashes = mix64(hashes * _MULTIPLIER + self.ids[starts + place].astype(np.uint64))
        return starts, hashes

    def _groups(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each hash, how often it occurs and whether it is the first of its kind."""
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        begins = np.ones(len(hashes), bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        group = np.cumsum(begins) - 1
        counts = np.empty(len(hashes), np.int64)
        counts[order] = np.bincount(group)[group] if len(group) else 0
        first = np.empty(len(hashes), bool)
        first[order] = begins
        return counts, first

    def _share(self, characters: np.ndarray) -> np.ndarray:
        return np.minimum(1.0, characters / np.maximum(1, self.document_characters))

    def top_share(self, length: int) -> np.ndarray:
        """Characters in the most frequent n-gram, times its count, as a share of the document's.

        An n-gram that occurs once is no repetition. Of several that are equally frequent the longest counts. Float64 of
        shape `(documents,)`.
        """
        starts, hashes = self._hashes(length)
        counts, first = self._groups(hashes)
        repeated = first & (counts > 1)
        starts, counts = starts[repeated], counts[repeated]
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.characters)))
        characters = ends[starts + length] - ends[starts]
        best = np.zeros(self.documents, np.int64)
        np.maximum.at(best, self.document[starts], counts << 32 | characters)
        return self._share((best >> 32) * (best & 0xFFFFFFFF))

    def duplicate_share(self, length: int) -> np.ndarray:
        """Characters in n-grams that occurred before in the document, as a share of its: float64, shape `(documents,)`.

        A word counts once, however many such n-grams cover it.
        """
        starts, hashes = self._hashes(length)
        _, first = self._groups(hashes)
        edges = np.zeros(len(self.ids) + 1, np.int64)
        np.add.at(edges, starts[~first], 1)
        np.add.at(edges, starts[~first] + length, -1)
        covered = np.cumsum(edges[:-1]) > 0
        return self._share(self.sum(self.characters * covered))
