"""Bytes that go from one place to another."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """A number of bytes for people."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
