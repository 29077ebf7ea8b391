"""Files of this machine, as places like any other: copied, with no parts kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.kept import blocks_of
from marin_pipeline.data.remote.place import BLOCK, Broken, Reply, State


class LocalCopy:
    """A file that is copied."""

    def __init__(self, path: Path, shown: str) -> None:
        self.shown = shown
        self.identity = str(path)
        self.digests: Mapping[str, str] = {}
        self.size: int | None = None
        self.fixed = ""
        self._path = path

    def open(self, start: int, state: State | None) -> Reply:
        try:
            if not self._path.is_file():
                problem = "is no file" if self._path.exists() else "is not there"
                raise InputError(f"{self.shown}: {problem}; check the path, on the machine that runs the step")
            return _Copy(self._path)
        except OSError as error:
            raise InputError(f"{self.shown}: cannot be read ({error.strerror or error}); check the path") from error


class _Copy:
    """A file that is being read."""

    start = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._now()
        self.state = State("", self._stamp[0])

    def _now(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_size, found.st_mtime_ns

    def blocks(self) -> Iterator[bytes]:
        try:
            yield from blocks_of(self._path, BLOCK)
            changed = self._now() != self._stamp
        except OSError as error:
            raise Broken(f"cannot be read ({error.strerror or error})") from error
        if changed:
            raise Broken("was written while it was read")

    def interrupt(self) -> None:
        """A disk answers."""

    def close(self) -> None:
        """What is open is closed with its blocks."""
