"""What is installed where this process runs: each distribution with its version and a digest of its files.

Read from the distributions' own records, without importing anything, in some 60 ms for 130 distributions.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from marin_pipeline.store.origins import Package

_NAME = re.compile(rb"^Name: *(.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(rb"^Version: *(.+?)\s*$", re.MULTILINE)
_HEAD = 8192
"""Bytes of the metadata in which its first lines lie."""


def packages(search: Iterable[str] | None = None) -> dict[str, Package]:
    """Every installed distribution by its normalized name; of two with one name the one that is imported.

    Args:
        search: folders, by default those of `sys.path`.
    """
    found: dict[str, Package] = {}
    for folder in sys.path if search is None else search:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                distribution = _distribution(Path(folder or ".", name))
                if distribution is not None:
                    found.setdefault(*distribution)
    return dict(sorted(found.items()))


def _distribution(folder: Path) -> tuple[str, Package] | None:
    """Name and version of a distribution; None for the rest of one that was removed."""
    name = version = None
    for metadata in ("METADATA", "PKG-INFO"):
        try:
            with (folder / metadata).open("rb", buffering=0) as file:
                head = file.read(_HEAD)
        except OSError:
            continue
        name, version = _NAME.search(head), _VERSION.search(head)
        break
    if name is None or version is None:
        return None
    return normalized(_text(name[1])), Package(_text(version[1]), _record(folder))


def normalized(name: str) -> str:
    """The name under which a distribution is found, however it is written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _record(folder: Path) -> str | None:
    """sha256 over the lines of a RECORD that have a hash, sorted: but for programs, which hold the path of their
    Python, and for what the installer notes. So the same wheel has the same digest wherever it is installed.
    """
    try:
        data = (folder / "RECORD").read_bytes()
    except OSError:
        return None
    own = f"{folder.name}/".encode()
    lines = [
        line for line in data.splitlines() if b",sha256=" in line and line[:3] != b"../" and not line.startswith(own)
    ]
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
