"""Kill anything at any moment; run it again; the bytes are equal, and no process is left."""

from __future__ import annotations

import os
import signal

from tests.faults.drivers import Scene, alive, workers_of
from tests.run.sessions import wait_until


def test_a_killed_driver_leaves_no_process_and_the_rerun_makes_equal_bytes(scene: Scene) -> None:
    driver = scene.start()
    worker, child = scene.at_gate("plain"), scene.at_gate("child")
    processes = {worker, child, *workers_of(driver.pid)}
    driver.kill()
    for process in processes:
        wait_until(lambda: not alive(process))  # noqa: B023 - waited for before the next one
    scene.open_gate()
    code, steps = scene.finish(scene.start())
    assert code == 0
    assert {name: step["status"] for name, step in steps.items()} == {"begin": "cached", "plain": "done"}
    assert {name: step["digest"] for name, step in steps.items()} == scene.undisturbed()


def test_a_killed_worker_is_replaced_and_the_bytes_are_equal(scene: Scene) -> None:
    driver = scene.start()
    worker, child = scene.at_gate("plain"), scene.at_gate("child")
    os.kill(worker, signal.SIGKILL)
    assert "killed by SIGKILL" in scene.event(driver, "retry")["text"]
    wait_until(lambda: not alive(child))
    scene.at_gate("plain", but=(worker,))
    scene.open_gate()
    code, steps = scene.finish(driver)
    assert code == 0
    assert {name: step["digest"] for name, step in steps.items()} == scene.undisturbed()


def test_a_killed_shard_worker_is_replaced_and_the_bytes_are_equal(scene: Scene) -> None:
    scene.kind = "mapping"
    driver = scene.start()
    worker = scene.at_gate("shard1")
    os.kill(worker, signal.SIGKILL)
    scene.at_gate("shard1", but=(worker,))
    scene.open_gate()
    code, steps = scene.finish(driver)
    assert code == 0
    assert {name: step["digest"] for name, step in steps.items()} == scene.undisturbed()


def test_a_killed_resumable_step_goes_on_from_its_finished_parts(scene: Scene) -> None:
    scene.kind = "listening"
    driver = scene.start()
    scene.at_gate("listening")
    driver.kill()
    driver.wait()
    scene.open_gate()
    code, steps = scene.finish(scene.start())
    assert code == 0
    assert (scene.gate / "made-part-0").read_text() == "x"
    assert {name: step["digest"] for name, step in steps.items()} == scene.undisturbed()


def test_a_driver_killed_while_a_step_is_asked_has_started_nothing_and_the_rerun_asks_again(scene: Scene) -> None:
    scene.kind = "asked"
    driver = scene.start()
    assert scene.at_gate("asking") == driver.pid
    driver.kill()
    driver.wait()
    assert not scene.only("asked/.*/(attempts|commits|failures)/")
    again = scene.start()
    assert scene.at_gate("asking", but=(driver.pid,)) == again.pid
    scene.open_gate()
    code, steps = scene.finish(again)
    assert code == 0
    assert {name: step["status"] for name, step in steps.items()} == {"begin": "cached", "asked": "done"}
    assert {name: step["digest"] for name, step in steps.items()} == scene.undisturbed()


def test_a_driver_killed_while_a_forced_step_is_asked_has_ended_nothing(scene: Scene) -> None:
    scene.kind = "asked"
    scene.gate.mkdir()
    scene.open_gate()
    first = scene.start()
    assert scene.finish(first)[0] == 0
    (scene.gate / "open").unlink()
    forced = scene.start("--force", "asked")
    scene.at_gate("asking", but=(first.pid,))
    forced.kill()
    forced.wait()
    code, steps = scene.finish(scene.start())
    assert code == 0
    assert {step["status"] for step in steps.values()} == {"cached"}
