"""The order of training data: which sequences each step reads, as a pure function of the seed and the step.

No host, process or worker is in it: hosts take slices of the result. Each epoch is a permutation of its own, and
positions are counted in tokens, so that they survive a change of batch size or sequence length.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixing import GOLDEN, key64, mix64
from marin_pipeline.data.permutation import Permutation as Permutation


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, sequences: int) -> np.ndarray:
    """The order of the sequences in an epoch: int64 of shape `(sequences,)`, each id once, not writable.

    Ids are sorted by a keyed hash. The hash is a bijection of 64 bits, so no two are equal and the order is that of a
    uniform shuffle as far as the finaliser is random. Making it takes 0.2 microseconds and up to 40 bytes a sequence,
    once an epoch.
    """
    first, second = key64(seed, epoch, 1), key64(seed, epoch, 2)
    ids = np.arange(sequences, dtype=np.uint64) * np.uint64(GOLDEN)
    hashes = mix64(mix64(ids ^ np.uint64(first)) ^ np.uint64(second))
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class TrainingOrder:
    """The order of sequences from `first_step` on, for one batch size and sequence length."""

    tokens: int
    """Tokens in the store, end-of-document tokens included."""
    sequence_length: int
    """Tokens that a sequence predicts."""
    batch_size: int
    """Sequences a step."""
    seed: int
    first_step: int = 0
    """The absolute step at which this order begins."""
    first_token: int = 0
    """Tokens that training has read before `first_step`; rounded up to a whole sequence."""

    def __post_init__(self) -> None:
        if self.sequence_length < 1 or self.batch_size < 1:
            raise InputError(
                f"sequence length {self.sequence_length} and batch size {self.batch_size}: both must be at least 1"
            )
        if self.first_token < 0:
            raise InputError(f"first token {self.first_token}: a position cannot be negative")
        if self.sequences < 1:
            raise InputError(
                f"{self.tokens} tokens hold no sequence of {self.sequence_length} tokens and a target after the last; "
                "use a shorter sequence length or more text"
            )

    @property
    def sequences(self) -> int:
        """Sequences an epoch; sequence i is tokens [i*S, (i+1)*S], the last one being a target only."""
        return (self.tokens - 1) // self.sequence_length

    def _first_index(self, step: int) -> int:
        """How many sequences come before the batch of `step`, over all epochs."""
        if step < self.first_step:
            raise InputError(f"step {step} is before step {self.first_step}, at which this order begins")
        return -(-self.first_token // self.sequence_length) + (step - self.first_step) * self.batch_size

    def position(self, step: int) -> int:
        """Tokens read before `step`."""
        return self._first_index(step) * self.sequence_length

    def epoch(self, step: int) -> float:
        """Epochs read before `step`."""
        return self._first_index(step) / self.sequences

    def batch(self, step: int) -> np.ndarray:
        """Ids of the sequences of a step: int64 of shape `(batch_size,)`."""
        first = self._first_index(step)
        indices = np.arange(first, first + self.batch_size)
        epochs, within = np.divmod(indices, self.sequences)
        ids = np.empty(self.batch_size, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            chosen = epochs == epoch
            ids[chosen] = permutation(self.seed, epoch, self.sequences)[within[chosen]]
        return ids

    def digest(self, step: int) -> str:
        """Digest of the batch's ids, for logs and checkpoints."""
        return ids_digest(self.batch(step))


def ids_digest(ids: np.ndarray) -> str:
    """sha256 of sequence ids in order, as little-endian int64: the first 16 hex."""
    return hashlib.sha256(np.ascontiguousarray(ids, "<i8").tobytes()).hexdigest()[:16]
