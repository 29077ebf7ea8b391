"""A store and a count of what ran, for the tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.sessions import Bench


@pytest.fixture(params=["inline", "local"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs on both backends."""
    return Bench.at(tmp_path, request.param, monkeypatch)


@pytest.fixture
def inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs in this process."""
    return Bench.at(tmp_path, "inline", monkeypatch)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs in worker processes."""
    return Bench.at(tmp_path, "local", monkeypatch)


@pytest.fixture
def in_each_store(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs in this process, with each kind of store."""
    bench = Bench.at(tmp_path, "inline", monkeypatch)
    bench.url = prefix
    return bench
