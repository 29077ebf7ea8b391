"""Which state of a source file a process has loaded, so that an edit during a run cannot pass for what it began with.

A file is looked at when its module is loaded, which may be late: steps import inside their functions. What is edited
after it was loaded harms nobody, nor does a touch or a comment.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.projects import is_third_party
from marin_pipeline.core.source import SourceStamp, module_digest

_loaded: dict[str, tuple[tuple[int, int], bytes]] = {}
"""Time of change (ns), size, and content of each source file of a project when this process loaded it."""

_watching_since = time.time_ns()

FRESH_NS = 5 * 10**9
"""Bytecode of a file that was written less than this before is not used: its time of change may not tell it apart."""

_path_stats = SourceFileLoader.path_stats


def _noting(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
    real = os.path.realpath(path)
    if not is_third_party(Path(real)):
        status = os.stat(real)
        _loaded[real] = (status.st_mtime_ns, status.st_size), Path(real).read_bytes()
        if time.time_ns() - status.st_mtime_ns < FRESH_NS:
            raise OSError("written just now: compiled from its source")  # what the loader takes for "no bytecode"
    return _path_stats(self, path)


def watch() -> None:
    """Note every source file of a project that this process loads from now on."""
    SourceFileLoader.path_stats = _noting


def refuse_edited(files: Iterable[SourceStamp], what: str) -> None:
    """Check that what was loaded is what the run began with.

    Args:
        files: the state of the files that `what` reaches, when the run began.
        what: the step or function, for the message.

    Raises:
        InputError: naming the files that were edited in between.
    """
    edited = [file.path for file in files if _is_edited(file)]
    if edited:
        names = ", ".join(os.path.basename(path) for path in edited[:3])
        raise InputError(
            f"{what}: {names} was edited while the run was going on, before it was loaded; run the same command again "
            "(in a session, reload the module first)"
        )


def _is_edited(file: SourceStamp) -> bool:
    if file.path not in _loaded:
        # Loaded before this process began to watch, if at all: then it must not have been written since.
        return file.modified > _watching_since and file.path in _modules()
    state, content = _loaded[file.path]
    return state != file.state and module_digest(content, Path(file.path)) != file.digest


def _modules() -> set[str]:
    """The source files of the modules that this process has loaded."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {os.path.realpath(file) for file in files if file}
