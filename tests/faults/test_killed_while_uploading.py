"""`kill -9` while a file is on its way into a bucket, in parts: nothing of it is believed, and the rerun makes equal
bytes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline.run.driver import Options, Session
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests import servers
from tests.faults import uploading
from tests.faults.drivers import workers_of
from tests.faults.proxy import Line, line_to
from tests.faults.truth import check
from tests.servers import Server
from tests.stores import BUCKET, environment_of, new_prefix

UPLOADING = Path(__file__).parent / "uploading.py"
MIB = 2**20


@dataclass
class Uploads:
    """A store behind a line that can be held up."""

    kind: str
    prefix: str
    server: Server
    line: Line
    gate: Path

    @property
    def objects(self) -> ObjectStore:
        """The store, by a line of its own."""
        return open_objects(self.prefix)

    def start(self, url: str, *arguments: str) -> subprocess.Popen[str]:
        """A run that reaches the server at `url`."""
        self.gate.mkdir(exist_ok=True)
        known = {"MARIN_PREFIX": self.prefix, "MARIN_TEST_GATE": str(self.gate)}
        return subprocess.Popen(
            [sys.executable, str(UPLOADING), "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment_of(self.kind, url), **known},
        )

    def finish(self, run: subprocess.Popen[str]) -> list[dict[str, Any]]:
        """The events of a run that comes out well."""
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, (out, err)
        return [json.loads(line) for line in out.splitlines()]

    def believed(self) -> dict[str, str]:
        """Output digest of what counts, by step, every byte of it hashed."""
        return {id: commit.output for (id, _), commit in check(self.objects).current.items()}

    def unfinished(self) -> int:
        """Uploads in parts that were begun and not finished, where the server tells."""
        if self.kind == "gs":
            return 0
        below = self.prefix.rpartition("/")[2]
        return servers.answered(self.server.url, f"/{BUCKET}?uploads&prefix={below}").count(b"<Upload>")


@pytest.fixture(params=["gs", "s3"])
def uploads(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Uploads]:
    prefix = new_prefix(request, request.param)
    server: Server = request.getfixturevalue(f"{request.param}_server")
    with line_to(server.url) as line:
        yield Uploads(request.param, prefix, server, line, tmp_path / "gate")


def undisturbed(folder: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a run makes that nothing disturbs, in a folder."""
    folder.mkdir()
    monkeypatch.setenv("MARIN_TEST_GATE", str(folder))
    prefix = str(folder / "store")
    options = Options(prefix=prefix, backend="inline")
    assert Session.open([uploading.build(streamed)], options, "tests/uploading").run().ok
    return {id: commit.output for (id, _), commit in check(open_objects(prefix)).current.items()}


@pytest.mark.parametrize(
    ("victim", "arguments"),
    [
        pytest.param("driver", [], id="driver"),
        pytest.param("worker", ["--streamed", "true"], id="worker that streams", marks=pytest.mark.slow),
        pytest.param("worker", [], id="worker", marks=pytest.mark.slow),
        pytest.param("driver", ["--streamed", "true"], id="driver of a stream", marks=pytest.mark.slow),
    ],
)
def test_killed_during_an_upload_in_parts_nothing_is_believed_and_the_rerun_makes_equal_bytes(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, arguments: list[str]
) -> None:
    uploads.line.hold_after = (70 if arguments else 30) * MIB
    run = uploads.start(uploads.line.url, *arguments)
    try:
        uploads.line.wait_until_held()
        assert uploads.line.sent < uploads.line.hold_after + 20 * MIB
        assert uploads.kind == "gs" or uploads.unfinished() == 1
        assert uploads.believed() == {}
        assert not any(info.path.endswith("/large.bin") for info in uploads.objects.list("steps"))
        (mark,) = uploads.gate.iterdir()
        worker = int(mark.name.removeprefix("pid-"))
        assert worker in workers_of(run.pid)
        if victim == "worker":
            os.kill(worker, signal.SIGKILL)
            uploads.line.release()
            events = uploads.finish(run)
            assert any(event["event"] == "retry" and "killed by SIGKILL" in event["text"] for event in events)
        else:
            run.kill()
            run.communicate()
            uploads.line.release()
            assert uploads.believed() == {}
            uploads.finish(uploads.start(uploads.server.url, *arguments))
    finally:
        run.kill()
        run.communicate()
    # What the killed upload had sent is kept by S3 until a rule of the bucket removes it, and belongs to no object.
    assert uploads.unfinished() == (uploads.kind == "s3")
    assert uploads.believed() == undisturbed(tmp_path / "undisturbed", bool(arguments), monkeypatch)
