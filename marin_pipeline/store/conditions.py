"""Whether a store keeps conditional writes, found out by trying; and what is done on one that does not.

All that a run makes known rests on them: two runs on a store that ignores them could each take the other's result, or
write over it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.cache import check_cache
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.objects import ObjectStore, put


def writable(objects: ObjectStore, *, single_writer: bool) -> ObjectStore:
    """The store, once it was seen that it can be written and keeps conditional writes.

    Args:
        single_writer: one that does not keep them is taken too: what is there is then looked at before each write.

    Raises:
        StoreError: when it cannot be written, or does not keep them.
        UsageError: when the cache for what is read from it cannot be used.
    """
    if objects.shared and not objects.in_place:
        check_cache()
    path = f"tmp/1d/probe-{os.urandom(16).hex()}"
    try:
        if objects.in_place or not objects.shared:
            objects.create(path, b"")
            objects.delete(path)
            return objects
        ignored = _ignored(objects, path)
    except StoreError as error:
        raise type(error)(str(error).replace(f"/{path}", "", 1)) from error
    if not ignored:
        return objects
    if single_writer:
        return SingleWriter(objects)
    raise StoreError(
        f"{objects.url}: the store does not keep conditional writes ({ignored}), so that two runs could take each "
        "other's results; use another store, or add --single-writer and see that no other run writes there meanwhile"
    )


def _ignored(objects: ObjectStore, path: str) -> str:
    """What the store did where a write was to be refused; empty when it refused."""
    try:
        first = put(objects, path, b"first").version
        if objects.create(path, b"second") is not None:
            return "it wrote over an object that was to be created only if it was not there"
        second = objects.swap(path, b"third", first)
        if second is None and (found := objects.read(path)) is not None and found.data != b"third":
            return "it did not replace an object whose version was still the one that was read"
        if objects.swap(path, b"fourth", first) is not None:
            return "it replaced an object that had been written since it was read"
        return ""
    finally:
        with suppress(StoreError):  # scratch harms nobody
            objects.delete(path)


class SingleWriter(Forwarding):
    """Another store, which is looked at before each conditional write: right as long as nobody else writes."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects)
        self.single_writer = True

    def create(self, path: str, data: bytes) -> str | None:
        return None if self._objects.read(path) is not None else self._objects.create(path, data)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        found = self._objects.read(path)
        return None if found is None or found.version != version else self._objects.swap(path, data, version)
