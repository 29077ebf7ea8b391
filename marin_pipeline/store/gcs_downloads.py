"""Bytes on their way out of a bucket of Google Cloud Storage. All are of one generation of the object; a connection
that breaks is made again, and goes on where it was.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp

from marin_pipeline.core.artifact import CHUNK
from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.gcs_client import Place, Reply, Silence, all_of, in_thread, unanswered
from marin_pipeline.store.objects import explain_os_error

BLOCK = 2**20
"""Bytes that are handed on at a time, at most."""

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
        self._connection = AsyncExitStack()
        self._answer: aiohttp.ClientResponse | None = None
        self._ended = False

    async def next(self) -> bytes:
        """The next bytes; none at the end.

        Raises:
            FileNotFoundError: when there is no such object.
            NoAnswer: when nothing more has arrived for half a minute.
            StoreError: when the object was replaced meanwhile.
        """
        silence = ""
        for wait in (*WAITS, None):
            try:
                if self._answer is None and not self._ended:
                    await self._open()
                return b"" if self._answer is None else await self._read(self._answer)
            except Silence as error:
                silence = str(error)
                await self.close()
                if wait is not None:
                    await asyncio.sleep(wait * random.uniform(0.7, 1.3))
        raise unanswered(self._place.where, "read", silence)

    async def _open(self) -> None:
        client, bucket, name, *_ = place = self._place
        stop = "" if self._stop is None else f"{self._stop - 1}"
        spans = {"Range": f"bytes={self._at}-{stop}"} if self._at or stop else {}
        pinned = {"generation": self.generation} if self.generation else {}
        answer = await self._connection.enter_async_context(
            client.answer(
                "GET",
                client.media_url(bucket, name, **pinned),
                place.where,
                "read",
                headers={"Accept-Encoding": "identity", **spans},
            )
        )
        if answer.status == 416:  # all of it was read, or there never was anything
            self._ended = True
            await self.close()
            return
        if answer.status not in (200, 206) or (self._at and answer.status == 200):
            await self._refuse(Reply(answer.status, answer.headers, await answer.read()))
        self.generation = answer.headers.get("X-Goog-Generation", "")
        spanned = answer.headers.get("Content-Range", "").rpartition("/")[2]
        self.size = int(spanned if spanned.isdigit() else answer.headers.get("Content-Length", "0"))
        self._answer = answer

    async def _refuse(self, reply: Reply) -> None:
        client, where = self._place.client, self._place.where
        if reply.status == 404 and self.generation:
            raise StoreError(f"{where}: was replaced while it was read; run again")
        if reply.status == 404 and not client.is_about_the_bucket(reply):
            raise FileNotFoundError(errno.ENOENT, "no such object", self._place.path)
        if reply.status == 200:
            raise StoreError(f"{where}: the store sends all of an object where a part is asked for: it is not GCS")
        client.refuse(reply, where, "read")

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while size < BLOCK and (piece := await answer.content.read(BLOCK - size)):
                pieces.append(piece)
                size += len(piece)
        except (aiohttp.ClientError, OSError) as error:
            if not pieces:
                raise Silence(str(error) or type(error).__name__) from error
            await self.close()  # what has come is handed on, and the rest is asked for again
        self._at += size
        if not size:
            if self._at < (self.size if self._stop is None else min(self._stop, self.size)):
                raise Silence("it sent too few bytes")
            self._ended = True
            await self.close()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def close(self) -> None:
        """End the connection."""
        self._answer = None
        connection, self._connection = self._connection, AsyncExitStack()
        await connection.aclose()


def blocks(place: Place, start: int, stop: int | None) -> Iterator[bytes]:
    """The object's bytes in blocks; one is read ahead."""
    client = place.client
    stream = Stream(place, start, stop if stop is None else max(stop, start + 1))
    if stop is not None and stop <= start:
        client.wait(stream.next())  # tells when there is no such object
        client.wait(stream.close())
        return
    ahead = asyncio.run_coroutine_threadsafe(stream.next(), client.loop)
    try:
        while block := ahead.result():
            ahead = asyncio.run_coroutine_threadsafe(stream.next(), client.loop)
            yield block
    finally:
        ahead.cancel()
        client.wait(stream.close())


def download(place: Place, target: Path) -> str:
    """Write the object's bytes to a new local file; their digest."""
    client = place.client
    stream = Stream(place, 0, CHUNK)
    first = client.wait(stream.next())
    if len(first) < stream.size:
        return client.wait(_download_large(stream, first, place, target))
    client.wait(stream.close())
    try:
        with open(target, "xb", buffering=0) as file:
            file.write(first)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise explain_os_error(error, target, "write") from error
    return hashlib.sha256(first).hexdigest()


async def _download_large(stream: Stream, first: bytes, place: Place, target: Path) -> str:
    """Each 64 MiB, of whose digests the file's is made, are fetched and hashed by themselves."""
    starts = range(0, stream.size, CHUNK)
    digests: dict[int, bytes] = {}
    waiting = iter(starts)
    descriptor = _made(target)

    async def work() -> None:
        for start in waiting:
            each = Stream(place, start, start + CHUNK, stream.generation) if start else stream
            try:
                digests[start] = await _part(each, first if each is stream else await each.next(), descriptor, start)
            finally:
                await each.close()

    try:
        await all_of(work() for _ in range(min(AT_ONCE, len(starts))))
    except BaseException:
        with suppress(OSError):
            target.unlink()
        raise
    finally:
        os.close(descriptor)
    if len(digests) == 1:
        return digests[0].hex()
    return hashlib.sha256(b"".join(digests[start] for start in starts)).hexdigest()


def _made(target: Path) -> int:
    try:
        return os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise explain_os_error(error, target, "write") from error


async def _part(stream: Stream, block: bytes, descriptor: int, at: int) -> bytes:
    """Write a part's bytes to where they belong; the sha256 of them."""
    digest = hashlib.sha256()

    def keep(block: bytes, at: int) -> None:
        left = memoryview(block)
        while left:
            written = os.pwrite(descriptor, left, at)
            left, at = left[written:], at + written
        digest.update(block)

    while block:
        ahead = asyncio.ensure_future(stream.next())
        try:
            await in_thread(keep, block, at)
        except BaseException:
            ahead.cancel()
            raise
        at += len(block)
        block = await ahead
    return digest.digest()
