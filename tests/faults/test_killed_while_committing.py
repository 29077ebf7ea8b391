"""A driver that is killed at any point of its conversation with the store leaves one whose every statement is true, and
the rerun makes equal bytes. At every point on local files; on servers at those that matter, and slowly at every one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.stores import counts_for, new_prefix

DYING = Path(__file__).parent / "dying.py"
AT_ONCE = 2
"""Walks at the same time, each of every second point."""


POINTS = [
    f"{when} create {record}"
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
    )
    for when in ("before", "after")
]
FEW = [
    *(each for each in POINTS if "manifest" in each or "commits/2" in each or "invalidations" in each),
    "before swap lease.json",
    "before publish steps/",
    "within publish steps/",
    "before list steps/",
    "after create work/",
]


def killed(prefix: str, *walks: Sequence[str]) -> list[dict[str, Any]]:
    """What came of the points of each walk, the rerun's bytes compared."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MARIN_TEST_COUNTS", None)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        running = [
            subprocess.Popen(
                [sys.executable, str(DYING), folder, prefix or folder, *walk],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for walk in walks
        ]
        outputs = [each.communicate(timeout=1200) for each in running]
    for each, (_, error) in zip(running, outputs, strict=True):
        assert each.returncode == 0, error
    found = [json.loads(line) for output, _ in outputs for line in output.splitlines()]
    for each in found:
        assert not each["wrong"], f"killed {each['where']}:\n{each['wrong']}"
    return found


def every_point(prefix: str) -> list[tuple[int, str]]:
    """Every point at which a run was killed, in order; number and where it was."""
    found = killed(prefix, *([f"{first}", f"{AT_ONCE}"] for first in range(1, AT_ONCE + 1)))
    return sorted((each["point"], each["where"]) for each in found)


@pytest.fixture(scope="module")
def points() -> list[tuple[int, str]]:
    return every_point("")


@pytest.mark.parametrize("store", ["gs", "s3"])
def test_killed_at_the_points_that_matter_a_store_on_a_server_tells_the_truth_and_the_rerun_makes_equal_bytes(
    request: pytest.FixtureRequest, store: str
) -> None:
    found = killed(new_prefix(request, store), FEW[::2], FEW[1::2])
    assert sorted(each["point"] for each in found if each["where"]) == sorted(FEW)
    counts_for(request, store, len(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["gs", "s3"])
def test_killed_at_any_point_a_store_on_a_server_tells_the_truth_and_the_rerun_makes_equal_bytes(
    request: pytest.FixtureRequest, store: str
) -> None:
    """Calls are made at the same time there, so which one is killed at a point is not the same each time."""
    numbered = every_point(new_prefix(request, store))
    assert len(numbered) >= 200
    named = killed(new_prefix(request, store), POINTS[::2], POINTS[1::2])
    assert sorted(each["point"] for each in named if each["where"]) == sorted(POINTS)
    counts_for(request, store, len(numbered) + len(named))


def test_killed_at_any_point_the_store_tells_the_truth_and_the_rerun_makes_equal_bytes(
    request: pytest.FixtureRequest, points: list[tuple[int, str]]
) -> None:
    killed = [point for point, where in points if where]
    # Without a gap, and up to a run that no point is left to kill.
    assert killed == list(range(1, len(killed) + 1))
    assert len(points) == len(killed) + AT_ONCE
    counts_for(request, "local", len(killed))
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
