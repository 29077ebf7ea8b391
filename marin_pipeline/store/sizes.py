"""Sizes in bytes, as people write them: everywhere the same."""

from __future__ import annotations

import re

MOST = 2**63 - 1
"""Bytes that a size may have."""

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(
    r"([0-9]{1,30})(?:\.([0-9]{0,30}))?(?:e([0-9]{1,2}))?\s*(?:([kmgtp])(i?))?b?", re.ASCII | re.IGNORECASE
)


def parse_size(text: str) -> int:
    """Bytes of `20GB`, `1.5 TiB`, `500000`, `2e9`.

    Raises:
        ValueError: for what is no size, and for one that nothing has.
    """
    found = _SIZE.fullmatch(text.strip())
    shown = repr(text if len(text) <= 40 else f"{text[:40]}…")
    if found is None:
        raise ValueError(f"{shown} is no size; write it as in 500MB, 20GB or 1.5TiB")
    whole, part, power, unit, binary = (each or "" for each in found.groups())
    scale = (1024 if binary else 1000) ** _POWERS[unit.lower()] * 10 ** int(power or 0)
    size = int(whole + part) * scale // 10 ** len(part)
    if size > MOST:
        raise ValueError(f"{shown} is more than there can be; write it as in 500MB, 20GB or 1.5TiB")
    return size
