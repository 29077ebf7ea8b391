"""Digests of local files, computed once for each state of a file in a process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from marin_pipeline.core.artifact import content_digest

MOST = 65536
"""Files whose digests are known at a time."""

_State = tuple[str, int, int]
_known: dict[_State, str] = {}
_lock = threading.Lock()


def _state(path: Path, information: os.stat_result) -> _State:
    return os.fspath(path), information.st_size, information.st_mtime_ns


def digest_at(path: Path, information: os.stat_result) -> str:
    """Digest of a file that is in this state; it is read when it has not been since it was written."""
    state = _state(path, information)
    found = _known.get(state)
    if found is None:
        found = content_digest(path)
        note_digest(path, information, found)
    return found


def is_known(path: Path, information: os.stat_result, digest: str) -> bool:
    """Whether a file in this state is known to have this digest."""
    return _known.get(_state(path, information)) == digest


def note_digest(path: Path, information: os.stat_result, digest: str) -> None:
    """Remember the digest of a file, taken when it was written."""
    with _lock:
        while len(_known) >= MOST:
            del _known[next(iter(_known))]
        _known[_state(path, information)] = digest
