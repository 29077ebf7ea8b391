"""Runs tasks in worker processes beside this one: started afresh, never forked, kept warm between tasks, gone when the
driver is gone.

A step that waits for its `ctx.map` does not count against the number of tasks at once, so shards can always go on. A
step that wants jax gets a process of its own. All of it happens in the thread that asks for events.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from marin_pipeline.core.step import Step
from marin_pipeline.run.attempt import Failed, Finished
from marin_pipeline.run.backends.base import Event, stopped
from marin_pipeline.run.channel import Channel
from marin_pipeline.run.task import Task
from marin_pipeline.run.worker import LINE_LOST

SHARD_TRIES = 3
"""How often a shard is started whose worker is lost; one that was preempted does not count."""

LAST_WORDS = 2.0
"""Seconds that a worker gets to end which has hung up."""

_WATCH = 'while read -r line; do groups=$line; done; for group in $groups; do kill -s KILL -- "-$group"; done'
"""Reads the process groups of the workers, of which the last line counts, and ends them when the driver is gone without
a word. A worker ends with its driver by itself; this reaches what its step has started.
"""

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from marin_pipeline.run.worker import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
"""The program of a worker: the driver's search path first, so that it imports what the driver imported. It is started
with `-P`, so that no file of the working directory stands in for a module of the standard library.
"""


@dataclass
class _Process:
    """A worker process and what it is at."""

    process: subprocess.Popen[bytes]
    channel: Channel
    single: bool
    """It ends after its task."""
    task: Task | None = None
    waiting: int = 0
    """Shards that its step waits for."""
    listens: bool = False
    """Its step asks whether to stop."""
    ready: bool = False
    """It has come up."""


@dataclass
class _Shard:
    """A shard that waits for a worker."""

    task: Task
    owner: _Process
    step: str
    """The owner's task that asked for it."""
    tries: int = 0
    dropped: bool = False
    """Another shard of the same map has failed, which the step may have caught."""

    @property
    def wanted(self) -> bool:
        """Whether the step that asked for it still waits."""
        return not self.dropped and self.owner.task is not None and self.owner.task.task == self.step


@dataclass
class _State:
    steps: deque[Task] = field(default_factory=deque[Task])
    shards: deque[_Shard] = field(default_factory=deque[_Shard])


class LocalBackend:
    """Worker processes of this machine."""

    name = "local"

    def __init__(self, slots: int | None = None) -> None:
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.slots = slots or available
        """Tasks at once."""
        self._processes: list[_Process] = []
        self._shards_running: dict[str, _Shard] = {}
        self._queue = _State()
        self._selector = selectors.DefaultSelector()
        self._events: list[Event] = []
        self._watch: subprocess.Popen[bytes] | None = None

    def _busy(self) -> int:
        return sum(1 for process in self._processes if process.task is not None and not process.waiting)

    def room(self) -> int:
        return max(0, self.slots - self._busy() - len(self._queue.steps) - len(self._queue.shards))

    def submit(self, task: Task, step: Step[Any, Any]) -> None:
        self._queue.steps.append(task)
        self._dispatch()

    def events(self, timeout: float) -> list[Event]:
        self._dispatch()
        silent = set(map(id, self._processes))
        for key, _ in self._selector.select(0 if self._events else timeout):
            process: _Process = key.data
            silent.discard(id(process))
            messages = process.channel.receive()
            if messages is None:
                self._lost(process)
                continue
            for message in messages:
                self._handle(process, message)
        for process in list(self._processes):
            # Something that a step started may hold the line open after its worker has gone.
            if id(process) in silent and process.process.poll() is not None:
                self._lost(process)
        self._dispatch()
        happened, self._events = self._events, []
        return happened

    def _dispatch(self) -> None:
        while self._busy() < self.slots and (self._queue.shards or self._queue.steps):
            if self._queue.shards:
                shard = self._queue.shards.popleft()
                process = self._idle(single=False)
                if isinstance(process, Failed):
                    self._answer(shard, process)
                else:
                    self._shards_running[shard.task.task] = shard
                    self._give(process, shard.task)
            else:
                task = self._queue.steps.popleft()
                process = self._idle(single=task.jax)
                if isinstance(process, Failed):
                    self._events.append(Event(task.task, failed=process))
                else:
                    self._give(process, task)

    def _idle(self, single: bool) -> _Process | Failed:
        """A process without a task, started where there is none; or why that could not be done."""
        if not single:
            for process in self._processes:
                if process.task is None and not process.single:
                    return process
        try:
            self._start_watch()
            return self._started(single)
        except OSError as error:
            remedy = "end other programs, raise the limits of this user (ulimit -a), or run fewer with --max-parallel"
            message = f"a worker process could not be started ({error.strerror}); {remedy}"
            return Failed("infrastructure", message, "", again=True, silent=True)

    def _started(self, single: bool) -> _Process:
        ours, theirs = socket.socketpair()
        arguments = [
            json.dumps([os.path.abspath(entry or ".") for entry in sys.path]),
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        try:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        process = _Process(popen, Channel(ours), single)
        self._processes.append(process)
        self._selector.register(ours, selectors.EVENT_READ, process)
        self._tell_watch()
        return process

    def _start_watch(self) -> None:
        """Start the watch, a process of its own, so that it outlives this one."""
        if self._watch is None:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _tell_watch(self) -> None:
        """Keep the watch's list of process groups current."""
        if self._watch is not None and self._watch.stdin is not None:
            with contextlib.suppress(OSError):  # somebody ended the watch; the workers still end by themselves
                groups = " ".join(str(process.process.pid) for process in self._processes)
                self._watch.stdin.write(f"{groups}\n".encode())
                self._watch.stdin.flush()

    def _give(self, process: _Process, task: Task) -> None:
        process.task, process.listens = task, False
        process.channel.send({"event": "run", "task": task.tree()})

    def _handle(self, process: _Process, message: dict[str, Any]) -> None:
        kind, task = message["event"], process.task
        if kind == "ready":
            process.ready = True
        if task is None:
            return
        if kind == "progress":
            self._events.append(Event(task.task, progress=message))
        elif kind == "listens":
            process.listens = True
        elif kind == "map":
            tasks = [Task.from_tree(tree) for tree in message["tasks"]]
            process.waiting = len(tasks)
            self._queue.shards.extend(_Shard(each, process, task.task) for each in tasks)
        elif kind == "finished":
            self._ended(process, None, message["finished"])
        elif kind == "failed":
            self._ended(process, Failed(**message["failed"]), None)
        if kind in ("finished", "failed") and (not message["clean"] or (process.single and task.kind == "step")):
            self._end(process)

    def _ended(self, process: _Process, failed: Failed | None, finished: dict[str, Any] | None) -> None:
        task = process.task
        process.task = None
        if task is None:
            return
        if task.kind == "shard":
            shard = self._shards_running.pop(task.task)
            self._answer(shard, failed)
        elif failed is not None:
            self._drop_shards(process)
            self._events.append(Event(task.task, failed=failed))
        elif finished is not None:
            self._events.append(Event(task.task, finished=Finished(**finished)))

    def _answer(self, shard: _Shard, failed: Failed | None) -> None:
        if not shard.wanted:
            return
        owner = shard.owner
        owner.waiting -= 1
        if failed is not None:
            self._drop_shards(owner)
        tree = None if failed is None else failed.tree()
        owner.channel.send({"event": "mapped", "task": shard.task.task, "failed": tree, "name": shard.task.name})

    def _drop_shards(self, owner: _Process) -> None:
        """Forget the shards that nobody waits for any more; running ones end for nothing and harm nobody."""
        owner.waiting = 0
        self._queue.shards = deque(shard for shard in self._queue.shards if shard.owner is not owner)
        for shard in self._shards_running.values():
            shard.dropped |= shard.owner is owner

    def _lost(self, process: _Process) -> None:
        """A worker is gone without a word: killed, out of memory, or crashed in a library."""
        task = process.task
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.process.wait(timeout=LAST_WORDS)  # one that is ending by itself says why by its exit code
        self._end(process)
        if task is None:
            return
        failed = _why_lost(process)
        if task.kind == "shard":
            shard = self._shards_running.pop(task.task)
            shard.tries += failed.kind != "preempted"
            if not shard.wanted:
                return
            if failed.again and shard.tries < SHARD_TRIES:
                self._queue.shards.appendleft(shard)
            else:
                self._answer(shard, failed)
        else:
            self._drop_shards(process)
            self._events.append(Event(task.task, failed=failed))

    def _end(self, process: _Process) -> None:
        if process in self._processes:
            self._processes.remove(process)
            self._selector.unregister(process.channel.socket)
        process.channel.close()
        process.task = None
        _kill(process.process)
        self._tell_watch()

    def interrupt(self) -> None:
        """Nothing to do here: the loop calls `stop` within the time of a poll."""

    def stop(self) -> None:
        self._events.extend(stopped(task) for task in self._queue.steps)
        self._queue = _State()
        for process in list(self._processes):
            task = process.task
            if task is None or task.kind == "shard":
                self._end(process)
            elif process.listens:
                process.channel.send({"event": "stop"})
            else:
                self._end(process)
                self._events.append(stopped(task))

    def cancel(self, task: str) -> None:
        self._queue.steps = deque(each for each in self._queue.steps if each.task != task)
        for process in list(self._processes):
            if process.task is not None and process.task.task == task:
                self._drop_shards(process)
                self._end(process)

    def close(self) -> None:
        self._queue = _State()
        for process in list(self._processes):
            self._end(process)
        self._selector.close()
        if self._watch is not None:
            with contextlib.suppress(OSError):
                self._watch.communicate()
            self._watch = None


def _kill(process: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a process and its children, and wait until it is gone. A worker without a task loses nothing."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    deadline = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < deadline:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            continue


def _why_lost(process: _Process) -> Failed:
    """What a worker's end says. One that was killed may do better the next time, one that ended itself will not."""
    code = process.process.returncode
    if not process.ready and code is not None and code >= 0:
        how = f"it ended with code {code}"
        remedy = "what it printed stands above; see that `python -c 'import marin_pipeline'` works"
        return Failed("infrastructure", f"a worker process could not be started ({how}); {remedy}", "")
    if code == LINE_LOST:
        message = (
            "closed the line between its process and the run, among file descriptors that it has not opened "
            "(as os.closerange does); close only what the step itself has opened"
        )
        return Failed("user", message, "")
    if code is not None and code >= 0:
        message = (
            f"ended its own process with exit code {code} (os._exit, or a library that does so); raise an error instead"
        )
        return Failed("user", message, "")
    if code is None:
        return Failed("infrastructure", "its worker process was lost (it does not answer)", "", again=True)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGTERM:  # what a machine that is taken away sends to its processes
        return Failed("preempted", "its worker process was ended by SIGTERM", "", again=True)
    hint = "; if nobody killed it, the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return Failed("infrastructure", f"its worker process was lost (killed by {name}{hint})", "", again=True)
