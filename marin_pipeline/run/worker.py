"""A worker process: runs the tasks that its driver sends, one at a time, and dies with the driver.

Two things end it when the driver is gone, however that went: the kernel's parent-death signal where there is one, and
the end of the line, which a thread of its own waits for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import resource
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marin_pipeline.core.errors import Stopped
from marin_pipeline.run.attempt import Failed, ShardFailed, describe_failure, failure_told_in, run_attempt
from marin_pipeline.run.capture import descriptors_to, log_of
from marin_pipeline.run.channel import Channel
from marin_pipeline.run.loaded import watch
from marin_pipeline.run.log_upload import uploading
from marin_pipeline.run.shards import run_shard
from marin_pipeline.run.task import Task
from marin_pipeline.store.objects import ObjectStore, open_objects

LINE_LOST = 213
"""Exit code of a worker that has lost its line to the driver."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


class Worker:
    """The worker's end of the line, and the task that it is at."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.tasks: queue.Queue[Task] = queue.Queue()
        self.mapped: queue.Queue[dict[str, Any]] = queue.Queue()
        self.stop_asked = False
        self.listens = False
        """The step has asked whether to stop: it will end by itself."""

    def listen(self) -> None:
        """Receive until the driver is gone; then nothing here may go on."""
        while (messages := self.channel.receive()) is not None:
            for message in messages:
                if message["event"] == "run":
                    self.tasks.put(Task.from_tree(message["task"]))
                elif message["event"] == "mapped":
                    self.mapped.put(message)
                elif message["event"] == "stop":
                    self.stop_asked = True
                    self.mapped.put(message)
        os._exit(LINE_LOST)

    def send(self, message: dict[str, Any]) -> None:
        """Tell the driver; without a line to it nothing here may go on."""
        if not self.channel.send(message):
            os._exit(LINE_LOST)

    def is_stopping(self) -> bool:
        """Whether the step is to stop; tells the driver once that the step asks."""
        if not self.listens:
            self.listens = True
            self.send({"event": "listens"})
        return self.stop_asked

    def run_shards(self, tasks: Sequence[Task]) -> None:
        """Have the driver run shards somewhere, and wait for them."""
        self.send({"event": "map", "tasks": [task.tree() for task in tasks]})
        missing = {task.task for task in tasks}
        while missing and not self.stop_asked:
            message = self.mapped.get()
            if message.get("task") not in missing:
                continue
            missing.remove(message["task"])
            if message["failed"] is not None:
                raise ShardFailed(Failed(**message["failed"]), message["name"])
        if missing:
            raise Stopped("stopped as asked; run the same command again to go on")

    def run(self, task: Task) -> None:
        """Run one task and say how it ended."""
        try:
            objects = open_objects(task.prefix)
            if task.single_writer:
                from marin_pipeline.store.conditions import SingleWriter  # few stores need it

                objects = SingleWriter(objects)
            is_step = task.kind == "step"
            with (
                uploading(objects, log_of(task), at_once=is_step) as log,
                failure_told_in(log, task),
                descriptors_to(log, task.secrets),
            ):
                finished = self._run_here(objects, task)
            self.send({"event": "finished", "task": task.task, "finished": finished, "clean": _is_clean()})
        except BaseException as error:  # noqa: BLE001 - whatever a step raises is described to the driver, which decides
            failed = describe_failure(error, task).tree()
            self.send({"event": "failed", "task": task.task, "failed": failed, "clean": _is_clean()})
        finally:
            self.listens = False

    def _run_here(self, objects: ObjectStore, task: Task) -> dict[str, Any] | None:
        """What an attempt made; of a shard nothing, since its record says it."""
        if task.kind == "shard":
            run_shard(objects, task)
            return None
        finished = run_attempt(
            objects,
            task,
            step=None,
            map_runner=self.run_shards,
            report=lambda event: self.send({**event, "task": task.task}),
            is_stopping=self.is_stopping,
        )
        return vars(finished)


def _is_clean() -> bool:
    """Whether another task finds this process as it should be: no children, and files that it may still open."""
    no_children = not _end_children()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return no_children and (limit == resource.RLIM_INFINITY or 2 * len(os.listdir("/proc/self/fd")) < limit)
    except FileNotFoundError:
        return no_children
    except OSError:
        return False


def _end_children() -> bool:
    """End the processes that the task left behind, and say whether there were any.

    What daemonised itself is among them: this process adopts the orphans of its children.
    """
    found = False
    while children := _children():
        found = True
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
    return found


def _children() -> list[int]:
    """Process ids of the children of all threads of this process."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends; end at once when that has happened already."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(1)


def is_worker() -> bool:
    """Whether this process runs tasks for a driver: then it must not start a run of its own."""
    return _serving


_serving = False


def serve(descriptor: int, parent: int) -> None:
    """Run tasks from the line with this file descriptor until the driver hangs up."""
    global _serving
    _serving = True
    die_with(parent)
    # A handler that does nothing, and not SIG_IGN, which the programs that a step starts would inherit.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    watch()
    # The line is this process's alone: what a step starts must not hold it open when this process is gone.
    os.set_inheritable(descriptor, False)
    worker = Worker(Channel(socket.socket(fileno=descriptor)))
    os.register_at_fork(after_in_child=worker.channel.close)
    worker.send({"event": "ready"})
    threading.Thread(target=worker.listen, daemon=True).start()
    while True:
        worker.run(worker.tasks.get())
