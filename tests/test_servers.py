"""The servers of the tests end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin_pipeline.store.objects import open_objects
from tests.servers import S3_ENVIRONMENT, make_s3_bucket, seaweedfs

SCRIPT = """
import time
from tests.servers import fake_gcs
with fake_gcs() as server:
    print(server.process.pid, flush=True)
    time.sleep(60)
"""


def test_a_server_ends_with_a_test_process_that_is_killed() -> None:
    root = Path(__file__).parents[1]
    started = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=root, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    server = int(started.stdout.readline())
    os.kill(server, 0)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    until = time.monotonic() + 60
    while time.monotonic() < until and _runs(server):
        time.sleep(0.02)
    assert not _runs(server)


def test_an_s3_server_takes_any_credentials_whatever_those_of_a_developer_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "developer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with seaweedfs(tmp_path) as server:
        make_s3_bucket(server, "bucket")
        for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        assert open_objects("s3://bucket/a").create("b", b"1")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
