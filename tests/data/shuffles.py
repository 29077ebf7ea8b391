"""Statistics of a shuffle: each figure beside what a true shuffle is expected to give, and how far that strays.

All are of one permutation of 0 to N-1, whole, in its order. An order whose batches lean to some residue, whose
neighbours are tied to one another or whose ids drift with the position is many standard deviations off in some of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

BATCH = 512
SHORTEST = 64
"""Below this many ids the figures say little: `orders` of many seeds says more."""
_BINS = 32
"""Of the sizes of jumps; twice as many with their signs."""


class Figure(NamedTuple):
    """One figure, with mean and standard deviation over true shuffles."""

    value: float
    expected: float
    deviation: float

    @property
    def off(self) -> float:
        """Standard deviations from what is expected."""
        return (self.value - self.expected) / self.deviation


def statistics(ids: np.ndarray, window: int | None = None) -> dict[str, Figure]:
    """The figures of a permutation of `SHORTEST` ids or more, its batches drawn from windows of so many (or from all).

    `residues mod m`: mean over batches of the chi-square of ids by residue, by degree of freedom; mod 2 is how much the
    share of even ids in a batch varies, in variances of a true shuffle. `jumps`: chi-square of ids[i+1] - ids[i] over
    bins of their distribution, by degree of freedom. `equal jumps`: pairs of equal ones, by id. `neighbours' parity`:
    share of neighbours of which one is even. `residue mod 4 at lag 4`: share of ids that have the residue mod 4 of the
    one 4 positions on. `correlation`: of position and id.
    """
    length = len(ids)
    found = {f"residues mod {modulus}": _residues(ids, modulus, window or length) for modulus in (2, 4, 8)}
    found["jumps"] = _jumps(ids)
    found["equal jumps"] = _equal_jumps(ids)
    even = (length + 1) // 2
    odd_jumps = float(np.mean((ids[1:] ^ ids[:-1]) & 1))
    share = 2 * even * (length - even) / (length * (length - 1))
    found["neighbours' parity"] = Figure(odd_jumps, share, math.sqrt(share * (1 - share) / (length - 1)))
    same = float(np.mean((ids[4:] ^ ids[:-4]) & 3 == 0))
    counts = [(length + 3 - residue) // 4 for residue in range(4)]
    share = sum(count * (count - 1) for count in counts) / (length * (length - 1))
    found["residue mod 4 at lag 4"] = Figure(same, share, math.sqrt(share * (1 - share) / (length - 4)))
    middle, places = (length - 1) / 2, np.arange(length)
    tied = float(np.dot(places - middle, ids - middle)) / (length * (length * length - 1) / 12)
    found["correlation"] = Figure(tied, 0.0, 1 / math.sqrt(length - 1))
    return found


def even_shares(ids: np.ndarray) -> np.ndarray:
    """The share of even ids in each whole batch."""
    return 1 - np.mean(_batches(ids) & 1, axis=1)


def commonest_jump(ids: np.ndarray) -> int:
    """How often the commonest ids[i+1] - ids[i] occurs; in a true shuffle about ten times at any length."""
    return int(_runs(np.diff(ids)).max())


def orders(permutations: np.ndarray) -> Figure:
    """Chi-square, by degree of freedom, of how often each order of 2 to 6 ids or so occurs in `(seeds, length)`."""
    seeds, length = permutations.shape
    counts = np.unique(permutations, axis=0, return_counts=True)[1]
    possible = math.factorial(length)
    expected = seeds / possible
    chi_square = float(((counts - expected) ** 2).sum() / expected + (possible - len(counts)) * expected)
    return Figure(chi_square / (possible - 1), 1.0, math.sqrt(2 / (possible - 1)))


def is_bijection(ids: np.ndarray) -> bool:
    """Whether each of 0 to N-1 is there; N of them are, so each is there once."""
    if ids.min() < 0 or ids.max() >= len(ids):
        return False
    seen = np.zeros(len(ids), bool)
    seen[ids] = True
    return bool(seen.all())


def _batches(ids: np.ndarray) -> np.ndarray:
    size = min(BATCH, len(ids) // 8)
    return ids[: len(ids) // size * size].reshape(-1, size)


def _residues(ids: np.ndarray, modulus: int, window: int) -> Figure:
    length, batches = len(ids), _batches(ids)
    chi_square = np.zeros(len(batches))
    for residue in range(modulus):
        expected = batches.shape[1] * ((length + modulus - 1 - residue) // modulus) / length
        # The modulus is a power of two.
        chi_square += (np.count_nonzero(batches & (modulus - 1) == residue, axis=1) - expected) ** 2 / expected
    window = min(window, length)
    chi_square *= (window - 1) / (window - batches.shape[1])  # ids are drawn without putting back
    return Figure(float(chi_square.mean()) / (modulus - 1), 1.0, math.sqrt(2 / ((modulus - 1) * len(batches))))


def _jumps(ids: np.ndarray) -> Figure:
    length = len(ids)
    jumps = ids[1::2] - ids[: length // 2 * 2 : 2]  # of pairs that share no id, so that they hardly depend
    # A jump is d or more, up or down, with probability (N-d)(N-d+1) / N(N-1).
    wanted = np.arange(_BINS, 0, -1) / _BINS * length * (length - 1)
    edges = np.maximum(1, np.ceil(length + 0.5 - np.sqrt(wanted + 0.25)))
    beyond = np.append((length - edges) * (length - edges + 1), 0)
    expected = np.repeat((beyond[:-1] - beyond[1:]) / (length * (length - 1)), 2) / 2 * len(jumps)
    bins = 2 * (np.searchsorted(edges, np.abs(jumps), side="right") - 1) + (jumps > 0)
    counts = np.bincount(bins, minlength=2 * _BINS)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return Figure(chi_square / (2 * _BINS - 1), 1.0, math.sqrt(2 / (2 * _BINS - 1)))


def _equal_jumps(ids: np.ndarray) -> Figure:
    """Pairs of equal jumps, by id.

    Jump d is found about 1 - |d|/N times, a Poisson count whose sum over d is fixed: pairs are N/3 in the mean, with a
    variance of N (1/3 + 1/2 - 4/9).
    """
    runs = _runs(np.diff(ids)).astype(np.float64)
    return Figure(float((runs * (runs - 1) / 2).sum()) / len(ids), 1 / 3, math.sqrt(7 / 18 / len(ids)))


def _runs(values: np.ndarray) -> np.ndarray:
    """How often each value occurs."""
    values = np.sort(values)
    edges = np.flatnonzero(np.diff(values))
    return np.diff(np.concatenate([[-1], edges, [len(values) - 1]]))
