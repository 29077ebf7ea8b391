"""The same store and count as the tests of the engine."""

from __future__ import annotations

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
