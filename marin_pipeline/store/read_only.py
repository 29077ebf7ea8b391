"""A store that is only looked in: whatever goes wrong, nothing is written there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.objects import (
    RECORD,
    FileToPublish,
    Found,
    NoAnswer,
    ObjectInfo,
    ObjectWriter,
    Told,
    Wanted,
    Written,
    untold,
)

T = TypeVar("T")


class Unreachable(NoAnswer):
    """The store that is only looked in did not answer."""


class ReadOnlyObjects(Forwarding):
    """Another store, of which nothing but reading is let through."""

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except NoAnswer as error:
            raise Unreachable(str(error)) from error

    def _refuse(self, path: str) -> NoReturn:
        raise StoreError(f"{self.url}/{path}: this store is only looked in, and nothing is written there")

    def is_there(self) -> bool:
        return self._ask(self._objects.is_there)

    def read(self, path: str, most: int = RECORD) -> Found | None:
        return self._ask(lambda: self._objects.read(path, most))

    def list(self, folder: str) -> list[ObjectInfo]:
        return self._ask(lambda: self._objects.list(folder))

    def names(self, folder: str) -> list[str]:
        return self._ask(lambda: self._objects.names(folder))

    def info(self, path: str) -> ObjectInfo | None:
        return self._ask(lambda: self._objects.info(path))

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

    def forget(self, path: str) -> None:
        self._refuse(path)

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        self._refuse(path)

    def writer(self, path: str) -> ObjectWriter:
        self._refuse(path)
