"""What was run before: one record a run of an experiment, and the earlier results that a new one is compared with."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.graph import Node
from marin_pipeline.run.plan import Earlier
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look, read_commit
from marin_pipeline.store.names import enter_name, latest_of_name, owner
from marin_pipeline.store.objects import ObjectStore

_KEY16 = re.compile(r"[0-9a-f]{16}")
_HAVE_OUTPUT = ("cached", "done")
_SIMILAR = 50
"""How many earlier results of the same step are compared, at most."""


@dataclass(frozen=True)
class RunRecord:
    """One run of an experiment."""

    experiment: str
    title: str
    argv: list[str]
    owner: str
    started: str
    finished: str
    ok: bool
    steps: Mapping[str, tuple[str, str]]
    """Step's id and key by name."""
    statuses: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name."""


def record_run(objects: ObjectStore, record: RunRecord) -> None:
    """Keep a run, and what its names stand for now."""
    # A name stands for what has an output: a failed or blocked run leaves it where it was.
    for name, (id, key) in record.steps.items():
        if record.statuses.get(name) in _HAVE_OUTPUT:
            enter_name(objects, record.owner, name, id, key)
    last = last_run(objects, record.experiment)
    nothing_new = set(record.statuses.values()) == {"cached"} and record.ok
    if nothing_new and last and last.ok and dict(last.steps) == dict(record.steps):
        return
    path = f"{layout.runs(record.experiment)}/{record.started.replace(':', '')}-{uuid.uuid4().hex[:6]}.json"
    objects.create(path, dumps({"schema": 1, **vars(record)}))


def last_run(objects: ObjectStore, experiment: str) -> RunRecord | None:
    """The newest run of an experiment. A damaged record is passed over: it explains, and decides nothing."""
    names = objects.names(layout.runs(experiment))
    for name in sorted((name for name in names if name.endswith(".json")), reverse=True):
        with suppress(CorruptOutput):
            return _read_run(objects, f"{layout.runs(experiment)}/{name}")
    return None


def _read_run(objects: ObjectStore, path: str) -> RunRecord | None:
    found = objects.read(path)
    if found is None:
        return None
    try:
        tree = json.loads(found.data)
        tree.pop("schema")
        steps = {name: (id, key) for name, (id, key) in tree.pop("steps").items()}
        return RunRecord(steps=steps, **tree)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptOutput(f"{objects.url}/{path}: not a record of a run ({error}); delete it") from error


class EarlierResults:
    """Finds the result that a new one is compared with: the one of its name in the last run, else the last one that its
    name stood for, else the most alike of its step.
    """

    def __init__(self, objects: ObjectStore, experiment: str) -> None:
        self._objects = objects
        self._last = last_run(objects, experiment)
        self._known: dict[tuple[str, str], tuple[Earlier, Mapping[str, Any]] | None] = {}
        self._below: dict[str, list[str]] = {}

    def __call__(self, node: Node) -> Earlier | None:
        steps = self._last.steps if self._last else {}
        for name in node.names:
            for step in (steps.get(name), latest_of_name(self._objects, owner(), name)):
                if step is not None and step[1] != node.key:
                    known = self._read(*step)
                    if known is not None and known[0].commit is not None:
                        return known[0]
        if node.id not in self._below:
            self._below[node.id] = [each for each in self._objects.names(f"steps/{node.id}") if _KEY16.fullmatch(each)]
        others = [each for each in self._below[node.id][: _SIMILAR + 1] if each != node.key[: layout.SHORT]]
        found = [known for each in others if (known := self._read(node.id, each)) and known[0].commit]
        mine = json.loads(node.declaration.spec)["arguments"]

        def alike(known: tuple[Earlier, Mapping[str, Any]]) -> tuple[int, str]:
            return sum(1 for name, tree in mine.items() if known[1].get(name) == tree), known[0].key

        return max(found, key=alike)[0] if found else None

    def _read(self, id: str, key: str) -> tuple[Earlier, Mapping[str, Any]] | None:
        """An earlier result and its arguments; None for what cannot be compared with, a damaged record among it."""
        if (id, key) not in self._known:
            self._known[id, key] = None
            found = self._objects.read(layout.spec(id, key))
            # Here a damaged record costs an explanation only; the run itself tells of it when it needs it.
            with suppress(CorruptOutput, ValueError, KeyError, TypeError, AttributeError):
                if found is not None:
                    spec = json.loads(found.data)
                    number = look(self._objects, id, key).number
                    commit = _any_commit(self._objects, id, key, number)
                    earlier = Earlier(key, commit, spec["step"], spec["code"].get("version"))
                    self._known[id, key] = earlier, spec["arguments"]
        return self._known[id, key]


def _any_commit(objects: ObjectStore, id: str, key: str, number: int) -> Commit | None:
    return read_commit(objects, id, key, number) or (read_commit(objects, id, key, number - 1) if number > 1 else None)
