"""Objects in this process's memory: for tests, and to try a step without leaving anything behind. Works with
`--backend inline` only.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from marin_pipeline.core.artifact import ContentHash, content_digest
from marin_pipeline.core.errors import StoreError
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
    too_large,
    untold,
    written_meanwhile,
)


class MemoryObjects(ObjectStore):
    """A dict of objects with a lock. Two stores of one name in one process are the same."""

    shared = False
    parallel = 1
    _stores: ClassVar[dict[str, MemoryObjects]] = {}

    def __init__(self, url: str) -> None:
        self.url = url
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="marin-memory-")

    @classmethod
    def named(cls, url: str) -> MemoryObjects:
        """The store with this URL, made at the first call."""
        if url not in cls._stores:
            cls._stores[url] = cls(url)
        return cls._stores[url]

    def _put(self, path: str, data: bytes) -> str:
        self._count += 1
        self._objects[path] = (data, self._count)
        return str(self._count)

    def read(self, path: str, most: int = RECORD) -> Found | None:
        found = self._get(path)
        if found is not None and len(found.data) > most:
            raise too_large(f"{self.url}/{path}", most)
        return found

    def _get(self, path: str) -> Found | None:
        with self._lock:
            found = self._objects.get(path)
        return None if found is None else Found(found[0], str(found[1]))

    def create(self, path: str, data: bytes) -> str | None:
        with self._lock:
            return None if path in self._objects else self._put(path, data)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        with self._lock:
            found = self._objects.get(path)
            return None if found is None or str(found[1]) != version else self._put(path, data)

    def delete(self, path: str) -> None:
        with self._lock:
            for known in [known for known in self._objects if known == path or known.startswith(path + "/")]:
                del self._objects[known]
        shutil.rmtree(Path(self._scratch.name) / path, ignore_errors=True)

    def list(self, folder: str) -> list[ObjectInfo]:
        with self._lock:
            inside = [(path, len(data)) for path, (data, _) in self._objects.items() if path.startswith(folder + "/")]
        return [ObjectInfo(path, size) for path, size in sorted(inside)]

    def info(self, path: str) -> ObjectInfo | None:
        found = self._get(path)
        return None if found is None else ObjectInfo(path, len(found.data))

    def names(self, folder: str) -> list[str]:
        return sorted({info.path[len(folder) + 1 :].partition("/")[0] for info in self.list(folder)})

    def folder(self, path: str) -> Path:
        if path[:1] == "/" or ".." in path.split("/") or "\0" in path:
            raise StoreError(f"{self.url}: {path!a} is no path inside the store; whatever it was made of is damaged")
        target = Path(self._scratch.name) / path
        target.mkdir(parents=True, exist_ok=True)
        return target

    def forget(self, path: str) -> None:
        shutil.rmtree(Path(self._scratch.name) / path, ignore_errors=True)

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        found: list[Written] = []
        for name, file, size in files:
            data = file.read_bytes()
            if len(data) != size:
                raise written_meanwhile(file)
            with self._lock:
                self._put(f"{path}/{name}", data)
            found.append(Written(len(data), content_digest(file), None))
            told(1, len(data))
        return found

    def writer(self, path: str) -> ObjectWriter:
        return _Writer(self, path)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        found = self._get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        yield from [found.data[start:stop]] if found.data[start:stop] else []

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        return [self._local(each.path) for each in wanted]

    def _local(self, path: str) -> Path:
        found = self._get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        target = Path(self._scratch.name) / "fetched" / found.version / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(found.data)
        return target

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, whatever is there."""
        with self._lock:
            self._put(path, data)


class _Writer(ObjectWriter):
    def __init__(self, objects: MemoryObjects, path: str) -> None:
        self._objects = objects
        self._path = path
        self._data = bytearray()

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        size = len(self._data)
        self._data += data
        return len(self._data) - size

    def _close(self) -> Written:
        found = ContentHash()
        found.update(self._data)
        self._objects.replace(self._path, bytes(self._data))
        return Written(found.size, found.hexdigest(), None)

    def _abort(self) -> None:
        self._data.clear()
