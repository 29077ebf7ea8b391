"""Training sequences by number, and the cut of a token store into them.

Sequence i is tokens [i*S, (i+1)*S] of the concatenated parts: S inputs and, shifted by one, S targets. Where a
sequence lies depends on nothing but its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marin_pipeline.core.errors import InputError
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


class Sequences:
    """The tokens of a store, one document after another, cut every `sequence_length` tokens."""

    def __init__(self, store: TokenStore, sequence_length: int, separate: bool = False) -> None:
        """Cut a store.

        Args:
            sequence_length: tokens that a sequence predicts.
            separate: keep attention within a document. The token that ends a document is the first input of the next.
        """
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
            InputError: for a number that the store does not have.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self):
            raise InputError(f"sequences {ids.min()} to {ids.max()} were asked of a store that has {len(self)}")
        tokens = self.store.read_many(ids * self.sequence_length, self.sequence_length + 1)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if not self.separate:
            return Rows(inputs, targets)
        begins = inputs == self.store.ledger.end_of_document
        begins[:, :1] = True
        return Rows(inputs, targets, np.cumsum(begins, axis=1, dtype=np.int32))
