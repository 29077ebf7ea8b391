"""Bytes on their way out of a bucket. All are of one version of the object; a connection that breaks is made again, and
goes on where it was.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_pipeline.core.artifact import CHUNK
from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.objects import NoAnswer

if TYPE_CHECKING:
    from marin_pipeline.store.remote_objects import RemoteObjects

AT_ONCE = 4
"""Parts of one large object that travel at the same time."""

WAITS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between the tries to go on after a broken connection, as long as nothing more arrives."""

PATIENCE_SECONDS = 60.0
"""After so long without anything no more tries are begun, if there was one."""


class Opened(NamedTuple):
    """An answer whose bytes are still to be read."""

    version: str
    """Of the object; empty where nothing is there from the first byte on that was asked for."""
    size: int
    """Bytes of the whole object, or 0 where nothing is there."""
    blocks: Iterator[Any]
    """The bytes, in blocks that have their length and their buffer. Raises NoAnswer when the connection breaks."""


class Stream(Iterator[Any]):
    """The bytes of an object from an offset to before another, in blocks that have their length and their buffer."""

    def __init__(self, objects: RemoteObjects, path: str, start: int, stop: int | None, version: str = "") -> None:
        """Args:
        version: the only one that is wanted; empty for the present one.

        Raises:
            FileNotFoundError: when there is no such object.
            NoAnswer: when the store does not answer.
        """
        self._objects = objects
        self._path = path
        self._at = start
        self._stop = stop
        self.version = version
        """Of the object; empty where nothing is there."""
        opened = self._opened()
        self.version = opened.version
        self.size = opened.size
        """Bytes of the whole object, or 0 where nothing is there."""
        self._end = opened.size if stop is None else min(stop, opened.size)
        self._blocks: Iterator[Any] | None = opened.blocks

    def _opened(self) -> Opened:
        opened = self._objects.opened(self._path, self._at, self._stop, self.version)
        if self.version and opened.version != self.version:
            raise replaced(self._where)
        return opened

    @property
    def _where(self) -> str:
        return f"{self._objects.url}/{self._path}"

    def __next__(self) -> Any:
        """The next block.

        Raises:
            NoAnswer: when nothing more arrives.
            StoreError: when the object was replaced meanwhile.
        """
        if self._at >= self._end:
            self._blocks = None
            raise StopIteration
        until = time.monotonic() + PATIENCE_SECONDS
        problem = NoAnswer(f"{self._where}: cannot read: it ended at byte {self._at} of {self.size}; run again")
        for tries, wait in enumerate((*WAITS, None)):
            try:
                if self._blocks is None:
                    self._blocks = self._opened().blocks
                block = next(self._blocks, None)
                if block is not None and len(block):
                    self._at += len(block)
                    return block
            except NoAnswer as error:
                problem = error
            self._blocks = None
            if wait is None or (tries and time.monotonic() > until):
                break
            time.sleep(wait * random.uniform(0.7, 1.3))
        raise problem


def replaced(where: str) -> StoreError:
    """The error when the version that was read before is no more there."""
    return StoreError(f"{where}: was replaced while it was read; run again")


def blocks(objects: RemoteObjects, path: str, start: int, stop: int | None) -> Iterator[bytes]:
    """The object's bytes in blocks."""
    nothing = stop is not None and stop <= start
    stream = Stream(objects, path, start, start + 1 if nothing else stop)
    if not nothing:  # else it was asked only to know whether the object is there
        for block in stream:
            yield bytes(block)


def download(objects: RemoteObjects, path: str, target: Path) -> str:
    """Write the object's bytes to a new local file; their digest. The parts of 64 MiB, of whose digests that of a
    larger file is made, are fetched and hashed at the same time.

    Raises:
        OSError: when the file cannot be made or written.
    """
    first = Stream(objects, path, 0, CHUNK)
    with _new_file(target) as file:
        if first.size <= CHUNK:
            return _written(first, file, 0).hexdigest()
        given_up = threading.Event()

        def part(start: int) -> Any:
            try:
                stream = first if not start else Stream(objects, path, start, start + CHUNK, first.version)
                return _written(stream, file, start, given_up)
            except BaseException:
                given_up.set()
                raise

        with ThreadPoolExecutor(AT_ONCE) as pool:
            parts = [pool.submit(part, start) for start in range(0, first.size, CHUNK)]
            try:
                digests = [each.result().digest() for each in parts]
            except BaseException:
                given_up.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return hashlib.sha256(b"".join(digests)).hexdigest()


@contextmanager
def _new_file(target: Path) -> Iterator[int]:
    """A file to write; it is gone when what fills it fails."""
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield file
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    finally:
        os.close(file)


def _written(stream: Stream, file: int, at: int, given_up: threading.Event | None = None) -> Any:
    """Write a part's bytes to where they belong; the sha256 of them."""
    content = hashlib.sha256()
    for block in stream:
        if given_up is not None and given_up.is_set():
            break
        content.update(block)
        left = memoryview(block)
        while left:
            written = os.pwrite(file, left, at)
            left, at = left[written:], at + written
    return content
