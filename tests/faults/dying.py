"""Kills a run at one point after the other, and runs it again each time: a program, because it forks from a process
that has one thread and has loaded everything.

Usage: dying.py FOLDER FIRST STRIDE. The points are numbered along the calls of a run to its store: before each call,
after each write, and within each write where the bytes lie beside their place already. Walks the points FIRST, FIRST +
STRIDE, … until a run ends undisturbed; prints a JSON line for each, with where it was and what was wrong afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from marin_pipeline import Artifact
from marin_pipeline.run.driver import Session
from marin_pipeline.run.options import Options
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.objects import FileToPublish, Found, ObjectInfo, Wanted, Written
from tests.faults.small_steps import OUTER, begin, end, mapped, wide, worked
from tests.faults.truth import check
from tests.run.sessions import digests


class PointedObjects(LocalObjects):
    """Local files that say which point of the conversation is reached."""

    def __init__(self, root: Path, reached: Callable[[str], None]) -> None:
        super().__init__(root)
        self._reached = reached

    def _pass(self, when: str, operation: str, path: str) -> None:
        self._reached(f"{when} {operation} {path}")

    @contextmanager
    def _written(self, target: str, data: bytes) -> Iterator[str]:
        with super()._written(target, data) as temporary:
            self._pass("within", "write", target.removeprefix(f"{self.url}/"))
            yield temporary

    def read(self, path: str) -> Found | None:
        self._pass("before", "read", path)
        return super().read(path)

    def create(self, path: str, data: bytes) -> str | None:
        self._pass("before", "create", path)
        version = super().create(path, data)
        self._pass("after", "create", path)
        return version

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        self._pass("before", "swap", path)
        swapped = super().swap(path, data, version)
        self._pass("after", "swap", path)
        return swapped

    def delete(self, path: str) -> None:
        self._pass("before", "delete", path)
        super().delete(path)
        self._pass("after", "delete", path)

    def list(self, folder: str) -> list[ObjectInfo]:
        self._pass("before", "list", folder)
        return super().list(folder)

    def names(self, folder: str) -> list[str]:
        self._pass("before", "names", folder)
        return super().names(folder)

    def folder(self, path: str) -> Path:
        self._pass("before", "folder", path)
        folder = super().folder(path)
        self._pass("after", "folder", path)
        return folder

    def publish(self, path: str, files: Sequence[FileToPublish]) -> list[Written]:
        self._pass("before", "publish", path)
        return super().publish(path, files)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self._pass("before", "blocks", path)
        return super().blocks(path, start, stop)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        self._pass("before", "fetch", wanted[0].path if wanted else "")
        return super().fetch(wanted)


def all_of_it() -> list[Artifact[Any]]:
    """What is run over a store that has `wide()[0]`: `outer`, which is forced and gives other bytes, `end`, which goes
    stale by that, `twin`, which is adopted, and new work with parts and shards.
    """
    ended, twin = wide()
    first = begin(seed=7)
    new = end(parts=[worked(before=first, parts=1), mapped(before=first, items=[3])]).named("new")
    return [ended, twin, new]


def prepare(prefix: Path) -> None:
    """A store in which `end` is done, with what `outer` gave then."""
    os.environ[OUTER] = "1"
    assert Session.open(wide()[:1], Options(prefix=str(prefix), backend="inline"), "tests/dying").run().ok
    os.environ[OUTER] = "2"


def run(prefix: Path, point: int = 0, told: Callable[[str], None] = print) -> dict[str, str]:
    """The run that is killed at a point (0: nowhere), and the same run again; output digests by name."""
    passed = itertools.count(1)

    def reached(where: str) -> None:
        if next(passed) == point:
            told(where)
            os.kill(os.getpid(), signal.SIGKILL)

    options = Options(prefix=str(prefix), backend="inline", force=["outer"])
    session = Session.open(all_of_it(), options, "tests/dying")
    result = replace(session, objects=PointedObjects(prefix, reached)).run()
    assert result.ok, result.failures
    return digests(result)


def in_a_child(call: Callable[[Callable[[str], None]], None]) -> tuple[int, str]:
    """Make a call in a process of its own; its exit code (negative: the signal) and what it told."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            call(lambda text: _ignore(os.write(writer, text.encode())))
        except BaseException:  # noqa: BLE001 - told to the parent, which is a process of the same program
            os.write(writer, traceback.format_exc().encode()[-3000:])
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told


def _ignore(_: object) -> None:
    return None


def walk(folder: Path, first: int, stride: int) -> None:
    """Walk the points."""
    template = folder / f"template{first}"
    prepare(template)
    undisturbed = shutil.copytree(template, folder / f"undisturbed{first}")
    expected = run(undisturbed)
    commits = check(LocalObjects(undisturbed)).current.values()
    assert sum(commit.adopted_from is not None for commit in commits) == 1
    assert sum(commit.number == 2 for commit in commits) == 2  # the forced one and the stale one
    for point in itertools.count(first, stride):
        prefix = shutil.copytree(template, folder / f"{point}")

        def killed(told: Callable[[str], None]) -> None:
            run(prefix, point, told)  # noqa: B023 - called before the next point

        def again(told: Callable[[str], None]) -> None:
            check(LocalObjects(prefix))  # noqa: B023
            found = run(prefix)  # noqa: B023
            assert found == expected, f"{found} instead of {expected}"
            check(LocalObjects(prefix))  # noqa: B023

        code, where = in_a_child(killed)
        if code not in (0, -signal.SIGKILL):
            print(json.dumps({"point": point, "where": "", "wrong": where}), flush=True)
            return
        _, wrong = in_a_child(again)
        print(json.dumps({"point": point, "where": where, "wrong": wrong}), flush=True)
        if code == 0:
            return
        shutil.rmtree(prefix)


if __name__ == "__main__":
    walk(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
