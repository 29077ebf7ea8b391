"""Word shingles: what two texts share when one contains passages of the other.

A shingle is a run of words of the lower-cased text, joined by single spaces and hashed with xxh3-64. White space
separates words; a text with fewer words than a shingle has none.
"""

from __future__ import annotations

import numpy as np
import xxhash

SHINGLE_WORDS = 8


def shingles(text: str, words: int = SHINGLE_WORDS) -> np.ndarray:
    """The distinct shingles of a text, sorted: uint64 of shape `(shingles,)`."""
    split = text.lower().split()
    count = len(split) - words + 1
    if count < 1:
        return np.empty(0, np.uint64)
    encoded = [word.encode("utf-8", "surrogatepass") for word in split]
    joined = b" ".join(encoded)
    ends = np.cumsum([len(word) + 1 for word in encoded]) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    digest = xxhash.xxh3_64_intdigest
    hashes = [
        digest(joined[start:end])
        for start, end in zip(starts[:count].tolist(), ends[words - 1 :].tolist(), strict=True)
    ]
    return np.unique(np.array(hashes, np.uint64))


def union(sets: list[np.ndarray]) -> np.ndarray:
    """All shingles of several sorted arrays, sorted and distinct."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *sets]))


def share_in(found: np.ndarray, known: np.ndarray) -> float:
    """Share of the shingles `found` that are among `known`, which is sorted; 0.0 when there are none."""
    if not len(found) or not len(known):
        return 0.0
    position = np.minimum(np.searchsorted(known, found), len(known) - 1)
    return float(np.count_nonzero(known[position] == found) / len(found))
