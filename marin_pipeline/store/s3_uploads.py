"""Bytes on their way into a bucket: read once, hashed while they go, with a bound on how many are in memory."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.errors import MarinError, StoreError
from marin_pipeline.store.objects import FileToPublish, ObjectWriter, Written, explain_os_error, written_meanwhile

MOST_PARTS = 10_000
"""Parts of one upload: what S3 takes."""

STREAM_PART = 32 * 2**20
"""Bytes of a part of a stream, whose size nobody knows before: 312 GiB are as many as S3 takes."""

STREAM_PARTS_AT_ONCE = 2
"""Parts of a stream on the way at the same time."""

_BLOCK = 2**20
_WAITING = 4
"""Blocks of a stream that wait to be sent."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


class ETag:
    """The ETag that S3 gives to bytes: their MD5, and for an upload in parts the MD5 of the parts' MD5s and their
    number.
    """

    def __init__(self, part: int) -> None:
        self._part = part
        self._left = part
        self._current = hashlib.md5(usedforsecurity=False)
        self._parts: list[bytes] = []

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B")
        while view:
            if not self._left:
                self._parts.append(self._current.digest())
                self._current, self._left = hashlib.md5(usedforsecurity=False), self._part
            piece = view[: self._left]
            self._current.update(piece)
            self._left -= len(piece)
            view = view[len(piece) :]

    def value(self, in_parts: bool) -> str:
        """Without quotes."""
        if not in_parts:
            assert not self._parts, "more than one part, in one request"
            return self._current.hexdigest()
        digests = [*self._parts, self._current.digest()]
        return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


class FileBlocks(Iterator[bytes]):
    """The blocks of a file, hashed as they are handed on. A file that grows or shrinks meanwhile ends them."""

    def __init__(self, file: FileToPublish, block: int, hashes: Sequence[_Hash]) -> None:
        self._blocks = self._read(file, block)
        self._hashes = hashes
        self.error: StoreError | None = None
        """What ended the blocks too early."""

    def _read(self, file: FileToPublish, block: int) -> Iterator[bytes]:
        left = file.size
        try:
            with file.file.open("rb", buffering=0) as opened:
                while True:
                    data = opened.read(min(block, left))
                    if os.fstat(opened.fileno()).st_size != file.size or (left and not data):
                        self.error = written_meanwhile(file.file)
                        raise self.error
                    if not left:
                        return
                    left -= len(data)
                    yield data
        except OSError as error:
            self.error = explain_os_error(error, file.file, "read what was written")
            raise self.error from error

    def __next__(self) -> bytes:
        data = next(self._blocks)
        for each in self._hashes:
            each.update(data)
        return data


class BytesInFlight:
    """Room for so many bytes; who wants more than all of it gets all of it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._free = room
        self._changed = threading.Condition()

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Wait for room, and have it."""
        size = min(size, self._room)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


class _Aborted(Exception):
    """The stream is given up; told to the upload, which then ends without an object."""


class StreamWriter(ObjectWriter):
    """Sends a stream in parts from a thread of its own, while it is written; what fits in one part goes at the end, in
    one request.
    """

    def __init__(
        self,
        where: str,
        put: Callable[[Iterator[bytes] | bytes, int, int], str | None],
        written: Callable[[ContentHash, str, str | None], Written],
    ) -> None:
        """Args:
        put: uploads bytes, or blocks in parts of so many bytes, so many at once; the ETag that it was answered.
        written: what was written, by its content, the ETag that it should have, and the one that was answered.
        """
        self._where = where
        self._put = put
        self._written = written
        self._content = ContentHash()
        self._tag = ETag(STREAM_PART)
        self._pending = bytearray()
        self._queue: queue.Queue[bytes | _Aborted | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._answer: str | None = None
        self._error: BaseException | None = None

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        if self._content.size + len(view) > MOST_PARTS * STREAM_PART:
            raise StoreError(
                f"{self._where}: has more than {MOST_PARTS * STREAM_PART // 2**30} GiB, which is the most that S3 "
                "takes as a stream; write several files"
            )
        for start in range(0, len(view), _BLOCK):
            piece = view[start : start + _BLOCK]
            self._content.update(piece)
            self._tag.update(piece)
            self._pending += piece
            if self._content.size > STREAM_PART and len(self._pending) >= _BLOCK:
                self._send()
        return len(view)

    def _send(self) -> None:
        """Hand on what is pending."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload, name="marin-upload", daemon=True)
            self._thread.start()
        self._hand_on(bytes(self._pending))
        self._pending.clear()

    def _hand_on(self, item: bytes | _Aborted | None) -> None:
        while True:
            if self._error is not None:
                raise self._failure()
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def _failure(self) -> BaseException:
        if isinstance(self._error, MarinError):
            return type(self._error)(*self._error.args)
        return StoreError(f"{self._where}: cannot write: {self._error!r}; run again")

    def _blocks(self) -> Iterator[bytes]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Aborted):
                raise item
            yield item

    def _upload(self) -> None:
        try:
            self._answer = self._put(self._blocks(), STREAM_PART, STREAM_PARTS_AT_ONCE)
        except BaseException as error:  # noqa: BLE001 - raised where the stream is written
            self._error = error

    def _close(self) -> Written:
        if self._thread is None:
            answer = self._put(bytes(self._pending), STREAM_PART, 1)
        else:
            self._hand_on(bytes(self._pending))
            self._hand_on(None)
            self._thread.join()
            if self._error is not None:
                raise self._failure()
            answer = self._answer
        self._pending.clear()
        return self._written(self._content, self._tag.value(in_parts=self._thread is not None), answer)

    def _abort(self) -> None:
        self._pending.clear()
        if self._thread is not None and self._thread.is_alive():
            while self._error is None:
                try:
                    self._queue.put(_Aborted(), timeout=0.2)
                    break
                except queue.Full:
                    continue
            self._thread.join()
