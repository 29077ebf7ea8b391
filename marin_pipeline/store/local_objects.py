"""Objects as files of a local folder.

Create-only is a hard link to a finished file, which the kernel refuses when the name is taken; compare-and-swap holds a
lock for the folder while it compares and replaces. A killed writer leaves at most a file under `tmp/`, never half an
object.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from marin_pipeline.core.artifact import ContentHash, content_digest
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store.objects import (
    RECORD,
    FileToPublish,
    Found,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    Told,
    Wanted,
    Written,
    explain_os_error,
    too_large,
    untold,
    written_meanwhile,
)


class LocalObjects(ObjectStore):
    """Objects under a local folder, which is made at the first write."""

    shared = True
    parallel = 1
    in_place = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self._scratch = f"{root}/tmp/1d"
        self._locks = f"{root}/tmp/locks"

    def is_there(self) -> bool:
        return self.root.exists()

    def _at(self, path: str) -> str:
        """Where an object lies.

        Raises:
            StoreError: for a path that would lead out of the store.
        """
        outside = (".." in path and ".." in path.split("/")) or path[:1] == "/" or "\0" in path
        if outside or not (path.isascii() or _is_a_name(path)):
            raise StoreError(f"{self.url}: {path!a} is no path inside the store; whatever it was made of is damaged")
        return f"{self.url}/{path}"

    def read(self, path: str, most: int = RECORD) -> Found | None:
        where = self._at(path)
        try:
            data = file_bytes(where, most)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise explain_os_error(error, where, "read") from error
            data = b""
        return Found(data, hashlib.sha256(data).hexdigest())

    def create(self, path: str, data: bytes) -> str | None:
        target = self._at(path)
        with self._written(target, data) as temporary:
            if _linked(temporary, target):
                return hashlib.sha256(data).hexdigest()
        if os.path.islink(target) and not os.path.exists(target):
            raise CorruptOutput(f"{target}: is a link to what is not there; delete it, and run again")
        return None

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        target = self._at(path)
        if not os.path.isdir(os.path.dirname(target)):
            return None
        with self._locked(path):
            found = self.read(path)
            if found is None or found.version != version:
                return None
            with self._written(target, data) as temporary:
                os.replace(temporary, target)
        return hashlib.sha256(data).hexdigest()

    @contextmanager
    def _written(self, target: str, data: bytes) -> Iterator[str]:
        """A finished file with `data` on the same file system as `target`."""
        temporary = f"{self._scratch}/{os.urandom(16).hex()}"
        try:
            try:
                _write(temporary, data)
            except FileNotFoundError:
                os.makedirs(self._scratch, exist_ok=True)
                _write(temporary, data)
            yield temporary
        except OSError as error:
            raise explain_os_error(error, target, "write") from error
        finally:
            with suppress(OSError):  # it is not there when it was moved, and scratch harms nobody
                os.unlink(temporary)

    @contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        """Hold the lock of the folder of an object, which is one of 256 files: NFS locks nothing that is not open for
        writing.
        """
        folder = hashlib.sha256(os.fsencode(os.path.dirname(path)))
        lock = f"{self._locks}/{folder.hexdigest()[:2]}"
        try:
            try:
                descriptor = _lock(lock)
            except FileNotFoundError:
                os.makedirs(self._locks, exist_ok=True)
                descriptor = _lock(lock)
        except OSError as error:
            raise explain_os_error(error, lock, "lock") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def delete(self, path: str) -> None:
        target = Path(self._at(path))
        while os.path.lexists(target):
            try:
                if target.is_dir() and not target.is_symlink():
                    import shutil

                    shutil.rmtree(target)
                else:
                    target.unlink()
            except FileNotFoundError:
                continue  # somebody else deletes it too
            except OSError as error:
                raise explain_os_error(error, target, "delete") from error

    def list(self, folder: str) -> list[ObjectInfo]:
        self._at(folder)
        found: list[ObjectInfo] = []
        todo = [folder]
        while todo:
            current = todo.pop()
            try:
                with os.scandir(self.root / current) as entries:
                    for entry in entries:
                        path = f"{current}/{entry.name}"
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(path)
                            continue
                        with suppress(FileNotFoundError):  # deleted while we look
                            found.append(ObjectInfo(path, entry.stat(follow_symlinks=False).st_size))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise explain_os_error(error, self.root / current, "list") from error
        return sorted(found, key=lambda info: info.path)

    def info(self, path: str) -> ObjectInfo | None:
        try:
            return ObjectInfo(path, self._file(path).stat().st_size)
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # what cannot be there is not there
                return []
            raise explain_os_error(error, self.root / folder, "list") from error

    def folder(self, path: str) -> Path:
        target = Path(self._at(path))
        try:
            _make_folder(os.fspath(target))
        except OSError as error:
            raise explain_os_error(error, target, "write") from error
        return target

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        """The files are the objects: they are made read-only, and hashed."""
        self._at(path)
        try:
            for each in files:
                _protect(each.file)
            digests = _digests([each.file for each in files], sum(each.size for each in files))
            for each in files:
                if os.stat(each.file).st_size != each.size:
                    raise written_meanwhile(each.file)
        except OSError as error:
            raise explain_os_error(error, self._at(path), "read what was written") from error
        return [Written(each.size, digest, None) for each, digest in zip(files, digests, strict=True)]

    def writer(self, path: str) -> ObjectWriter:
        return _Writer(self._at(path), f"{self._scratch}/{os.urandom(16).hex()}")

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        with open(self._file(path), "rb", buffering=0) as file:
            file.seek(start)
            while block := file.read(2**20 if stop is None else max(0, min(2**20, stop - file.tell()))):
                yield block

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        return [self._file(each.path) for each in wanted]

    def _file(self, path: str) -> Path:
        target = Path(self._at(path))
        if not stat.S_ISREG(target.stat().st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no file", os.fspath(target))
        return target


class _Writer(ObjectWriter):
    """Writes aside, and moves the finished file to its place."""

    def __init__(self, target: str, temporary: str) -> None:
        self._target = target
        self._temporary = temporary
        self._hash = ContentHash()
        try:
            os.makedirs(os.path.dirname(temporary), exist_ok=True)
            self._file = open(temporary, "wb", buffering=0)  # noqa: SIM115 - closed by `_close` and `_abort`
        except OSError as error:
            raise explain_os_error(error, target, "write") from error

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        left = memoryview(data).cast("B")
        self._hash.update(left)
        size = len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise explain_os_error(error, self._target, "write") from error
        return size

    def _close(self) -> Written:
        try:
            _protect(self._file.fileno())
            self._file.close()
            _make_folder(os.path.dirname(self._target))
            os.replace(self._temporary, self._target)
        except OSError as error:
            raise explain_os_error(error, self._target, "write") from error
        return Written(self._hash.size, self._hash.hexdigest(), None)

    def _abort(self) -> None:
        with suppress(OSError):  # what was buffered elsewhere goes nowhere
            self._file.close()
        with suppress(OSError):  # scratch harms nobody
            os.unlink(self._temporary)


WORTH_THREADS = 4 * 2**20
"""Bytes from which on several files are hashed at the same time: they take some 3 ms, as starting the threads does."""


def _digests(files: Sequence[Path], size: int) -> list[str]:
    """Digests of files; at the same time where the bytes are worth the threads."""
    if len(files) < 2 or size < WORTH_THREADS:
        return [content_digest(file) for file in files]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(content_digest, files))


def _protect(file: Path | int) -> None:
    """Make a finished file read-only, so that no later step writes on it. One that has another name too may be
    somebody's who writes on it, one of another user is not ours to change, and some file systems know no permissions.
    """
    with suppress(OSError):
        found = os.stat(file)
        if found.st_nlink == 1 and found.st_mode & _WRITABLE:
            os.chmod(file, stat.S_IMODE(found.st_mode) & ~_WRITABLE)


_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _is_a_name(path: str) -> bool:
    """Whether the file system can hold a path; halves of characters it cannot."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


_BLOCK = 2**18
_NO_FILE = (errno.ELOOP, errno.ENXIO)
"""Errors of opening what is there and is no file: a link to itself, a socket."""


def file_bytes(path: str, most: int) -> bytes:
    """The bytes of a file. What is no file (a folder, a device, or a pipe, which must not be waited for) has none:
    it is a damaged record to whoever reads it.

    Raises:
        OSError: when it cannot be opened.
        CorruptOutput: when it has more than `most` bytes.
    """
    # Fewer calls than through a file object: a plan reads thousands of small records.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b""
        if status.st_size > most:
            raise too_large(path, most)
        data = os.read(descriptor, min(status.st_size + 1, _BLOCK))
        if len(data) == status.st_size:
            return data
        blocks, left = [data], most + 1 - len(data)
        while left > 0 and (data := os.read(descriptor, min(left, _BLOCK))):
            blocks.append(data)
            left -= len(data)
        if left <= 0:  # it grew meanwhile
            raise too_large(path, most)
        return b"".join(blocks)
    finally:
        os.close(descriptor)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def _lock(path: str) -> int:
    """A file that nobody else has locked, open; closing it ends that."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _linked(file: str, target: str) -> bool:
    """Give a file a second name, in a folder that is made when it is not there. False when the name is taken."""
    for _ in range(2):
        try:
            os.link(file, target)
        except FileExistsError:
            return False
        except FileNotFoundError:
            _make_folder(os.path.dirname(target))
        else:
            return True
    raise FileNotFoundError(errno.ENOENT, "the folder was removed meanwhile", target)


def _make_folder(folder: str) -> None:
    try:
        os.mkdir(folder)  # most often all above it is there
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, "a file stands where a folder is needed", folder) from error
