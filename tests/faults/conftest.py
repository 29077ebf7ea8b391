"""The same store and count as the tests of the engine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.drivers import Scene
from tests.run.conftest import bench, inline, local

__all__ = ["bench", "inline", "local"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A store, a gate, and drivers that are ended with the test."""
    found = Scene(tmp_path)
    yield found
    found.close()


@pytest.fixture
def shared_scene(tmp_path: Path, shared_prefix: str) -> Iterator[Scene]:
    """The same in each store that several processes see, one after the other."""
    found = Scene(tmp_path, where=shared_prefix)
    yield found
    found.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a store that does not answer, and scratch lies in memory where that is a folder."""
    monkeypatch.setattr("marin_pipeline.store.objects.WAITS", (0, 0, 0))
    monkeypatch.setattr("marin_pipeline.run.scheduler.PATIENCE", (0, 0, 0, 0))
    if os.access("/dev/shm", os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
