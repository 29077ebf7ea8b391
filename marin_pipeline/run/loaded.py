"""Which state of a source file a process has loaded, so that an edit during a run cannot pass for what it began with.

A file is looked at when its module is loaded, which may be late: steps import inside their functions. What is edited
after it was loaded harms nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.source import SourceStamp

_stamps: dict[str, tuple[int, int]] = {}
"""Time of change (ns) and size of each source file when this process loaded it."""

_path_stats = SourceFileLoader.path_stats


def _noting(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
    status = os.stat(path)
    _stamps[os.path.realpath(path)] = status.st_mtime_ns, status.st_size
    return _path_stats(self, path)


def watch() -> None:
    """Note every source file that this process loads from now on."""
    SourceFileLoader.path_stats = _noting


def refuse_edited(files: Iterable[SourceStamp], what: str) -> None:
    """Check that what was loaded is what the run began with.

    Args:
        files: the state of the files that `what` reaches, when the run began.
        what: the step or function, for the message.

    Raises:
        InputError: naming the files that were edited in between.
    """
    edited = [file.path for file in files if _stamps.get(file.path, file.state) != file.state]
    if edited:
        names = ", ".join(os.path.basename(path) for path in edited[:3])
        raise InputError(
            f"{what}: {names} was edited while the run was going on, before it was loaded; run the same command again"
        )
