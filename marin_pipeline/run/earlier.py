"""The earlier result that a new step is compared with, to say what has changed.

The nearest one: of the same name in the last runs of the experiment, else what the name stood for, else the most alike
of the same step. What is read for it is bounded, whatever the number of steps: an explanation never costs more than the
work.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.graph import Node
from marin_pipeline.run.history import HAVE_OUTPUT, RunRecord, newest_records
from marin_pipeline.run.plan import Earlier
from marin_pipeline.store import layout
from marin_pipeline.store.commit import look, read_commit
from marin_pipeline.store.names import latest_of_name, latest_record, owner
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.records import spec_tree

RUNS = 8
"""Last runs of the experiment that are asked for a name, at most: one may have been of a part of the graph only."""

SIMILAR = 50
"""Results of the same step among which the most alike is looked for, at most."""

READ = 200
"""Results that are read for one plan, and names that are looked up in the store, at most: each costs some requests."""

_KEY = re.compile(rb"[0-9a-f]{64}")
_KEY16 = re.compile(r"[0-9a-f]{16}")


def recipe_of(node: Node, names: Mapping[str, str]) -> str:
    """A digest of the spec with the inputs by name instead of by key: equal for a step that differs from an earlier one
    in what its inputs are made from, and in nothing else. 16 hex; empty for what was loaded.

    Args:
        names: of the graph's steps, by key.
    """
    if node.loaded:
        return ""

    def named(found: re.Match[bytes]) -> bytes:
        name = names.get(found[0].decode())
        return found[0] if name is None else f"={name}=".encode()

    return hashlib.sha256(_KEY.sub(named, node.declaration.spec)).hexdigest()[: layout.SHORT]


class EarlierResults:
    """Finds the result that a new step is compared with."""

    def __init__(self, objects: ObjectStore, experiment: str) -> None:
        self._objects = objects
        self._unread: Iterator[RunRecord] = newest_records(objects, experiment, RUNS)
        self._records: list[RunRecord] = []
        self._known: dict[tuple[str, str], tuple[Earlier, Mapping[str, Any]] | None] = {}
        self._named: dict[str, tuple[str, str] | None] = {}
        self._alike: dict[str, list[tuple[Earlier, Mapping[str, Any]]]] = {}
        self.exhausted = False
        """Whether something was not read because so much had been."""

    def inputs_that_differ(self, node: Node, names: Mapping[str, str]) -> list[str]:
        """Names of the inputs that alone set a step apart from its last result, told from records of runs without a
        look at the result itself. Empty when there is more to it, or it is not known.
        """
        record = self._record_with(node.name)
        if record is None or record.recipes.get(node.name) != recipe_of(node, names):
            return []
        moved = {names[key] for key in node.depends_on if record.steps.get(names[key], ("", ""))[1] != key}
        return sorted(moved)

    def __call__(self, node: Node) -> Earlier | None:
        """The nearest earlier result of a step, or None."""
        for name in node.names:
            record = self._record_with(name)
            for step in (None if record is None else record.steps[name], self._stood_for(name, record, node)):
                if step is not None and step[1] != node.key:
                    known = self._read(*step)
                    if known is not None:
                        return known[0]
        found = self._of_step(node.id)
        mine = json.loads(node.declaration.spec)["arguments"]

        def alike(known: tuple[Earlier, Mapping[str, Any]]) -> tuple[int, str, str]:
            earlier, arguments = known
            equal = sum(1 for name, tree in mine.items() if name in arguments and arguments[name] == tree)
            return equal, earlier.commit.finished, earlier.key

        others = [known for known in found if known[0].key != node.key]
        return max(others, key=alike)[0] if others else None

    def _record_with(self, name: str) -> RunRecord | None:
        """The newest of the last runs in which a name had an output."""
        for record in self._records:
            if record.statuses.get(name) in HAVE_OUTPUT:
                return record
        for record in self._unread:
            self._records.append(record)
            if record.statuses.get(name) in HAVE_OUTPUT:
                return record
        return None

    def _stood_for(self, name: str, record: RunRecord | None, node: Node) -> tuple[str, str] | None:
        """What a name stands for; asked of the store only where the last runs do not tell it."""
        if record is not None and record.steps[name][1] != node.key:
            return None
        if name not in self._named:
            if len(self._named) >= READ:
                self.exhausted = True
                return None
            self._named[name] = latest_of_name(self._objects, owner(), name)
        return self._named[name]

    def _of_step(self, id: str) -> list[tuple[Earlier, Mapping[str, Any]]]:
        """Results of a step, those of the last runs first; at most `SIMILAR`."""
        if id not in self._alike:
            ran = {
                key[: layout.SHORT]: None
                for record in self._records
                for each, key in record.steps.values()
                if each == id
            }
            there = (each for each in self._objects.names(f"steps/{id}") if _KEY16.fullmatch(each))
            candidates = list(dict.fromkeys([*ran, *there]))[: SIMILAR + 1]
            self._alike[id] = [known for each in candidates if (known := self._read(id, each)) is not None]
        return self._alike[id]

    def _read(self, id: str, key: str) -> tuple[Earlier, Mapping[str, Any]] | None:
        """An earlier result and its arguments; None for what cannot be compared with, a damaged record among it."""
        short = key[: layout.SHORT]
        if (id, short) not in self._known:
            if len(self._known) >= READ:
                self.exhausted = True
                return None
            self._known[id, short] = None
            # Here a damaged record costs an explanation only; the run itself tells of it when it needs it.
            with suppress(CorruptOutput, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                found = self._objects.read(layout.spec(id, key))
                if found is not None and hashlib.sha256(found.data).hexdigest().startswith(short):
                    spec = spec_tree(found.data, layout.spec(id, key))
                    seen = look(self._objects, id, key)
                    commit = seen.commit
                    if commit is None and seen.number > 1:
                        commit = read_commit(self._objects, id, key, seen.number - 1)
                    whole = hashlib.sha256(found.data).hexdigest()
                    if commit is not None:
                        earlier = Earlier(whole, commit, spec["step"], spec["code"].get("version"))
                        self._known[id, short] = earlier, spec["arguments"]
        return self._known[id, short]


def name_with_number(objects: ObjectStore, name: str, key: str) -> str:
    """`train@2`, when that is what the name stands for now; else the first 8 digits of the key."""
    found = latest_record(objects, owner(), name)
    return key[:8] if found is None or found.key != key else f"{name}@{found.number}"
