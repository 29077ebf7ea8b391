"""Whether runs of other machines go on, as far as it can be seen from here: while they renew the leases that they hold.

No clocks of two machines are compared, and a run that was killed leaves its leases as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.run.history import RunRecord
from marin_pipeline.store import layout
from marin_pipeline.store.lease import Holder, LeaseRecord
from marin_pipeline.store.objects import ObjectStore, together

POLL = 0.5
"""Seconds between two looks."""

Beats = Mapping[str, tuple[int, int]]
"""Fence and beat of each lease that a run holds, by path."""


def moving(
    objects: ObjectStore,
    records: Sequence[RunRecord],
    seconds: float,
    tell: Callable[[int], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[bool]:
    """Whether each run took, renewed or released a lease within so many seconds. A run that holds none is not watched.

    Args:
        tell: told before the watch how many are watched, if any.
    """
    first = [_held(objects, record, [layout.lease(*step) for step in record.steps.values()]) for record in records]
    watched = {number for number, beats in enumerate(first) if beats}
    if watched:
        tell(len(watched))
    end, moved = clock() + seconds, set[int]()
    while watched - moved and clock() < end:
        sleep(POLL)
        moved |= {each for each in watched - moved if _held(objects, records[each], first[each]) != first[each]}
    return [number in moved for number in range(len(records))]


def _held(objects: ObjectStore, record: RunRecord, paths: Iterable[str]) -> Beats:
    """The leases among these that a run holds."""
    asked = list(paths)
    found: dict[str, tuple[int, int]] = {}
    for path, lease in zip(asked, together(objects, *(partial(objects.read, path) for path in asked)), strict=True):
        with suppress(CorruptOutput):  # then nobody holds it
            if lease is not None and _is_of(seen := LeaseRecord.loads(lease.data, path), record.process):
                found[path] = seen.fence, seen.beat
    return found


def _is_of(lease: LeaseRecord, process: Holder | None) -> bool:
    if lease.owner is None or process is None:
        return False
    return replace(lease.owner, uuid="") == replace(process, uuid="")
