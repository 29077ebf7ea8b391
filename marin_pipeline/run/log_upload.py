"""The log of a task, on a store whose objects are not files of this machine: written to scratch, and uploaded while the
task runs and when it ends, however it ends short of a kill.

An upload is of the whole log. So that a long one is not sent over and over, the wait for the next grows with what the
last one was: on average it takes a tenth of the time, and `RATE`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marin_pipeline.core.errors import StoreError
from marin_pipeline.core.visible import say
from marin_pipeline.store import layout
from marin_pipeline.store.objects import ObjectStore, answered

EVERY = 2.0
"""Seconds between two uploads, at least."""

SHARE = 10
"""An upload that took so long is followed by a wait of so many times as long."""

RATE = 2**20
"""Bytes a second that logs may take on average."""

_BLOCK = 2**20


@contextmanager
def uploading(objects: ObjectStore, path: str, *, at_once: bool) -> Iterator[Path]:
    """The local file for a log, which is kept in the store, with what else is written to its folder, as it grows.

    Args:
        at_once: the log is there from the beginning on, although it is empty: an attempt is found by it.
    """
    folder, _, name = path.rpartition("/")
    file = objects.folder(folder) / name
    if objects.in_place:
        yield file
        return
    file.touch()
    logs = _Logs(objects, folder, at_once)
    try:
        with _last_words(logs):
            yield file
    finally:
        try:
            logs.finish()
        except StoreError as error:
            say(f"{objects.url}/{folder}: what was printed is not kept there: {error}", sys.stderr)
        objects.forget(folder)


class _Logs:
    """The files of one folder, and how far each is in the store."""

    def __init__(self, objects: ObjectStore, folder: str, at_once: bool) -> None:
        self._objects = objects
        self._folder = folder
        self._local = objects.folder(folder)
        self._sizes: dict[str, int] = {}
        self._at_once = at_once
        self._lock = threading.RLock()  # a signal's handler may find its own thread in it
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marin-logs", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait = 0.0 if self._at_once else EVERY
        while not self._ended.wait(wait):
            begun = time.monotonic()
            with suppress(StoreError, OSError):  # the next one, or the last, may do better
                self.upload()
            wait = max(EVERY, SHARE * (time.monotonic() - begun), sum(self._sizes.values()) / RATE)

    def upload(self) -> None:
        """Upload what has grown since the last time.

        Raises:
            StoreError: when the store does not take it.
        """
        with self._lock:
            for name in layout.LOGS:  # and nothing else that a task has put there: nobody looks through that
                file = self._local / name
                if file.is_symlink() or not file.is_file():
                    continue
                size = file.stat().st_size
                if size != self._sizes.get(name, -1 if self._at_once else 0):
                    self._send(name, file, size)
                    self._sizes[name] = size

    def _send(self, name: str, file: Path, size: int) -> None:
        """Upload the first bytes of a file that somebody may be writing to."""
        with file.open("rb", buffering=0) as source, self._objects.writer(f"{self._folder}/{name}") as writer:
            while size and (block := source.read(min(size, _BLOCK))):
                writer.write(block)
                size -= len(block)

    def finish(self) -> None:
        """Upload the rest; nothing is uploaded after it.

        Raises:
            StoreError: when the store does not take it.
        """
        self._ended.set()
        self._thread.join()
        answered(self.upload)


@contextmanager
def _last_words(logs: _Logs) -> Iterator[None]:
    """Upload the rest before the process is ended by SIGTERM, where nobody else has a say in that."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def end(number: int, frame: object) -> None:
        if os.getpid() == process:  # and not one that the task has forked
            with suppress(Exception):  # it ends, whatever else goes wrong
                sys.stdout.flush()
                logs.finish()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
