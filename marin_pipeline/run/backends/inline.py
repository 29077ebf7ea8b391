"""Runs tasks in this process, one after another: for a debugger, a notebook, and stores in memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any, TextIO

from marin_pipeline.core.errors import Stopped
from marin_pipeline.core.step import Step
from marin_pipeline.run.attempt import describe_failure, run_attempt
from marin_pipeline.run.backends.base import Event
from marin_pipeline.run.shards import run_shard
from marin_pipeline.run.task import Task
from marin_pipeline.store import layout
from marin_pipeline.store.objects import ObjectStore


class InlineBackend:
    """One task at a time, in the thread that asks for events."""

    name = "inline"

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._queue: list[tuple[Task, Step[Any, Any]]] = []
        self._events: list[Event] = []
        self._stopping = False

    def room(self) -> int:
        return 0 if self._queue else 1

    def submit(self, task: Task, step: Step[Any, Any]) -> None:
        self._queue.append((task, step))

    def events(self, timeout: float) -> list[Event]:
        if self._queue:
            self._events.append(self._run(*self._queue.pop(0)))
        happened, self._events = self._events, []
        return happened

    def _run(self, task: Task, step: Step[Any, Any]) -> Event:
        def run_shards(tasks: Sequence[Task]) -> None:
            for each in tasks:
                if self._stopping:
                    raise Stopped(f"{task.name} stopped as asked; run the same command again to go on")
                run_shard(self._objects, each)

        try:
            with self._captured(task):
                finished = run_attempt(
                    self._objects,
                    task,
                    step=step,
                    map_runner=run_shards,
                    report=lambda event: self._events.append(Event(task.task, progress=event)),
                    is_stopping=lambda: self._stopping,
                )
            return Event(task.task, finished=finished)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if isinstance(error, KeyboardInterrupt) and not self._stopping:
                raise
            return Event(task.task, failed=describe_failure(error, task))

    @contextlib.contextmanager
    def _captured(self, task: Task) -> Iterator[None]:
        """What is printed goes to the attempt's log, and to stderr for whoever sits in front of it."""
        attempt = layout.attempt(task.id, task.key, task.attempt)
        folder = self._objects.folder(f"{attempt}/log")
        with (folder / "log.txt").open("a", encoding="utf-8", errors="replace") as log:
            copy = _Tee(log, sys.__stderr__ or sys.stderr)
            with contextlib.redirect_stdout(copy), contextlib.redirect_stderr(copy):  # pyright: ignore[reportArgumentType]
                try:
                    yield
                finally:
                    log.flush()
                    if not self._objects.shared:
                        self._objects.publish(folder, f"{attempt}/log")

    def stop(self) -> None:
        self._stopping = True

    def cancel(self, task: str) -> None:
        self._queue = [(each, step) for each, step in self._queue if each.task != task]

    def close(self) -> None:
        self._queue.clear()


class _Tee:
    """A text stream that writes to two."""

    def __init__(self, log: IO[str], screen: TextIO) -> None:
        self._log = log
        self._screen = screen
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        self._screen.write(text)
        return self._log.write(text)

    def flush(self) -> None:
        self._log.flush()
        self._screen.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._screen.fileno()
