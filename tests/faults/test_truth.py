"""What checks a store finds each false statement in it, so that the tests that rest on it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.graph import Graph
from marin_pipeline.store.local_objects import LocalObjects
from tests.faults.small_steps import wide
from tests.faults.truth import check
from tests.faults.turns import Driver


@pytest.fixture
def made(tmp_path: Path) -> Path:
    driver = Driver(Graph(wide()), LocalObjects(tmp_path))
    assert driver.run(), driver.failures
    truth = check(LocalObjects(tmp_path))
    assert len(truth.current) == truth.commits == len(driver.graph.nodes)
    assert truth.objects > truth.commits
    assert truth.held == ()
    return tmp_path


def one(folder: Path, pattern: str) -> Path:
    return next(iter(sorted(folder.glob(pattern))))


@pytest.mark.parametrize(
    "pattern",
    [
        "steps/**/attempts/*/out/value.json",
        "steps/**/begin.txt",
        "steps/**/manifest.json",
        "steps/**/spec.json",
        "steps/**/commits/1.json",
        "shards/**/tenfold.txt",
        "shards/**/record.json",
        "resolved/*/*",
    ],
)
def test_a_missing_or_changed_object_is_found(made: Path, pattern: str) -> None:
    file = one(made, pattern)
    data = file.read_bytes()
    for changed in (data[:-1], bytes([data[0] ^ 1]) + data[1:]):
        file.write_bytes(changed)
        with pytest.raises((AssertionError, CorruptOutput, ValueError)):
            check(LocalObjects(made))
    file.write_bytes(data)
    check(LocalObjects(made))
    if "/commits/" not in pattern and not pattern.startswith(("resolved", "shards/**/record")):
        file.unlink()
        with pytest.raises(AssertionError, match="is missing"):
            check(LocalObjects(made))


def test_two_commits_that_count_are_found(made: Path) -> None:
    commit = one(made, "steps/**/commits/1.json")
    commit.with_name("2.json").write_bytes(commit.read_bytes())
    with pytest.raises(AssertionError, match="count"):
        check(LocalObjects(made))


def test_an_end_of_what_was_never_made_is_found(made: Path) -> None:
    ends = one(made, "steps/**/commits/1.json").parent.parent / "invalidations"
    ends.mkdir()
    (ends / "2.json").write_text("{}")
    with pytest.raises(AssertionError, match="ended before it was made"):
        check(LocalObjects(made))
