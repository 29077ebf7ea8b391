"""Training sequences by number, and the cut of a token store into them.

Sequence i is tokens [i*S, (i+1)*S] of the concatenated parts: S inputs and, shifted by one, S targets. Where a
sequence lies depends on nothing but its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_whole, whole_numbers
from marin_pipeline.data.token_store import TokenStore

NO_TARGET = -1
"""Stands for a target where nothing is predicted."""


@dataclass(frozen=True)
class Rows:
    """Sequences as a model reads them: arrays of int32 of one shape `(rows, sequence_length)`."""

    inputs: np.ndarray
    targets: np.ndarray
    """The token that follows each input, or `NO_TARGET`."""
    documents: np.ndarray | None = None
    """Which of its row's documents each position belongs to, from 1 on, and 0 where there is none; attention stays
    within. None: a row is read as one text.
    """


class SequenceSource(Protocol):
    """The training sequences of one source, by number."""

    @property
    def sequence_length(self) -> int: ...
    def __len__(self) -> int: ...
    def read(self, ids: np.ndarray, /) -> Rows:
        """Sequences by number; several threads may read at once."""
        ...


class Piece(NamedTuple):
    """What a sequence predicts of one document: its tokens [start, stop), counted from the document's first one."""

    document: int
    """Its number in the store."""
    start: int
    stop: int


class DocumentSource(SequenceSource, Protocol):
    """Sequences of which it can be told what documents they are made of."""

    @property
    def store(self) -> TokenStore:
        """Where their tokens lie."""
        ...

    def pieces(self, sequence: int, /) -> list[Piece]:
        """What a sequence predicts, one piece after another from its first position on."""
        ...

    def sequences_of(self, document: int, /) -> Sequence[int]:
        """The sequences with a piece of a document, in the order of the pieces."""
        ...


class Sequences:
    """The tokens of a store, one document after another, cut every `sequence_length` tokens."""

    def __init__(self, store: TokenStore, sequence_length: int, separate: bool = False) -> None:
        """Cut a store.

        Args:
            sequence_length: tokens that a sequence predicts.
            separate: keep attention within a document. The token that ends a document is the first input of the next.
        """
        check_whole("sequences", sequence_length=sequence_length)
        if sequence_length < 1:
            raise InputError(f"sequence length {sequence_length}: it must be at least 1")
        self.store = store
        self.sequence_length = sequence_length
        """Tokens that a sequence predicts."""
        self.separate = separate

    def __len__(self) -> int:
        return max(0, (self.store.tokens - 1) // self.sequence_length)

    def read(self, ids: np.ndarray) -> Rows:
        """Sequences by number.

        Raises:
            InputError: for a number that the store does not have, or no whole number.
        """
        ids = whole_numbers("sequences", ids)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self):
            raise InputError(f"sequences {ids.min()} to {ids.max()} were asked of a store that has {len(self)}")
        tokens = self.store.read_many(ids * self.sequence_length, self.sequence_length + 1)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if not self.separate:
            return Rows(inputs, targets)
        begins = inputs == self.store.ledger.end_of_document
        begins[:, :1] = True
        return Rows(inputs, targets, np.cumsum(begins, axis=1, dtype=np.int32))

    def pieces(self, sequence: int) -> list[Piece]:
        """What a sequence predicts, by document. The first token of a store is the one that none predicts.

        Raises:
            InputError: for a number that the store does not have.
        """
        check_whole("sequences", sequence=sequence)
        if not 0 <= sequence < len(self):
            raise InputError(f"sequence {sequence} of a store that has {len(self)}, numbered from 0")
        position = sequence * self.sequence_length + 1
        end = position + self.sequence_length
        found: list[Piece] = []
        document = self.store.document_at(position)
        while position < end:
            start, stop = self.store.document_range(document)
            if position < stop:
                found.append(Piece(document, position - start, min(stop, end) - start))
                position = min(stop, end)
            document += 1
        return found

    def sequences_of(self, document: int) -> range:
        """The sequences with a piece of a document; none for what lies wholly in the rest that is cut off.

        Raises:
            InputError: for a document that the store does not have.
        """
        start, stop = self.store.document_range(document)
        # Token p is predicted by sequence (p - 1) // length.
        start = max(start, 1)
        if start >= stop:
            return range(0)
        first, last = (start - 1) // self.sequence_length, (stop - 2) // self.sequence_length
        return range(first, min(last + 1, len(self)))
