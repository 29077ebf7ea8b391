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
from contextlib import suppress
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
_NUMBERED = re.compile(r"[0-9]+\.json")
_HAVE_OUTPUT = ("cached", "done")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_SIMILAR = 50
"""How many earlier results of the same step are compared, at most."""


def now() -> str:
    """UTC, to the microsecond, in a form that sorts as text."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def owner() -> str:
    """Whose names these are: `MARIN_OWNER`, else the user's name."""
    given = os.environ.get("MARIN_OWNER")
    if given:
        if not _OWNER.fullmatch(given):
            raise UsageError(
                f"MARIN_OWNER={given!r}: may hold letters, digits, '_', '-', '.' and '@', and begins with one"
            )
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
    """Keep a run, and what its names stand for now."""
    # A name stands for what has an output: a failed or blocked run leaves it where it was.
    for name, (id, key) in record.steps.items():
        if record.statuses.get(name) in _HAVE_OUTPUT:
            _enter_name(objects, record.owner, name, id, key)
    last = last_run(objects, record.experiment)
    nothing_new = set(record.statuses.values()) == {"cached"} and record.ok
    if nothing_new and last and last.ok and dict(last.steps) == dict(record.steps):
        return
    path = f"{layout.runs(record.experiment)}/{record.started.replace(':', '')}-{uuid.uuid4().hex[:6]}.json"
    objects.create(path, dumps({"schema": 1, **vars(record)}))


def _enter_name(objects: ObjectStore, owner: str, name: str, id: str, key: str) -> None:
    """Append to what a name has stood for."""
    folder = layout.names(owner, name)
    while True:
        latest = max(_numbers(objects, folder), default=0)
        if latest and _read_name(objects, f"{folder}/{latest}.json") == (id, key):
            return
        if objects.create(f"{folder}/{latest + 1}.json", dumps({"id": id, "key": key, "at": now()})):
            return


def latest_of_name(objects: ObjectStore, owner: str, name: str) -> tuple[str, str] | None:
    """Step's id and key that a name stands for now."""
    folder = layout.names(owner, name)
    numbers = _numbers(objects, folder)
    with suppress(CorruptOutput):
        return _read_name(objects, f"{folder}/{numbers[-1]}.json") if numbers else None
    return None


def _numbers(objects: ObjectStore, folder: str) -> list[int]:
    """Numbers of what a name has stood for, ascending."""
    return sorted(int(each[:-5]) for each in objects.names(folder) if _NUMBERED.fullmatch(each))


def _read_name(objects: ObjectStore, path: str) -> tuple[str, str] | None:
    found = objects.read(path)
    if found is None:
        return None
    try:
        tree = json.loads(found.data)
        return tree["id"], tree["key"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptOutput(f"{objects.url}/{path}: not what a name stands for ({error}); delete it") from error


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


def find_keys(objects: ObjectStore, prefix: str, folder: str = "steps") -> Iterator[tuple[str, str]]:
    """Step's id and full key of every key in the store that begins with `prefix`."""
    for name in objects.names(folder):
        path = f"{folder}/{name}"
        if _KEY16.fullmatch(name) and not name.startswith(prefix[: layout.SHORT]):
            continue
        found = objects.read(f"{path}/spec.json") if _KEY16.fullmatch(name) else None
        if found is not None:
            key = hashlib.sha256(found.data).hexdigest()
            if not key.startswith(name):
                remedy = "delete it; the next run of the step writes it again"
                raise CorruptOutput(
                    f"{objects.url}/{path}/spec.json: its bytes are not those of the key {name}; {remedy}"
                )
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
        numbers = _numbers(objects, folder) if holder and short else []
        if numbers:
            if number and (not number.isdigit() or int(number) not in numbers):
                raise UsageError(f"{selector!r}: {name} has the numbers {numbers[0]} to {numbers[-1]}")
            found = _read_name(objects, f"{folder}/{number or numbers[-1]}.json")
            if found is not None:
                return found
    if re.fullmatch(r"[0-9a-f]{6,64}", selector):
        keys = list(find_keys(objects, selector))
        if len(keys) == 1:
            return keys[0]
        if len(keys) > 1:
            raise UsageError(
                f"{selector!r} fits several keys in {objects.url}: {', '.join(key[:12] for _, key in keys)}"
            )
    known = sorted(each.removesuffix("@") for each in _names_below(objects, f"names/{owner()}"))
    listed = f"; names here: {', '.join(known[:20])}" if known else ""
    raise UsageError(f"{selector!r} is no name and no key (6 hex digits or more) in {objects.url}{listed}")


def _names_below(objects: ObjectStore, folder: str, above: str = "") -> Iterator[str]:
    for name in objects.names(folder):
        if name.endswith("@"):
            yield above + name
        else:
            yield from _names_below(objects, f"{folder}/{name}", f"{above}{name}/")


def current_names(objects: ObjectStore) -> dict[str, list[str]]:
    """Names by the key that they stand for now; other people's begin with who they are."""
    found: dict[str, list[str]] = {}
    for holder in objects.names("names"):
        for name in _names_below(objects, f"names/{holder}"):
            latest = latest_of_name(objects, holder, name.removesuffix("@"))
            if latest is not None:
                shown = name.removesuffix("@") if holder == owner() else f"{holder}/{name.removesuffix('@')}"
                found.setdefault(latest[1], []).append(shown)
    return found
