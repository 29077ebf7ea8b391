"""Reads a file of a remote store without fetching it whole: by ranges, ahead of a reader that goes on, in bounded
memory.

Who reads from the beginning to the end is told of wrong bytes before it gets the last of them. Who jumps about rests on
the size and on the store's own checksum, which were compared when the file was opened.
"""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store.manifest import Entry
from marin_pipeline.store.objects import ObjectStore, answered

JUMP = 2**18
"""Bytes that are read after a jump, at least."""

FIRST = 2**20
"""Bytes of the first piece of a file that is read from its beginning; each one that follows is twice as large."""

MOST = 2**23
"""Bytes of a piece at most. Two are in memory: one that is read from, and the next one."""

BUFFER = 2**17
"""Bytes that small reads are served from."""

_REMEDY = "run the step that made it again with --force"


def open_ranges(objects: ObjectStore, entry: Entry) -> BinaryIO | None:
    """A file that is read by ranges; None when the store says of the bytes something else than when they were committed
    (as another kind of store does), so that only the whole of them tells.

    Raises:
        CorruptOutput: when the object is missing, or has another size.
    """
    where = f"{objects.url}/{entry.object}"
    info = answered(lambda: objects.info(entry.object))
    if info is None:
        raise CorruptOutput(f"{where}: the committed file is missing; {_REMEDY}")
    if info.size != entry.size:
        raise CorruptOutput(f"{where}: has {info.size} bytes, but {entry.size} were committed; {_REMEDY}")
    if info.checksum != entry.checksum:
        return None
    return io.BufferedReader(RangeReader(objects, entry), BUFFER)


class RangeReader(io.RawIOBase):
    """The bytes of an entry."""

    def __init__(self, objects: ObjectStore, entry: Entry) -> None:
        self._objects = objects
        self._entry = entry
        self.name = f"{objects.url}/{entry.object}"
        self._position = 0
        self._piece = memoryview(b"")
        self._start = 0
        """Position of the piece."""
        self._next = FIRST
        """Bytes of the next piece, if the reader goes on."""
        self._in_a_row = 1
        """Pieces that were read one after the other since the last jump: from the second on the next one is fetched
        ahead. Who begins at the beginning is taken for one who goes on.
        """
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[bytes] | None = None
        self._content = ContentHash()
        """Of the bytes from the beginning that were handed out so far."""
        self._problem: CorruptOutput | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._entry.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: cannot go to byte {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer as far as there are bytes at hand, one at least.

        Raises:
            CorruptOutput: when the bytes turn out not to be those that were committed.
            NoAnswer: when the store does not answer.
        """
        target = memoryview(buffer).cast("B")
        if self._position >= self._entry.size or not len(target):
            return 0
        if not self._start <= self._position < self._start + len(self._piece):
            self._load(len(target))
        at = self._position - self._start
        found = self._piece[at : at + len(target)]
        self._check(found)
        target[: len(found)] = found
        self._position += len(found)
        return len(found)

    def readall(self) -> bytes:
        found = bytearray()
        while block := self.read(MOST):
            found += block
        return bytes(found)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._piece, self._ahead = memoryview(b""), None
        super().close()

    def _load(self, wanted: int) -> None:
        """Get the piece at the position."""
        goes_on = self._position == self._start + len(self._piece)
        self._in_a_row = self._in_a_row + 1 if goes_on else 0
        ahead, self._ahead = self._ahead, None
        if goes_on and ahead is not None:
            data = ahead.result()
        else:
            if ahead is not None:
                ahead.cancel()
            self._next = self._next if goes_on else JUMP
            data = self._read(self._position, max(self._next, min(wanted, MOST)))
        self._piece, self._start = memoryview(data), self._position
        self._next = min(2 * max(self._next, FIRST if goes_on else JUMP), MOST)
        end = self._start + len(data)
        if self._in_a_row > 1 and end < self._entry.size:
            self._pool = self._pool or ThreadPoolExecutor(1, "marin-read-ahead")
            self._ahead = self._pool.submit(self._read, end, self._next)

    def _read(self, start: int, size: int) -> bytes:
        stop = min(start + size, self._entry.size)
        try:
            data = answered(lambda: b"".join(self._objects.blocks(self._entry.object, start, stop)))
        except FileNotFoundError as error:
            raise CorruptOutput(f"{self.name}: the committed file is missing; {_REMEDY}") from error
        if len(data) != stop - start:
            raise CorruptOutput(
                f"{self.name}: ends at byte {start + len(data)}, but {self._entry.size} were committed; {_REMEDY}"
            )
        return data

    def _check(self, found: memoryview) -> None:
        """Hash what is handed out, if all before it was, and compare at the end."""
        if self._problem is not None:
            raise self._problem
        seen = self._content.size
        if self._position <= seen < self._position + len(found):
            self._content.update(found[seen - self._position :])
            if self._content.size == self._entry.size and self._content.hexdigest() != self._entry.sha256:
                self._problem = CorruptOutput(
                    f"{self.name}: its bytes are not those that were committed (sha256 differs); {_REMEDY}"
                )
                raise self._problem
