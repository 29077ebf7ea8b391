"""A driver that is killed at any point of a commit leaves a store whose every statement is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

DIES = Path(__file__).parent / "dies_at.py"
POINTS = [
    ("after", "create", "lease.json"),
    ("after", "create", "spec.json"),
    ("before", "create", "manifest.json"),
    ("after", "create", "manifest.json"),
    ("before", "create", "commits/1.json"),
    ("after", "create", "commits/1.json"),
    ("before", "swap", "lease.json"),
    ("after", "swap", "lease.json"),
]
COMMITTED = POINTS[-3:]


def run(prefix: Path, *fault: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MARIN_TEST_COUNTS", None)
    return subprocess.run(
        [sys.executable, str(DIES), str(prefix), *fault], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run(tmp_path_factory.mktemp("undisturbed"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_killed_at_any_point_of_a_commit_the_rerun_makes_equal_bytes(
    tmp_path: Path, point: tuple[str, str, str], undisturbed: str
) -> None:
    assert run(tmp_path, *point).returncode == -9
    committed = list(tmp_path.glob("steps/**/commits/*.json"))
    assert len(committed) == (point in COMMITTED)
    again = run(tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == undisturbed


def test_killed_between_manifest_and_commit_leaves_nothing_believed(tmp_path: Path) -> None:
    run(tmp_path, "before", "create", "commits/1.json")
    assert list(tmp_path.glob("steps/**/manifest.json"))
    again = run(tmp_path)
    attempts = list(tmp_path.glob("steps/**/sample_steps.words/*/attempts/*"))
    assert len(attempts) == 2
    assert again.returncode == 0
