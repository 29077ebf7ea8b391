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
from contextlib import suppress

from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.endpoints import s3_endpoint
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store import s3_errors
from marin_pipeline.store.bucket_client import BLOCK, Failed, status_of
from marin_pipeline.store.downloads import Opened, replaced
from marin_pipeline.store.objects import (
    RECORD,
    FileToPublish,
    Found,
    NoAnswer,
    ObjectInfo,
    ObjectWriter,
    Told,
    Written,
    changed_on_the_way,
    untold,
)
from marin_pipeline.store.remote_objects import RemoteObjects, refuse_parts
from marin_pipeline.store.s3_client import client_of
from marin_pipeline.store.s3_uploads import MOST_PARTS, BytesInFlight, ETag, FileBlocks, StreamWriter

PART = 8 * 2**20
"""Bytes of a part of an upload; a file of up to so many goes in one request."""

PARTS_AT_ONCE = 4
"""Parts of one file on the way at the same time."""

FILES_AT_ONCE = 32
"""Files on the way at the same time, as far as `IN_FLIGHT` has room."""

IN_FLIGHT = 128 * 2**20
"""Bytes of files that are held in memory while they are published."""

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
        self._records = client_of(self.url, bucket, key, timeout=20, silence=20)
        self._bytes = client_of(self.url, bucket, key, timeout=900, silence=120)
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
            return self._records.holds_any()
        except Failed as error:
            raise self._explained(error, "", "list") from None

    # Records ---------------------------------------------------------------------------------------------------------

    def read(self, path: str, most: int = RECORD) -> Found | None:
        key = self._key(path)
        try:
            return Found(*self._records.read(key, f"{self.url}/{path}", most))
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
                return self._version(path, data, self._records.put(key, data, mode="create", use_multipart=False))
            except AlreadyExistsError as error:
                if status_of(error) != 409:
                    return None
            except Failed as error:
                raise self._explained(error, path, "write") from None
            # Somebody else's write to it is going on, or a delete: whether it is there then, only a new try tells.
        raise NoAnswer(f"{self.url}/{path}: cannot write: others write it all the time; run again")

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        key = self._key(path)
        try:
            tag = self._records.put(key, data, mode={"e_tag": version}, use_multipart=False)
        except (PreconditionError, AlreadyExistsError):
            return None
        except FileNotFoundError as error:
            self._refuse_no_bucket(error, path)
            return None
        except Failed as error:
            raise self._explained(error, path, "write") from None
        return self._version(path, data, tag)

    def _version(self, path: str, data: bytes, tag: str | None) -> str:
        """The version of what was written by one request, by the ETag that it was answered.

        Raises:
            StoreError: when the ETag says that other bytes came to lie there.
        """
        self._refuse_changed(path, hashlib.md5(data, usedforsecurity=False).hexdigest(), _checksum(tag))
        return tag or ""

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
                ObjectInfo(_decoded(each["path"]), each["size"], _checksum(each["e_tag"]))
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
        return ObjectInfo(path, found["size"], _checksum(found["e_tag"]))

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
        blocks = FileBlocks(each, BLOCK, (content, tag))
        try:
            if each.size <= PART:
                tag_given = self._bytes.put(key, b"".join(blocks), use_multipart=False)
                told(1, each.size)
            else:
                sent = _counted(blocks, told)
                tag_given = self._bytes.put(key, sent, chunk_size=part, max_concurrency=PARTS_AT_ONCE)
                told(1, 0)
        except Failed as error:
            raise (blocks.error or self._explained(error, path, "write")) from None
        return self._written(path, content, tag.value(in_parts=each.size > PART), tag_given)

    def _written(self, path: str, content: ContentHash, expected: str, answered: str | None) -> Written:
        """What was written, when the store has answered with an ETag that fits.

        Raises:
            StoreError: when the ETag says that other bytes came to lie there.
        """
        checksum = _checksum(answered)
        self._refuse_changed(path, expected, checksum)
        return Written(content.size, content.hexdigest(), checksum)

    def _refuse_changed(self, path: str, expected: str, checksum: str | None) -> None:
        if checksum not in (None, expected) and self._tags_are_digests:
            raise changed_on_the_way(f"{self.url}/{path}", f"ETag {checksum}", expected)

    @functools.cached_property
    def _tags_are_digests(self) -> bool:
        """Whether the ETag of an object of this bucket is the MD5 of its bytes: not where KMS encrypts them. Asked only
        when one was not, and found out by writing a small object.
        """
        name = f"tmp/1d/{os.urandom(16).hex()}"
        data = name.encode()
        try:
            tag = self._records.put(self._key(name), data, use_multipart=False)
        except Failed as error:
            raise self._explained(error, name, "write") from None
        self.delete(name)
        return _checksum(tag) == hashlib.md5(data, usedforsecurity=False).hexdigest()

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

    def opened(self, path: str, start: int, stop: int | None, version: str) -> Opened:
        few = stop is not None and stop - start <= BLOCK
        client = self._records if few else self._bytes
        return client.opened(self._key(path), start, stop, version, functools.partial(self._unread, path))

    def _unread(self, path: str, error: BaseException) -> Exception:
        """The error that a person should see when an object cannot be read."""
        if isinstance(error, PreconditionError):
            return replaced(f"{self.url}/{path}")
        if isinstance(error, FileNotFoundError) and s3_errors.code_of(error) != "NoSuchBucket":
            return FileNotFoundError(errno.ENOENT, "no such object", path)
        return self._explained(error, path, "read")

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
            self._records.holds_any("tmp")
        except Failed as error:
            return s3_errors.code_of(error) == "NoSuchBucket"
        return False


def part_size(size: int) -> int:
    """Bytes of each part of an upload of `size` bytes: S3 takes 10,000 of them at most."""
    return max(PART, -(-size // MOST_PARTS // BLOCK) * BLOCK)


def _checksum(tag: str | None) -> str | None:
    """An ETag without its quotes."""
    return (tag or "").strip('"') or None


def _decoded(key: str) -> str:
    if "%" not in key:
        return key
    return _CODED.sub(lambda coded: bytes.fromhex(coded[0].replace("%", "")).decode(errors="replace"), key)


def _counted(blocks: Iterator[bytes], told: Told) -> Iterator[bytes]:
    """The blocks, each told when the next one is asked for."""
    for block in blocks:
        yield block
        told(0, len(block))
