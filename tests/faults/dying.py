"""Kills a run at one point after the other, and runs it again each time: a program, because it forks from a process
that has one thread, has loaded everything, and has not spoken to a store yet.

Usage: dying.py FOLDER PREFIX FIRST STRIDE, or dying.py FOLDER PREFIX POINT …. FOLDER is for scratch; the stores lie
below PREFIX. Points are along the calls of a run to its store: before each call, after each write, within each write to
a local file where the bytes lie beside their place already, and between the files of an attempt. They are numbered, and
FIRST, FIRST + STRIDE, … are walked until a run ends undisturbed; or they are given as `before create commits/1.json`,
with a part of the path: the first such one. Prints a JSON line for each, with where it was and what was wrong
afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from marin_pipeline import Artifact
from marin_pipeline.run.driver import Session
from marin_pipeline.run.options import Options
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.objects import (
    RECORD,
    FileToPublish,
    Found,
    ObjectInfo,
    ObjectStore,
    Told,
    Wanted,
    Written,
    open_objects,
    untold,
)
from tests.faults.small_steps import OUTER, begin, end, mapped, wide, worked
from tests.faults.truth import check
from tests.run.sessions import digests


class Pointed(ObjectStore):
    """Says which point of the conversation is reached: in front of the class of a store."""

    reached: Callable[[str], None]

    def _pass(self, when: str, operation: str, path: str) -> None:
        self.reached(f"{when} {operation} {path}")

    def read(self, path: str, most: int = RECORD) -> Found | None:
        self._pass("before", "read", path)
        return super().read(path, most)

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

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        self._pass("before", "publish", path)
        if len(files) < 2:
            return super().publish(path, files, told)
        written = super().publish(path, files[:1], told)
        self._pass("within", "publish", path)
        return written + super().publish(path, files[1:], told)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self._pass("before", "blocks", path)
        return super().blocks(path, start, stop)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        self._pass("before", "fetch", wanted[0].path if wanted else "")
        return super().fetch(wanted)


class PointedObjects(Pointed, LocalObjects):
    """Local files."""

    def __init__(self, root: Path, reached: Callable[[str], None]) -> None:
        super().__init__(root)
        self.reached = reached

    @contextmanager
    def _written(self, target: str, data: bytes) -> Iterator[str]:
        with super()._written(target, data) as temporary:
            self._pass("within", "write", target.removeprefix(f"{self.url}/"))
            yield temporary


def pointed(prefix: str, reached: Callable[[str], None]) -> ObjectStore:
    """The store that says which point is reached."""
    if "://" not in prefix:
        return PointedObjects(Path(prefix), reached)
    kind: type[Any] = type(open_objects(prefix))
    of_points: Any = type(f"Pointed{kind.__name__}", (Pointed, kind), {"reached": staticmethod(reached)})
    return of_points(prefix)


def all_of_it() -> list[Artifact[Any]]:
    """What is run over a store that has `wide()[0]`: `outer`, which is forced and gives other bytes, `end`, which goes
    stale by that, `twin`, which is adopted, and new work with parts and shards.
    """
    ended, twin = wide()
    first = begin(seed=7)
    new = end(parts=[worked(before=first, parts=1), mapped(before=first, items=[3])]).named("new")
    return [ended, twin, new]


def prepare(prefix: str) -> None:
    """A store in which `end` is done, with what `outer` gave then."""
    os.environ[OUTER] = "1"
    assert Session.open(wide()[:1], Options(prefix=prefix, backend="inline"), "tests/dying").run().ok


def copied(source: str, target: str) -> str:
    """A copy of a store."""
    if "://" not in source:
        return str(shutil.copytree(source, target))
    here, there = open_objects(source), open_objects(target)
    paths = [
        info.path for folder in ("steps", "shards", "resolved", "names", "experiments") for info in here.list(folder)
    ]

    def copy(path: str) -> None:
        found = here.read(path)
        assert found is not None
        assert there.create(path, found.data) is not None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, paths))
    return target


def run(prefix: str, point: int | str = 0, told: Callable[[str], None] = print) -> dict[str, str]:
    """The run that is killed at a point (0: nowhere), and the same run again; output digests by name."""
    passed = itertools.count(1)
    when, _, part = str(point).rpartition(" ")

    def reached(where: str) -> None:
        is_it = next(passed) == point if isinstance(point, int) else where.startswith(f"{when} ") and part in where
        if is_it:
            told(where)
            os.kill(os.getpid(), signal.SIGKILL)

    os.environ[OUTER] = "2"
    options = Options(prefix=prefix, backend="inline", force=["outer"])
    session = Session.open(all_of_it(), options, "tests/dying")
    result = replace(session, objects=pointed(prefix, reached)).run()
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


def walk(prefix: str, name: str, points: Iterable[int | str]) -> None:
    """Walk the points.

    Args:
        name: of this walk, among those that go on below one prefix.
    """
    template, undisturbed = f"{prefix}/template{name}", f"{prefix}/undisturbed{name}"

    def begin(told: Callable[[str], None]) -> None:
        prepare(template)
        expected = run(copied(template, undisturbed))
        commits = check(open_objects(undisturbed)).current.values()
        assert sum(commit.adopted_from is not None for commit in commits) == 1
        assert sum(commit.number == 2 for commit in commits) == 2  # the forced one and the stale one
        told(json.dumps(expected))

    if "://" in prefix:
        # Here everything is loaded by a run on local files: a client that was used does not survive a fork.
        warm = f"{tempfile.gettempdir()}/warm{name}"
        prepare(warm)
        run(warm)
        open_objects(prefix)
        code, told = in_a_child(begin)
        assert not code, told
        expected = json.loads(told)
    else:
        answers: list[str] = []
        begin(answers.append)
        (expected,) = map(json.loads, answers)
    for point in points:
        store = f"{prefix}/{point}".replace(" ", "-")

        def killed(told: Callable[[str], None]) -> None:
            run(copied(template, store), point, told)  # noqa: B023 - called before the next point

        def again(told: Callable[[str], None]) -> None:
            check(open_objects(store))  # noqa: B023
            found = run(store)  # noqa: B023
            assert found == expected, f"{found} instead of {expected}"
            check(open_objects(store))  # noqa: B023

        code, where = in_a_child(killed)
        if code not in (0, -signal.SIGKILL):
            print(json.dumps({"point": point, "where": "", "wrong": where}), flush=True)
            return
        _, wrong = in_a_child(again)
        print(json.dumps({"point": point, "where": where, "wrong": wrong}), flush=True)
        if code == 0 and isinstance(point, int):
            return
        if "://" not in store:
            shutil.rmtree(store)


def main() -> None:
    tempfile.tempdir, prefix, *rest = sys.argv[1:]
    if rest[0].isdigit():
        walk(prefix, rest[0], itertools.count(int(rest[0]), int(rest[1])))
    else:
        walk(prefix, f"{os.getpid()}", rest)


if __name__ == "__main__":
    main()
