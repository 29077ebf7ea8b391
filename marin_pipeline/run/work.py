"""Finished parts of a resumable step: each is written aside, then made known by a create-only record with the digests
of its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from marin_pipeline.core.errors import CorruptOutput, DeclarationError, InputError, StoreError
from marin_pipeline.store.clock import attempt_name
from marin_pipeline.store.manifest import Manifest, build_manifest, entries_of
from marin_pipeline.store.objects import NoAnswer, ObjectStore, put, together
from marin_pipeline.store.output import FileSet
from marin_pipeline.store.sealed import seal, unseal

_ITEM = re.compile(r"[A-Za-z0-9_.-]+")


class StoredWork:
    """Parts below one folder of a store."""

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects = objects
        self._folder = folder

    def _record(self, item: str) -> str:
        if not _ITEM.fullmatch(item) or item in (".", ".."):
            raise DeclarationError(f"ctx.work: {item!r} may hold letters, digits, '_', '-' and '.', not only dots")
        return f"{self._folder}/{item}/record.json"

    def items(self) -> list[str]:
        """Names of the finished parts, sorted."""
        names = self._objects.names(self._folder)
        records = together(self._objects, *(partial(self._objects.read, self._record(item)) for item in names))
        return [item for item, record in zip(names, records, strict=True) if record is not None]

    @contextmanager
    def writing(self, item: str) -> Iterator[Path]:
        """A folder to write a part in; finished when the block ends without error. The first to finish a part wins."""
        record = self._record(item)
        path = f"{self._folder}/{item}/{attempt_name()}"
        folder = self._objects.folder(path)
        try:
            yield folder
            manifest = build_manifest(self._objects, folder, path, {})
            data = seal({"folder": path, "files": manifest.tree()["files"]})
            ours = put(self._objects, record, data).data == data
        except NoAnswer:
            raise  # the record may be there, or come yet: then the files are what it speaks of
        except BaseException:
            with suppress(StoreError):  # the error itself is what the reader needs
                self._objects.delete(path)
            raise
        finally:
            self._objects.forget(path)
        if not ours:
            self._objects.delete(path)

    def open(self, item: str) -> Path:
        """The folder of a finished part, every file verified.

        Raises:
            InputError: when there is no such part.
            CorruptOutput: when a file is missing or its bytes are not those that were written.
        """
        found = self._objects.read(self._record(item))
        if found is None:
            raise InputError(f"ctx.work has no finished part {item!r}; it has {', '.join(self.items()) or 'none'}")
        try:
            tree = unseal(found.data)
            files = entries_of(tree["files"])
            manifest = Manifest(tuple(replace(entry, path=f"part/{entry.path}") for entry in files))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptOutput(
                f"{self._objects.url}/{self._record(item)}: not a record of a part ({error}); "
                "discard the part and make it again"
            ) from error
        return FileSet(self._objects, manifest, f"the part {item!r}").local("part")

    def discard(self, item: str) -> None:
        """Forget a part: first its record, so that nobody believes what is left of it."""
        self._objects.delete(self._record(item))
        self._objects.delete(f"{self._folder}/{item}")
