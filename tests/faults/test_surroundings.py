"""What a step does to its process, and the processes that it leaves, end with it."""

from __future__ import annotations

import os
import signal

from tests.faults.disturbing_steps import dies_beside_a_child_that_lives, disturbs, leaves_a_daemon, sees
from tests.faults.drivers import alive
from tests.run.sessions import Bench, value


def test_what_a_step_does_to_its_process_does_not_reach_the_next_step(bench: Bench) -> None:
    before = sees()
    after = sees(after=disturbs(before=before))
    result = bench.run(after, max_parallel=1)
    assert result.ok
    # The process is among what they saw: it was the same one.
    assert result.bound(after.key).value == result.bound(before.key).value


def test_a_child_that_outlives_its_killed_worker_does_not_hang_the_driver(local: Bench) -> None:
    try:
        result = local.run(dies_beside_a_child_that_lives())
        child = int((local.counts / "child").read_text())
        assert result.ok
        assert alive(child), "the child that held the line open has ended too early to show anything"
    finally:
        if (local.counts / "child").exists():
            os.kill(int((local.counts / "child").read_text()), signal.SIGKILL)
    assert [notice.verb for notice in local.notices].count("retry") == 1


def test_a_daemon_that_a_step_starts_is_gone_when_the_run_has_ended(local: Bench) -> None:
    result = local.run(leaves_a_daemon())
    assert not alive(value(result, "leaves_a_daemon"))
