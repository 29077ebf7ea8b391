"""The training loop: read, update, record, save, until the last step.

The device works on one update while the host reads later batches and records the one before; a state is saved only
after the loss that led to it was seen to be finite. What was read is checked against the order at each step. Killed at
any moment and started again, a run ends with the same bytes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from marin_pipeline.core.errors import MarinError
from marin_pipeline.data.loader import Loaded, Loader
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.read_ledger import Entry, ReadLedger, audit_command
from marin_pipeline.data.sequences import SequenceSource
from marin_pipeline.train import checkpoint, metrics
from marin_pipeline.train.checkpoint import Snapshot
from marin_pipeline.train.feed import placed
from marin_pipeline.train.program import Arrays, Program
from marin_pipeline.train.saver import Saver

PROGRESS_SECONDS = 0.5


class Watcher(Protocol):
    """Who is told how far the run is, and says when it should stop."""

    @property
    def stopping(self) -> bool: ...
    def progress(self, done: int, total: int, unit: str = ..., **figures: float) -> None: ...
    def stop(self) -> BaseException: ...
    def log(self, message: str, /) -> None: ...


class Follower(Protocol):
    """Who is told of what was read, and keeps some of it."""

    def read(self, loaded: Loaded, /) -> None: ...
    def kept(self) -> bytes: ...


@dataclass(frozen=True)
class _Pending:
    """An update that was handed to the device and has not been recorded."""

    step: int
    read: Entry
    measured: jax.Array


class Run:
    """One run of a program, from a snapshot or from the initial state, to the recipe's last step."""

    def __init__(
        self,
        program: Program,
        sources: Sequence[SequenceSource],
        order: TrainingOrder,
        described: Callable[[int], dict[str, Any]],
        start: Snapshot | None,
        follower: Follower | None = None,
        workers: int = 8,
    ) -> None:
        """Make the initial state, or lay out that of `start`.

        Args:
            sources: of the order, by place.
            described: what made the state at a step, for its checkpoint.
            follower: told of each batch that was read; what it keeps goes with temporary checkpoints.
            workers: threads that read ahead.

        Raises:
            InputError: when `start` has read something else than the order says.
        """
        self._program = program
        self._recipe = program.recipe
        self._sources = sources
        self._order = order
        self._follower = follower
        self._workers = workers
        self._described = described
        if start is None:
            self._state = program.initial()
            self._lines = bytearray()
            self._step = 0
            self._read = ReadLedger(order)
        else:
            self._state = program.place(checkpoint.named(start.arrays))
            self._lines = bytearray(start.metrics)
            self._step = start.step
            self._read = ReadLedger(order, metrics.last_read(start.metrics))
        self._needed = program.layout.needed
        self._pending: _Pending | None = None
        self._loss = metrics.last_loss(bytes(self._lines))

    def finish(self, watcher: Watcher, saver: Saver, timings: Path) -> Snapshot:
        """Make all updates that are left and return the last state.

        Raises:
            MarinError: when a loss or a gradient is not finite.
            BaseException: what `watcher.stop()` returns, after a checkpoint, when the watcher asks to stop.
        """
        last = self._recipe.steps
        saver.begin(self._step)
        clock = _Clock(timings, self._step, self._recipe.batch_size * self._recipe.sequence_length)
        if self._read.unchecked is not None:
            watcher.log(self._read.unchecked)
        with self._loader(watcher) as loader:
            for loaded in loader:
                read = self._read.record(loaded.step, loaded.ids, self._needed)
                if self._follower is not None:
                    self._follower.read(loaded)
                rows = placed(loaded.rows, self._needed, self._program.layout)
                self._state, measured = self._program.update(self._state, rows, self._step)
                handed = _Pending(self._step, read, measured)
                self._step += 1
                self._record(self._pending)
                self._pending = handed
                if math.isfinite(self._loss) and clock.tick(self._step):
                    watcher.progress(self._step, last, "steps", loss=self._loss, tokens_per_second=clock.rate)
                if self._step == last:
                    break
                if watcher.stopping:
                    saver.save(self.snapshot())
                    saver.wait()
                    raise watcher.stop()
                if saver.due(self._step):
                    saver.save(self.snapshot())
        if self._step != last:
            raise MarinError(
                f"the loader ended after step {self._step} of {last}: it has a defect, and nothing of this run counts "
                f"until it is found (`{audit_command(self._order)}`)"
            )
        snapshot = self.snapshot()
        clock.write(self._step)
        watcher.progress(last, last, "steps", loss=self._loss, tokens_per_second=clock.rate)
        return snapshot

    @property
    def arrays(self) -> Arrays:
        """The state on the devices."""
        return self._state

    def snapshot(self) -> Snapshot:
        """The state as it is now, in host memory."""
        self._record(self._pending)
        self._pending = None
        arrays = checkpoint.take(self._state)
        kept = b"" if self._follower is None else self._follower.kept()
        return Snapshot(self._step, arrays, bytes(self._lines), self._described(self._step), kept)

    def _loader(self, watcher: Watcher) -> Loader:
        return Loader(
            self._order,
            self._sources,
            rows=self._needed,
            start=self._step,
            stop=self._recipe.steps,
            workers=self._workers,
            log=watcher.log,
        )

    def _record(self, pending: _Pending | None) -> None:
        if pending is None:
            return
        loss, norm = np.asarray(pending.measured)
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise MarinError(
                f"step {pending.step + 1}: loss {loss}, gradient norm {norm} (batch {pending.read.batch}); training "
                "has diverged: lower learning_rate or muon_learning_rate, or lengthen warmup"
            )
        self._loss = metrics.short(loss)
        rate = self._recipe.optimizer.learning_rate * self._recipe.schedule.factor(pending.step)
        done = pending.step + 1
        epoch = max(self._order.epochs(done).values())
        line = metrics.line(done, loss, rate, norm, self._order.position(done), epoch, pending.read)
        self._lines += line.encode()


class _Clock:
    """Tokens a second, twice a second to the screen and each ten seconds to a file."""

    def __init__(self, path: Path, step: int, tokens: int) -> None:
        self._path = path
        self._tokens = tokens
        self._shown = self._written = (time.monotonic(), step)
        self.rate = 0.0

    def tick(self, step: int) -> bool:
        """Whether it is time to show progress; `rate` is of the time since the last showing."""
        now = time.monotonic()
        since, at = self._shown
        if now - since < PROGRESS_SECONDS:
            return False
        self.rate = round((step - at) * self._tokens / (now - since))
        self._shown = (now, step)
        if now - self._written[0] >= 10:
            self.write(step)
        return True

    def write(self, step: int) -> None:
        """Add a line for the steps since the last one."""
        now = time.monotonic()
        since, at = self._written
        if step > at and now > since:
            rate = round((step - at) * self._tokens / (now - since))
            entry = {"step": step, "seconds": round(now - since, 3), "tokens_per_second": rate}
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        self._written = (now, step)
