"""Objects of an S3 bucket, over obstore: create-only is `If-None-Match: *`, compare-and-swap is `If-Match`.

An object's version is its ETag. That is by content as a rule, so two versions with equal bytes are one: a swap then
holds the value against the value, which is enough for records that never repeat (a lease's fence and beat only grow).
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError

from marin_pipeline.core.artifact import CHUNK, ContentHash
from marin_pipeline.core.endpoints import s3_endpoint
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store import s3_errors
from marin_pipeline.store.objects import (
    FileToPublish,
    Found,
    NoAnswer,
    ObjectInfo,
    ObjectWriter,
    Told,
    Written,
    explain_os_error,
    untold,
)
from marin_pipeline.store.remote_objects import RemoteObjects, refuse_parts
from marin_pipeline.store.s3_client import Client, Failed, each_of
from marin_pipeline.store.s3_uploads import MOST_PARTS, BytesInFlight, ETag, FileBlocks, StreamWriter

PART = 8 * 2**20
"""Bytes of a part of an upload; a file of up to so many goes in one request."""

PARTS_AT_ONCE = 4
"""Parts of one file on the way at the same time."""

FILES_AT_ONCE = 32
"""Files on the way at the same time, as far as `IN_FLIGHT` has room."""

IN_FLIGHT = 128 * 2**20
"""Bytes of files that are held in memory while they are published."""

BLOCK = 2**20
"""Bytes of a block that is read."""

RESUMED = 5
"""How often in a row a download goes on after the connection broke, without having got a byte meanwhile."""

CONFLICTS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Seconds before the tries to create an object while the server is at work on another write to it (409)."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_ODD = re.compile(r"[\x00-\x1f\x7f%\\\ufffe\uffff]")
_CODED = re.compile(r"(?:%[0-9A-F]{2})+")


class S3Objects(RemoteObjects):
    """Objects below `s3://BUCKET/PREFIX`. Calls may be made by several threads at the same time."""

    def __init__(self, url: str) -> None:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        if not bucket or not url.startswith("s3://"):
            raise UsageError(f"--prefix {url}: an S3 prefix is written s3://bucket/folder")
        if not _BUCKET.fullmatch(bucket):
            raise UsageError(
                f"--prefix {url}: {bucket!r} cannot be a bucket's name: that has 3 to 63 characters of a-z, 0-9, '-' "
                "and '.' (old ones and some servers' A-Z and '_' too), and begins and ends with a letter or a digit"
            )
        refuse_parts(url, prefix)
        super().__init__(f"s3://{bucket}/{prefix}".rstrip("/"))
        self._endpoint = s3_endpoint()
        # A record is small and answered at once, or not at all; a part of a large file may take minutes.
        key = self._key(prefix) if prefix else ""
        self._records = Client(self.url, bucket, key, timeout=20, silence=20)
        self._bytes = Client(self.url, bucket, key, timeout=900, silence=120)
        self._server = self._endpoint or "Amazon S3"

    @property
    def endpoint(self) -> str | None:
        return self._endpoint

    def region(self) -> str:
        """The one that requests are signed for: Amazon answers for a bucket of another one with an error."""
        names = ("AWS_REGION", "AWS_DEFAULT_REGION") if self.endpoint is None else ()
        return next((found for name in names if (found := os.environ.get(name))), "")

    def is_there(self) -> bool:
        try:
            return any(self._records.list(chunk_size=1))
        except Failed as error:
            raise self._explained(error, "", "list") from None

    # Records ---------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> Found | None:
        key = self._key(path)
        try:
            data, meta = self._records.read(key)
            return Found(data, meta["e_tag"] or "")
        except FileNotFoundError as error:
            self._refuse_no_bucket(error, path)
            return None
        except Failed as error:
            raise self._explained(error, path, "read") from None

    def create(self, path: str, data: bytes) -> str | None:
        key = self._key(path)
        for wait in CONFLICTS:
            time.sleep(wait)
            try:
                return self._records.put(key, data, mode="create", use_multipart=False) or ""
            except AlreadyExistsError as error:
                if s3_errors.status_of(error) != 409:
                    return None
            except Failed as error:
                raise self._explained(error, path, "write") from None
            # Somebody else's write to it is going on, or a delete: whether it is there then, only a new try tells.
        raise NoAnswer(f"{self.url}/{path}: cannot write: others write it all the time; run again")

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        key = self._key(path)
        try:
            return self._records.put(key, data, mode={"e_tag": version}, use_multipart=False) or ""
        except (PreconditionError, AlreadyExistsError):
            return None
        except FileNotFoundError as error:
            self._refuse_no_bucket(error, path)
            return None
        except Failed as error:
            raise self._explained(error, path, "write") from None

    # Folders ---------------------------------------------------------------------------------------------------------

    def delete(self, path: str) -> None:
        key = self._key(path)
        try:
            below = [each["path"] for each in self._records.list(key)]
            with suppress(FileNotFoundError):
                self._records.delete([key, *below] if below else key)
        except Failed as error:
            raise self._explained(error, path, "delete") from None

    def list(self, folder: str) -> list[ObjectInfo]:
        key = self._key(folder)
        try:
            found = [
                ObjectInfo(_decoded(each["path"]), each["size"], (each["e_tag"] or "").strip('"') or None)
                for each in self._records.list(key)
            ]
        except Failed as error:
            raise self._explained(error, folder, "list") from None
        return sorted(found, key=lambda info: info.path)

    def info(self, path: str) -> ObjectInfo | None:
        try:
            found = self._records.head(self._key(path))
        except FileNotFoundError as error:
            self._refuse_no_bucket(error, path)
            return None
        except Failed as error:
            raise self._explained(error, path, "read") from None
        return ObjectInfo(path, found["size"], (found["e_tag"] or "").strip('"') or None)

    def names(self, folder: str) -> list[str]:
        key = self._key(folder)
        try:
            found = self._records.list_with_delimiter(key)
        except Failed as error:
            raise self._explained(error, folder, "list") from None
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted({_decoded(path.rstrip("/").rpartition("/")[2]) for path in paths})

    # Files -----------------------------------------------------------------------------------------------------------

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        self._key(path)
        room = BytesInFlight(IN_FLIGHT)

        def upload(each: FileToPublish) -> Written:
            with room.held(min(each.size, (PARTS_AT_ONCE + 2) * part_size(each.size))):
                return self._upload(f"{path}/{each.name}", each, told)

        if len(files) < 2:
            return [upload(each) for each in files]
        with ThreadPoolExecutor(min(len(files), FILES_AT_ONCE)) as pool:
            running = [pool.submit(upload, each) for each in files]
            try:
                return [each.result() for each in running]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _upload(self, path: str, each: FileToPublish, told: Told) -> Written:
        key, part = self._key(path), part_size(each.size)
        content, tag = ContentHash(), ETag(part)
        blocks = FileBlocks(each.file, BLOCK, (content, tag))
        try:
            if each.size <= PART:
                tag_given = self._bytes.put(key, b"".join(blocks), use_multipart=False)
                told(1, each.size)
            else:
                sent = _counted(blocks, told)
                tag_given = self._bytes.put(key, sent, chunk_size=part, max_concurrency=PARTS_AT_ONCE)
                told(1, 0)
        except Failed as error:
            if blocks.error is not None:
                raise explain_os_error(blocks.error, each.file, "read what was written") from blocks.error
            raise self._explained(error, path, "write") from None
        return self._written(path, content, tag.value(in_parts=each.size > PART), tag_given)

    def _written(self, path: str, content: ContentHash, expected: str, answered: str | None) -> Written:
        """What was written, when the store has answered with an ETag that fits.

        Raises:
            StoreError: when the ETag says that other bytes came to lie there.
        """
        checksum = (answered or "").strip('"') or None
        if checksum not in (None, expected) and self._tags_are_digests:
            raise StoreError(
                f"{self.url}/{path}: the store has other bytes than were written (ETag {checksum}, not {expected}); "
                "the attempt is given up, run again"
            )
        return Written(content.size, content.hexdigest(), checksum)

    @functools.cached_property
    def _tags_are_digests(self) -> bool:
        """Whether the ETag of an object of this bucket is the MD5 of its bytes: not where KMS encrypts them. Asked only
        when one was not, and found out by writing a small object.
        """
        name = f"tmp/1d/{os.urandom(16).hex()}"
        data = name.encode()
        tag = self.create(name, data)
        self.delete(name)
        return (tag or "").strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()

    def writer(self, path: str) -> ObjectWriter:
        key = self._key(path)

        def put(blocks: Iterator[bytes] | bytes, part: int, at_once: int) -> str | None:
            try:
                if isinstance(blocks, bytes):
                    return self._bytes.put(key, blocks, use_multipart=False)
                return self._bytes.put(key, blocks, chunk_size=part, max_concurrency=at_once)
            except Failed as error:
                raise self._explained(error, path, "write") from None

        return StreamWriter(f"{self.url}/{path}", put, functools.partial(self._written, path))

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return (block for block, _ in self._stream(path, start, stop))

    def _stream(self, path: str, start: int, stop: int | None) -> Iterator[tuple[bytes, Any]]:
        """Blocks from `start` to before `stop`, each with what the store says of the object. Where the connection
        breaks, it goes on at the same byte of the same version.
        """
        key, at, tag, left = self._key(path), start, None, RESUMED
        while stop is None or at < stop:
            options: dict[str, Any] = {} if tag is None else {"if_match": tag}
            if at or stop is not None:
                options["range"] = {"offset": at} if stop is None else (at, stop)
            try:
                answer = self._bytes.get(key, **options)
                meta = answer.meta
                tag = meta["e_tag"]
                for block in each_of(answer.stream(min_chunk_size=BLOCK)):
                    at, left = at + len(block), RESUMED
                    yield bytes(block), meta
                return
            except FileNotFoundError as error:
                self._refuse_no_bucket(error, path)
                raise FileNotFoundError(errno.ENOENT, "no such object", path) from None
            except PreconditionError:
                raise StoreError(f"{self.url}/{path}: was replaced while it was read; run again") from None
            except Failed as error:
                if s3_errors.status_of(error) == 416:  # nothing is there from that byte on
                    return
                explained = self._explained(error, path, "read")
                # A request that was never answered has been tried again by obstore.
                if not isinstance(explained, NoAnswer) or not left or tag is None:
                    raise explained from None
                time.sleep(0.1 * 2 ** (RESUMED - left))
                left -= 1

    def download(self, path: str, target: Path) -> str:
        first = self._stream(path, 0, CHUNK)
        block, meta = next(first, (b"", None))
        size, tag = (0, None) if meta is None else (meta["size"], meta["e_tag"])
        chunks = range(0, size, CHUNK)
        with _new_file(target) as file:

            def fetched(start: int, blocks: Iterator[bytes]) -> bytes:
                """Write one chunk to its place; its digest."""
                content, at = hashlib.sha256(), start
                for block in blocks:
                    content.update(block)
                    _write_at(file, block, at, target)
                    at += len(block)
                if at != min(start + CHUNK, size):
                    raise NoAnswer(f"{self.url}/{path}: cannot read: it ended at byte {at} of {size}; run again")
                return content.digest()

            def begun() -> Iterator[bytes]:
                yield block
                yield from (each for each, _ in first)

            def chunk(start: int) -> bytes:
                return fetched(start, begun() if not start else self._same(path, start, tag))

            if len(chunks) < 2:
                return fetched(0, begun()).hex()
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                digests = list(pool.map(chunk, chunks))
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def _same(self, path: str, start: int, tag: str | None) -> Iterator[bytes]:
        """The chunk that begins at `start`, of one version of the object."""
        for block, meta in self._stream(path, start, start + CHUNK):
            if meta["e_tag"] != tag:
                raise StoreError(f"{self.url}/{path}: was replaced while it was read; run again")
            yield block

    # Paths and errors ------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        """The object's key below the prefix. What S3 servers or XML cannot take stands in it by its code, as in `%0A`.

        Raises:
            StoreError: when the path would lead out of the store.
        """
        self.checked(path)
        return _ODD.sub(lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode()), path)

    def _refuse_no_bucket(self, error: BaseException, path: str) -> None:
        """A bucket that is not there answers as an object that is not."""
        if "NoSuchBucket" in str(error):
            raise s3_errors.no_bucket(f"{self.url}/{path}", self._server) from None

    def _explained(self, error: BaseException, path: str, doing: str) -> StoreError:
        where = f"{self.url}/{path}"
        if isinstance(error, ValueError):
            return StoreError(f"{self.url}: {path!a} is no path inside the store; whatever it was made of is damaged")
        if isinstance(error, PermissionDeniedError) and doing != "list" and self._bucket_is_missing():
            return s3_errors.no_bucket(where, self._server)
        return s3_errors.explained(error, where, doing, self._server)

    def _bucket_is_missing(self) -> bool:
        """Some servers deny writing to a bucket that is not there; asking for a list tells."""
        try:
            next(iter(self._records.list("tmp", chunk_size=1)), None)
        except Failed as error:
            return s3_errors.code_of(error) == "NoSuchBucket"
        return False


@contextmanager
def _new_file(target: Path) -> Iterator[int]:
    """A file to write; it is removed when that fails."""
    try:
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise explain_os_error(error, target, "write") from error
    try:
        yield file
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    finally:
        os.close(file)


def _write_at(file: int, data: bytes, at: int, target: Path) -> None:
    left = memoryview(data)
    try:
        while left:
            written = os.pwrite(file, left, at)
            left, at = left[written:], at + written
    except OSError as error:
        raise explain_os_error(error, target, "write") from error


def part_size(size: int) -> int:
    """Bytes of each part of an upload of `size` bytes: S3 takes 10,000 of them at most."""
    return max(PART, -(-size // MOST_PARTS // BLOCK) * BLOCK)


def _decoded(key: str) -> str:
    if "%" not in key:
        return key
    return _CODED.sub(lambda coded: bytes.fromhex(coded[0].replace("%", "")).decode(errors="replace"), key)


def _counted(blocks: Iterator[bytes], told: Told) -> Iterator[bytes]:
    """The blocks, each told when the next one is asked for."""
    for block in blocks:
        yield block
        told(0, len(block))
