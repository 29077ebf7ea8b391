"""What a store is kept for: the keys that were a root at some moment of the grace period.

A root is a record: a name that a person gave, the latest number of every name, the newest run of every experiment, a
run that has begun. One that was replaced or dropped within the grace period still counts, so that going back to what
was used last week finds it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import layout
from marin_pipeline.store.clock import moment
from marin_pipeline.store.inventory import in_parallel, read_json
from marin_pipeline.store.names import NUMBERED
from marin_pipeline.store.objects import ObjectStore

ROOT_FOLDERS = ("roots", "names", "experiments")
"""Where the records of roots lie."""

_BEGUN = ".begun"
_KEY = re.compile(r"[0-9a-f]{64}")
_DROPPED = ".dropped.json"


@dataclass
class Roots:
    """The roots of a store."""

    folders: set[str] = field(default_factory=set[str])
    """Folders of the keys."""
    unreadable: set[str] = field(default_factory=set[str])
    """Records that may be roots and cannot be read: nobody knows what they keep."""


def read_roots(
    objects: ObjectStore, since: datetime.datetime, held: Callable[[str], bool], known: dict[str, dict[str, Any]]
) -> Roots:
    """Everything that was a root since then.

    Args:
        held: whether the lease of the key with this folder is held.
        known: records by path that were read before, since none ever changes; those that are read now are added.
    """
    found = Roots()
    reader = _Reader(objects, since, held, known, found)
    reader.given_names()
    reader.names()
    reader.runs()
    return found


class _Reader:
    def __init__(
        self,
        objects: ObjectStore,
        since: datetime.datetime,
        held: Callable[[str], bool],
        known: dict[str, dict[str, Any]],
        found: Roots,
    ) -> None:
        self._objects = objects
        self._since = since
        self._held = held
        self._known = known
        self._found = found

    def _listed(self, folder: str) -> list[str]:
        return [info.path for info in self._objects.list(folder)]

    def _read(self, path: str) -> dict[str, Any] | None:
        if path not in self._known:
            try:
                self._known[path] = read_json(self._objects, path)
            except CorruptOutput as error:
                self._found.unreadable.add(str(error))
                return None
        return self._known[path]

    def _is_recent(self, time: Any) -> bool:
        """Whether a time lies in the grace period; one that cannot be told may."""
        known = moment(time) if isinstance(time, str) else None
        return known is None or known >= self._since

    def _keep(self, path: str, tree: dict[str, Any] | None) -> None:
        """Count a record's one key as a root."""
        if tree is not None:
            self._keep_keys(path, [(tree.get("id"), tree.get("key"))])

    def _keep_keys(self, path: str, keys: list[Any]) -> None:
        try:
            self._found.folders |= {_folder(id, key) for id, key in keys}
        except (TypeError, ValueError) as error:
            self._found.unreadable.add(f"{self._objects.url}/{path}: names no key ({error}); delete it")

    def given_names(self) -> None:
        """Names that a person gave."""
        paths = self._listed("roots")
        dropped = {path.removesuffix(_DROPPED) for path in paths if path.endswith(_DROPPED)}
        for path in paths:
            name = path.removesuffix(".json")
            if path.endswith(_DROPPED):
                continue
            if name in dropped:
                tree = self._read(f"{name}{_DROPPED}")
                if tree is None or not self._is_recent(tree.get("at")):
                    continue
            self._keep(path, self._read(path))

    def names(self) -> None:
        """What each name stands for, and what it stood for in the grace period."""
        numbers: dict[str, list[int]] = {}
        for path in self._listed("names"):
            folder, _, name = path.rpartition("/")
            if folder.endswith("@") and NUMBERED.fullmatch(name):
                numbers.setdefault(folder, []).append(int(name.removesuffix(".json")))
        for folder, known in numbers.items():
            for number in sorted(known, reverse=True):
                path = f"{folder}/{number}.json"
                tree = self._read(path)
                self._keep(path, tree)
                if tree is not None and not self._is_recent(tree.get("at")):
                    break  # the one before had been replaced when the grace period began

    def runs(self) -> None:
        """The newest run of each experiment, those that were the newest in the grace period, and those going on."""
        paths = set(self._listed("experiments"))
        ended: dict[str, list[str]] = {}
        for path in paths:
            if path.endswith(".json"):
                ended.setdefault(path.rpartition("/")[0], []).append(path)
            elif path.endswith(_BEGUN) and not paths & {path.removesuffix(_BEGUN) + ".json", path.removesuffix(_BEGUN)}:
                self._begun(path)
        in_parallel(self._objects, self._read, [path for records in ended.values() for path in records])
        for records in ended.values():
            self._keep_run(max(records), self._known.get(max(records)))
            trees = [
                (str(tree.get("finished")), path, tree)
                for path in records
                if (tree := self._known.get(path)) is not None
            ]
            for finished, path, tree in sorted(trees, key=lambda each: each[:2], reverse=True):
                self._keep_run(path, tree)
                if not self._is_recent(finished):
                    break  # those before had been replaced when the grace period began

    def _keep_run(self, path: str, tree: dict[str, Any] | None) -> None:
        if tree is not None:
            steps = tree.get("steps")
            self._keep_keys(path, list(steps.values()) if isinstance(steps, dict) else [None])

    def _begun(self, path: str) -> None:
        """A run that has begun and has not ended, or was killed."""
        tree = self._read(path)
        if tree is None:
            return
        mine = Roots()
        _Reader(self._objects, self._since, self._held, self._known, mine)._keep_run(path, tree)
        self._found.unreadable |= mine.unreadable
        if self._is_recent(path.rpartition("/")[2]) or any(map(self._held, mine.folders)):
            self._found.folders |= mine.folders


def _folder(id: Any, key: Any) -> str:
    if not isinstance(id, str) or not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError("no id and key")
    return layout.step(id, key)
