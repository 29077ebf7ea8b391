"""The order of training data: which sequences each step reads, as a pure function of mixture, seed and step.

No host, process or worker is in it: hosts take slices of the result. Whose turn it is comes from the mixture
(`marin_pipeline.data.stream`); which of its sequences a source then gives is a permutation of its own each epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_kind, check_seeds, check_whole
from marin_pipeline.data.mixing import GOLDEN, key64, mix64
from marin_pipeline.data.mixture import listed
from marin_pipeline.data.permutation import BlockPermutation
from marin_pipeline.data.permutation import Permutation as Permutation
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream


@dataclass(frozen=True)
class Batch:
    """Which sequences are read, one after another: three int64 arrays of one shape `(sequences,)`."""

    sources: np.ndarray
    """The source of each, by its place in the mixture."""
    sequences: np.ndarray
    """Its number in the source."""
    epochs: np.ndarray
    """Passes over the source before this one."""

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: slice | np.ndarray) -> Batch:
        """Some of them."""
        return Batch(self.sources[rows], self.sequences[rows], self.epochs[rows])

    @staticmethod
    def joined(parts: Sequence[Batch]) -> Batch:
        """Several, one after another."""
        return Batch(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))


_FIELDS = ("sources", "sequences", "epochs")


class TrainingOrder:
    """The order of the sequences of a mixture, cut into batches from `first_step` on; it never changes."""

    def __init__(
        self,
        stream: Stream,
        sequences: Mapping[str, int],
        batch_size: int,
        seed: int,
        shuffle: Shuffle = Shuffle(),
        first_step: int = 0,
        first_token: int = 0,
    ) -> None:
        """Lay out the order.

        Args:
            stream: whose turn it is.
            sequences: how many each source holds.
            batch_size: sequences a step.
            seed: of the permutations, in [0, 2**32).
            shuffle: how the sequences of a source are permuted.
            first_step: absolute step at which this order begins.
            first_token: tokens that training has read before `first_step`; rounded up to a whole sequence.

        Raises:
            InputError: for a batch size below 1, a negative position, a seed out of its range, a source without
                sequences, or one that the mixture does not have.
        """
        where = "an order of training"
        check_kind(where, Stream, "a Stream", stream=stream)
        check_kind(where, Shuffle, "a Shuffle", shuffle=shuffle)
        check_kind(where, Mapping, "a dict of whole numbers by source", sequences=sequences)
        for name, count in sequences.items():
            check_whole(f"{where}, source {name!r}", sequences=count)
        check_whole(where, batch_size=batch_size, seed=seed, first_step=first_step, first_token=first_token)
        check_seeds(seed=seed)
        if batch_size < 1:
            raise InputError(f"batch size {batch_size}: it must be at least 1")
        if first_token < 0:
            raise InputError(f"first token {first_token}: a position cannot be negative")
        # numpy's numbers would overflow where Python's grow.
        batch_size, seed, first_step, first_token = map(int, (batch_size, seed, first_step, first_token))
        sequences = {name: int(count) for name, count in sequences.items()}
        self.stream = stream
        self.names = stream.mixture.names
        """The sources in the order of their places."""
        self.batch_size = batch_size
        self.sequence_length = stream.sequence_length
        self.seed = seed
        self.shuffle = shuffle
        self.first_step = first_step
        self._first = -(-first_token // stream.sequence_length)
        unknown = [name for name in sequences if name not in self.names]
        if unknown:
            raise InputError(
                f"{where}: sequences names {listed(unknown)}, which is none of the mixture's sources: these are "
                f"{listed(self.names)}"
            )
        missing = [name for name in self.names if sequences.get(name, 0) < 1]
        if missing:
            raise InputError(
                f"source {missing[0]!r} of the mixture has no sequence of {self.sequence_length} tokens: use a shorter "
                "sequence length, give it more text, or leave it out"
            )
        self.sequences = tuple(sequences[name] for name in self.names)
        """How many each source holds, by place."""
        self._lengths = np.array(self.sequences, np.int64)
        self._salts = np.array([_salt(name) for name in self.names], np.uint64)

    def index(self, step: int) -> int:
        """How many sequences come before the batch of `step`.

        Raises:
            InputError: for a step before the first, or no whole number.
        """
        check_whole("an order of training", step=step)
        if step < self.first_step:
            raise InputError(f"step {step} is before step {self.first_step}, at which this order begins")
        return self._first + (int(step) - self.first_step) * self.batch_size

    def position(self, step: int) -> int:
        """Tokens read before `step`."""
        return self.index(step) * self.sequence_length

    def epochs(self, step: int) -> dict[str, float]:
        """Passes over each source before `step`."""
        counts = self.stream.counts(self.index(step))
        return {name: counts[name] / held for name, held in zip(self.names, self.sequences, strict=True)}

    def batch(self, step: int) -> Batch:
        """The sequences of a step, `batch_size` of them."""
        first = self.index(step)
        return self.between(first, first + self.batch_size)

    def between(self, start: int, stop: int) -> Batch:
        """The sequences at positions `[start, stop)`, counted from the start of training.

        Raises:
            InputError: for a position that is negative or no whole number, or a stop before the start.
        """
        sources, numbers = self.stream.slots(start, stop)
        epochs, within = np.divmod(numbers, self._lengths[sources])
        sequences = np.empty_like(within)
        longest = int(epochs.max(initial=0)) + 1
        groups, members = np.unique(sources * longest + epochs, return_inverse=True)
        for group, pair in enumerate(groups.tolist()):
            chosen = np.flatnonzero(members == group)
            sequences[chosen] = self.permutation(*divmod(pair, longest))(within[chosen])
        return Batch(sources, sequences, epochs)

    def permutation(self, source: int, epoch: int) -> Permutation | BlockPermutation:
        """The order of a source's sequences in an epoch. A source's name is in it, and no other source."""
        return _permutation(self.sequences[source], self.seed, int(self._salts[source]), epoch, self.shuffle)

    def find(self, source: int, sequence: int, epoch: int) -> int:
        """The position at which a sequence of a source comes in an epoch, counted from the start of training.

        Raises:
            InputError: for what the source does not have, and for an epoch that the mixture never reaches.
        """
        check_whole("an order of training", source=source, sequence=sequence, epoch=epoch)
        source, epoch = int(source), int(epoch)
        within = int(self.permutation(source, epoch).inverse(np.array([sequence]))[0])
        return self.stream.find(source, epoch * self.sequences[source] + within)

    def digest(self, batch: Batch) -> str:
        """sha256 of sources (by name) and sequences in order, as pairs of little-endian int64: the first 16 hex."""
        pairs = np.stack([self._salt(batch).view(np.int64), batch.sequences], axis=1).astype("<i8")
        return hashlib.sha256(pairs.tobytes()).hexdigest()[:16]

    def sum(self, batch: Batch) -> int:
        """A sum that does not depend on the order: of a 64-bit hash of source, sequence and epoch, modulo 2**64."""
        hashes = mix64(self._salt(batch) ^ (batch.epochs.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(1)))
        hashes = mix64(hashes ^ (batch.sequences.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(2)))
        return int(hashes.sum(dtype=np.uint64))

    def _salt(self, batch: Batch) -> np.ndarray:
        return self._salts[batch.sources]

    def described(self) -> dict[str, Any]:
        """What decides the order, as JSON values, but for the mixture."""
        held = dict(zip(self.names, self.sequences, strict=True))
        return {"seed": self.seed, "shuffle": self.shuffle.plain(), "sequences": held}


@lru_cache(maxsize=4096)
def _permutation(length: int, seed: int, salt: int, epoch: int, shuffle: Shuffle) -> Permutation | BlockPermutation:
    key = key64(seed, salt, epoch)
    if shuffle.block is None:
        return Permutation(length, key)
    return BlockPermutation(length, key, shuffle.block, shuffle.window)


def _salt(name: str) -> int:
    """A source's name as 64 bits."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
