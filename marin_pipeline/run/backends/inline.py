"""Runs tasks in this process, one after another: for a debugger, a notebook, and stores in memory."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from marin_pipeline.core.errors import Stopped
from marin_pipeline.core.step import Step
from marin_pipeline.run.attempt import ShardFailed, describe_failure, failure_told_in, run_attempt
from marin_pipeline.run.backends.base import Event, stopped
from marin_pipeline.run.capture import descriptors_to, log_of
from marin_pipeline.run.loaded import watch
from marin_pipeline.run.log_upload import uploading
from marin_pipeline.run.shards import run_shard
from marin_pipeline.run.task import Task
from marin_pipeline.store.objects import ObjectStore


class InlineBackend:
    """One task at a time, in the thread that asks for events."""

    name = "inline"

    def __init__(self, objects: ObjectStore) -> None:
        watch()
        self._objects = objects
        self._queue: list[tuple[Task, Step[Any, Any]]] = []
        self._events: list[Event] = []
        self._running = False
        self._asked = 0
        self._listens = False

    def room(self) -> int:
        return 0 if self._queue else 1

    def submit(self, task: Task, step: Step[Any, Any]) -> None:
        self._queue.append((task, step))

    def events(self, timeout: float) -> list[Event]:
        if self._queue:
            self._events.append(self._run(*self._queue.pop(0)))
        elif not self._events:
            time.sleep(timeout)
        happened, self._events = self._events, []
        return happened

    def _is_stopping(self) -> bool:
        self._listens = True
        return self._asked > 0

    def _run(self, task: Task, step: Step[Any, Any]) -> Event:
        def run_shards(tasks: Sequence[Task]) -> None:
            for each in tasks:
                if self._asked:
                    raise Stopped("stopped as asked; run the same command again to go on")
                try:
                    run_shard(self._objects, each)
                except Exception as error:
                    raise ShardFailed(describe_failure(error, each), each.name) from error

        self._listens = False
        try:
            self._running = True
            with (
                uploading(self._objects, log_of(task), at_once=True) as log,
                failure_told_in(log, task),
                self._captured(task, log),
            ):
                finished = run_attempt(
                    self._objects,
                    task,
                    step=step,
                    map_runner=run_shards,
                    report=lambda event: self._events.append(Event(task.task, progress=event)),
                    is_stopping=self._is_stopping,
                )
            return Event(task.task, finished=finished)
        except BaseException as error:  # noqa: BLE001 - whatever a step raises is described to the scheduler, which decides
            if self._asked and isinstance(error, KeyboardInterrupt):
                return stopped(task)
            return Event(task.task, failed=describe_failure(error, task))
        finally:
            self._running = False

    @contextlib.contextmanager
    def _captured(self, task: Task, path: Path) -> Iterator[None]:
        """What is printed goes to the attempt's log, and to stderr for whoever sits in front of it."""
        if task.secrets:
            # By descriptor, so that nothing reaches the screen which was not looked through.
            screen = os.dup(2)
            try:
                with descriptors_to(path, task.secrets, screen, leave=True):
                    yield
            finally:
                os.close(screen)
            return
        with path.open("ab", buffering=0) as log:
            copy = io.TextIOWrapper(
                _Tee(log, sys.__stderr__ or sys.stderr),  # pyright: ignore[reportArgumentType] - a stream without a name
                encoding="utf-8",
                errors="backslashreplace",
                write_through=True,
            )
            with contextlib.redirect_stdout(copy), contextlib.redirect_stderr(copy):
                yield

    def interrupt(self) -> None:
        self._asked += 1
        if self._running and (self._asked > 1 or not self._listens):
            raise KeyboardInterrupt

    def stop(self) -> None:
        self._events.extend(stopped(task) for task, _ in self._queue)
        self._queue.clear()

    def cancel(self, task: str) -> None:
        self._queue = [(each, step) for each, step in self._queue if each.task != task]

    def close(self) -> None:
        self._queue.clear()


class _Tee(io.BufferedIOBase):
    """A stream of bytes that writes to a log and to the screen."""

    def __init__(self, log: IO[bytes], screen: TextIO) -> None:
        self._log = log
        self._screen = screen

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        plain = bytes(data)
        self._screen.write(plain.decode("utf-8", "backslashreplace"))
        self._screen.flush()
        self._log.write(plain)
        return len(plain)

    def fileno(self) -> int:
        return self._screen.fileno()
