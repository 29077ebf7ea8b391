"""Runs two steps inline and is killed, by itself and for good, right before or right after one operation of the store.

Usage: dies_at.py PREFIX before|after OPERATION PATH-ENDING. Without the last three it runs undisturbed. Prints the
output digests.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

from marin_pipeline.run.driver import Options, Session
from marin_pipeline.store.local_objects import LocalObjects
from tests.run.sample_steps import times, words
from tests.run.sessions import digests


class DyingObjects(LocalObjects):
    """Local files of a process that dies at one of its writes."""

    when = operation = ending = ""

    def _die(self, when: str, operation: str, path: str) -> None:
        if (when, operation) == (self.when, self.operation) and path.endswith(self.ending):
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: str, data: bytes) -> str | None:
        self._die("before", "create", path)
        created = super().create(path, data)
        self._die("after", "create", path)
        return created

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        self._die("before", "swap", path)
        swapped = super().swap(path, data, version)
        self._die("after", "swap", path)
        return swapped


def main() -> None:
    prefix, *fault = sys.argv[1:]
    session = Session.open([times(count=words(text="a b"))], Options(prefix=prefix, backend="inline"), "tests/dies")
    if fault:
        objects = DyingObjects(LocalObjects(session.objects.folder(".")).root)
        objects.when, objects.operation, objects.ending = fault
        session = replace(session, objects=objects)
    result = session.run()
    assert result.ok
    print(sorted(digests(result).items()))


if __name__ == "__main__":
    main()
