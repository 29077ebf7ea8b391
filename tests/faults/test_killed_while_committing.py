"""A driver that is killed at any point of its conversation with the store leaves one whose every statement is true, and
the rerun makes equal bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT

DYING = Path(__file__).parent / "dying.py"
AT_ONCE = 2
"""Walks at the same time, each of every second point."""


@pytest.fixture(scope="module")
def points() -> list[tuple[int, str]]:
    """Every point at which a run was killed, in order, the rerun's bytes compared; number and where it was."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MARIN_TEST_COUNTS", None)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        walks = [
            subprocess.Popen(
                [sys.executable, str(DYING), folder, str(first), str(AT_ONCE)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for first in range(1, AT_ONCE + 1)
        ]
        outputs = [walk.communicate(timeout=300) for walk in walks]
    for walk, (_, error) in zip(walks, outputs, strict=True):
        assert walk.returncode == 0, error
    found = [json.loads(line) for output, _ in outputs for line in output.splitlines()]
    for each in found:
        assert not each["wrong"], f"killed {each['where']}:\n{each['wrong']}"
    return sorted((each["point"], each["where"]) for each in found)


def test_killed_at_any_point_the_store_tells_the_truth_and_the_rerun_makes_equal_bytes(
    points: list[tuple[int, str]],
) -> None:
    killed = [point for point, where in points if where]
    # Without a gap, and up to a run that no point is left to kill.
    assert killed == list(range(1, len(killed) + 1))
    assert len(points) == len(killed) + AT_ONCE
    print(f"killed at {len(killed)} points")
    assert len(killed) >= 250


def test_the_points_are_those_of_the_whole_protocol(points: list[tuple[int, str]]) -> None:
    kinds = Counter(" ".join(where.split()[:2]) for _, where in points if where)
    for kind in ("read", "create", "swap", "delete", "list", "names", "folder", "publish", "fetch"):
        assert kinds[f"before {kind}"], kinds
    for kind in ("create", "swap", "delete", "folder"):
        assert kinds[f"after {kind}"] == kinds[f"before {kind}"], kinds
    places = [where for _, where in points]
    for record in (
        "spec.json",
        "lease.json",
        "manifest.json",
        "commits/1.json",
        "commits/2.json",
        "invalidations/1.json",
        "work/",
        "shards/",
        "resolved/",
        "names/",
        "experiments/",
    ):
        for when in ("before create", "within write", "after create"):
            assert any(where.startswith(when) and record in where for where in places), (when, record)
    # A forced step, its stale descendant and their first commits; an adopted result is committed without an attempt.
    assert sum("after create" in where and "invalidations/1.json" in where for where in places) == 2
