"""Folders of a process: they go when it has gone, however that ended.

A process holds a lock on a file beside its folder for as long as it lives. Who can take that lock may remove the
folder: the process itself at its end, or the next one that makes a folder there.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marin_pipeline.core.errors import StoreError

_ALIVE = ".alive"


@functools.cache
def own_folder(parent: Path) -> Path:
    """This process's folder below `parent`, which only this user can see; those of processes that have gone are
    removed.

    Raises:
        OSError: when it cannot be made.
        StoreError: when `parent` is another user's.
    """
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if parent.stat().st_uid != os.getuid():
        raise StoreError(f"{parent}: belongs to another user; set TMPDIR or MARIN_CACHE to a folder of your own")
    with locked(parent / "lock"):
        _remove_left(parent)
        folder = parent / f"{os.getpid()}-{os.urandom(4).hex()}"
        alive = os.open(f"{folder}{_ALIVE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # where there are no locks, nothing is ever removed by others
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.mkdir()
    atexit.register(_end, folder, os.getpid())
    return folder


def scratch_parent() -> Path:
    """Where the folders of a user's processes lie on the disk for temporary files."""
    try:
        above = tempfile.gettempdir()
    except OSError:  # no file can be made in any folder at the moment: no room, or too many open files
        above = os.environ.get("TMPDIR") or "/tmp"
    return Path(above) / f"marin-{os.getuid()}"


def scratch_folder() -> Path:
    """This process's folder on the disk for temporary files.

    Raises:
        StoreError: when it cannot be made.
    """
    parent = scratch_parent()
    try:
        return own_folder(parent)
    except OSError as error:
        raise StoreError(f"{parent}: cannot be made ({error.strerror}); set TMPDIR to a folder of your own") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock of all processes of this machine, where the file system has locks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _end(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not a child that was forked
        _remove(folder)


def _remove_left(parent: Path) -> None:
    for alive in parent.glob(f"*{_ALIVE}"):
        with suppress(OSError):
            descriptor = os.open(alive, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(alive.with_name(alive.name.removesuffix(_ALIVE)))
            finally:
                os.close(descriptor)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.unlink(f"{folder}{_ALIVE}")
