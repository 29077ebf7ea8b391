"""A process that is killed in the middle of a large file: the next one asks for the rest only, the bytes are equal."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from marin_pipeline.data.remote.kept import PART
from tests.faults.drivers import Scene, alive, workers_of
from tests.faults.http_server import Act, http_server
from tests.run.sessions import wait_until

PROGRAM = """
from marin_pipeline import main
from steps.download import Source, download

if __name__ == "__main__":
    main(download(Source({url!r}, sha256={sha256!r})))
"""


@pytest.mark.parametrize("whom", ["workers", "driver"])
def test_a_killed_download_goes_on_by_range(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whom: str
) -> None:
    data = hashlib.shake_256(b"bytes").digest(2**20) * (2 * PART // 2**20 + 5)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http_server() as server:
        server.serve("/large.bin", data, Act(holds=2 * PART + 2**20))
        program = tmp_path / "program.py"
        sha256 = hashlib.sha256(data).hexdigest()
        program.write_text(PROGRAM.format(url=f"{server.url}/large.bin", sha256=sha256))
        driver = scene.start_program(program)
        wait_until(lambda: len(list(Path(scene.prefix).rglob("work/*/*/record.json"))) == 2)
        workers = workers_of(driver.pid)
        if whom == "workers":
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
        else:
            driver.kill()
            driver.wait()
            wait_until(lambda: not any(map(alive, workers)))
            driver = scene.start_program(program)
        code, steps = scene.finish(driver)
        assert code == 0
        assert [(each.range, each.headers.get("If-Range")) for each in server.asked] == [
            ("", None),
            (f"bytes={2 * PART}-", '"1"'),
        ]
        (file,) = Path(steps["download"]["path"]).rglob("large.bin")
        assert file.read_bytes() == data
        assert not list(Path(scene.prefix).rglob("work/*/*/record.json"))
