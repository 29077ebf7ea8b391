"""What was run before, by name: one record a run of an experiment, and for each name the keys that it has stood for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.secrets import redacted_tree
from marin_pipeline.store import layout
from marin_pipeline.store.lease import Holder, is_dead
from marin_pipeline.store.names import keep_name
from marin_pipeline.store.objects import ObjectStore, together
from marin_pipeline.store.records import parsed, typed

HAVE_OUTPUT = ("cached", "done")
"""How a step comes out that has an output."""
_RUN = re.compile(r"[0-9-]{10}T[0-9.]+Z-[0-9a-f]{6}")
_RECORD = re.compile(rf"{_RUN.pattern}\.(json|begun)")
"""An experiment's folder may end in `.json`, as that of `x.json.py` does."""


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
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    """By name: which number of the name stands for the key."""
    stopped: bool = False
    """It was asked to stop, and no step had failed."""
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Output digests by name, of the steps that have an output; empty until the run has ended."""
    process: Holder | None = None
    """The process that ran it, so that one that was killed can be told from one that goes on."""

    def dumps(self) -> bytes:
        """The bytes that are written."""
        process = None if self.process is None else asdict(self.process)
        tree = {name: value for name, value in vars(self).items() if name != "stopped" or value}
        return dumps(redacted_tree({"schema": 1, **tree, "process": process}))


def run_stem(started: str) -> str:
    """Name of a run among those of its experiment: its start and six random hex digits."""
    return f"{started.replace(':', '')}-{os.urandom(3).hex()}"


def begin_run(objects: ObjectStore, record: RunRecord, stem: str) -> None:
    """Make a run known that has work to do, before its first step begins."""
    begun = replace(record, finished="", ok=False, statuses={}, numbers={}, outputs={})
    objects.create(f"{layout.runs(record.experiment)}/{stem}.begun", begun.dumps())


def record_run(
    objects: ObjectStore, record: RunRecord, stem: str, begun: bool, whole: Callable[[RunRecord], RunRecord]
) -> None:
    """Keep a run, and what its names stand for now.

    Args:
        stem: what the run is called; that of its record of the beginning, if it has one (`begun`).
        whole: adds to a record that is kept what takes a while to compute.
    """
    last = next(newest_records(objects, record.experiment, 1), None)
    record = replace(record, numbers=_enter_names(objects, record, last))
    nothing_new = set(record.statuses.values()) == {"cached"} and record.ok and not begun
    if nothing_new and last and last.ok and _made(last) == _made(record):
        return
    objects.create(f"{layout.runs(record.experiment)}/{stem}.json", whole(record).dumps())


def _made(record: RunRecord) -> tuple[object, ...]:
    """What a run found or made."""
    return record.steps, record.numbers, record.outputs


def _enter_names(objects: ObjectStore, record: RunRecord, last: RunRecord | None) -> dict[str, int]:
    """Let each name of the run stand for what it made; the number of each."""
    # A name stands for what has an output: a failed or blocked run leaves it where it was.
    steps = {name: step for name, step in record.steps.items() if name in record.outputs}
    known = last.numbers if last and last.owner == record.owner else {}
    calls: list[Callable[[], int]] = []
    for name, step in steps.items():
        seen = known.get(name) if last and last.steps.get(name) == step else None
        calls.append(partial(keep_name, objects, record.owner, name, *step, seen))
    return dict(zip(steps, together(objects, *calls), strict=True))


def newest_records(objects: ObjectStore, experiment: str, most: int) -> Iterator[RunRecord]:
    """The runs of an experiment that have ended, the newest first. A damaged record is passed over: it explains, and
    decides nothing.
    """
    names = [
        name for name in objects.names(layout.runs(experiment)) if name.endswith(".json") and _RECORD.fullmatch(name)
    ]
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
        tree = parsed(found.data)
        if not isinstance(tree, dict) or tree.pop("schema", None) != 1:
            raise ValueError("it has no schema that is known here")
        record = typed(tree, RunRecord)
        if unknown := sorted({*record.statuses, *record.numbers} - record.steps.keys()):
            raise ValueError(f"{unknown[0]!r} is none of its steps")
        return record
    except ValueError as error:
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
        """`ok`, `failed`, `stopped` as asked, `running`, or `ended` for one that was killed before it could say how
        it came out.
        """
        if self.ended:
            return "ok" if record.ok else "stopped" if record.stopped else "failed"
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
        names = [each for each in objects.names(folder) if each != layout.LISTED and not _RECORD.fullmatch(each)]
        todo += [f"{experiment}/{name}" if experiment else name for name in names]
        if experiment:
            found += runs_of(objects, experiment)
    return sorted(found, key=lambda run: (run.stem, run.experiment))
