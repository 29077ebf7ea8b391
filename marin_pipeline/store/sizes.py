"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([kmgt]?i?)b?")


def parse_size(text: str) -> int:
    """Bytes of `20GB`, `1.5 TiB`, `500000`.

    Raises:
        ValueError: for what is no size.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no size; write it as in 500MB, 20GB or 1.5TiB")
    return int(float(found[1]) * _UNITS[found[2]])
