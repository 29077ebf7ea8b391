"""Training sequences: fixed-length windows of the token store.

Sequence i is tokens [i*S, (i+1)*S] of the concatenated parts: S inputs and, shifted by one, S targets. Where a
sequence lies depends on nothing but its number.
"""

from __future__ import annotations

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.token_store import TokenStore


class Sequences:
    """The sequences of a token store."""

    def __init__(self, store: TokenStore, sequence_length: int) -> None:
        if sequence_length < 1:
            raise InputError(f"sequence length {sequence_length}: it must be at least 1")
        self.store = store
        self.sequence_length = sequence_length
        """Tokens that a sequence predicts."""

    def __len__(self) -> int:
        return max(0, (self.store.tokens - 1) // self.sequence_length)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Sequences by number: int32 of shape `(len(ids), sequence_length + 1)`.

        Inputs are `[:, :-1]`, targets `[:, 1:]`.

        Raises:
            InputError: for a number that the store does not have.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self):
            raise InputError(f"sequences {ids.min()} to {ids.max()} were asked of a store that has {len(self)}")
        return self.store.read_many(ids * self.sequence_length, self.sequence_length + 1)
