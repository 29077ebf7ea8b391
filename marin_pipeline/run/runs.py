"""The runs of a store, and two keys or two runs set side by side: `marin-pipeline runs` and `diff`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from marin_pipeline.core.errors import CorruptOutput, StoreError, UsageError
from marin_pipeline.core.visible import say
from marin_pipeline.run.difference import KeyDifference, RunDifference
from marin_pipeline.run.history import RunAt, RunRecord, all_runs
from marin_pipeline.run.movement import moving
from marin_pipeline.run.options import lease_life
from marin_pipeline.run.selection import find_step
from marin_pipeline.run.words import counted, moment
from marin_pipeline.store.lease import is_alive
from marin_pipeline.store.objects import ObjectStore, command

TROUBLE = 2
"""Exit code of `diff` where nothing could be compared, as that of the program `diff`."""


def list_runs(objects: ObjectStore, experiment: str | None, as_json: bool) -> Iterator[str]:
    """The runs of a store, or those of one experiment, the oldest first. Those that another machine began and of which
    no end is recorded are watched first.

    Raises:
        UsageError: when there are none of that experiment.
    """
    wanted = (experiment or "").removesuffix(".py")
    found = all_runs(objects, wanted)
    if wanted and not found:
        known = sorted({run.experiment for run in all_runs(objects)})
        raise UsageError(f"{wanted!r} has no runs in {objects.url}; there are runs of {', '.join(known) or 'nothing'}")
    if not found and not as_json:
        yield f"{objects.url}: nothing has been run there"
    read = [(run, record) for run in found if (record := _readable(objects, run)) is not None]
    far = [(run, record) for run, record in read if _is_far(run, record)]
    seconds = lease_life() / 3
    moved = moving(objects, [record for _, record in far], seconds, partial(_tell_watched, seconds)) if far else []
    silent = {run.name: seconds for (run, _), moves in zip(far, moved, strict=True) if not moves}
    for run, record in read:
        yield json.dumps(_tree(run, record, silent)) if as_json else _line(run, record, silent)


def _readable(objects: ObjectStore, run: RunAt) -> RunRecord | None:
    with suppress(CorruptOutput):  # it explains, and decides nothing
        return run.read(objects)
    return None


def _is_far(run: RunAt, record: RunRecord) -> bool:
    """Whether only the store can tell that a run goes on."""
    return run.state(record) == "running" and record.process is not None and not is_alive(record.process)


def _tell_watched(seconds: float, count: int) -> None:
    what = f"{counted(count, 'run')} of other machines"
    say(f"looking for up to {seconds:.0f} s whether {what} still renew leases", sys.stderr)


def _tree(run: RunAt, record: RunRecord, silent: Mapping[str, float]) -> dict[str, object]:
    return {
        "run": run.name,
        "experiment": run.experiment,
        "number": run.number,
        "stem": run.stem,
        "title": record.title,
        "argv": record.argv,
        "owner": record.owner,
        "started": record.started,
        "finished": record.finished or None,
        "state": "silent" if run.name in silent else run.state(record),
        "host": None if record.process is None else record.process.host,
        "steps": len(record.steps),
        "counts": dict(Counter(record.statuses.values())),
    }


def _line(run: RunAt, record: RunRecord, silent: Mapping[str, float]) -> str:
    counts = Counter(record.statuses.values())
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items())) or counted(
        len(record.steps), "step"
    )
    state = "silent" if run.name in silent else run.state(record)
    if run.name in silent and record.process is not None:
        where = f"{record.process.host}, process {record.process.pid}"
        told += f"; no end is recorded, and {where} holds no lease that it has renewed within {silent[run.name]:.0f} s"
    return f"{run.name:<32}{moment(record.started)}  {record.owner:<12}{state:<9}{told}"


def find_run(objects: ObjectStore, selector: str) -> RunAt | None:
    """The run that `experiment@3`, or the name of its record, stands for; None when there is none."""
    return next((run for run in all_runs(objects) if selector in (run.name, run.stem)), None)


def diff(objects: ObjectStore, a: str, b: str, as_json: bool, show: Callable[[str], None]) -> int:
    """Show what sets two keys or two runs apart. 0 when they are one, 1 when they differ.

    Raises:
        UsageError: when one of them is not found, or one is a run and the other is none.
    """
    left, right = _side(objects, a), _side(objects, b)
    if isinstance(left, RunAt) != isinstance(right, RunAt):
        raise UsageError(f"{a!r} and {b!r}: one is a run and the other a step; give two of a kind")
    try:
        if isinstance(left, RunAt) and isinstance(right, RunAt):
            found = RunDifference.of(objects, (left, _record(objects, left)), (right, _record(objects, right)))
        else:
            assert isinstance(left, tuple)
            assert isinstance(right, tuple)
            found = KeyDifference.of(objects, left, right)
    except StoreError as error:
        raise _Trouble(str(error)) from error
    for line in [json.dumps(found.tree())] if as_json else found.lines():
        show(line)
    return 0 if found.is_equal else 1


class _Trouble(StoreError):
    """Nothing could be compared."""

    exit_code = TROUBLE


def _side(objects: ObjectStore, selector: str) -> tuple[str, str] | RunAt:
    try:
        return find_step(objects, selector)
    except UsageError as error:
        run = find_run(objects, selector)
        if run is None:
            raise UsageError(f"{error}; nor is it a run, as {command('runs', objects)} lists them") from error
        return run


def _record(objects: ObjectStore, run: RunAt) -> RunRecord:
    record = run.read(objects)
    if record is None:
        raise StoreError(f"{run.name}: its record has gone from {objects.url}; list the runs again")
    return record
