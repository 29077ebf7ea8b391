"""Local files with the bytes of remote objects, by content, shared by the processes of this machine and by all stores.

Below `MARIN_CACHE` lie `objects/`, each file under the sha256 of its bytes, and `processes/`, a folder a process, with
links to what it uses: so that what is removed from `objects/` to keep the bound is taken away from nobody. A file comes
into `objects/` whole and by one link, when its digest was found right on the way down; what a killed process leaves is
found by nobody, and removed by the next. Bytes that lay there before are hashed at their first use in each process.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import CacheError, CorruptOutput, StoreError, UsageError
from marin_pipeline.store.digests import MOST, is_known, note_digest
from marin_pipeline.store.objects import FULL, DiskFull, shown_url
from marin_pipeline.store.own_folder import locked, own_folder
from marin_pipeline.store.sizes import parse_size

if TYPE_CHECKING:
    from marin_pipeline.store.objects import Wanted
    from marin_pipeline.store.remote_objects import RemoteObjects

BYTES = "20GB"
"""The bound where `MARIN_CACHE_BYTES` says nothing."""

AT_ONCE = 16
"""Objects that are fetched at the same time."""

SMALL = 2**16
"""Bytes up to which an object is small: it is held in memory on its way, and written by the thread that asked for it,
since threads that all write small files mostly wait for each other; and two processes may fetch the same one, since
that takes no longer than keeping one of them from it.
"""

AHEAD = 128
"""Small objects that may have come before they are written."""

AnyPath = TypeVar("AnyPath", str, Path)

Write = Callable[[str], tuple[str, os.stat_result]]
"""Writes the bytes of an object to a new file, which is only read from then on; their digest, as `content_digest`
gives it, and the state of the file.
"""

LOOK_AGAIN = 50
"""The size of the whole cache is looked at again after each such part of its bound that was fetched."""

NO_LINKS = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system that does not make links, or no more of them: then a copy is made."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetched(objects: RemoteObjects, wanted: Sequence[Wanted]) -> list[Path]:
    """Local files with the objects' bytes, in order; `ObjectStore.fetch` of a remote store.

    Raises:
        CorruptOutput: when an object has other bytes than were committed.
        DiskFull: when there is no room for them.
    """
    return _cache().fetched(objects, wanted)


def is_cached(objects: RemoteObjects, wanted: Wanted) -> bool:
    """Whether nothing must be fetched for an object."""
    return _cache().has(objects, wanted)


def check_cache() -> None:
    """See that the cache can be used, before anything rests on it.

    Raises:
        UsageError: when what is set for it cannot be; names the variable.
    """
    cache = _cache()
    try:
        cache.check()
    except (OSError, StoreError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"MARIN_CACHE {cache.root}: no files can be kept there ({reason}); set it to a folder of your own"
        ) from error


def _cache() -> Cache:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    where = os.environ.get("MARIN_CACHE") or f"{home}/marin_pipeline"
    return _cache_at(where, os.environ.get("MARIN_CACHE_BYTES") or BYTES)


@functools.cache
def _cache_at(where: str, size: str) -> Cache:
    if "://" in where:
        raise UsageError(f"MARIN_CACHE {shown_url(where)}: is a URL; set it to a folder of this machine")
    try:
        return Cache(Path(where).expanduser().absolute(), parse_size(size))
    except ValueError as error:
        raise UsageError(f"MARIN_CACHE_BYTES: {error}") from error
    except RuntimeError as error:
        raise UsageError(f"MARIN_CACHE {where}: {error}; set it to a folder") from error


class Cache:
    """One folder of files by content."""

    def __init__(self, root: Path, bound: int) -> None:
        self.root = root
        self.bound = bound
        """Bytes of `objects/`, about: what processes use at the moment stays, whatever it takes."""
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._unseen = float("inf")
        self._coming = 0
        self._contents: dict[Path, str] = {}
        """What was first asked for at a place, of some last ones: `MOST` at most."""
        self._folders: set[str] = set()

    def check(self) -> None:
        """Make the folders, and a file.

        Raises:
            OSError: when it cannot be.
            StoreError: when the folder is another user's.
        """
        own_folder(self.root / "processes")
        for name in ("objects", "fetching"):
            (self.root / name).mkdir(exist_ok=True)
        with self._aside() as aside:
            _write(b"1", aside)
            os.unlink(aside)

    def fetched(self, objects: RemoteObjects, wanted: Sequence[Wanted]) -> list[Path]:
        """Local files with the objects' bytes, in order."""
        places = [self._place(objects, each) for each in wanted]
        missing = {place: each for place, each in zip(places, wanted, strict=True) if not _is_there(place, each)}
        small = {place: each for place, each in missing.items() if each.size <= SMALL and not self._may_have(each)}
        with ThreadPoolExecutor(max(1, min(AT_ONCE, objects.parallel, len(missing)))) as pool:
            running = [
                pool.submit(self._provide, objects, place, each)
                for place, each in missing.items()
                if place not in small
            ]
            try:
                for (place, each), data in zip(small.items(), _read(pool, objects, small.values()), strict=True):
                    self._in_some_room(objects, each, partial(self._bring, objects, place, each, partial(_write, data)))
                for one in running:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return places

    def has(self, objects: RemoteObjects, wanted: Wanted) -> bool:
        """Whether the bytes of an object are here; then this process has them."""
        place = self._place(objects, wanted)
        try:
            return _is_there(place, wanted) or self._taken(place, wanted)
        except OSError as error:
            raise self._unusable(error) from error

    def _place(self, objects: RemoteObjects, each: Wanted) -> Path:
        """Where this process has an object: below one folder as in the store, so that a folder there is one here."""
        store = sha256(objects.url.encode()).hexdigest()[:16]
        place = Path(f"{self._own}/{store}/{objects.checked(each.path)}")
        if len(self._contents) >= MOST:
            self._contents.clear()
        if self._contents.setdefault(place, each.sha256) != each.sha256:  # a manifest says otherwise: one is damaged
            place = self._own / sha256(f"{store} {each.sha256}".encode()).hexdigest()[:16] / each.path
        return place

    @property
    def _own(self) -> Path:
        try:
            return own_folder(self.root / "processes")
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> CacheError:
        return CacheError(
            f"{self.root}: no files can be kept there ({error.strerror}); set MARIN_CACHE to a folder of your own"
        )

    def _kept(self, digest: str) -> str:
        return f"{self.root}/objects/{digest[:2]}/{digest}"

    def _have_folder_of(self, path: AnyPath) -> AnyPath:
        """`path`, whose folder is there; nobody removes it while this process lives."""
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            if len(self._folders) >= MOST:
                self._folders.clear()
            self._folders.add(folder)
        return path

    def _provide(self, objects: RemoteObjects, place: Path, each: Wanted) -> None:
        """Have an object at `place`: what the cache has, or else what the store has."""

        def provide(room: int) -> None:
            if not self._taken(place, each):
                with self._fetching(each) as waited:
                    # Another process may have fetched it meanwhile.
                    if not (waited and self._taken(place, each)):
                        self._bring(objects, place, each, partial(_download, objects, each.path), room)

        self._in_some_room(objects, each, provide)

    def _in_some_room(self, objects: RemoteObjects, each: Wanted, provide: Callable[[int], None]) -> None:
        """Provide an object in the room that it needs; where the disk is full, in the room of what nobody uses."""
        for room in (each.size, self.bound):
            try:
                return provide(room)
            except (OSError, DiskFull) as error:
                if isinstance(error, FileNotFoundError) and error.filename == each.path:
                    raise
                if isinstance(error, OSError) and error.errno not in FULL:
                    raise self._unusable(error) from error
                full, self._unseen = error, float("inf")
        raise DiskFull(
            f"{self.root}: there is no room for {objects.url}/{each.path} ({each.size:,} bytes): the disk is full; "
            "free some space there, or set MARIN_CACHE to a folder on another disk, and run again"
        ) from full

    @contextmanager
    def _fetching(self, each: Wanted) -> Iterator[bool]:
        """Let no other process fetch the same large file at the same time: to spare the line; nothing rests on it.
        Whether others may have been waited for.
        """
        if each.size <= SMALL:
            yield False
            return
        path = self._have_folder_of(Path(f"{self.root}/fetching/{sha256(each.sha256.encode()).hexdigest()}"))
        try:
            with locked(path):
                yield True
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _aside(self) -> Iterator[str]:
        """A path for a file that nobody sees yet; it goes when it was not moved, or was not good."""
        path = self._have_folder_of(f"{self._own}/aside/{os.getpid()}-{next(self._names)}")
        try:
            yield path
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise

    def _may_have(self, each: Wanted) -> bool:
        """Whether there is something that was what is wanted when it came in."""
        return _SHA256.fullmatch(each.sha256) is not None and os.path.lexists(self._kept(each.sha256))

    def _taken(self, place: Path, each: Wanted) -> bool:
        """Have what the cache has, if it is what is wanted; what was damaged is removed."""
        if not self._may_have(each):
            return False
        kept = self._kept(each.sha256)
        with self._aside() as aside:
            try:
                # Somebody may have made something else there, which keeps the file's place: a folder, or a pipe, which
                # keeps whoever opens it waiting.
                if not stat.S_ISREG(os.lstat(kept).st_mode):
                    _remove(kept)
                    return False
                _link(kept, aside, self._aside)
            except FileNotFoundError:
                return False
            information = os.stat(aside)
            if information.st_size != each.size or content_digest(Path(aside)) != each.sha256:
                for damaged in (kept, aside):
                    with suppress(FileNotFoundError):
                        os.unlink(damaged)
                return False
            with suppress(OSError):  # it was used now; if that cannot be said, it only goes sooner
                os.utime(kept, ns=(time.time_ns(), information.st_mtime_ns))
            _move(aside, self._have_folder_of(place), each.sha256, information)
        return True

    def _bring(self, objects: RemoteObjects, place: Path, each: Wanted, write: Write, room: int) -> None:
        """Write an object, where there is room for so many bytes, and let others find it."""
        with self._lock:
            self._coming += each.size
        comes = True
        try:
            self._make_room(each.size, room - each.size)
            with self._aside() as aside:
                digest, information = write(aside)
                where, remedy = f"{objects.url}/{each.path}", "run the step that made it again with --force"
                if information.st_size != each.size:
                    # Of a small object no more than a byte too many was read.
                    more = "more than " if information.st_size > each.size else ""
                    size = min(information.st_size, each.size)
                    problem = f"has {more}{size} bytes, but {each.size} were committed"
                    raise CorruptOutput(f"{where}: {problem}; {remedy}")
                if digest != each.sha256:
                    problem = "its bytes are not those that were committed (sha256 differs)"
                    raise CorruptOutput(f"{where}: {problem}; {remedy}")
                kept = self._have_folder_of(self._kept(digest))
                with self._lock:
                    with suppress(FileExistsError):  # another process was quicker
                        _link(aside, kept, self._aside)
                    self._coming -= each.size
                    comes = False
                _move(aside, self._have_folder_of(place), digest, information)
        finally:
            if comes:
                with self._lock:
                    self._coming -= each.size

    def _make_room(self, size: int, more: int) -> None:
        """Remove what was not used for the longest time, as far as there is more, with what comes in and `more`, than
        the bound allows. The whole cache is looked at after each so many bytes only, `size` of which come now, since
        that takes a moment for each of its files.
        """
        with self._lock:
            self._unseen += size + more
            if self._unseen <= self.bound / LOOK_AGAIN:
                return
            self._unseen = 0.0
            with locked(self.root / "lock"):
                self._remove_old(self._coming + more)

    def _remove_old(self, total: int) -> None:
        found: list[tuple[int, int, str]] = []
        for folder in _scanned(self.root / "objects"):
            for entry in _scanned(folder):
                with suppress(FileNotFoundError):  # damaged, and removed meanwhile
                    information = entry.stat(follow_symlinks=False)
                    total += information.st_size
                    if information.st_nlink == 1:  # else a process uses it, and nothing would be gained
                        found.append((information.st_atime_ns, information.st_size, entry.path))
        for _, size, path in sorted(found):
            if total <= self.bound:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


def _scanned(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_there(place: Path, each: Wanted) -> bool:
    """Whether the file of an object is at hand, as it was when it was verified."""
    try:
        return is_known(place, place.stat(), each.sha256)
    except OSError:
        return False


def _read(pool: ThreadPoolExecutor, objects: RemoteObjects, wanted: Iterable[Wanted]) -> Iterator[bytes]:
    """The bytes of small objects, in order; of some that come next, too, while one is dealt with."""

    def read(each: Wanted) -> bytes:
        return b"".join(objects.blocks(each.path, 0, each.size + 1))

    coming: deque[Future[bytes]] = deque()
    for each in wanted:
        coming.append(pool.submit(read, each))
        if len(coming) == AHEAD:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()


def _write(data: bytes, target: str) -> tuple[str, os.stat_result]:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        return sha256(data).hexdigest(), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _download(objects: RemoteObjects, path: str, target: str) -> tuple[str, os.stat_result]:
    digest = objects.download(path, Path(target))
    os.chmod(target, 0o444)
    return digest, os.stat(target)


def _link(source: str, target: str, aside: Callable[[], AbstractContextManager[str]]) -> None:
    """A second name for a file; a copy, made aside, where the file system has none.

    Raises:
        FileExistsError: when the name is taken; not by a copy, which replaces what is there.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with aside() as copy:
            shutil.copyfile(source, copy)
            os.chmod(copy, 0o444)
            os.replace(copy, target)


def _remove(path: str) -> None:
    """Remove what is no file."""
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)


def _move(aside: str, place: Path, digest: str, information: os.stat_result) -> None:
    """Give a file that was verified its place."""
    os.replace(aside, place)
    note_digest(place, information, digest)
