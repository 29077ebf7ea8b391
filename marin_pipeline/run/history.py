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
from dataclasses import asdict, dataclass, field, replace

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.store import layout
from marin_pipeline.store.lease import Holder, is_dead
from marin_pipeline.store.objects import ObjectStore

_KEY16 = re.compile(r"[0-9a-f]{16}")
_NUMBERED = re.compile(r"[0-9]+\.json")
HAVE_OUTPUT = ("cached", "done")
"""How a step comes out that has an output."""
_RUN = re.compile(r"[0-9-]{10}T[0-9.]+Z-[0-9a-f]{6}")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


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
    """By name; empty until the run has ended."""
    recipes: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name: a digest of what the step is declared as, its inputs by name; see `earlier.recipe_of`."""
    process: Holder | None = None
    """The process that ran it, so that one that was killed can be told from one that goes on."""

    def dumps(self) -> bytes:
        """The bytes that are written."""
        process = None if self.process is None else asdict(self.process)
        return dumps({"schema": 1, **vars(self), "process": process})


def run_stem(started: str) -> str:
    """Name of a run among those of its experiment: its start and six random hex digits."""
    return f"{started.replace(':', '')}-{uuid.uuid4().hex[:6]}"


def begin_run(objects: ObjectStore, record: RunRecord, stem: str) -> None:
    """Make a run known that has work to do, before its first step begins."""
    begun = replace(record, finished="", ok=False, statuses={})
    objects.create(f"{layout.runs(record.experiment)}/{stem}.begun", begun.dumps())


def record_run(objects: ObjectStore, record: RunRecord, stem: str, begun: bool) -> None:
    """Keep a run, and what its names stand for now.

    Args:
        stem: what the run is called; that of its record of the beginning, if it has one (`begun`).
    """
    # A name stands for what has an output: a failed or blocked run leaves it where it was.
    for name, (id, key) in record.steps.items():
        if record.statuses.get(name) in HAVE_OUTPUT:
            _enter_name(objects, record.owner, name, id, key)
    last = next(newest_records(objects, record.experiment, 1), None)
    nothing_new = set(record.statuses.values()) == {"cached"} and record.ok and not begun
    if nothing_new and last and last.ok and dict(last.steps) == dict(record.steps):
        return
    objects.create(f"{layout.runs(record.experiment)}/{stem}.json", record.dumps())


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


def newest_records(objects: ObjectStore, experiment: str, most: int) -> Iterator[RunRecord]:
    """The runs of an experiment that have ended, the newest first. A damaged record is passed over: it explains, and
    decides nothing.
    """
    names = [name for name in objects.names(layout.runs(experiment)) if name.endswith(".json")]
    for name in sorted(names, reverse=True)[:most]:
        with suppress(CorruptOutput):
            found = _read_run(objects, f"{layout.runs(experiment)}/{name}")
            if found is not None:
                yield found


def _read_run(objects: ObjectStore, path: str) -> RunRecord | None:
    found = objects.read(path)
    if found is None:
        return None
    try:
        tree = json.loads(found.data)
        tree.pop("schema")
        steps = {name: (id, key) for name, (id, key) in tree.pop("steps").items()}
        process = tree.pop("process", None)
        return RunRecord(steps=steps, process=None if process is None else Holder(**process), **tree)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptOutput(f"{objects.url}/{path}: not a record of a run ({error}); delete it") from error


@dataclass(frozen=True)
class RunAt:
    """Where a run is recorded."""

    experiment: str
    number: int
    """Of the runs of its experiment, from 1 on, by their start."""
    stem: str
    ended: bool
    """Whether there is a record of its end."""

    @property
    def name(self) -> str:
        """`experiments/hello@3`."""
        return f"{self.experiment}@{self.number}"

    def read(self, objects: ObjectStore) -> RunRecord | None:
        """The record: of the end, else of the beginning; None when it has gone.

        Raises:
            CorruptOutput: when it cannot be read.
        """
        return _read_run(objects, f"{layout.runs(self.experiment)}/{self.stem}.{'json' if self.ended else 'begun'}")

    def state(self, record: RunRecord) -> str:
        """`ok`, `failed`, `running`, or `ended` for one that was killed before it could say how it came out."""
        if self.ended:
            return "ok" if record.ok else "failed"
        return "ended" if record.process is None or is_dead(record.process) else "running"


def runs_of(objects: ObjectStore, experiment: str) -> list[RunAt]:
    """The runs of one experiment, the oldest first."""
    names = objects.names(layout.runs(experiment))
    stems = {name.rpartition(".")[0] for name in names if name.endswith((".json", ".begun"))}
    ended = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    known = sorted(stem for stem in stems if _RUN.fullmatch(stem))
    return [RunAt(experiment, number, stem, stem in ended) for number, stem in enumerate(known, 1)]


def all_runs(objects: ObjectStore, below: str = "") -> list[RunAt]:
    """The runs of all experiments (or of those in a folder), the oldest first."""
    found: list[RunAt] = []
    todo = [below]
    while todo:
        experiment = todo.pop()
        folder = f"experiments/{experiment}" if experiment else "experiments"
        names = [name for name in objects.names(folder) if not name.endswith((".json", ".begun"))]
        todo += [f"{experiment}/{name}" if experiment else name for name in names]
        if experiment:
            found += runs_of(objects, experiment)
    return sorted(found, key=lambda run: (run.stem, run.experiment))


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
