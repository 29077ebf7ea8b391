"""Files of an output that are written straight to the store, hashed as they go, and lie on no disk before that.

A stream is part of the output when its block has ended without an error, whole; else nothing of it is left.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TextIO

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.paths import relative_path
from marin_pipeline.store.guard import guarded
from marin_pipeline.store.manifest import VALUE, refuse_link
from marin_pipeline.store.objects import ObjectStore, ObjectWriter, Written

BUFFER = 2**20
"""Bytes that are gathered before they are handed on: libraries write a few bytes at a time."""


@dataclass(frozen=True)
class _Streamed:
    """A file that was streamed."""

    written: Written
    stamp: tuple[int, ...] | None
    """Of the file that it has become in the output's folder; None where the store is elsewhere."""


class Streams:
    """The streams of one output."""

    def __init__(self, objects: ObjectStore, path: str, folder: Path) -> None:
        self._objects = objects
        self._path = path
        self._folder = folder
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._lost: set[str] = set()
        """Names of streams that were thrown away in the middle of their block."""
        self._done: dict[str, _Streamed] = {}

    @contextmanager
    def writing(self, name: str, mode: str = "wb") -> Iterator[Any]:
        """A file object to write in; with mode `w` it takes text, which is written in UTF-8.

        Raises:
            DeclarationError, InputError: for a name that is taken, or that no file of an output can have.
        """
        name = self._begun(name)
        done = None
        try:
            raw = _Raw(guarded(self._objects.writer(f"{self._path}/{name}"), name))
            file = None
            try:
                file = _opened(raw, mode)
                yield file
                file.close()
                self._refuse_written(name)
                self._refuse_links(name)
                done = _Streamed(raw.finish(), self._stamp(name))
            except GeneratorExit:  # nobody holds the block any more, which was never left
                _thrown_away(raw, file)
                with self._lock:
                    self._lost.add(name)
                raise
            except BaseException:
                _thrown_away(raw, file)
                raise
        finally:
            with self._lock:
                self._open.discard(name)
                if done is not None:
                    self._done[name] = done

    def finished(self) -> dict[str, Written]:
        """What was streamed, by name.

        Raises:
            InputError: when a stream was begun and not ended, or a file was also written under its name.
        """
        with self._lock:
            not_ended = self._open | (self._lost - self._done.keys())
            if not_ended:
                name = min(not_ended)
                raise InputError(
                    f"the stream {name!r} was begun and not ended, so that it is no file of the output; write it in a "
                    f"block (`with ctx.stream({name!r}) as file:`), and leave that before the step ends"
                )
            for name, each in self._done.items():
                if self._stamp(name) != each.stamp:
                    raise self._written_too(name)
            return {name: each.written for name, each in self._done.items()}

    def _begun(self, name: str) -> str:
        name = relative_path(name)
        if name == VALUE:
            raise InputError(f"the output {VALUE!r} is kept for the returned value; use another name")
        with self._lock:
            if name in self._open or name in self._done:
                raise InputError(f"the output {name!r} is streamed already; use another name")
            self._refuse_written(name)
            self._refuse_links(name)
            self._open.add(name)
        return name

    def _stamp(self, name: str) -> tuple[int, ...] | None:
        """What tells whether a file was touched: None where there is none."""
        try:
            found = os.lstat(self._folder / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _refuse_links(self, name: str) -> None:
        """See that nothing on the way to a file leads elsewhere: what is streamed would lie outside of the store."""
        refuse_link(self._folder)
        for above in (self._folder / each for each in PurePosixPath(name).parents):
            if above.is_symlink():
                raise InputError(
                    f"the output {name!r} cannot be streamed: {above} is a link; leave a folder there, or none"
                )

    def _refuse_written(self, name: str) -> None:
        if self._stamp(name) is not None:
            raise self._written_too(name)

    def _written_too(self, name: str) -> InputError:
        return InputError(f"the output {name!r} was streamed, and is written to ctx.out too; use two names")


def _opened(raw: _Raw, mode: str) -> BinaryIO | TextIO:
    if mode not in ("wb", "w"):
        raise InputError(f"a stream is written from beginning to end: its mode is 'wb', or 'w' for text, not {mode!r}")
    file = io.BufferedWriter(raw, BUFFER)
    return file if mode == "wb" else io.TextIOWrapper(file, encoding="utf-8", newline="")


def _thrown_away(raw: _Raw, file: BinaryIO | TextIO | None) -> None:
    """Leave nothing of a stream, and let nobody write on, whatever part of the file was kept."""
    raw.abort()
    with suppress(OSError, ValueError):  # what was buffered goes nowhere
        if file is not None:
            file.close()
    raw.close()


class _Raw(io.RawIOBase):
    """A writer as a file. That a library closes it does no harm: the block of the stream decides what becomes of it."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._size = 0
        self._aborted = False
        self._error: BaseException | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self.closed:
            raise ValueError("write to a closed stream: its block has ended, or it was closed")
        if self._aborted:  # what was buffered when the block failed
            return size
        self._refuse_broken()
        try:
            self._writer.write(data)
        except BaseException as error:
            self._error = error
            raise
        self._size += size
        return size

    def finish(self) -> Written:
        """Make the object."""
        self._refuse_broken()
        return self._writer.close()

    def abort(self) -> None:
        """Leave nothing of it."""
        self._aborted = True
        self._writer.abort()

    def _refuse_broken(self) -> None:
        """Raise what a write has raised: what follows it would lie in the wrong place."""
        if self._error is not None:
            raise self._error
