"""A store whose listings are believed where they show what is known to be there.

What lies between may answer in the store's place, as a page to log in does, and such an answer can look like a listing
of nothing, or like the end of one. `gc` ends and deletes what no listing speaks for, so that each that it rests on must
show an object that is there for certain, and that comes after the others.
"""

from __future__ import annotations

from functools import partial

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store import layout
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.inventory import key_folder
from marin_pipeline.store.objects import ObjectInfo, ObjectStore, holds, put, together
from marin_pipeline.store.roots import ROOT_FOLDERS

FOLDERS = ("steps", "shards", "gc", *ROOT_FOLDERS)
"""Where something is kept because a record there says so, or told by one how old it is."""

_MARK = b"That a listing shows this tells gc that it is one.\n"


class Listed(Forwarding):
    """Lists `FOLDERS` without the marks that show that they were listed, and keys whose lease is held."""

    def __init__(self, objects: ObjectStore, *, mark: bool) -> None:
        """Args:
        mark: put a mark where there is none; else what has none is listed as it is.
        """
        super().__init__(objects)
        marks = [layout.listed(folder) for folder in FOLDERS]
        if mark:
            together(objects, *(partial(put, objects, each, _MARK) for each in marks))
            self._marks = set(marks)
        else:
            there = together(objects, *(partial(holds, objects, each) for each in marks))
            self._marks = {each for each, is_there in zip(marks, there, strict=True) if is_there}

    def list(self, folder: str) -> list[ObjectInfo]:
        found = super().list(folder)
        mark, lease = layout.listed(folder), f"{folder}/lease.json"
        known = mark if mark in self._marks else lease if key_folder(lease) == folder else None
        if known is not None and all(info.path != known for info in found):
            raise StoreError(
                f"{self.url}/{folder}: the listing does not show {known}, which is there: what answers may not be the "
                "store (a page to log in, a proxy?); nothing more was ended or deleted: see what answers there, and "
                "run again"
            )
        return [info for info in found if info.path != mark]
