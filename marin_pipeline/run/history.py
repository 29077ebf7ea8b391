"""What was run before, by name: one record a run of an experiment, and for each name the keys that it has stood for."""

from __future__ import annotations

import datetime
import getpass
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.core.graph import Node
from marin_pipeline.run.plan import Earlier
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look, read_commit
from marin_pipeline.store.objects import ObjectStore

_KEY16 = re.compile(r"[0-9a-f]{16}")
_SIMILAR = 50
"""How many earlier results of the same step are compared, at most."""


def now() -> str:
    """UTC, to the microsecond, in a form that sorts as text."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def owner() -> str:
    """Whose names these are: `MARIN_OWNER`, else the user's name."""
    given = os.environ.get("MARIN_OWNER")
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


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
    """Keep a run, and what its names stand for where that has changed since the last one."""
    last = last_run(objects, record.experiment)
    before = last.steps if last else {}
    if last and last.ok and record.ok and dict(before) == dict(record.steps) and set(record.statuses.values()) == {"cached"}:
        return
    for name, (id, key) in record.steps.items():
        if tuple(before.get(name, ())) != (id, key):
            _enter_name(objects, record.owner, name, id, key)
    path = f"{layout.runs(record.experiment)}/{record.started.replace(':', '')}-{uuid.uuid4().hex[:6]}.json"
    objects.create(path, dumps({"schema": 1, **vars(record)}))


def _enter_name(objects: ObjectStore, owner: str, name: str, id: str, key: str) -> None:
    """Append to what a name has stood for."""
    folder = layout.names(owner, name)
    while True:
        numbers = [int(each.removesuffix(".json")) for each in objects.names(folder)]
        latest = max(numbers, default=0)
        if latest:
            found = objects.read(f"{folder}/{latest}.json")
            if found is not None and json.loads(found.data)["key"] == key:
                return
        if objects.create(f"{folder}/{latest + 1}.json", dumps({"id": id, "key": key, "at": now()})):
            return


def last_run(objects: ObjectStore, experiment: str) -> RunRecord | None:
    """The newest run of an experiment."""
    names = objects.names(layout.runs(experiment))
    records = [name for name in names if name.endswith(".json")]
    return _read_run(objects, f"{layout.runs(experiment)}/{records[-1]}") if records else None


def _read_run(objects: ObjectStore, path: str) -> RunRecord | None:
    found = objects.read(path)
    if found is None:
        return None
    try:
        tree = json.loads(found.data)
        tree.pop("schema")
        steps = {name: (id, key) for name, (id, key) in tree.pop("steps").items()}
        return RunRecord(steps=steps, **tree)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptOutput(f"{objects.url}/{path}: not a record of a run ({error}); delete it") from error


class EarlierResults:
    """Finds the result that a new one is compared with: the one of its name in the last run, else the most alike of its step."""

    def __init__(self, objects: ObjectStore, experiment: str) -> None:
        self._objects = objects
        self._last = last_run(objects, experiment)

    def __call__(self, node: Node) -> Earlier | None:
        steps = self._last.steps if self._last else {}
        for name in node.names:
            if name in steps and steps[name][1] != node.key:
                return self._read(*steps[name])
        candidates = [each for each in self._objects.names(f"steps/{node.id}") if each != node.key[: layout.SHORT]]
        found = [result for each in candidates[:_SIMILAR] if (result := self._read(node.id, each)) and result.commit]
        mine = json.loads(node.declaration.spec)["arguments"]
        return max(found, key=lambda result: (self._alike(result, mine), result.key), default=None)

    def _read(self, id: str, key: str) -> Earlier | None:
        found = self._objects.read(layout.spec(id, key))
        if found is None:
            return None
        spec = json.loads(found.data)
        number = look(self._objects, id, key).number
        commit = _any_commit(self._objects, id, key, number)
        return Earlier(key, commit, spec["step"], spec["code"].get("version"))

    def _alike(self, result: Earlier, mine: Mapping[str, Any]) -> int:
        found = self._objects.read(layout.spec(result.step, result.key))
        theirs = json.loads(found.data)["arguments"] if found else {}
        return sum(1 for name, tree in mine.items() if theirs.get(name) == tree)


def _any_commit(objects: ObjectStore, id: str, key: str, number: int) -> Commit | None:
    return read_commit(objects, id, key, number) or (read_commit(objects, id, key, number - 1) if number > 1 else None)


def find_keys(objects: ObjectStore, prefix: str, folder: str = "steps") -> Iterator[tuple[str, str]]:
    """Step's id and full key of every key in the store that begins with `prefix`."""
    for name in objects.names(folder):
        path = f"{folder}/{name}"
        found = objects.read(f"{path}/spec.json") if _KEY16.fullmatch(name) else None
        if found is not None:
            key = hashlib.sha256(found.data).hexdigest()
            if key.startswith(prefix):
                yield folder.removeprefix("steps/"), key
        elif not _KEY16.fullmatch(name):
            yield from find_keys(objects, prefix, path)


def resolve(objects: ObjectStore, selector: str) -> tuple[str, str]:
    """Step's id and key that a name (`train`, `owner/train@2`) or a prefix of a key stands for.

    Raises:
        UsageError: when nothing, or more than one key, fits.
    """
    name, _, number = selector.partition("@")
    for holder, short in ((owner(), name), name.partition("/")[::2] if "/" in name else ("", "")):
        folder = layout.names(holder, short)
        numbers = sorted(int(each.removesuffix(".json")) for each in objects.names(folder)) if holder and short else []
        if numbers:
            if number and (not number.isdigit() or int(number) not in numbers):
                raise UsageError(f"{selector!r}: {name} has the numbers {numbers[0]} to {numbers[-1]}")
            found = objects.read(f"{folder}/{number or numbers[-1]}.json")
            if found is not None:
                tree = json.loads(found.data)
                return tree["id"], tree["key"]
    if re.fullmatch(r"[0-9a-f]{6,64}", selector):
        keys = list(find_keys(objects, selector))
        if len(keys) == 1:
            return keys[0]
        if len(keys) > 1:
            raise UsageError(f"{selector!r} fits several keys in {objects.url}: {', '.join(key[:12] for _, key in keys)}")
    known = sorted(each.removesuffix("@") for each in _names_below(objects, f"names/{owner()}"))
    listed = f"; names here: {', '.join(known[:20])}" if known else ""
    raise UsageError(f"{selector!r} is no name and no key (6 hex digits or more) in {objects.url}{listed}")


def _names_below(objects: ObjectStore, folder: str, above: str = "") -> Iterator[str]:
    for name in objects.names(folder):
        if name.endswith("@"):
            yield above + name
        else:
            yield from _names_below(objects, f"{folder}/{name}", f"{above}{name}/")
