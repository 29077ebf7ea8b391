"""Ctrl-C once: steps save what they can, leases are freed, exit 130. Twice: everything ends at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from marin_pipeline.run.history import all_runs, runs_of
from tests.faults.drivers import Scene, alive, workers_of
from tests.run.sessions import wait_until


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
