"""Stores on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.servers import Server, fake_gcs, make_gcs_bucket


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Server]:
    """fake-gcs-server, one for all tests."""
    with fake_gcs() as server:
        yield server


@pytest.fixture
def gcs_prefix(gcs_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, and a folder in it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    make_gcs_bucket(gcs_server, bucket)
    return f"gs://{bucket}/a/prefix"
