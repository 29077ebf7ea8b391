"""A store that is only looked in: whatever goes wrong, nothing is written there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.objects import (
    FileToPublish,
    Found,
    NoAnswer,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    Told,
    Wanted,
    Written,
    untold,
)

T = TypeVar("T")


class Unreachable(NoAnswer):
    """The store that is only looked in did not answer."""


class ReadOnlyObjects(ObjectStore):
    """Another store, of which nothing but reading is let through."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.url = objects.url
        self.shared = objects.shared
        self.parallel = objects.parallel
        self.in_place = objects.in_place

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except NoAnswer as error:
            raise Unreachable(str(error)) from error

    def _refuse(self, path: str) -> NoReturn:
        raise StoreError(f"{self.url}/{path}: this store is only looked in, and nothing is written there")

    def location(self) -> str:
        return self._objects.location()

    def is_there(self) -> bool:
        return self._ask(self._objects.is_there)

    def read(self, path: str) -> Found | None:
        return self._ask(lambda: self._objects.read(path))

    def list(self, folder: str) -> list[ObjectInfo]:
        return self._ask(lambda: self._objects.list(folder))

    def names(self, folder: str) -> list[str]:
        return self._ask(lambda: self._objects.names(folder))

    def info(self, path: str) -> ObjectInfo | None:
        return self._ask(lambda: self._objects.info(path))

    def is_at_hand(self, wanted: Wanted) -> bool:
        return self._objects.is_at_hand(wanted)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        return self._ask(lambda: self._objects.fetch(wanted))

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        blocks = self._ask(lambda: self._objects.blocks(path, start, stop))
        while True:
            block = self._ask(lambda: next(blocks, None))
            if block is None:
                return
            yield block

    def create(self, path: str, data: bytes) -> str | None:
        self._refuse(path)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def folder(self, path: str) -> Path:
        self._refuse(path)

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        self._refuse(path)

    def writer(self, path: str) -> ObjectWriter:
        self._refuse(path)
