"""Two drivers at one store: one runs, the other waits; one that was paused for too long cannot commit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.faults.drivers import Scene, alive
from tests.run.sessions import wait_until


def commits(scene: Scene, name: str) -> list[str]:
    return sorted(file.name for file in Path(scene.prefix, "steps").glob(f"**/gated.{name}/*/commits/*"))


def test_one_runs_and_the_other_waits_and_counts_it_as_cached(scene: Scene) -> None:
    first = scene.start()
    scene.at_gate("plain")
    second = scene.start()
    wait = scene.event(second, "wait")
    assert wait["name"] == "plain"
    assert f"process {first.pid}" in wait["text"]
    scene.open_gate()
    (first_code, first_steps), (second_code, second_steps) = scene.finish(first), scene.finish(second)
    assert (first_code, second_code) == (0, 0)
    assert first_steps["plain"]["status"] == "done"
    assert second_steps["plain"]["status"] == "cached"
    assert first_steps["plain"]["digest"] == second_steps["plain"]["digest"]
    assert len(list(scene.gate.glob("plain-*"))) == 1


def test_the_other_takes_over_at_once_from_a_driver_that_was_killed(scene: Scene) -> None:
    first = scene.start()
    worker = scene.at_gate("plain")
    second = scene.start()
    scene.event(second, "wait")
    first.kill()
    first.wait()
    scene.at_gate("plain", but=(worker,))
    scene.open_gate()
    code, steps = scene.finish(second)
    assert code == 0
    assert steps["plain"]["status"] == "done"


def test_a_driver_that_slept_through_its_lease_cannot_commit_and_ends_its_step_when_it_wakes(scene: Scene) -> None:
    scene.seconds = "1"
    first = scene.start()
    paused = scene.at_gate("plain")
    first.send_signal(signal.SIGSTOP)
    second = scene.start()
    scene.at_gate("plain", but=(paused,))
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: not alive(paused))
    scene.open_gate()
    (first_code, first_steps), (second_code, second_steps) = scene.finish(first), scene.finish(second)
    assert (first_code, second_code) == (0, 0)
    assert first_steps["plain"]["status"] == "cached"
    assert second_steps["plain"]["status"] == "done"
    assert commits(scene, "plain") == ["1.json"]
    (commit,) = Path(scene.prefix, "steps").glob("**/gated.plain/*/commits/1.json")
    assert json.loads(commit.read_text())["fence"] == 2
