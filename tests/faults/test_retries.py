"""What the machine did to an attempt is tried again and counted by its class; what the step did is not, unless asked.
Each failed attempt is recorded, and none harms the next run.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Resources
from marin_pipeline.run.backends.local import LocalBackend
from marin_pipeline.run.outcome import Notice
from tests.faults.failing_steps import catches, maps, tries, writes
from tests.faults.faulty_objects import FaultyObjects, nth
from tests.run.sample_steps import fails, number, squares
from tests.run.sessions import Bench, digests, failure, outcomes, step_folder


def trying(*ways: str, **limits: Any) -> Artifact[int]:
    return tries(seed=1, ways=list(ways)).using(Resources(**limits))


def recorded(bench: Bench, target: Artifact[Any]) -> list[str]:
    """Classes of the failed attempts, in their order."""
    files = sorted((step_folder(bench, target) / "failures").glob("*.json"))
    records = [json.loads(file.read_text()) for file in files]
    assert [file.stem for file in files] == [record["attempt"] for record in records]
    return sorted(record["kind"] for record in records)


def tried(bench: Bench, name: str = "tries") -> int:
    return len((bench.counts / name).read_text())


def retries(bench: Bench) -> list[str]:
    return [notice.text for notice in bench.notices if notice.verb == "retry"]


def test_kills_and_preemptions_are_counted_apart(local: Bench) -> None:
    target = trying("killed", "preempted", "preempted", retries=1, preemptions=2)
    assert local.run(target).ok
    assert tried(local) == 4
    assert recorded(local, target) == ["infrastructure", "preempted", "preempted"]
    first, second, _ = retries(local)
    assert "killed by SIGKILL" in first
    assert "ended by SIGTERM" in second


@pytest.mark.parametrize(
    ("way", "kind", "limits"),
    [
        ("killed", "infrastructure", {"retries": 1, "preemptions": 9}),
        ("preempted", "preempted", {"retries": 9, "preemptions": 1}),
    ],
)
def test_more_than_its_own_limit_fails_the_step_and_the_next_run_makes_it(
    local: Bench, way: str, kind: str, limits: dict[str, int]
) -> None:
    target = trying(way, way, **limits)
    result = local.run(target)
    assert outcomes(result) == {"tries": "failed"}
    assert tried(local) == 2
    assert recorded(local, target) == [kind, kind]
    assert result.failures[0][1].kind == kind
    assert "(attempt 2)" in failure(result)
    assert "failed before" in local.reasons(target)["tries"]
    assert local.run(target).ok
    assert recorded(local, target) == [kind, kind]


@pytest.mark.parametrize("way", ["user", "memory"])
def test_what_the_step_did_is_tried_again_only_if_asked(inline: Bench, way: str) -> None:
    result = inline.run(trying(way))
    assert outcomes(result) == {"tries": "failed"}
    assert tried(inline) == 1
    assert recorded(inline, trying()) == [way]
    (inline.counts / "tries").unlink()
    assert inline.run(trying(way, way, user_retries=2)).ok
    assert tried(inline) == 3
    assert recorded(inline, trying()) == [way] * 3
    assert result.failures[0][1].kind == way


def test_what_fails_when_nothing_is_started_any_more_is_not_tried_again(local: Bench) -> None:
    def notify(notice: Notice) -> None:
        local.notices.append(notice)
        if notice.verb == "fail":
            (local.counts / "after").touch()

    targets = [fails(word="x"), trying("late", retries=2)]
    result = local.session(targets, fail_fast=True, max_parallel=2).run(notify)
    assert outcomes(result) == {"fails": "failed", "tries": "failed"}
    assert tried(local) == 1
    assert not retries(local)


def test_a_silent_store_does_not_use_up_what_the_user_asked_for(inline: Bench) -> None:
    assert inline.run(trying("silent", "user", "silent", retries=2, user_retries=1)).ok
    assert recorded(inline, trying()) == ["infrastructure", "infrastructure", "user"]


def test_a_failed_attempt_leaves_nothing_that_the_next_run_believes(inline: Bench, tmp_path: Path) -> None:
    assert not inline.run(trying("user")).ok
    assert not (step_folder(inline, trying()) / "commits").exists()
    again = inline.run(trying())
    assert again.artifacts["tries"].files == ["half"]
    assert (again.artifacts["tries"] / "half").read_text() == "whole"
    other = Bench(tmp_path / "other", inline.counts, "inline")
    assert digests(other.run(trying())) == digests(again)


def test_a_preempted_shard_does_not_count_as_a_broken_one(local: Bench) -> None:
    target = maps(seed=1, ways=["preempted", "killed", "preempted", "killed"])
    assert local.run(target, max_parallel=2).ok
    assert tried(local, "shard") == 5


def test_a_step_that_has_caught_a_failed_map_waits_for_none_of_its_shards(
    local: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Any = getattr(LocalBackend, "_answer")  # noqa: B009
    waited_for: list[int] = []

    def seen(self: LocalBackend, shard: Any, failed: Any) -> None:
        answer(self, shard, failed)
        waited_for.append(shard.owner.waiting)

    monkeypatch.setattr(LocalBackend, "_answer", seen)
    assert local.run(catches(seed=1)).ok
    assert waited_for == [0, 0]


def test_a_worker_that_the_machine_has_no_room_for_is_tried_again_and_ends_no_run(
    local: Bench, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, calls = subprocess.Popen, itertools.count()
    refused = {0, 2, 4}  # what watches the workers, that of the step, and one for a shard

    def start_some(command: list[str], **options: Any) -> Any:
        if command[0] in (sys.executable, "/bin/sh") and next(calls) in refused:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(command, **options)

    monkeypatch.setattr("marin_pipeline.run.backends.local.subprocess.Popen", start_some)
    before = os.listdir("/proc/self/fd")
    assert local.run(squares(numbers=[1, 2]).using(Resources(retries=3))).ok
    assert recorded(local, squares(numbers=[1, 2])) == ["infrastructure"] * 3
    assert "could not be started (Resource temporarily unavailable); end other programs" in retries(local)[0]
    refused.update(range(1000))
    assert "a worker process could not be started" in failure(local.run(number(value=3)))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_killed_shard_leaves_nothing_that_its_retry_believes(local: Bench, tmp_path: Path) -> None:
    killed = local.run(writes(seed=1, ways=["killed"]))
    assert tried(local, "writing") == 2
    assert killed.artifacts["writes"].files == ["rows.txt", "streamed.txt"]
    other = Bench(tmp_path / "other", local.counts, "local")
    assert digests(other.run(writes(seed=1, ways=[]))) == digests(killed)


def test_a_store_that_is_silent_after_many_attempts_is_waited_for(quick: None, inline: Bench) -> None:
    """There are fewer waits than there may be attempts of other classes before."""
    target = trying(*["user"] * 9, user_retries=9)
    looks = inline.session(target).looks()
    inline.wrap = lambda objects: FaultyObjects(objects, nth("read", "commits/1.json", "before", number=10))
    assert inline.session(target).run(inline.notices.append, looks).ok
    assert tried(inline) == 10
    assert "does not answer" in retries(inline)[-1]
