"""Which step a person means: a name, a name of somebody else's, a number of a name, or the beginning of a key.

A name stands for the last good result. What has none yet, because it failed, runs or waits, is found by its name in the
newest runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.run.history import RunAt, RunRecord, all_runs
from marin_pipeline.store import layout
from marin_pipeline.store.names import owner, resolve
from marin_pipeline.store.objects import ObjectStore, together

RECENT = 50
"""Runs, the newest first, in which a name is looked for."""


def find_step(objects: ObjectStore, selector: str, newest: bool = False) -> tuple[str, str]:
    """The step's id and key that a name or a prefix of a key stands for.

    Args:
        newest: look in the newest runs first: what is asked for may be running or have failed, though there is an
            older result.

    Raises:
        UsageError: when nothing, or more than one key, fits.
    """
    if newest and (found := _in_runs(objects, selector)):
        return found
    try:
        return resolve(objects, selector)
    except UsageError:
        found = None if newest else _in_runs(objects, selector)
        if found is None:
            known = {step for _, record in recent_runs(objects) for step in record.steps.values()}
            fits = [step for step in known if len(selector) >= 6 and step[1].startswith(selector)]
            found = fits[0] if len(fits) == 1 else None
        if found is None:
            raise
        return found


def recent_runs(objects: ObjectStore) -> Iterator[tuple[RunAt, RunRecord]]:
    """The newest runs that can be read, the newest first."""
    for run in reversed(all_runs(objects)[-RECENT:]):
        record = _read(objects, run)
        if record is not None:
            yield run, record


def _read(objects: ObjectStore, run: RunAt) -> RunRecord | None:
    with suppress(CorruptOutput):  # it only helps to find a name
        return run.read(objects)
    return None


def _going_on(objects: ObjectStore) -> list[tuple[RunAt, RunRecord]]:
    """The newest runs that go on, the newest first."""
    begun = [run for run in reversed(all_runs(objects)[-RECENT:]) if not run.ended]
    records = together(objects, *(partial(_read, objects, run) for run in begun))
    return [
        (run, record)
        for run, record in zip(begun, records, strict=True)
        if record is not None and run.state(record) == "running"
    ]


def running(objects: ObjectStore, key: str) -> tuple[RunAt, RunRecord] | None:
    """The newest run that goes on and has a step with this key."""
    for run, record in _going_on(objects):
        if any(key == each for _, each in record.steps.values()):
            return run, record
    return None


def waiting_keys(objects: ObjectStore) -> set[str]:
    """Keys of the steps of all runs that go on, begun or not."""
    return {key for _, record in _going_on(objects) for _, key in record.steps.values()}


def _in_runs(objects: ObjectStore, selector: str) -> tuple[str, str] | None:
    """The step with a name in the newest run in which it was tried, or that goes on."""
    for run, record in recent_runs(objects) if "@" not in selector else ():
        step = _named(record, selector)
        if step is not None and (tried(objects, *step) or run.state(record) == "running"):
            return step
    return None


def _named(record: RunRecord, selector: str) -> tuple[str, str] | None:
    """The step with a name in a run of its owner, who is named before a name of somebody else's."""
    if record.owner == owner() and selector in record.steps:
        return record.steps[selector]
    holder, _, name = selector.partition("/")
    return record.steps.get(name) if holder == record.owner else None


def tried(objects: ObjectStore, id: str, key: str) -> list[str]:
    """The attempts at a step, the newest last."""
    return objects.names(f"{layout.step(id, key)}/attempts")
