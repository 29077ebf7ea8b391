"""Keyed permutations of 0 to length-1 with random access: the order of training data without a table.

What is at a position, and where an id is, takes the same few operations at any length, and no memory. Two are here:
one over everything, and one that keeps reads large by mixing within windows of blocks. What they give is versioned by
the `NAME` of each, which belongs into recipes: the same name, length and seed give the same order for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_whole
from marin_pipeline.data.mixing import GOLDEN, key64, mix64

LONGEST = 2**62
_CHUNK = 2**14
"""Numbers worked on at a time: with all that is computed of them they stay in the second-level cache."""

Map = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Network:
    """A generalised Feistel network that permutes 0 to `length`-1, walking on while a result is beyond.

    A number is split in `low < 2**bits` and `high < highs`, with `2**bits * highs` at least `length`, and above it by
    less than `2**bits`, about its root: few have to walk, and those hardly ever twice. Rounds in turns add to the one
    half a hash of the other, modulo the half's size (addition, unlike exclusive or, can make odd permutations of an
    even number of ids).

    How many rounds: the best attacks known on an even number k of them need about length**(k/2 - 2) calls (Patarin,
    "Generic attacks on Feistel schemes", 2001 and 2008; for k of 6 and more), while an epoch has `length`. With 6
    rounds the pairs of ids that agree in a half, in and out, still show it: by 5 standard deviations in 2,000 epochs of
    256 ids, by 3 in 1,500 of 1,024. With 8 they showed nothing. Halves of few bits take longer to mix: computed
    exactly, the distance between the distribution over all orders of 8 ids and the uniform one (total variation) is
    0.28 after 8 rounds, 0.004 after 24, and falls by a quarter each round.
    """

    length: int
    key: int

    ROUNDS: ClassVar[int] = 8
    ROUNDS_OF_SHORT: ClassVar[int] = 32
    SHORT: ClassVar[int] = 4096
    """Lengths below this have `ROUNDS_OF_SHORT` rounds."""

    @cached_property
    def bits(self) -> int:
        return ((self.length - 1).bit_length() + 1) // 2

    @cached_property
    def highs(self) -> int:
        return -(-self.length >> self.bits)

    @cached_property
    def _keys(self) -> np.ndarray:
        """One a round: the stream of SplitMix64 from `key`."""
        rounds = self.ROUNDS_OF_SHORT if self.length < self.SHORT else self.ROUNDS
        return mix64(np.uint64(self.key) + np.arange(1, rounds + 1, dtype=np.uint64) * np.uint64(GOLDEN))

    def forward(self, numbers: np.ndarray, tweaks: np.ndarray | np.uint64 = np.uint64(0)) -> np.ndarray:
        """The permutation of each of `numbers`, uint64 of one dimension; another one for each of `tweaks`."""
        return self._walk(self._rounds, numbers, tweaks)

    def backward(self, numbers: np.ndarray, tweaks: np.ndarray | np.uint64 = np.uint64(0)) -> np.ndarray:
        """The inverse of `forward`."""
        return self._walk(self._rounds_back, numbers, tweaks)

    def _walk(
        self,
        once: Callable[[np.ndarray, np.ndarray | np.uint64], np.ndarray],
        numbers: np.ndarray,
        tweaks: np.ndarray | np.uint64,
    ) -> np.ndarray:
        found = once(numbers, tweaks)
        while len(beyond := np.flatnonzero(found >= self.length)):
            found[beyond] = once(found[beyond], tweaks[beyond] if isinstance(tweaks, np.ndarray) else tweaks)
        return found

    def _rounds(self, numbers: np.ndarray, tweaks: np.ndarray | np.uint64) -> np.ndarray:
        low, high = self._halves(numbers)
        for even, odd in self._keys.reshape(-1, 2):
            low = (low + mix64(high ^ (even ^ tweaks))) & self._mask
            high = high + self._below(mix64(low ^ (odd ^ tweaks)))
            high = np.minimum(high, high - np.uint64(self.highs))  # what was too small has wrapped, and is larger
        return (high << np.uint64(self.bits)) | low

    def _rounds_back(self, numbers: np.ndarray, tweaks: np.ndarray | np.uint64) -> np.ndarray:
        low, high = self._halves(numbers)
        for even, odd in self._keys.reshape(-1, 2)[::-1]:
            high = high - self._below(mix64(low ^ (odd ^ tweaks)))
            high = np.minimum(high, high + np.uint64(self.highs))  # likewise
            low = (low - mix64(high ^ (even ^ tweaks))) & self._mask
        return (high << np.uint64(self.bits)) | low

    @cached_property
    def _mask(self) -> np.uint64:
        return np.uint64((1 << self.bits) - 1)

    def _halves(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return numbers & self._mask, numbers >> np.uint64(self.bits)

    def _below(self, hashes: np.ndarray) -> np.ndarray:
        """Hashes spread over 0 to `highs`-1: floor(hash * highs / 2**64), in words of 32 bits."""
        half, highs = np.uint64(32), np.uint64(self.highs)
        carried = ((hashes & np.uint64(2**32 - 1)) * highs) >> half
        return ((hashes >> half) * highs + carried) >> half


@dataclass(frozen=True)
class Permutation:
    """A permutation of 0 to `length`-1, another one for each seed.

    An id takes some 50 nanoseconds where many are asked for at once, 300 in a batch of 512; four times as
    much where `length` is below 4,096.

    Raises:
        InputError: where the length is below 1 or above 2**62, or a number is not in the permutation.
    """

    NAME: ClassVar[str] = "feistel-1"

    length: int
    seed: int
    """Any integer; counts modulo 2**64."""

    def __post_init__(self) -> None:
        check_whole("a permutation", length=self.length, seed=self.seed)
        _check_length(self.length)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The ids at positions of the order: int64 of the shape of `indices`."""
        return _by_chunks(self._network.forward, indices, self.length, "index")

    def inverse(self, ids: np.ndarray) -> np.ndarray:
        """The positions at which ids stand: int64 of the shape of `ids`."""
        return _by_chunks(self._network.backward, ids, self.length, "id")

    @cached_property
    def _network(self) -> _Network:
        return _Network(self.length, key64(self.seed, 1, self.length))


@dataclass(frozen=True)
class BlockPermutation:
    """A permutation of 0 to `length`-1 for stores that read neighbours together.

    Blocks of `block` consecutive ids are permuted over the whole, and within each `window` blocks that then follow one
    another the single ids are. So the positions from `n * window * block` to `(n + 1) * window * block` (fewer by what
    the last, short block lacks, from where it stands on) are read from `window` places of the store, and a batch draws
    from as many: a window of some hundreds of blocks is a shuffle for training, one of a few is not. An id takes
    some 100 nanoseconds where many are asked for at once, 600 in a batch of 512.

    Raises:
        InputError: where the length is below 1 or above 2**62, `block` or `window` is below 1, or a number is not in
            the permutation.
    """

    NAME: ClassVar[str] = "feistel-blocks-1"

    length: int
    seed: int
    """Any integer; counts modulo 2**64."""
    block: int
    """Consecutive ids a block; the last block may be shorter."""
    window: int
    """Blocks a window; the last window may have fewer."""

    def __post_init__(self) -> None:
        check_whole("a permutation", length=self.length, seed=self.seed, block=self.block, window=self.window)
        _check_length(self.length)
        if self.block < 1 or self.window < 1:
            raise InputError(f"block {self.block} and window {self.window}: both must be at least 1")

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The ids at positions of the order: int64 of the shape of `indices`."""
        return _by_chunks(self._forward, indices, self.length, "index")

    def inverse(self, ids: np.ndarray) -> np.ndarray:
        """The positions at which ids stand: int64 of the shape of `ids`."""
        return _by_chunks(self._backward, ids, self.length, "id")

    def _forward(self, positions: np.ndarray) -> np.ndarray:
        mixed = self._within_windows(positions, self._slot(positions), _Network.forward)
        slots = self._slot(mixed)
        return self._order.forward(slots) * self._block + (mixed - self._start(slots))

    def _backward(self, ids: np.ndarray) -> np.ndarray:
        blocks = ids // self._block
        slots = self._order.backward(blocks)
        mixed = self._start(slots) + (ids - blocks * self._block)
        return self._within_windows(mixed, slots, _Network.backward)

    def _within_windows(
        self, places: np.ndarray, slots: np.ndarray, network: Callable[[_Network, np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Permute places, which lie in `slots`, among those of their window."""
        windows = slots // self._window
        starts = self._start(windows * self._window)
        sizes = self._start(np.minimum((windows + np.uint64(1)) * self._window, self._blocks)) - starts
        tweaks = mix64(windows * np.uint64(GOLDEN) + np.uint64(self._key(3)))
        found = np.empty_like(places)
        for size in np.unique(sizes):  # three at most: a whole one, that with the short block, the last one
            chosen = np.flatnonzero(sizes == size)
            within = _Network(int(size), self._key(4))
            found[chosen] = starts[chosen] + network(within, places[chosen] - starts[chosen], tweaks[chosen])
        return found

    # Slots are the places of blocks in the order of blocks. All are full but the one in which the last block stands.

    def _slot(self, places: np.ndarray) -> np.ndarray:
        """The slot of each place."""
        full = (self._short_slot + np.uint64(1)) * self._block - self._lacking
        return (places + np.where(places < full, np.uint64(0), self._lacking)) // self._block

    def _start(self, slots: np.ndarray) -> np.ndarray:
        """The first place of each slot."""
        return slots * self._block - np.where(slots > self._short_slot, self._lacking, np.uint64(0))

    @cached_property
    def _block(self) -> np.uint64:
        return np.uint64(min(self.block, self.length))

    @cached_property
    def _blocks(self) -> np.uint64:
        return np.uint64(-(-self.length // int(self._block)))

    @cached_property
    def _window(self) -> np.uint64:
        return np.uint64(min(self.window, int(self._blocks)))

    @cached_property
    def _lacking(self) -> np.uint64:
        """How many ids the last block has fewer than the others."""
        return self._blocks * self._block - np.uint64(self.length)

    @cached_property
    def _short_slot(self) -> np.uint64:
        return self._order.backward(np.array([self._blocks - np.uint64(1)]))[0]

    @cached_property
    def _order(self) -> _Network:
        return _Network(int(self._blocks), self._key(2))

    def _key(self, purpose: int) -> int:
        return key64(self.seed, purpose, self.length, self.block, self.window)


def _check_length(length: int) -> None:
    if not 1 <= length <= LONGEST:
        raise InputError(f"a permutation of {length} ids: the length must be from 1 to {LONGEST} (2**62)")


def _by_chunks(map_: Map, numbers: np.ndarray, length: int, what: str) -> np.ndarray:
    """Apply a map of uint64 of one dimension to integers of any shape, after looking that all are below `length`."""
    numbers = np.asarray(numbers)
    if numbers.dtype.kind not in "iu":
        raise InputError(f"each {what} must be an integer from 0 to {length - 1}, and the array is of {numbers.dtype}")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < length):
        wrong = numbers[(numbers < 0) | (numbers >= length)].flat[0]
        raise InputError(f"{what} {wrong} is not in a permutation of {length} ids: give 0 to {length - 1}")
    flat = numbers.astype(np.uint64).ravel()
    found = np.empty(flat.shape, np.int64)
    for first in range(0, len(flat), _CHUNK):
        found[first : first + _CHUNK] = map_(flat[first : first + _CHUNK])
    return found.reshape(numbers.shape)
