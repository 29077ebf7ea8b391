"""Bytes on their way out of a bucket of Google Cloud Storage. All are of one generation of the object; a connection
that breaks is made again, and goes on where it was.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marin_pipeline.core.artifact import CHUNK
from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.gcs_client import NUMBER, Place, Reply, Silence, unanswered
from marin_pipeline.store.gcs_connections import Connection
from marin_pipeline.store.objects import explain_os_error

BLOCK = 2**20
"""Bytes that are taken at a time."""

AT_ONCE = 4
"""Parts of one large object that travel at the same time."""

WAITS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between the tries to go on after a broken connection, as long as nothing more arrives."""


class Stream:
    """The bytes of an object from an offset to before another."""

    def __init__(self, place: Place, start: int, stop: int | None, generation: str = "") -> None:
        self._place = place
        self._at = start
        self._stop = stop
        self.generation = generation
        """Of the object, once something was read."""
        self.size = 0
        """Bytes of the whole object, once something was read."""
        self._connection: Connection | None = None
        self._ended = False

    def readinto(self, buffer: memoryview) -> int:
        """Take the next bytes; how many, which is as many as there is room for while there are more.

        Raises:
            FileNotFoundError: when there is no such object.
            NoAnswer: when nothing more has arrived for half a minute.
            StoreError: when the object was replaced meanwhile.
        """
        silence = ""
        for wait in (*WAITS, None):
            try:
                if self._connection is None and not self._ended:
                    self._open()
                return 0 if self._connection is None else self._take(self._connection, buffer)
            except Silence as error:
                silence = str(error)
                self.close()
                if wait is not None:
                    time.sleep(wait * random.uniform(0.7, 1.3))
        raise unanswered(self._place.where, "read", silence)

    def _open(self) -> None:
        client, bucket, name, *_ = place = self._place
        stop = "" if self._stop is None else f"{self._stop - 1}"
        spans = {"Range": f"bytes={self._at}-{stop}"} if self._at or stop else {}
        pinned = {"generation": self.generation} if self.generation else {}
        self._connection = answer = client.get(client.media_url(bucket, name, **pinned), place.where, spans)
        if answer.status == 416:  # all of it was read, or there never was anything
            self._ended = True
            self.close()
            return
        if answer.status not in (200, 206) or (self._at and answer.status == 200):
            self._refuse(Reply(answer.status, answer.headers, b"" if answer.status == 200 else self._text(answer)))
        self.generation = answer.headers.get("x-goog-generation", "")
        spanned = answer.headers.get("content-range", "").rpartition("/")[2]
        size = spanned if NUMBER.fullmatch(spanned) else answer.headers.get("content-length", "0")
        if not NUMBER.fullmatch(size):
            self.close()
            raise StoreError(f"{place.where}: the store does not tell the object's size: it is not GCS")
        self.size = int(size)

    def _text(self, answer: Connection) -> bytes:
        """What a refusal says."""
        try:
            return answer.body()
        except OSError:
            return b""
        finally:
            self.close()

    def _refuse(self, reply: Reply) -> None:
        client, where = self._place.client, self._place.where
        if reply.status == 404 and self.generation:
            raise StoreError(f"{where}: was replaced while it was read; run again")
        if reply.status == 404 and not client.is_about_the_bucket(reply):
            raise FileNotFoundError(errno.ENOENT, "no such object", self._place.path)
        if reply.status == 200:
            raise StoreError(f"{where}: the store sends all of an object where a part is asked for: it is not GCS")
        client.refuse(reply, where, "read")

    def _take(self, connection: Connection, buffer: memoryview) -> int:
        try:
            size = connection.readinto(buffer)
        except OSError as error:
            raise Silence(str(error) or type(error).__name__) from error
        self._at += size
        if self._at >= (self.size if self._stop is None else min(self._stop, self.size)):
            self._ended = True
            self.close()
        elif size < len(buffer):
            if not size:
                raise Silence("it sent too few bytes")
            self.close()  # what has come is handed on, and the rest is asked for again
        return size

    def close(self) -> None:
        """Be done with the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._place.client.connections.release(connection)


def blocks(place: Place, start: int, stop: int | None) -> Iterator[bytes]:
    """The object's bytes in blocks. The next ones wait in the connection."""
    stream = Stream(place, start, stop if stop is None else max(stop, start + 1))
    try:
        buffer = memoryview(bytearray(BLOCK))
        while size := stream.readinto(buffer):
            if stop is not None and stop <= start:  # asked only to know whether the object is there
                return
            yield bytes(buffer[:size])
    finally:
        stream.close()


def download(place: Place, target: Path) -> str:
    """Write the object's bytes to a new local file; their digest. The parts of 64 MiB, of whose digests that of a
    larger file is made, are fetched and hashed at the same time.
    """
    stream = Stream(place, 0, CHUNK)
    buffer = _buffer()
    size = stream.readinto(buffer)
    with _created(target) as descriptor:
        if stream.size <= CHUNK:
            return _part(stream, buffer, size, descriptor, 0).hexdigest()
        given_up = threading.Event()

        def part(start: int) -> Any:
            each = Stream(place, start, start + CHUNK, stream.generation)
            room = _buffer()
            return None if given_up.is_set() else _part(each, room, each.readinto(room), descriptor, start, given_up)

        with ThreadPoolExecutor(AT_ONCE - 1) as pool:
            others = [pool.submit(part, start) for start in range(CHUNK, stream.size, CHUNK)]
            try:
                hashes = [_part(stream, buffer, size, descriptor, 0), *(each.result() for each in others)]
            except BaseException:
                given_up.set()
                raise
        return hashlib.sha256(b"".join(each.digest() for each in hashes)).hexdigest()


def _buffer() -> memoryview:
    return memoryview(bytearray(BLOCK))


@contextmanager
def _created(target: Path) -> Iterator[int]:
    """A new file, which is gone when what fills it fails."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise explain_os_error(error, target, "write") from error
    try:
        yield descriptor
    except BaseException as error:
        with suppress(OSError):
            target.unlink()
        if isinstance(error, OSError):
            raise explain_os_error(error, target, "write") from error
        raise
    finally:
        os.close(descriptor)


def _part(
    stream: Stream, buffer: memoryview, size: int, descriptor: int, at: int, given_up: threading.Event | None = None
) -> Any:
    """Write a part's bytes, the first of which are in the buffer, to where they belong; the sha256 of them."""
    digest = hashlib.sha256()
    try:
        while size and not (given_up and given_up.is_set()):
            left = block = buffer[:size]
            while left:
                written = os.pwrite(descriptor, left, at)
                left, at = left[written:], at + written
            digest.update(block)
            size = stream.readinto(buffer)
        return digest
    finally:
        stream.close()
