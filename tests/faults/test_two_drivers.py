"""Two drivers at one store: one runs, the other waits; one that was paused for too long cannot commit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marin_pipeline.run.driver import Session
from marin_pipeline.run.options import Options
from marin_pipeline.store.local_objects import LocalObjects
from tests.conftest import ROOT
from tests.faults.drivers import Scene, alive
from tests.faults.small_steps import chains
from tests.faults.truth import check
from tests.run.sessions import wait_until


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


def test_the_other_takes_over_at_once_from_a_driver_that_was_killed(
    shared_scene: Scene,
) -> None:
    scene = shared_scene
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


def test_a_driver_that_slept_through_its_lease_cannot_commit_and_ends_its_step_when_it_wakes(
    shared_scene: Scene,
) -> None:
    scene = shared_scene
    scene.seconds = "2"
    first = scene.start()
    paused, child = scene.at_gate("plain"), scene.at_gate("child")
    first.send_signal(signal.SIGSTOP)
    second = scene.start()
    scene.at_gate("plain", but=(paused,))
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: not alive(paused) and not alive(child))
    scene.open_gate()
    assert_the_second_has_won(scene, first, second)


def test_a_driver_that_runs_its_step_itself_and_slept_through_its_lease_cannot_commit(scene: Scene) -> None:
    scene.seconds = "2"
    first = scene.start("--backend", "inline")
    assert scene.at_gate("plain") == first.pid
    first.send_signal(signal.SIGSTOP)
    second = scene.start("--backend", "inline")
    scene.at_gate("plain", but=(first.pid,))
    first.send_signal(signal.SIGCONT)
    scene.open_gate()
    assert_the_second_has_won(scene, first, second)


def assert_the_second_has_won(scene: Scene, first: subprocess.Popen[str], second: subprocess.Popen[str]) -> None:
    (first_code, first_steps), (second_code, second_steps) = scene.finish(first), scene.finish(second)
    assert (first_code, second_code) == (0, 0)
    assert first_steps["plain"]["status"] == "cached"
    assert second_steps["plain"]["status"] == "done"
    (path,) = scene.only(r"/gated\.plain/.*/commits/")
    truth = check(scene.objects)
    (commit,) = [each for (id, _), each in truth.current.items() if id.endswith("gated.plain")]
    assert (path.rpartition("/")[2], commit.number, commit.fence) == ("1.json", 1, 2)
    assert truth.held == ()


def test_a_paused_worker_loses_nothing_since_its_driver_keeps_the_lease(scene: Scene) -> None:
    scene.seconds = "2"
    first = scene.start()
    worker = scene.at_gate("plain")
    os.kill(worker, signal.SIGSTOP)
    second = scene.start()
    scene.event(second, "wait")
    (lease,) = Path(scene.prefix, "steps").glob("**/gated.plain/*/lease.json")
    beat = json.loads(lease.read_text())["beat"]
    wait_until(lambda: json.loads(lease.read_text())["beat"] >= beat + 8)  # two lives of it
    os.kill(worker, signal.SIGCONT)
    scene.open_gate()
    (first_code, first_steps), (second_code, second_steps) = scene.finish(first), scene.finish(second)
    assert (first_code, second_code) == (0, 0)
    assert (first_steps["plain"]["status"], second_steps["plain"]["status"]) == ("done", "cached")
    (commit,) = Path(scene.prefix, "steps").glob("**/gated.plain/*/commits/1.json")
    assert json.loads(commit.read_text())["fence"] == 1


LIFE = 0.4
"""Seconds of a lease where a run is paused by itself."""


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Starts a run that pauses itself at a point, and waits until it has."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, point: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MARIN_LEASE_SECONDS": str(LIFE)}
        run = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "pausing.py"), str(tmp_path / "store"), kind, point],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(run)
        wait_until(lambda: run.poll() is not None or state_of(run.pid) == "T")
        assert run.poll() is None, run.communicate()
        return run

    yield start
    for run in started:
        run.kill()
        run.communicate()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def woken(run: subprocess.Popen[str]) -> str:
    """What came of the step in the middle, when the run has ended."""
    run.send_signal(signal.SIGCONT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    found = json.loads(out)
    assert found["ok"]
    return found["outcome"]


@pytest.mark.parametrize("kind", ["mapped", "noisy"])
@pytest.mark.parametrize(
    "point", ["after create manifest.json", "before create commits/1.json", "within write commits/1.json"]
)
def test_a_driver_that_is_paused_between_manifest_and_commit_does_not_undo_who_took_over(
    tmp_path: Path, paused: Callable[[str, str], subprocess.Popen[str]], kind: str, point: str
) -> None:
    """Before it looked at its lease, it gives up; after that, its commit comes second, and a difference is recorded."""
    run = paused(kind, point)
    options = Options(prefix=str(tmp_path / "store"), backend="inline", lease_life=LIFE)
    other = Session.open([chains()[kind]], options, "tests/other").run()
    assert other.ok
    (middle,) = [node for node in other.graph.nodes.values() if node.name == kind]
    assert other.settled[middle.key].outcome == "done"
    before = check(other.objects)
    assert woken(run) == "cached"
    after = check(other.objects)
    assert after.current == before.current
    assert before.current[middle.id, middle.key].fence == 2
    assert len(after.divergences) == (kind == "noisy" and "commits" in point)
    assert after.held == ()


@pytest.mark.parametrize("point", ["after create manifest.json", "before create commits/1.json"])
def test_a_driver_that_is_paused_for_long_commits_when_nobody_took_over(
    tmp_path: Path, paused: Callable[[str, str], subprocess.Popen[str]], point: str
) -> None:
    run = paused("mapped", point)
    time.sleep(2 * LIFE)
    assert woken(run) == "done"
    truth = check(LocalObjects(tmp_path / "store"))
    assert {commit.fence for commit in truth.current.values()} == {1}
    assert truth.held == ()
