"""What an attempt leaves to the next one: finished parts of files, each with the state that it is of.

A part is believed only if all parts before it are there and of the same state. So what is put together is what one
state of the place held, whoever wrote the parts, and in how many attempts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.data.remote.place import Place, State

if TYPE_CHECKING:
    from marin_pipeline.core.context import Work

PART = 64 * 2**20
"""Bytes of a part; the last one of a file may be shorter."""


class Kept:
    """The parts of all files of a step, in its `ctx.work`."""

    def __init__(self, work: Work, part: int = PART) -> None:
        self._work = work
        self._part = part
        self._there: dict[str, set[str]] = {}
        for item in work.items():
            self._there.setdefault(item.rpartition("-")[0], set()).add(item)

    def of(self, place: Place) -> KeptFile:
        """The parts of one file. Its name is no part of theirs: they are of what it is read from."""
        identity = json.dumps([place.identity, place.fixed, self._part])
        name = hashlib.sha256(identity.encode()).hexdigest()[:24]
        return KeptFile(self._work, set(self._there.get(name, ())), name, self._part)


class KeptFile:
    """The parts of one file."""

    def __init__(self, work: Work, there: set[str], name: str, part: int) -> None:
        self._work = work
        self._there = there
        self._name = name
        self.part = part
        """Bytes of a part."""

    def _item(self, index: int) -> str:
        return f"{self._name}-{index:06}"

    def found(self) -> tuple[State, list[Path]] | None:
        """The state and the files of the parts that an earlier attempt left, in order; None when there are none."""
        state: State | None = None
        files: list[Path] = []
        while self._item(len(files)) in self._there:
            try:
                folder = self._work.open(self._item(len(files)))
            except CorruptOutput:
                break
            tree = json.loads((folder / "state.json").read_text())
            of_part = State(tree["validator"], tree["size"], tree["facts"])
            if state is not None and not of_part.is_same(state):
                break
            state = of_part if state is None or state.size is None else state
            files.append(folder / "data")
            if (folder / "data").stat().st_size != self.part:
                break
        return None if state is None else (state, files)

    def writing(self, index: int, state: State) -> PartWriter:
        """Write a part in the place of one that may be there."""
        if self._item(index) in self._there:
            self._work.discard(self._item(index))
        self._there.add(self._item(index))
        return PartWriter(self._work, self._item(index), state)

    def forget(self) -> None:
        """No part counts any more."""
        for item in sorted(self._there):
            self._work.discard(item)
        self._there.clear()


class _Abandoned(Exception):
    """A part that is not finished is let go of."""


class PartWriter:
    """A part that is being written: it is there when `finish` has returned, and never if `abandon` was called."""

    def __init__(self, work: Work, item: str, state: State) -> None:
        self._writing = work.writing(item)
        folder = self._writing.__enter__()
        tree = {"validator": state.validator, "size": state.size, "facts": dict(state.facts)}
        (folder / "state.json").write_text(json.dumps(tree))
        self._file: BinaryIO = (folder / "data").open("wb")
        self.size = 0
        """Bytes so far."""

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        self.size += len(data)

    def finish(self) -> None:
        """Make the part known."""
        self._file.close()
        self._writing.__exit__(None, None, None)

    def abandon(self) -> None:
        """Forget the part."""
        self._file.close()
        with suppress(_Abandoned):
            self._writing.__exit__(_Abandoned, _Abandoned(), None)


def blocks_of(file: Path, block: int) -> Iterator[bytes]:
    """The bytes of a local file."""
    with file.open("rb") as opened:
        while data := opened.read(block):
            yield data
