"""A remote store whose other end is a folder of this machine: what lies there is not at hand until it is fetched."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from marin_pipeline.store.downloads import Opened
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.objects import RECORD, FileToPublish, Found, ObjectInfo, ObjectWriter, Told, Written, untold
from marin_pipeline.store.remote_objects import RemoteObjects


class FarObjects(RemoteObjects):
    """Objects that lie in a folder, reached by calls that are noted."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"far://{root}")
        self.near = LocalObjects(root)
        self.calls: list[tuple[str, str]] = []
        """Operation and path of each call that moves bytes."""

    def read(self, path: str, most: int = RECORD) -> Found | None:
        return self.near.read(self.checked(path), most)

    def create(self, path: str, data: bytes) -> str | None:
        return self.near.create(self.checked(path), data)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        return self.near.swap(self.checked(path), data, version)

    def delete(self, path: str) -> None:
        self.near.delete(self.checked(path))

    def list(self, folder: str) -> list[ObjectInfo]:
        return self.near.list(self.checked(folder))

    def names(self, folder: str) -> list[str]:
        return self.near.names(self.checked(folder))

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        for each in files:
            target = self.near.folder(path) / each.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.file, target)
            self.calls.append(("publish", f"{path}/{each.name}"))
        return self.near.publish(path, [each._replace(file=self.near.root / path / each.name) for each in files], told)

    def writer(self, path: str) -> ObjectWriter:
        self.calls.append(("writer", path))
        return self.near.writer(self.checked(path))

    def opened(self, path: str, start: int, stop: int | None, version: str) -> Opened:
        found = (self.near.root / self.checked(path)).stat() if self.near.info(path) else None
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return Opened(f"{found.st_mtime_ns}", found.st_size, self._blocks(path, start, stop))

    def _blocks(self, path: str, start: int, stop: int | None) -> Iterator[bytes]:
        return self.near.blocks(path, start, stop)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self.calls.append(("blocks", path))
        return super().blocks(path, start, stop)

    def download(self, path: str, target: Path) -> str:
        self.calls.append(("download", path))
        return super().download(path, target)

    def fetched(self) -> Sequence[str]:
        """Last parts of the paths whose bytes were taken since the last call."""
        found = [path.rpartition("/")[2] for operation, path in self.calls if operation in ("download", "blocks")]
        self.calls.clear()
        return found


class SlowObjects(FarObjects):
    """Each read takes a while: what it costs is how many of them wait for each other."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.waits = 0
        """Reads that began while none went on: as many as one after the other takes in all."""
        self._reading = 0
        self._lock = threading.Lock()

    def read(self, path: str, most: int = RECORD) -> Found | None:
        with self._lock:
            self.waits += not self._reading
            self._reading += 1
        time.sleep(0.05)
        try:
            return super().read(path, most)
        finally:
            with self._lock:
                self._reading -= 1
