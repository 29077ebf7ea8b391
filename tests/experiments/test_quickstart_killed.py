"""The quick start, killed: whatever dies at whatever moment, the rerun ends with the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Program, environment

pytestmark = pytest.mark.slow

QUICKSTART = [str(ROOT / "experiments" / "quickstart.py"), "--json", "train.steps=30"]

Moment = Callable[[dict[str, Any]], bool]


def begins(name: str) -> Moment:
    return lambda event: event["event"] == "run" and event["name"] == name


def reaches(done: int) -> Moment:
    return lambda event: event["event"] == "progress" and event["name"] == "train" and event["done"] >= done


def workers_of(driver: int) -> list[int]:
    """Process ids of the living workers of a driver, oldest first: each was told whose it is."""
    found: list[tuple[int, int]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        is_worker = any(b"marin_pipeline.run.worker" in argument for argument in arguments)
        if fields[0] != "Z" and is_worker and str(driver).encode() in arguments:
            found.append((int(fields[19]), int(folder.name)))
    return [pid for _, pid in sorted(found)]


def trainer_of(driver: int, within: float = 120.0) -> int:
    """The worker that trains: what it prints goes to the log of the train step."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        for pid in workers_of(driver):
            try:
                printed = os.readlink(f"/proc/{pid}/fd/1")
            except OSError:
                continue
            if "/marin_pipeline/train/" in printed:
                return pid
    raise AssertionError("no worker trains")


def gone(driver: int, within: float = 60.0) -> bool:
    """Whether no worker of a driver lives, at the latest after some seconds."""
    deadline = time.monotonic() + within
    while workers_of(driver):
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


def start(prefix: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *QUICKSTART],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(prefix),
    )


def wait_for(driver: subprocess.Popen[str], moment: Moment) -> None:
    assert driver.stdout is not None
    for line in driver.stdout:
        if moment(json.loads(line)):
            return
    raise AssertionError("the run ended before the moment came")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Output digests of a run that nothing disturbed."""
    done = subprocess.run(
        [sys.executable, *QUICKSTART],
        capture_output=True,
        text=True,
        env=environment(tmp_path_factory.mktemp("undisturbed")),
        check=True,
    )
    return digests(json.loads(done.stdout.splitlines()[-1]))


def digests(summary: dict[str, Any]) -> dict[str, str]:
    assert summary["ok"], summary
    return {step["name"]: step["digest"] for step in summary["steps"]}


def test_two_undisturbed_runs_in_two_prefixes_agree(program: Program, undisturbed: dict[str, str]) -> None:
    again = program(QUICKSTART[0], *QUICKSTART[1:])
    assert digests(again.events[-1]) == undisturbed


@pytest.mark.parametrize(
    "moment", [begins("corpus"), begins("tokenizer"), reaches(15)], ids=["corpus", "tokenizer", "mid-training"]
)
def test_a_killed_driver_leaves_no_process_and_the_rerun_is_equal(
    program: Program, tmp_path: Path, undisturbed: dict[str, str], moment: Moment
) -> None:
    driver = start(tmp_path / "store")
    wait_for(driver, moment)
    driver.kill()
    driver.wait()
    assert gone(driver.pid)
    again = program(QUICKSTART[0], *QUICKSTART[1:], prefix=tmp_path / "store")
    assert digests(again.events[-1]) == undisturbed


@pytest.mark.parametrize("moment", [begins("train"), reaches(5), reaches(25)], ids=["begin", "early", "late"])
def test_a_killed_training_process_is_started_again_and_the_result_is_equal(
    tmp_path: Path, undisturbed: dict[str, str], moment: Moment
) -> None:
    driver = start(tmp_path / "store")
    wait_for(driver, moment)
    assert driver.stdout is not None
    os.kill(trainer_of(driver.pid), signal.SIGKILL)
    lines = driver.stdout.read().splitlines()
    assert driver.wait() == 0
    events = [json.loads(line) for line in lines]
    assert any(event["event"] == "retry" and event["name"] == "train" for event in events)
    assert digests(events[-1]) == undisturbed
    assert gone(driver.pid)
