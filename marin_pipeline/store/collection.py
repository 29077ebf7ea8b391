"""What a pass of `gc` did, and what earlier passes saw: things that tell no time themselves are dated by who saw them
first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import layout
from marin_pipeline.store.inventory import read_json
from marin_pipeline.store.objects import ObjectStore, put
from marin_pipeline.store.provenance import FOLDERS
from marin_pipeline.store.records import typed

Kind = Literal["output", "attempt", "work", "shard", "scratch", "provenance"]


@dataclass(frozen=True)
class Item:
    """One thing that was, or would be, ended or deleted."""

    kind: Kind
    action: Literal["end", "delete"]
    path: str
    """Relative to the prefix."""
    bytes: int


@dataclass
class Collection:
    """What a pass did, or would do."""

    deleted: bool
    """Whether it was done."""
    items: list[Item] = field(default_factory=list[Item])
    kept: list[str] = field(default_factory=list[str])
    """What could not be decided, and why: it is kept."""

    def keep(self, why: str) -> None:
        """Note what is kept, once."""
        if why not in self.kept:
            self.kept.append(why)


@dataclass(frozen=True)
class _Earlier:
    """What a pass saw for the first time, and what it ended."""

    schema: int
    at: str
    """UTC."""
    seen: list[str]
    ended: list[str]


class Sightings:
    """Since when things are known that tell no time themselves, and since when shards are ended."""

    def __init__(self, objects: ObjectStore, report: Collection) -> None:
        self._objects = objects
        self._records: dict[str, list[str]] = {}
        self.seen: dict[str, str] = {}
        """When each was seen first, UTC."""
        self.gone: dict[str, str] = {}
        """When each was ended, UTC."""
        for info in objects.list("gc"):
            try:
                earlier = typed(read_json(objects, info.path), _Earlier)
            except (CorruptOutput, ValueError) as error:
                damage = f"{objects.url}/{info.path}: not what a pass of gc saw ({error}); delete it"
                report.keep(str(error) if isinstance(error, CorruptOutput) else damage)
                continue
            self._records[info.path] = [*earlier.seen, *earlier.ended]
            for path in earlier.seen:
                self.seen[path] = min(earlier.at, self.seen.get(path, earlier.at))
            for path in earlier.ended:
                self.gone[path] = max(earlier.at, self.gone.get(path, earlier.at))

    def add(self, at: str, seen: Iterable[str], ended: Iterable[str], keep: bool) -> None:
        """Take in what this pass saw for the first time, and what it ended.

        Args:
            keep: also write it down, for later passes.
        """
        tree = {"schema": 1, "at": at, "seen": sorted(seen), "ended": sorted(ended)}
        if keep and (tree["seen"] or tree["ended"]):
            put(self._objects, layout.collection(f"{at.replace(':', '')}-{os.urandom(3).hex()}"), dumps(tree))
        for path in tree["ended"]:
            self.gone[path] = at

    def forget(self) -> None:
        """Delete what earlier passes noted of things that have gone."""
        there = [info.path for folder in ("steps", "shards", "tmp") for info in self._objects.list(folder)]
        known = {"/".join(path.split("/")[:depth]) for path in there for depth in range(3, path.count("/") + 2)}
        known |= {info.path for folder in FOLDERS for info in self._objects.list(folder)}
        for record, paths in self._records.items():
            if not known.intersection(paths):
                self._objects.delete(record)
