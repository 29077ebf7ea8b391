"""Ctrl-C once: steps save what they can, leases are freed, exit 130. Twice: everything ends at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_pipeline.run.history import all_runs, runs_of
from tests.faults.drivers import Scene, alive, workers_of
from tests.faults.proxy import Line, line_to
from tests.run.sessions import wait_until
from tests.servers import Server
from tests.stores import environment_of, s3_prefix, s3_server, set_environment

__all__ = ["s3_prefix", "s3_server"]


def lease_owner(scene: Scene, name: str) -> object:
    (lease,) = Path(scene.prefix, "steps").glob(f"**/gated.{name}/*/lease.json")
    return json.loads(lease.read_text())["owner"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_that_listens_saves_its_work_and_the_rerun_goes_on_from_it(scene: Scene, number: int) -> None:
    scene.kind = "listening"
    driver = scene.start()
    scene.at_gate("listening")
    driver.send_signal(number)
    code, steps = scene.finish(driver)
    assert code == 130
    assert {name: step["status"] for name, step in steps.items()} == {"begin": "done", "listening": "blocked"}
    assert "stopped as asked" in steps["listening"]["message"]
    assert lease_owner(scene, "listening") is None
    scene.open_gate()
    code, steps = scene.finish(scene.start())
    assert code == 0
    assert (scene.gate / "made-part-0").read_text() == "x"
    assert {name: step["digest"] for name, step in steps.items()} == scene.undisturbed()


def test_a_step_that_does_not_listen_is_ended_with_its_children(scene: Scene) -> None:
    driver = scene.start()
    worker, child = scene.at_gate("plain"), scene.at_gate("child")
    driver.send_signal(signal.SIGINT)
    code, steps = scene.finish(driver)
    assert code == 130
    assert steps["plain"]["status"] == "blocked"
    assert not alive(worker)
    wait_until(lambda: not alive(child))
    assert lease_owner(scene, "plain") is None


def test_what_is_waited_for_and_what_was_stopped_is_told_and_recorded(scene: Scene, tmp_path: Path) -> None:
    scene.kind = "listening"
    driver = scene.start()
    scene.at_gate("listening")
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 130
    told = [line for line in err.splitlines() if line.startswith("stop")]
    assert told == [
        "stopping: waiting 120 s at most for listening to save what can be saved; a second Ctrl-C ends all at once",
        "stopped: listening; run the same command again to go on",
    ]
    steps = {step["name"]: step for step in json.loads(out.splitlines()[-1])["steps"]}
    assert steps["listening"]["message"].startswith("stopped")
    (experiment,) = {run.experiment for run in all_runs(scene.objects)}
    (run,) = runs_of(scene.objects, experiment)
    record = run.read(scene.objects)
    assert record is not None
    assert run.state(record) == "stopped"


def test_a_step_that_waits_for_its_shards_stops_and_finished_shards_are_kept(scene: Scene) -> None:
    scene.kind = "mapping"
    driver = scene.start()
    scene.at_gate("shard1")

    def finished() -> int:
        return len(list(Path(scene.prefix, "shards").rglob("record.json")))

    wait_until(lambda: finished() == 1)  # shard 0, which another worker may still be at
    driver.send_signal(signal.SIGINT)
    code, steps = scene.finish(driver)
    assert code == 130
    assert steps["mapping"]["status"] == "blocked"
    assert finished() == 1


def test_the_second_ctrl_c_ends_a_step_that_will_not_stop(scene: Scene) -> None:
    scene.kind = "listening"
    scene.gate.mkdir()
    (scene.gate / "stubborn").touch()
    driver = scene.start()
    worker = scene.at_gate("listening")
    processes = workers_of(driver.pid)
    driver.send_signal(signal.SIGINT)
    assert scene.at_gate("asked") == worker
    assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    code, _ = scene.finish(driver)
    assert code == 130
    assert not [process for process in processes if alive(process)]


def test_ctrl_c_on_inline_ends_a_step_that_does_not_listen(scene: Scene) -> None:
    driver = scene.start("--backend", "inline")
    scene.at_gate("plain")
    driver.send_signal(signal.SIGINT)
    code, steps = scene.finish(driver)
    assert code == 130
    assert steps["plain"]["status"] == "blocked"
    assert lease_owner(scene, "plain") is None


def test_ctrl_c_on_inline_reaches_a_step_that_listens(scene: Scene) -> None:
    scene.kind = "listening"
    driver = scene.start("--backend", "inline")
    scene.at_gate("listening")
    driver.send_signal(signal.SIGINT)
    code, steps = scene.finish(driver)
    assert code == 130
    assert "stopped as asked" in steps["listening"]["message"]


# While a store is silent ----------------------------------------------------------------------------------------------


@pytest.fixture
def line(s3_server: Server, s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with line_to(s3_server.url) as found:
        set_environment(monkeypatch, environment_of("s3", found.url))
        yield found
        found.silent = False


def ended(process: subprocess.Popen[str], *numbers: signal.Signals, within: float) -> str:
    """What a process says that is sent signals, a second apart, and ends with 130 in time."""
    try:
        for number in numbers:
            time.sleep(1.0)
            process.send_signal(number)
        begun = time.monotonic()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert time.monotonic() - begun < within, err
    return out + err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["ls"], ["verify"], ["pull", "--from", "PREFIX", "abcdef"]], ids=lambda each: each[0]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_command_whose_store_is_silent(
    line: Line, s3_prefix: str, tmp_path: Path, command: list[str], number: signal.Signals
) -> None:
    line.silent = True
    words = [s3_prefix if word == "PREFIX" else word for word in command]
    prefix = str(tmp_path / "store") if "PREFIX" in command else s3_prefix
    process = subprocess.Popen(
        [sys.executable, "-c", "from marin_pipeline.tool import main; main()", *words, "--prefix", prefix],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: line.sent)
    assert "error" not in ended(process, number, number, within=8.0)


@pytest.mark.slow
def test_a_first_one_gives_it_ten_seconds(line: Line, s3_prefix: str) -> None:
    line.silent = True
    process = subprocess.Popen(
        [sys.executable, "-c", "from marin_pipeline.tool import main; main()", "ls", "--prefix", s3_prefix],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: line.sent)
    assert ended(process, signal.SIGTERM, within=40.0) == "interrupted\n"


@pytest.mark.slow
def test_the_second_ctrl_c_ends_a_run_whose_store_is_silent(line: Line, scene: Scene, s3_prefix: str) -> None:
    scene.where = s3_prefix
    driver = scene.start()
    scene.at_gate("plain")
    processes = workers_of(driver.pid)
    line.silent = True
    ended(driver, signal.SIGINT, signal.SIGINT, within=9.0)
    wait_until(lambda: not [process for process in processes if alive(process)])


@pytest.mark.slow
def test_a_plan_that_a_silent_store_holds_up_ends_too(line: Line, scene: Scene, s3_prefix: str) -> None:
    scene.where = s3_prefix
    line.silent = True
    driver = scene.start()
    wait_until(lambda: line.sent)
    ended(driver, signal.SIGINT, signal.SIGINT, within=8.0)


def test_a_signal_to_a_forked_child_is_no_interruption_of_its_parent(tmp_path: Path) -> None:
    program = """
import os, signal, time
from marin_pipeline.cli import leave

def command():
    is_ready, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        os.write(tell, b"1")
        time.sleep(60)
    os.read(is_ready, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0
    raise LookupError("as it is")

leave(command)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert "LookupError: as it is" in done.stderr


def test_an_error_after_an_interruption_exits_as_interrupted() -> None:
    program = """
import os, signal, time
from marin_pipeline.cli import leave
from marin_pipeline.core.errors import StoreError

def command():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
    except KeyboardInterrupt:
        pass
    time.sleep(0.2)
    raise StoreError("no answer")

leave(command)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "error: no answer\n")
