"""A store that stands before another one and passes everything on: who changes a call overrides that call alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

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
    untold,
)


class Forwarding(ObjectStore):
    """Another store, as it is. Every attribute and every method of `ObjectStore` is here."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.url = objects.url
        self.shared = objects.shared
        self.parallel = objects.parallel
        self.longest = objects.longest
        self.in_place = objects.in_place
        self.single_writer = objects.single_writer

    def location(self) -> str:
        return self._objects.location()

    def is_there(self) -> bool:
        return self._objects.is_there()

    def read(self, path: str, most: int = RECORD) -> Found | None:
        return self._objects.read(path, most)

    def create(self, path: str, data: bytes) -> str | None:
        return self._objects.create(path, data)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        return self._objects.swap(path, data, version)

    def delete(self, path: str) -> None:
        self._objects.delete(path)

    def list(self, folder: str) -> list[ObjectInfo]:
        return self._objects.list(folder)

    def names(self, folder: str) -> list[str]:
        return self._objects.names(folder)

    def folder(self, path: str) -> Path:
        return self._objects.folder(path)

    def forget(self, path: str) -> None:
        self._objects.forget(path)

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        return self._objects.publish(path, files, told)

    def writer(self, path: str) -> ObjectWriter:
        return self._objects.writer(path)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return self._objects.blocks(path, start, stop)

    def info(self, path: str) -> ObjectInfo | None:
        return self._objects.info(path)

    def is_at_hand(self, wanted: Wanted) -> bool:
        return self._objects.is_at_hand(wanted)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        return self._objects.fetch(wanted)
