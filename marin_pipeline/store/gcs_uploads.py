"""Bytes on their way into a bucket of Google Cloud Storage: in one request up to some MiB, above that in a session,
which goes on where it was when a connection breaks. They are hashed while they travel.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

import google_crc32c

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.gcs_client import NUMBER, SILENCE_SECONDS, Place, Reply, Silence, all_of, unanswered
from marin_pipeline.store.objects import (
    FileToPublish,
    ObjectWriter,
    Told,
    Written,
    changed_on_the_way,
    explain_os_error,
    untold,
    written_meanwhile,
)

AT_ONCE = 32
"""Files that travel at the same time, at most."""

SMALL = 2**18
"""Bytes up to which a file is read where the requests are made: handing it to a thread takes longer."""

ONE_REQUEST = 8 * 2**20
"""Bytes up to which an object is written by one request, which holds all of them in memory."""

IN_FLIGHT = 64 * 2**20
"""Bytes in memory of files that travel, at most."""

BLOCK = 2 * 2**20
"""Bytes of a larger file that are read and hashed while the block before travels."""

CHUNK = 16 * 2**20
"""Bytes of an object of unknown size that are kept until the store has them; a multiple of 256 KiB, as it wants."""

SESSION_WAITS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between the tries to go on after a broken connection, as long as nothing more arrives."""

SESSIONS = 4
"""How often a file is sent from its beginning, at most: the store may forget a session, or end it too early."""

_BOUNDARY = os.urandom(16).hex()
"""Stands between the parts of an upload; unknown to whoever wrote the bytes."""


class Hashes:
    """What is to be known of bytes that are sent."""

    def __init__(self) -> None:
        self._content = ContentHash()
        self._crc = google_crc32c.Checksum()

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._content.size

    def update(self, data: bytes | bytearray) -> None:
        """Append bytes."""
        self._content.update(data)
        self._crc.update(data)

    def written(self) -> Written:
        """The hashes of the bytes so far, the checksum as the store lists it."""
        return Written(self.size, self._content.hexdigest(), base64.b64encode(self._crc.digest()).decode())


async def put(place: Place, data: bytes | bytearray, **condition: str) -> str | None:
    """Write an object by one request; its version, or None when the condition does not hold.

    The store is told the checksum, and refuses other bytes (not so the emulator); what it answers is held against it.

    Raises:
        StoreError: when the bytes were changed on their way.
    """
    checksum = base64.b64encode(google_crc32c.value(bytes(data)).to_bytes(4, "big")).decode()
    about = json.dumps({"name": place.name, "crc32c": checksum})
    head = (
        f"--{_BOUNDARY}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n"
        f"--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    reply = await place.client.request(
        "POST",
        place.client.upload_url(place.bucket, uploadType="multipart", fields="generation,crc32c", **condition),
        place.where,
        "write",
        data=b"".join((head.encode(), data, f"\r\n--{_BOUNDARY}--\r\n".encode())),
        headers={"Content-Type": f'multipart/related; boundary="{_BOUNDARY}"'},
        expected=(412,),
    )
    if reply.status == 412:
        return None
    answer = place.client.tree(reply, place.where, "write")
    version = answer.get("generation")
    if not version:
        raise place.client.not_gcs(place.where, "write")
    _refuse_changed(place, answer.get("crc32c"), checksum)
    return str(version)


def _refuse_changed(place: Place, answered: str | None, checksum: str | None) -> None:
    """The checksum that the store answers is that of the bytes that were sent.

    Raises:
        StoreError: when it is another one.
    """
    if answered not in (None, checksum):
        raise changed_on_the_way(place.where, f"CRC32C {answered}", f"{checksum}")


# Sessions -------------------------------------------------------------------------------------------------------------


class Gone(Exception):
    """The store knows the session no more, or has ended it with too few bytes: what was sent is lost."""


class Session:
    """An upload in parts. After a broken connection the store is asked how much has arrived, and the rest is sent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._url = ""
        self.checksum: str | None = None
        """Of the whole object, as the store says in the end."""
        self._problem: StoreError | None = None
        """Why there are no more blocks."""

    async def send(
        self, start: int, stop: int, blocks: Callable[[int], AsyncIterator[bytes | memoryview]], *, last: bool
    ) -> None:
        """Send the bytes from `start` to `stop` of the object, which ends there or not.

        Args:
            blocks: the bytes from an offset between them.

        Raises:
            Gone: when all is to be sent anew.
            NoAnswer: when nothing more has arrived for half a minute.
        """
        offset: int | None = start
        most, waits = start, iter(SESSION_WAITS)
        while True:
            try:
                if not self._url:
                    self._url = await self._open()
                if offset is None:
                    offset = await self._arrived(stop, last)
                if offset < stop or (last and start == stop):
                    at, offset = offset, None
                    offset = await self._put(at, stop, blocks(at), last)
                if not start <= offset <= stop:
                    raise Gone
                if offset == stop:
                    return
                silence = f"it has {offset} bytes and takes no more"
            except Silence as error:
                silence = str(error)
            if offset is not None and offset > most:
                most, waits = offset, iter(SESSION_WAITS)
            wait = next(waits, None)
            if wait is None:
                raise unanswered(self._place.where, "write", silence)
            await asyncio.sleep(wait * random.uniform(0.7, 1.3))

    async def _open(self) -> str:
        place = self._place
        url = place.client.upload_url(place.bucket, uploadType="resumable", name=place.name)
        headers = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}
        data = json.dumps({"name": place.name}).encode()
        reply = await place.client.once("POST", url, place.where, "write", data=data, headers=headers)
        location = reply.headers.get("Location")
        if not location:
            raise place.client.not_gcs(place.where, "write")
        return location

    async def _arrived(self, stop: int, last: bool) -> int:
        headers = {"Content-Length": "0", "Content-Range": f"bytes */{stop if last else '*'}"}
        return self._offset(await self._once(b"", headers), stop, last)

    async def _put(self, start: int, stop: int, blocks: AsyncIterator[bytes | memoryview], last: bool) -> int:
        span = f"{start}-{stop - 1}" if start < stop else "*"
        headers = {"Content-Length": f"{stop - start}", "Content-Range": f"bytes {span}/{stop if last else '*'}"}
        try:
            async with asyncio.timeout(None) as patience:
                reply = await self._once(self._watched(blocks, patience), headers)
                return self._offset(reply, stop, last)
        except (Silence, Gone, TimeoutError) as error:
            if self._problem is not None:
                raise self._problem from error
            if not isinstance(error, TimeoutError):
                raise
            raise Silence(f"it took no more bytes for {SILENCE_SECONDS:.0f} s") from error

    async def _once(self, data: bytes | AsyncIterator[bytes | memoryview], headers: dict[str, str]) -> Reply:
        place = self._place
        expected = (308, 404, 410)
        return await place.client.once(
            "PUT", self._url, place.where, "write", data=data, headers=headers, expected=expected
        )

    def _offset(self, reply: Reply, stop: int, last: bool) -> int:
        """How many bytes the store has, as it says.

        Raises:
            Gone: when it has none of this session, or an object of another size.
        """
        if reply.status == 308:
            found = reply.headers.get("Range", "").rpartition("-")[2]
            return int(found) + 1 if NUMBER.fullmatch(found) else 0
        if reply.status in (404, 410) or not last:
            raise Gone
        answer = self._place.client.tree(reply, self._place.where, "write")
        if answer.get("size") != f"{stop}":
            raise Gone
        self.checksum = answer.get("crc32c")
        return stop

    async def abandon(self) -> None:
        """Forget what was sent."""
        if self._url:
            with suppress(Silence, StoreError):  # it says 499; and the store forgets it by itself after a week
                await self._place.client.once("DELETE", self._url, self._place.where, "write")

    async def _watched(
        self, blocks: AsyncIterator[bytes | memoryview], patience: asyncio.Timeout
    ) -> AsyncIterator[bytes | memoryview]:
        """The blocks, as long as each is taken in time."""
        loop = asyncio.get_running_loop()
        try:
            async for block in blocks:
                patience.reschedule(loop.time() + SILENCE_SECONDS)
                yield block
        except StoreError as error:
            self._problem = error  # of the connection only is told that nothing more came
            raise
        patience.reschedule(None)  # from here on the connection's own patience counts


# Files ----------------------------------------------------------------------------------------------------------------


async def publish(places: Sequence[Place], files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
    """Write files as objects, several at the same time; what was written, in order."""
    found: dict[int, Written] = {}
    room = _Room(IN_FLIGHT)
    waiting = iter(range(len(files)))

    async def work() -> None:
        for number in waiting:
            found[number] = await _publish(places[number], files[number], room, told)

    await all_of(work() for _ in range(min(AT_ONCE, len(files))))
    return [found[number] for number in range(len(files))]


class _Room:
    """Bytes that may be in memory at the same time."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Wait until there is room for so many."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= size)
            self._free -= size

    async def give_back(self, size: int) -> None:
        """They are not needed any more."""
        async with self._changed:
            self._free += size
            self._changed.notify_all()


async def _publish(place: Place, file: FileToPublish, room: _Room, told: Told) -> Written:
    needed = 2 * file.size if file.size <= ONE_REQUEST else 4 * BLOCK
    await room.take(needed)
    try:
        source = _Source(file, told)
        try:
            if file.size > ONE_REQUEST:
                await _publish_large(place, source)
            else:
                data = source.next(0) if file.size <= SMALL else await asyncio.to_thread(source.next, 0)
                await put(place, data)
            told(1, file.size - source.sent)
            return source.written()
        finally:
            source.close()
    finally:
        await room.give_back(needed)


async def _publish_large(place: Place, source: _Source) -> None:
    for _ in range(SESSIONS):
        try:
            session = Session(place)
            await session.send(0, source.size, source.blocks, last=True)
            _refuse_changed(place, session.checksum, source.written().checksum)
            return
        except Gone:
            continue
    raise unanswered(place.where, "write", "it forgets what was sent")


class _Source:
    """A file that is read from an offset on, and hashed when it is read for the first time."""

    def __init__(self, file: FileToPublish, told: Told) -> None:
        self.size = file.size
        self.sent = 0
        """Bytes that were taken of blocks, and told."""
        self._told = told
        self._path = file.file
        self._hashes = Hashes()
        self._lock = threading.Lock()  # a block may be read still for a connection that broke
        try:
            self._descriptor = os.open(file.file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise explain_os_error(error, file.file, "read what was written") from error

    def next(self, offset: int) -> bytes:
        """The block at an offset; all of it where the object is written by one request.

        Raises:
            StoreError: when the file cannot be read, or is written meanwhile.
        """
        with self._lock:
            try:
                wanted = min(max(BLOCK, ONE_REQUEST if self.size <= ONE_REQUEST else 0), self.size - offset)
                block = os.pread(self._descriptor, wanted, offset)
                size = os.fstat(self._descriptor).st_size
            except OSError as error:
                raise explain_os_error(error, self._path, "read what was written") from error
            if size != self.size or len(block) != wanted:
                raise written_meanwhile(self._path)
            new = len(block) - max(self._hashes.size - offset, 0)
            if new > 0:
                self._hashes.update(block[-new:])
            return block

    async def blocks(self, offset: int) -> AsyncIterator[bytes]:
        """Blocks from an offset, each read while the one before travels."""
        ahead = asyncio.create_task(asyncio.to_thread(self.next, offset))
        try:
            while offset < self.size:
                block = await ahead
                offset += len(block)
                if offset < self.size:
                    ahead = asyncio.create_task(asyncio.to_thread(self.next, offset))
                yield block
                self._told(0, max(offset - self.sent, 0))
                self.sent = max(offset, self.sent)
        finally:
            ahead.cancel()

    def written(self) -> Written:
        """What was read."""
        return self._hashes.written()

    def close(self) -> None:
        """Read no more."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


# Objects of unknown size ----------------------------------------------------------------------------------------------


class Writer(ObjectWriter):
    """Sends a chunk while the next one is filled. Without a second chunk it is one request."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._session = Session(place)
        self._hashes = Hashes()
        self._chunk = bytearray()
        self._sent = 0
        self._travels: Future[None] | None = None

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            if len(self._chunk) == CHUNK:
                self._send(last=False)
            piece = bytes(left[: CHUNK - len(self._chunk)])
            self._hashes.update(piece)
            self._chunk += piece
            left = left[len(piece) :]
        return size

    def _send(self, *, last: bool) -> None:
        self._arrived()
        chunk, start = self._chunk, self._sent
        self._chunk, self._sent = bytearray(), start + len(chunk)

        async def blocks(offset: int) -> AsyncIterator[memoryview]:
            for at in range(offset - start, len(chunk), BLOCK):
                yield memoryview(chunk)[at : at + BLOCK]

        async def send() -> None:
            try:
                await self._session.send(start, start + len(chunk), blocks, last=last)
            except Gone as error:
                raise unanswered(self._place.where, "write", "it forgets what was sent") from error

        self._travels = asyncio.run_coroutine_threadsafe(send(), self._place.client.loop)

    def _arrived(self) -> None:
        """Wait until the store has what was sent."""
        if self._travels is not None:
            self._travels.result()

    def _close(self) -> Written:
        if self._travels is None:
            self._place.client.wait(put(self._place, self._chunk))
        else:
            self._send(last=True)
            self._arrived()
            _refuse_changed(self._place, self._session.checksum, self._hashes.written().checksum)
        return self._hashes.written()

    def _abort(self) -> None:
        self._chunk.clear()
        if self._travels is not None:
            self._travels.cancel()
            self._place.client.wait(self._session.abandon())
