"""Two drivers on one store, in an order that a seed decides: only one of them goes on at any moment, from one call to
the store to the next, so that the same seed gives the same calls in the same order.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_pipeline.core.errors import MarinError
from marin_pipeline.core.graph import Graph
from marin_pipeline.core.step import Step
from marin_pipeline.run.attempt import ShardFailed, describe_failure, run_attempt
from marin_pipeline.run.backends.base import Event
from marin_pipeline.run.keeper import LeaseKeeper
from marin_pipeline.run.outcome import Notice, Settled
from marin_pipeline.run.plan import Policy
from marin_pipeline.run.scheduler import Scheduler
from marin_pipeline.run.shards import run_shard
from marin_pipeline.run.task import Task
from marin_pipeline.store.commit import Commit, look_many
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.objects import (
    RECORD,
    FileToPublish,
    Found,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    Told,
    Wanted,
    Written,
    untold,
)

_NAMES = re.compile(r"\d{8}T\d{6}\.\d+-[0-9a-f]{8}|(?<=/)[0-9a-f]{8}(?=/|-log|$)|(?<=^resolved/).*")
"""Names of attempts and parts, and digests of what noise is made of, which are other ones in each run."""


class Clock:
    """Seconds of one driver."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Turns:
    """Whose call to the store is next."""

    def __init__(self, names: list[str], choose: Callable[[Mapping[str, str]], str]) -> None:
        """Args:
        choose: the driver that is next, of those that are at work, by what each of them is about to do.
        """
        self._live = set(names)
        self._waiting: dict[str, str] = {}
        self._next: str | None = None
        self._choose = choose
        self._changed = threading.Condition()
        self.calls: list[tuple[str, str, str]] = []
        """Driver, operation and path of each call, in the order in which they were made."""

    def take(self, name: str, operation: str, path: str) -> None:
        """Wait until it is the driver's turn; from then on nobody else goes on until its next call."""
        with self._changed:
            self._waiting[name] = f"{operation} {path}"
            self._decide()
            self._changed.wait_for(lambda: self._next == name)
            self._next = None
            del self._waiting[name]
            self.calls.append((name, operation, _NAMES.sub("*", path)))

    def leave(self, name: str) -> None:
        """The driver makes no more calls."""
        with self._changed:
            self._live.remove(name)
            self._decide()

    def _decide(self) -> None:
        if self._live and self._waiting.keys() == self._live and self._next is None:
            self._next = self._choose(self._waiting)
            self._changed.notify_all()


def bursts(chance: random.Random) -> Callable[[Mapping[str, str]], str]:
    """Whose turn is next: mostly a few calls of one, now and then so many that the other sleeps through its lease.
    Often that begins where most can go wrong: when the other has seen its lease and is about to commit.
    """
    left, now = 0, ""

    def choose(pending: Mapping[str, str]) -> str:
        nonlocal left, now
        others = [each for each in sorted(pending) if each != now]
        if others and re.match("create .*/commits/", pending.get(now, "")) and chance.random() < 0.4:
            now, left = chance.choice(others), 60
        elif not left or now not in pending:
            now, left = chance.choice(sorted(pending)), chance.choice((1, 1, 1, 2, 3, 5, 10, 25, 60))
        left -= 1
        return now

    return choose


class TakingTurns(Forwarding):
    """A store each of whose calls waits for its turn."""

    def __init__(self, objects: ObjectStore, take: Callable[[str, str], None]) -> None:
        super().__init__(objects)
        self._take = take
        self.parallel = 1
        self.commits: list[tuple[str, Commit]] = []
        """What was to be committed and where, whoever came first."""

    def read(self, path: str, most: int = RECORD) -> Found | None:
        self._take("read", path)
        return self._objects.read(path, most)

    def create(self, path: str, data: bytes) -> str | None:
        self._take("create", path)
        if "/commits/" in path:
            self.commits.append((path, Commit.loads(data, path)))
        return self._objects.create(path, data)

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        self._take("swap", path)
        return self._objects.swap(path, data, version)

    def delete(self, path: str) -> None:
        self._take("delete", path)
        self._objects.delete(path)

    def list(self, folder: str) -> list[ObjectInfo]:
        self._take("list", folder)
        return self._objects.list(folder)

    def names(self, folder: str) -> list[str]:
        self._take("names", folder)
        return self._objects.names(folder)

    def info(self, path: str) -> ObjectInfo | None:
        self._take("info", path)
        return self._objects.info(path)

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        self._take("publish", path)
        return self._objects.publish(path, files, told)

    def writer(self, path: str) -> ObjectWriter:
        self._take("writer", path)
        return self._objects.writer(path)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self._take("blocks", path)
        return self._objects.blocks(path, start, stop)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        self._take("fetch", wanted[0].path if wanted else "")
        return self._objects.fetch(wanted)


class BeatsByHand(LeaseKeeper):
    """Renews leases when the driver's backend says so, and not by a clock of its own."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, life=1e6)

    def beat(self) -> None:
        for lease in list(self._leases):
            with suppress(MarinError):
                lease.renew()


class AtOnce:
    """A backend that runs an attempt in the thread that asks for events, after so many polls, by the driver's clock."""

    name = "at once"

    def __init__(self, objects: ObjectStore, clock: Clock, beat: Callable[[], None], polls: Callable[[], int]) -> None:
        self._objects = objects
        self._clock = clock
        self._beat = beat
        self._polls = polls
        self._task: tuple[Task, Step[Any, Any]] | None = None
        self._left = 0

    def room(self) -> int:
        return 0 if self._task else 1

    def submit(self, task: Task, step: Step[Any, Any]) -> None:
        self._task, self._left = (task, step), self._polls()

    def events(self, timeout: float) -> list[Event]:
        self._clock.now += max(timeout, 0.01)
        if self._task is None:
            if self._objects.parallel > 1:
                time.sleep(0.001)  # calls go on in threads of their own
            return []
        if self._left:
            self._left -= 1
            self._beat()
            return []
        (task, step), self._task = self._task, None
        try:
            finished = run_attempt(
                self._objects,
                task,
                step=step,
                map_runner=self._run_shards,
                report=lambda event: None,
                is_stopping=lambda: False,
            )
        except Exception as error:  # noqa: BLE001 - as the backends do
            return [Event(task.task, failed=describe_failure(error, task))]
        return [Event(task.task, finished=finished)]

    def _run_shards(self, tasks: Any) -> None:
        for each in tasks:
            try:
                run_shard(self._objects, each)
            except Exception as error:
                raise ShardFailed(describe_failure(error, each), each.name) from error

    def interrupt(self) -> None:
        raise AssertionError("nobody interrupts this run")

    def stop(self) -> None:
        raise AssertionError("nobody stops this run")

    def cancel(self, task: str) -> None:
        self._task = None

    def close(self) -> None:
        self._task = None


@dataclass
class Driver:
    """One run of a graph, by a clock of its own. Deterministic as long as the store is."""

    graph: Graph
    objects: ObjectStore
    life: float = 30.0
    seen: ObjectStore | None = None
    """Where the look before the run is taken; by default in the store itself."""
    policy: Policy = field(default_factory=Policy)
    polls: Callable[[], int] = lambda: 0
    clock: Clock = field(default_factory=Clock)
    settled: Mapping[str, Settled] = field(default_factory=dict[str, Settled])
    notices: list[Notice] = field(default_factory=list[Notice])
    failures: list[str] = field(default_factory=list[str])
    ok: bool = False
    error: BaseException | None = None

    def run(self) -> bool:
        """Whether everything came out well."""
        keeper = BeatsByHand(self.objects)
        backend = AtOnce(self.objects, self.clock, keeper.beat, self.polls)
        looks = look_many(self.seen or self.objects, [(node.id, node.key) for node in self.graph.nodes.values()])
        scheduler = Scheduler(
            self.graph,
            self.objects,
            backend,
            looks=looks,
            policy=self.policy,
            lease_life=self.life,
            notify=self.notices.append,
            clock=self.clock,
            keeper=keeper,
        )
        self.settled = scheduler.run()
        self.failures = [f"{node.name}: {failed.message}\n{failed.traceback}" for node, failed in scheduler.failures]
        return all(settled.outcome in ("cached", "done") for settled in self.settled.values())

    def verbs(self, name: str) -> list[Notice]:
        return [notice for notice in self.notices if notice.verb == name]
