"""Prefixes in each kind of store, on real servers: `gs://` and `s3://` are those of a server on the loopback, which
starts with the first test that asks for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests import servers
from tests.servers import Server

BUCKET = "marin-test"

AWS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION")
"""What a developer may have set, and the tests do without."""


def s3_environment(url: str) -> dict[str, str]:
    """What a process needs to reach an S3 server."""
    return {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url}


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Make a server known to this process and those that it starts."""
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def prefix_of(scheme: str) -> str:
    """A prefix that nobody else has."""
    return f"{scheme}://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SeaweedFS with the bucket of the tests."""
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        servers.make_s3_bucket(server, BUCKET)
        yield server


@pytest.fixture
def s3_prefix(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix of the S3 server, which the test's processes know how to reach."""
    set_environment(monkeypatch, s3_environment(s3_server.url))
    return prefix_of("s3")
