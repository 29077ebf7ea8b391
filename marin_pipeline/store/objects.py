"""Objects by path, with the two conditional writes that everything rests on: create only, and compare and swap.

`ObjectStore` is the interface; `local_objects`, `memory_objects`, `gcs_objects` and `s3_objects` implement it. Paths
are relative to the prefix, with `/`.
"""

from __future__ import annotations

import errno
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from marin_pipeline.core.errors import CorruptOutput, StoreError, UsageError
from marin_pipeline.store.location import HERE

T = TypeVar("T")

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that say that there is no room."""


RECORD = 64 * 2**20
"""Bytes that a record has at most: most have some KB, and a manifest of 10,000 files has some MB."""

WAITS = (0.1, 1.0, 5.0)
"""Seconds between the tries to write a record, while the store does not answer."""


class DiskFull(StoreError):
    """There was no room for what was to be written; nothing was made known."""


class NoAnswer(StoreError):
    """The store did not answer, or not now: a write may have been done or not. Trying again may help."""


class Found(NamedTuple):
    """An object's bytes and the version that they have."""

    data: bytes
    version: str


@dataclass(frozen=True)
class ObjectInfo:
    """One object in a listing."""

    path: str
    size: int
    checksum: str | None = None
    """What the store itself says of the bytes, or None when it says nothing."""


class FileToPublish(NamedTuple):
    """A local file that becomes an object."""

    name: str
    """Relative to the folder that is published."""
    file: Path
    size: int
    """Bytes."""


def written_meanwhile(file: Path) -> StoreError:
    """What is said of a file that has not the size any more that it had when it was to be published."""
    return StoreError(f"{file}: was written while it was published; end what writes it before the step ends")


def changed_on_the_way(where: str, said: str, expected: str) -> StoreError:
    """What is said when a store answers a write with the checksum of other bytes than were sent."""
    return StoreError(
        f"{where}: the store has other bytes than were written ({said}, not {expected}): they were changed on the way; "
        "what lies there is damaged: delete it, and run again"
    )


class Written(NamedTuple):
    """What was written, as the writer knows it from the bytes that it handed over."""

    size: int
    """Bytes."""
    sha256: str
    """64 hex; above 64 MiB the sha256 of the chunks' digests (`content_digest`)."""
    checksum: str | None
    """What the store should say of these bytes in a listing, or None when it says nothing."""


class Wanted(NamedTuple):
    """An object that is wanted as a local file."""

    path: str
    """Of the object."""
    size: int
    """Bytes, as they were committed."""
    sha256: str
    """As it was committed."""


Told = Callable[[int, int], None]
"""Is told of so many files, and so many bytes, that have come to lie in the store since the last call, which may still
go on in another thread.
"""


def untold(files: int, size: int) -> None:
    """Nobody wants to know."""


class ObjectWriter(ABC):
    """Writes one object from beginning to end, hashing as it goes. Nothing is there before `close`, and nothing after
    `abort`, or after a `close` that failed. A `with` block ends in one of the two.
    """

    _ended = False

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; how many, which is all of them.

        Raises:
            ValueError: when the writer was closed or aborted, as `close` raises it too.
        """
        self._refuse_ended()
        return self._write(data)

    def close(self) -> Written:
        """Finish the object."""
        self._refuse_ended()
        self._ended = True
        try:
            return self._close()
        except BaseException:
            self._abort()
            raise

    def abort(self) -> None:
        """Forget what was written; nothing happens when the writer has ended."""
        if not self._ended:
            self._ended = True
            self._abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.close()

    def _refuse_ended(self) -> None:
        if self._ended:
            raise ValueError("this object was closed or given up, and takes nothing more; open another writer")

    @abstractmethod
    def _write(self, data: bytes | bytearray | memoryview) -> int: ...

    @abstractmethod
    def _close(self) -> Written: ...

    @abstractmethod
    def _abort(self) -> None:
        """Leave nothing behind, also of a `_close` that has failed half-way. Raises nothing of its own."""


class ObjectStore(ABC):
    """Objects under one prefix."""

    url: str
    """The prefix, as it is shown and as it is given to other processes."""

    shared: bool
    """Whether other processes see the same objects."""

    parallel: int = 128
    """Calls that are worth making at the same time: one where a call takes no longer than handing it to a thread."""

    longest: int | None = None
    """Bytes that a path may have in UTF-8; None where only the file system of `folder` limits it."""

    in_place: bool = False
    """Whether the files of `folder` are the objects: what is written there is seen by others at once."""

    single_writer: bool = False
    """Whether nobody else may write there, since the conditions of `create` and `swap` are not kept."""

    def location(self) -> str:
        """The region in which the bytes lie, as the cloud calls it in lower case; `location.HERE` on this machine, and
        empty when it is not known.
        """
        return HERE

    def is_there(self) -> bool:
        """Whether there may be anything under the prefix."""
        return True

    @abstractmethod
    def read(self, path: str, most: int = RECORD) -> Found | None:
        """The object, or None when there is none.

        Raises:
            CorruptOutput: when it has more than `most` bytes: anybody may have put it there, and it is not read.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> str | None:
        """Write an object that is not there yet, whole or not at all; its version. None when it is there already: then
        nothing is written.
        """

    @abstractmethod
    def swap(self, path: str, data: bytes, version: str) -> str | None:
        """Replace an object whose version is still `version`; its new version. None when it is not: then nothing is
        written.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove an object, or all objects below a folder. Nothing happens when there is none."""

    @abstractmethod
    def list(self, folder: str) -> list[ObjectInfo]:
        """All objects below a folder, sorted by path."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Names directly below a folder, sorted."""

    @abstractmethod
    def folder(self, path: str) -> Path:
        """A local folder whose files become the objects below `path` when they are published."""

    def forget(self, path: str) -> None:
        """Remove the scratch of `folder(path)`, whose files are published or not needed. Objects stay as they are."""
        return None

    @abstractmethod
    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        """Make files below `folder(path)` the objects below `path`, several at the same time, each read once; what
        was written, in order. An object that is there already is replaced.

        Args:
            told: told how far it is; not where the files lie in place.

        Raises:
            StoreError: when a file has another size by now.
        """

    @abstractmethod
    def writer(self, path: str) -> ObjectWriter:
        """Write a large object without a file of its size. One that is there already is replaced."""

    @abstractmethod
    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The object's bytes from `start` (to before `stop`), in blocks of at most some MiB.

        Raises:
            FileNotFoundError: at the first block, when there is no such object.
        """

    def info(self, path: str) -> ObjectInfo | None:
        """What a listing says of one object, or None when there is none."""
        folder = path.rpartition("/")[0]
        if not folder:
            found = self.read(path)
            return None if found is None else ObjectInfo(path, len(found.data))
        return next((info for info in self.list(folder) if info.path == path), None)

    def is_at_hand(self, wanted: Wanted) -> bool:
        """Whether `fetch` has nothing to fetch for it."""
        return True

    @abstractmethod
    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        """Local files with the objects' bytes, in order; several are fetched at the same time. A file keeps the last
        part of the object's name, stays as long as this process lives, and is not to be written. One that had to be
        fetched is verified on the way; one that lies in place is as it is.

        Raises:
            FileNotFoundError: when there is no such object; `filename` is its path.
            CorruptOutput: when what was fetched is not what was committed.
        """


_LIKE_URL = re.compile(r"\s*((?:gs|s3|memory)(?=:)|[A-Za-z][A-Za-z0-9+.-]*(?=:/)):/?")
_PLAIN_URL = re.compile(r"(gs|s3)://[A-Za-z0-9._-]+/|file:///")
"""After which an `@` is one of a path."""


def open_objects(prefix: str) -> ObjectStore:
    """The objects under a prefix: a local folder (a path or a `file://` URL), `gs://BUCKET/FOLDER`,
    `s3://BUCKET/FOLDER`, or `memory://NAME`.

    Raises:
        UsageError: for a prefix of another kind.
    """
    if prefix.startswith("memory://"):
        from marin_pipeline.store.memory_objects import MemoryObjects

        return MemoryObjects.named(prefix)
    scheme, separator, rest = prefix.partition("://")
    like_url = _LIKE_URL.match(prefix)
    if like_url and "@" in prefix and not _PLAIN_URL.match(prefix):
        raise UsageError(
            f"--prefix {like_url[1]}://…: has something before '@', and a prefix is shown and kept in records; leave "
            "credentials out of it, and give them as the store's own tools take them (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS)"
        )
    if like_url and not separator and like_url[1] != "file":
        meant = f"{like_url[1]}://{prefix[like_url.end() :]}"
        raise UsageError(f"--prefix {prefix}: is written {meant}; a folder of that name ./{prefix}")
    if separator and scheme == "gs":
        from marin_pipeline.store.gcs_objects import GcsObjects

        return GcsObjects(prefix)
    if separator and scheme == "s3":
        from marin_pipeline.core.secrets import know
        from marin_pipeline.store.s3_objects import S3Objects

        know("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

        return S3Objects(prefix)
    if separator and scheme != "file":
        raise UsageError(f"--prefix {prefix}: {scheme}:// is not supported; use a local folder, gs:// or s3://")
    from marin_pipeline.store.local_objects import LocalObjects

    if prefix.startswith("file:") and (not separator or not rest.startswith("/")):
        raise UsageError(f"--prefix {prefix}: a file URL is written file:///folder")
    try:
        folder = Path(rest if separator else prefix).expanduser()
    except RuntimeError as error:
        raise UsageError(f"--prefix {prefix}: {error}") from error
    return LocalObjects(Path(os.path.abspath(folder)))


def shown_url(url: str) -> str:
    """A prefix as it may be written down: without a user and a password."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else url


LOCAL = "a local store"


def told_url(url: str) -> str:
    """A prefix as strangers may read it: a folder is of use to nobody elsewhere, and may tell who made it."""
    return shown_url(url) if "://" in url else LOCAL


def command(words: str, objects: ObjectStore) -> str:
    """A command of `marin-pipeline` on this store, for errors: as it can be pasted anywhere."""
    from shlex import quote

    return f"`marin-pipeline {words} --prefix {quote(shown_url(objects.url))}`"


def too_large(where: str, most: int) -> CorruptOutput:
    """The error of an object that has more bytes than it can have."""
    return CorruptOutput(f"{where}: has more than {most:,} bytes, which no such object has; it is damaged or not ours")


def put(objects: ObjectStore, path: str, data: bytes, most: int = RECORD) -> Found:
    """Create an object unless it is there, and return what is there then: ours, if its bytes are `data`.

    A reply can be lost after the write was done, so what counts is what is read back, not what the write answered. A
    store that does not answer is asked again for some seconds: what was made must not be lost for that.

    Raises:
        NoAnswer: when the store does not answer at all: the object may have been written, or be written yet.
        CorruptOutput: when what is there has more than `most` bytes.
        StoreError: when the object was not written, as one of more than `most` bytes, or the store contradicts itself.
    """
    if len(data) > most:
        raise StoreError(
            f"{objects.url}/{path}: would have {len(data):,} bytes, more than the {most:,} that are read back; make it "
            "of fewer or shorter names and values"
        )
    waits, silence = iter(WAITS), None
    while True:
        try:
            version = objects.create(path, data)
            found = objects.read(path, most) if version is None else Found(data, version)
        except NoAnswer as error:
            silence, wait = error, next(waits, None)
            if wait is None:
                raise
            time.sleep(wait)
            continue
        except StoreError as error:
            if silence is None:
                raise
            raise NoAnswer(f"{error} (and whether it was written before is not known: {silence})") from error
        if found is None:
            raise StoreError(f"{objects.url}/{path}: is there and is not; the store contradicts itself, run again")
        return found


def write_anew(objects: ObjectStore, path: str, data: bytes) -> None:
    """Replace what lies where an object belongs that is named by what it holds: other bytes are right for nobody."""
    with objects.writer(path) as writer:
        writer.write(data)


def holds(objects: ObjectStore, path: str) -> bool:
    """Whether an object is there, whatever it holds."""
    try:
        next(iter(objects.blocks(path, 0, 1)), None)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def answered(call: Callable[[], T]) -> T:
    """What a call returns that only reads; a store that does not answer is asked again for some seconds.

    Raises:
        NoAnswer: when it does not answer at all.
    """
    waits = iter(WAITS)
    while True:
        try:
            return call()
        except NoAnswer:
            wait = next(waits, None)
            if wait is None:
                raise
            time.sleep(wait)


def together(objects: ObjectStore, *calls: Callable[[], Any]) -> list[Any]:
    """Make calls that do not depend on each other, at the same time where that is worth it; their results in order.

    Raises:
        what the first of them raised, in order, when all have ended.
    """
    if objects.parallel == 1 or len(calls) < 2:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(objects.parallel, len(calls))) as pool:
        running = [pool.submit(call) for call in calls]
    return [each.result() for each in running]


def explain_os_error(error: OSError, path: Path | str, doing: str) -> StoreError:
    """The error that a person should see for `error`."""
    from marin_pipeline.store.own_folder import scratch_parent

    remedies = {
        errno.ENOSPC: "the disk is full; free some space there, or choose another prefix with --prefix, and run again",
        errno.EDQUOT: "the quota is used up; free some there, or choose another prefix with --prefix, and run again",
        errno.ENOENT: "the folder cannot be made there; choose another prefix with --prefix",
        errno.ENAMETOOLONG: "the path is too long for this file system; choose a shorter name or prefix",
        errno.EACCES: "permission denied; make it writable, or choose another prefix with --prefix",
        errno.EPERM: "not permitted; make it writable, or choose another prefix with --prefix",
        errno.EROFS: "the file system is read-only; choose another prefix with --prefix",
        errno.ENOTDIR: "a file stands where a folder is needed; choose another prefix with --prefix",
        errno.ENOLCK: "the file system gives no locks there; choose another prefix with --prefix",
        errno.EMFILE: "too many open files; close what is open, or raise the limit (ulimit -n)",
        errno.EEXIST: "a file stands where a folder is needed; choose another prefix with --prefix",
    }
    remedy = remedies.get(error.errno or 0, error.strerror or str(error))
    if Path(path).is_relative_to(scratch_parent()):
        remedy = remedy.replace("choose another prefix with --prefix", "set TMPDIR to a folder on another disk")
    kind = DiskFull if error.errno in FULL else StoreError
    return kind(f"{os.fspath(path)}: cannot {doing}: {remedy}")
