"""A 64-bit finaliser: the one hash of numbers that order and repetition use.

It is written out here because its values are in training data orders: no library's random stream may move them.
"""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, odd: the step of SplitMix64."""
_MASK = 2**64 - 1


def mix64(values: np.ndarray) -> np.ndarray:
    """A bijection of uint64 in which each input bit flips each output bit about half the time; any shape.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014, with the constants of Stafford's variant 13).
    """
    mixed = values.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def key64(*numbers: int) -> int:
    """A 64-bit key of integers in order; a negative one counts modulo 2**64."""
    key = 0
    for number in numbers:
        key = int(mix64(np.array([(key + GOLDEN + number) & _MASK], np.uint64))[0])
    return key
