"""A store that fails where a test says so, in each of the ways in which a store or the line to it can fail.

A rule is asked at every call, with the operation (`read`, `create`, `swap`, `delete`, `list`, `names`, `publish`,
`local`) and the path, and says which fault happens there.
"""

from __future__ import annotations

import errno
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.objects import (
    RECORD,
    FileToPublish,
    Found,
    NoAnswer,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    Told,
    Wanted,
    Written,
    explain_os_error,
    untold,
)

T = TypeVar("T")

Fault = Literal["before", "after", "denied after", "full", "late", "slow", "torn", "zeroed", "stale"]
"""`before`: an error, nothing done (503). `after`: done, then an error (the reply was lost). `denied after`: done, and
answered as if it had been there, as a client does that tries again after a lost reply. `full`: no room, nothing
written. `late`: an error, and the write is done only after some later calls. `slow`: a delay, and nothing else.
`torn`, `zeroed`: what is read is cut in half, or zeros. `stale`: what is read or listed is without the last write
there."""

Rule = Callable[[str, str], Fault | None]

CONDITIONAL = ("create", "swap", "publish")
"""Writes that may come late: they change nothing that was written since."""

LISTINGS = ("list", "names")
TRANSIENT: tuple[Fault, ...] = ("before", "after", "denied after", "late", "slow", "stale")
"""The faults of a store that keeps every byte that it has."""

DELAY = 0.001
"""Seconds of a slow call."""

LATE = 4
"""How many calls later a late write is done, at most."""


class FaultyObjects(Forwarding):
    """Another store, with faults by a rule."""

    def __init__(self, objects: ObjectStore, rule: Rule) -> None:
        super().__init__(objects)
        self._rule = rule
        self.faults: list[tuple[str, str]] = []
        """What went wrong: operation and path."""
        self.counts: Counter[Fault] = Counter()
        self._late: list[tuple[int, Callable[[], Any]]] = []
        self._calls = 0
        self._lock = threading.Lock()
        self._before: dict[str, Found | None] = {}
        self._torn: tempfile.TemporaryDirectory[str] | None = None

    def settle(self) -> None:
        """Do the writes that are late still."""
        late, self._late = self._late, []
        for _, write in late:
            with suppress(StoreError, FileNotFoundError):
                write()

    def _do(self, operation: str, path: str, call: Callable[[], T], denied: T | None = None) -> T:
        """A call with its fault."""
        with self._lock:
            self._calls += 1
            due = [write for when, write in self._late if when <= self._calls]
            self._late = [each for each in self._late if each[0] > self._calls]
        for write in due:
            with suppress(StoreError, FileNotFoundError):  # nobody waits for its answer, and its files may have gone
                write()
        with self._lock:
            fault = self._rule(operation, path)
        if fault == "late" and operation not in CONDITIONAL:
            fault = "before"
        if fault is None:
            return call()
        self.faults.append((operation, path))
        self.counts[fault] += 1
        where = f"{self.url}/{path}: cannot {operation}"
        if fault == "slow":
            time.sleep(DELAY)
        if fault == "before":
            raise NoAnswer(f"{where}: the store does not answer")
        if fault == "full":
            raise explain_os_error(OSError(errno.ENOSPC, "No space left on device"), f"{self.url}/{path}", operation)
        if fault == "late":
            self._late.append((self._calls + 1 + len(path) % LATE, call))
            raise NoAnswer(f"{where}: the store does not answer yet")
        if fault == "stale" and operation in LISTINGS:
            return call()[:-1]  # pyright: ignore[reportIndexIssue, reportReturnType] - a listing without its last entry
        answer = call()
        if fault == "after":
            raise NoAnswer(f"{where}: the reply was lost")
        if fault == "denied after" and operation in CONDITIONAL[:2]:
            return denied  # pyright: ignore[reportReturnType]
        if fault in ("torn", "zeroed"):
            return self._damaged(fault, answer)
        if fault == "stale" and operation == "read" and path in self._before:
            return self._before[path]  # pyright: ignore[reportReturnType]
        return answer

    def _damaged(self, fault: Fault, answer: Any) -> Any:
        if isinstance(answer, Found):
            return Found(_damaged(fault, answer.data), answer.version)
        if isinstance(answer, Path):
            self._torn = self._torn or tempfile.TemporaryDirectory(prefix="marin-torn-")
            copy = Path(tempfile.mkdtemp(dir=self._torn.name), answer.name)
            copy.write_bytes(_damaged(fault, answer.read_bytes()))
            return copy
        return answer

    def _written(self, operation: str, path: str, call: Callable[[], str | None]) -> str | None:
        before = self._objects.read(path)
        answer = self._do(operation, path, call)
        self._before[path] = before
        return answer

    def is_there(self) -> bool:
        return self._do("is_there", "", self._objects.is_there)

    def read(self, path: str, most: int = RECORD) -> Found | None:
        return self._do("read", path, lambda: self._objects.read(path, most))

    def create(self, path: str, data: bytes) -> str | None:
        return self._written("create", path, lambda: self._objects.create(path, data))

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        return self._written("swap", path, lambda: self._objects.swap(path, data, version))

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: self._objects.delete(path))

    def list(self, folder: str) -> list[ObjectInfo]:
        return self._do("list", folder, lambda: self._objects.list(folder))

    def info(self, path: str) -> ObjectInfo | None:
        return self._do("info", path, lambda: self._objects.info(path))

    def names(self, folder: str) -> list[str]:
        return self._do("names", folder, lambda: self._objects.names(folder))

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        return self._do("publish", path, lambda: self._objects.publish(path, files, told))

    def writer(self, path: str) -> ObjectWriter:
        return self._do("writer", path, lambda: self._objects.writer(path))

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return self._do("blocks", path, lambda: self._objects.blocks(path, start, stop))

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        return [self._do("fetch", each.path, lambda each=each: self._objects.fetch([each])[0]) for each in wanted]


def _damaged(fault: Fault, data: bytes) -> bytes:
    return data[: len(data) // 2] if fault == "torn" else bytes(len(data))


def nth(operation: str, ending: str, fault: Fault, number: int = 1, times: int = 1) -> Rule:
    """The fault at the `number`th such operation on a path that ends so and those that follow, `times` in all."""
    seen = 0

    def rule(asked: str, path: str) -> Fault | None:
        nonlocal seen
        if asked != operation or not path.endswith(ending):
            return None
        seen += 1
        return fault if number <= seen < number + times else None

    return rule


def outage(operation: str, part: str, fault: Fault, calls: int) -> Rule:
    """The fault at the first such operation on a path that holds `part`, and no answer to the calls that follow at
    once: `calls` in all.
    """
    left = calls

    def rule(asked: str, path: str) -> Fault | None:
        nonlocal left
        if not left or (left == calls and (asked != operation or part not in path)):
            return None
        left -= 1
        return fault if left == calls - 1 else "before"

    return rule


def always(operation: str, part: str, fault: Fault) -> Rule:
    """The fault at each such operation on a path that holds `part`."""
    return lambda asked, path: fault if asked == operation and part in path else None


def sometimes(seed: int, rate: float, faults: Sequence[Fault] = TRANSIENT) -> Rule:
    """One of the faults at that share of all calls, the same ones for the same seed and the same calls."""
    chance = random.Random(seed)
    return lambda asked, path: chance.choice(faults) if chance.random() < rate else None


def outages(seed: int, rate: float, longest: int = 12) -> Rule:
    """The line breaks at that share of all calls: the reply to that one is lost, or it is done late, and the next ones
    are not answered. Some stores then have no room left.
    """
    chance = random.Random(seed)
    left = 0

    def rule(asked: str, path: str) -> Fault | None:
        nonlocal left
        if left:
            left -= 1
            return "full" if not left and asked == "create" and chance.random() < 0.3 else "before"
        if chance.random() >= rate:
            return None
        left = chance.randrange(longest)
        return chance.choice(("after", "late", "before"))

    return rule
