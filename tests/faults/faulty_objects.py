"""A store that fails where a test says so: before a write, after it, or for want of room."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from marin_pipeline.store.objects import Found, NoAnswer, ObjectInfo, ObjectStore, explain_os_error

Fault = Literal["before", "after", "denied after", "full"]
"""`before`: an error, nothing written. `after`: written, then an error. `denied after`: written, and answered as if it
had been there, as a client does that tries again after a lost reply. `full`: no room, nothing written."""

Rule = Callable[[str, str], Fault | None]
"""Says what goes wrong with an operation (`read`, `create`, `swap`, `delete`) on a path."""


class FaultyObjects(ObjectStore):
    """Another store, with faults by a rule."""

    def __init__(self, objects: ObjectStore, rule: Rule) -> None:
        self._objects = objects
        self._rule = rule
        self.url = objects.url
        self.shared = objects.shared
        self.parallel = objects.parallel
        self.faults: list[tuple[str, str]] = []
        """What went wrong: operation and path."""

    def _fault(self, operation: str, path: str) -> Fault | None:
        fault = self._rule(operation, path)
        if fault is not None:
            self.faults.append((operation, path))
        if fault == "before":
            raise NoAnswer(f"{self.url}/{path}: cannot {operation}: the store does not answer")
        if fault == "full":
            raise explain_os_error(OSError(errno.ENOSPC, "No space left on device"), f"{self.url}/{path}", operation)
        return fault

    def _answer(self, fault: Fault | None, operation: str, path: str, answer: str | None) -> str | None:
        if fault == "after":
            raise NoAnswer(f"{self.url}/{path}: cannot {operation}: the reply was lost")
        return answer if fault is None else None

    def read(self, path: str) -> Found | None:
        self._fault("read", path)
        return self._objects.read(path)

    def create(self, path: str, data: bytes) -> str | None:
        fault = self._fault("create", path)
        return self._answer(fault, "create", path, self._objects.create(path, data))

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        fault = self._fault("swap", path)
        return self._answer(fault, "swap", path, self._objects.swap(path, data, version))

    def delete(self, path: str) -> None:
        self._fault("delete", path)
        self._objects.delete(path)

    def list(self, folder: str) -> list[ObjectInfo]:
        return self._objects.list(folder)

    def names(self, folder: str) -> list[str]:
        return self._objects.names(folder)

    def folder(self, path: str) -> Path:
        return self._objects.folder(path)

    def publish(self, folder: Path, path: str) -> None:
        self._objects.publish(folder, path)

    def local(self, path: str) -> Path:
        return self._objects.local(path)


def nth(operation: str, ending: str, fault: Fault, number: int = 1) -> Rule:
    """The fault at the `number`th such operation on a path that ends so, and never else."""
    seen = 0

    def rule(asked: str, path: str) -> Fault | None:
        nonlocal seen
        if asked != operation or not path.endswith(ending):
            return None
        seen += 1
        return fault if seen == number else None

    return rule


def always(operation: str, part: str, fault: Fault) -> Rule:
    """The fault at each such operation on a path that holds `part`."""
    return lambda asked, path: fault if asked == operation and part in path else None
