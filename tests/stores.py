"""Prefixes in each kind of store, on real servers: `gs://` and `s3://` are those of a server on the loopback, which
starts with the first test that asks for it. And counts of what was tested on which store, for the end of a test run.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.servers import Server

STORES = ("local", "memory", "gs", "s3")
SHARED = ("local", "gs", "s3")
"""Those that several processes see."""

BUCKET = "marin-test"

FOREIGN = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL_S3",
    "AWS_DEFAULT_REGION",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
"""What a developer may have set, and the tests do without."""


def environment_of(kind: str, url: str) -> dict[str, str]:
    """What a process needs to reach a server.

    Args:
        url: `http://127.0.0.1:PORT`.
    """
    if kind == "gs":
        return {"STORAGE_EMULATOR_HOST": url}
    return {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url}


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Make a server known to this process and those that it starts."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SeaweedFS with the bucket of the tests."""
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        servers.make_s3_bucket(server, BUCKET)
        yield server


@pytest.fixture(scope="session")
def gs_server() -> Iterator[Server]:
    """fake-gcs-server with the bucket of the tests."""
    with servers.fake_gcs() as server:
        servers.make_gcs_bucket(server, BUCKET)
        yield server


def new_prefix(request: pytest.FixtureRequest, kind: str) -> str:
    """An empty prefix of a kind of store, which the test's processes know how to reach; the test counts for it."""
    counts_for(request, kind)
    if kind == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if kind == "local":
        folder: Path = request.getfixturevalue("tmp_path")
        return str(folder / f"store-{uuid.uuid4().hex[:8]}")
    server: Server = request.getfixturevalue(f"{kind}_server")
    set_environment(request.getfixturevalue("monkeypatch"), environment_of(kind, server.url))
    return f"{kind}://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def gs_prefix(request: pytest.FixtureRequest) -> str:
    """An empty prefix of the GCS server."""
    return new_prefix(request, "gs")


@pytest.fixture
def s3_prefix(request: pytest.FixtureRequest) -> str:
    """An empty prefix of the S3 server."""
    return new_prefix(request, "s3")


@pytest.fixture(params=STORES)
def prefix(request: pytest.FixtureRequest) -> str:
    """An empty prefix of each store, one after the other."""
    return new_prefix(request, request.param)


@pytest.fixture(params=SHARED)
def shared_prefix(request: pytest.FixtureRequest) -> str:
    """An empty prefix of each store that several processes see, one after the other."""
    return new_prefix(request, request.param)


# Counts ---------------------------------------------------------------------------------------------------------------


def counts_for(request: pytest.FixtureRequest, kind: str, cases: int = 1, what: str = "") -> None:
    """Count a test, if it passes, for a store: as one case, or as many as it says the last time."""
    node = request.node
    what = what or getattr(node.cls, "suite", "") or Path(node.path).stem.removeprefix("test_")
    node.user_properties[:] = [each for each in node.user_properties if each[:1] != ("store",)]
    node.user_properties.append(("store", (what, kind, cases)))


def counted(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """Lines of a table: what passed, by suite and by store."""
    table: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        for name, value in report.user_properties:
            if name == "store":
                suite, kind, cases = value  # pyright: ignore[reportGeneralTypeIssues] - as `counts_for` wrote it
                table[suite][kind] += cases
    for suite, counts in sorted(table.items()):
        yield f"{suite}: " + ", ".join(f"{kind} {counts[kind]}" for kind in STORES if counts[kind])
