"""Numbers, names and times as people read them: one function a kind, for every command."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

LISTED = 40
"""Lines that are told one by one where nothing else is said; more are counted."""


def bytes_text(size: float) -> str:
    """A number of bytes: `45.4 kB`."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things: `1 file`, `2 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def few(names: Collection[object], most: int = 3) -> str:
    """The first names, and how many more."""
    shown = ", ".join(str(name) for name in list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def listed(lines: Sequence[str], most: int = LISTED, hint: str = "--json has all") -> Iterator[str]:
    """The first lines; the others are counted, with where to see them."""
    yield from lines[:most]
    if len(lines) > most:
        yield f"  and {len(lines) - most:,} more{f'; {hint}' if hint else ''}"


def moment(at: str) -> str:
    """A recorded time, to the second."""
    return at[:19].replace("T", " ")
