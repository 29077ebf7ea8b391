"""Objects as files of a local folder.

Create-only is a hard link to a finished file, which the kernel refuses when the name is taken; compare-and-swap holds a
lock on the folder while it compares and replaces. A killed writer leaves at most a file under `tmp/`, never half an
object.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marin_pipeline.store.objects import Found, ObjectInfo, ObjectStore, explain_os_error


class LocalObjects(ObjectStore):
    """Objects under a local folder, which is made at the first write."""

    shared = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self._scratch = root / "tmp" / "1d"

    def read(self, path: str) -> Found | None:
        try:
            data = (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explain_os_error(error, self.root / path, "read") from error
        return Found(data, hashlib.sha256(data).hexdigest())

    def create(self, path: str, data: bytes) -> bool:
        target = self.root / path
        with self._written(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
        return True

    def swap(self, path: str, data: bytes, version: str) -> bool:
        target = self.root / path
        if not target.parent.is_dir():
            return False
        with self._locked(target.parent):
            found = self.read(path)
            if found is None or found.version != version:
                return False
            with self._written(target, data) as temporary:
                os.replace(temporary, target)
        return True

    @contextmanager
    def _written(self, target: Path, data: bytes) -> Iterator[Path]:
        """A finished file with `data` on the same file system as `target`, whose folder exists."""
        temporary = self._scratch / uuid.uuid4().hex
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            yield temporary
        except OSError as error:
            raise explain_os_error(error, target, "write") from error
        finally:
            with suppress(OSError):  # it is not there when the folder could not be made, and scratch harms nobody
                temporary.unlink()

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise explain_os_error(error, folder, "lock") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def delete(self, path: str) -> None:
        target = self.root / path
        while os.path.lexists(target):
            try:
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                else:
                    target.unlink()
            except FileNotFoundError:
                continue  # somebody else deletes it too
            except OSError as error:
                raise explain_os_error(error, target, "delete") from error

    def list(self, folder: str) -> list[ObjectInfo]:
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

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise explain_os_error(error, self.root / folder, "list") from error

    def folder(self, path: str) -> Path:
        target = self.root / path
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, target, "write") from error
        return target

    def publish(self, folder: Path, path: str) -> None:
        """Nothing to do: the folder is where the objects lie."""

    def local(self, path: str) -> Path:
        target = self.root / path
        target.stat()
        return target
