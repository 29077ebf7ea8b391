"""Temporary checkpoints of a running step: written in the background, two kept, the newest readable one found again.

A finished part of a step's work never changes, so a kill during a save leaves the one before. A checkpoint that cannot
be read yields, aloud, to an older one; when none can be read the run stops, for a restart from step 0 would hide that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.train import checkpoint
from marin_pipeline.train.checkpoint import Snapshot

KEPT = 2
ROWS = "kept-rows.npz"
"""File of a temporary checkpoint with what the gap alarm keeps of what was read."""
_ITEM = re.compile(r"step-(\d{8,})")
_PERIOD = re.compile(r"(\d+(?:\.\d+)?) ?(s|steps)")


class Work(Protocol):
    """Where finished parts of a step outlive a killed attempt."""

    def items(self) -> list[str]: ...
    def writing(self, item: str, /) -> AbstractContextManager[Path]: ...
    def open(self, item: str, /) -> Path: ...
    def discard(self, item: str, /) -> None: ...


@dataclass(frozen=True)
class Earlier:
    """A committed state of a shorter run with the same beginning."""

    step: int
    read: Callable[[], Snapshot]


@dataclass(frozen=True)
class Period:
    """How often to save."""

    seconds: float | None = None
    steps: int | None = None

    @staticmethod
    def parse(text: str) -> Period:
        """`"60s"` by the clock, `"100 steps"` by count.

        Raises:
            InputError: for another text or zero.
        """
        match = _PERIOD.fullmatch(text.strip())
        number = float(match[1]) if match else 0.0
        if match is None or number <= 0 or (match[2] == "steps" and not number.is_integer()):
            raise InputError(f"checkpoint_every is {text!r}: give seconds such as '60s' or updates such as '100 steps'")
        return Period(seconds=number) if match[2] == "s" else Period(steps=int(number))


class Saver:
    """Saves snapshots of one run. Use as a context manager: leaving it without an error waits for the last save."""

    def __init__(self, work: Work, period: Period) -> None:
        self._work = work
        self._period = period
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None
        self._last_time = time.monotonic()
        self._last_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if kind is None:
            self.wait()

    def begin(self, step: int) -> None:
        """Count the period from here."""
        self._last_time, self._last_step = time.monotonic(), step

    def due(self, step: int) -> bool:
        """Whether it is time to save, and the save before has ended.

        Raises:
            Exception: what a save in the background raised.
        """
        if self._saving is not None:
            if not self._saving.done():
                return False
            self.wait()
        if self._period.steps is not None:
            return step - self._last_step >= self._period.steps
        return time.monotonic() - self._last_time >= (self._period.seconds or 0)

    def save(self, snapshot: Snapshot) -> None:
        """Start to save; returns at once unless a save is under way."""
        self.wait()
        self.begin(snapshot.step)
        self._saving = self._thread.submit(self._write, snapshot)

    def wait(self) -> None:
        """Return when nothing is being saved."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def _write(self, snapshot: Snapshot) -> None:
        name = f"step-{snapshot.step:08d}"
        with self._work.writing(name) as folder:
            checkpoint.save(folder, snapshot)
            (folder / ROWS).write_bytes(snapshot.kept)
        for old in _newest_first(self._work)[KEPT:]:
            self._work.discard(old[1])


def resume(
    work: Work, earlier: Earlier | None, expected: Callable[[int], object], last: int, log: Callable[[str], None]
) -> Snapshot | None:
    """The latest state to go on from, or None when there is none and the run begins.

    Args:
        work: this step's temporary checkpoints.
        earlier: a committed state of a shorter run.
        expected: what a checkpoint at a step must say made it.
        last: step at which this run ends.
        log: told of each checkpoint that is passed over, and of the one used.

    Raises:
        CorruptOutput: when there are checkpoints and none can be read.
        InputError: when a temporary checkpoint was made from another recipe or other data, with the difference.
    """
    found: list[tuple[int, str, Callable[[], Snapshot]]] = [
        (step, f"checkpoint {name}", lambda name=name: _read(work.open(name)))
        for step, name in _newest_first(work)
        if step <= last
    ]
    if earlier is not None and earlier.step <= last:
        found.append((earlier.step, f"the committed state at step {earlier.step}", earlier.read))
    found.sort(key=lambda candidate: -candidate[0])
    problems: dict[str, str] = {}
    for step, what, read in found:
        try:
            snapshot = read()
        except CorruptOutput as error:
            problems[what] = str(error)
            log(f"{what} cannot be used: {error}")
            continue
        differences = _differences(snapshot.described, expected(step), "")
        if snapshot.step != step or differences:
            shown = "; ".join(differences[:5]) or f"it holds step {snapshot.step}"
            if earlier is not None and read is earlier.read:
                log(f"{what} was made from something else and is passed over: {shown}")
                continue
            raise InputError(
                f"{what} was made from something else ({shown}): restore that, or force the step to begin again"
            )
        log(f"going on from {what}")
        for _, name in _newest_first(work):
            if f"checkpoint {name}" in problems:
                work.discard(name)
        return snapshot
    if problems:
        raise CorruptOutput(
            "no checkpoint of this run can be read, and it is not restarted from step 0 by itself: "
            + " | ".join(problems.values())
            + " | restore one of them, or force the step to begin again"
        )
    return None


def _read(folder: Path) -> Snapshot:
    """A temporary checkpoint, with the rows beside it."""
    snapshot = checkpoint.load(folder)
    try:
        return replace(snapshot, kept=(folder / ROWS).read_bytes())
    except OSError as error:
        raise CorruptOutput(f"{folder / ROWS}: cannot be read ({error}); use another checkpoint") from error


def _newest_first(work: Work) -> list[tuple[int, str]]:
    """Steps and names of the finished checkpoints."""
    matches = [(match, name) for name in work.items() if (match := _ITEM.fullmatch(name))]
    return sorted(((int(match[1]), name) for match, name in matches), reverse=True)


def _differences(found: object, expected: object, path: str) -> list[str]:
    """Where two JSON values differ, as `path: found, expected`."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = sorted(set(found) | set(expected))
        return [
            line
            for name in names
            for line in _differences(found.get(name), expected.get(name), f"{path}.{name}" if path else name)
        ]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = zip(found, expected, strict=True)
        return [line for index, (a, b) in enumerate(pairs) for line in _differences(a, b, f"{path}[{index}]")]
    return [] if found == expected else [f"{path}: {found!r}, expected {expected!r}"]
