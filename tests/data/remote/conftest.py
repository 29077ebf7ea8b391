"""A server, and what reads from it without a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from marin_pipeline.core.context import Work
from marin_pipeline.data.remote.http import HttpFile
from marin_pipeline.data.remote.kept import Kept
from marin_pipeline.data.remote.place import Place
from marin_pipeline.data.remote.transfer import Fetched, Patience, Watch, transfer
from marin_pipeline.run.context import test_context as context_over
from tests.faults.http_server import HttpServer, http_server

QUICK = Patience(tries=4, first_wait=0.001, longest_wait=0.002)


@pytest.fixture(scope="module")
def served() -> Iterator[HttpServer]:
    """One server for the tests of a module."""
    with http_server() as server:
        yield server


@pytest.fixture
def server(served: HttpServer, monkeypatch: pytest.MonkeyPatch) -> HttpServer:
    """A server without files."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    served.files.clear()
    served.asked.clear()
    served.answers.clear()
    return served


class Reader:
    """Reads files into a folder, with the parts of a step's work beside it."""

    def __init__(self, folder: Path, part: int = 100) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.work: Work = context_over(folder / "store").work
        self.part = part
        self.told: list[str] = []
        self.watch = Watch()

    @contextmanager
    def _opened(self) -> Iterator[IO[Any]]:
        target = self.folder / "file"
        try:
            with target.open("wb") as file:
                yield file
        except BaseException:
            target.unlink()
            raise

    def read(
        self,
        place: Place,
        expected: Mapping[str, str] | None = None,
        patience: Patience = QUICK,
        most: int | None = None,
    ) -> tuple[bytes, Fetched]:
        """The bytes, and how it came out."""
        fetched = transfer(
            place,
            {**place.digests, **(expected or {})},
            self._opened,
            Kept(self.work, self.part).of(place),
            patience=patience,
            watch=self.watch,
            most=most,
            log=self.told.append,
        )
        return (self.folder / "file").read_bytes(), fetched

    @property
    def left(self) -> list[str]:
        """Parts that an attempt left for the next one."""
        return [name.rpartition("-")[2] for name in self.work.items()]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def web(server: HttpServer, path: str = "/file", **options: Any) -> HttpFile:
    """A file of the server as a place."""
    return HttpFile(server.url + path, **{"stall": 5.0, **options})
