"""A changed byte in what a step goes on from is seen and named, never believed; a forced run does not look at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import load
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.run.shards import read_shard
from marin_pipeline.run.work import StoredWork
from tests.faults.breaking_steps import maps_and_breaks, works_and_breaks
from tests.run.sample_steps import number, times, words
from tests.run.sessions import Bench, digests, failure, step_folder, value


def replaced(file: Path, old: str, new: str) -> None:
    """Change a record in a way that leaves it well-formed."""
    text = file.read_text()
    assert old in text, text
    file.write_text(text.replace(old, new, 1))
    json.loads(file.read_text())


def flipped(digest: str) -> str:
    """A digest with another first digit."""
    return ("0" if digest[0] != "0" else "1") + digest[1:]


def broken(bench: Bench, target: Any) -> None:
    """Run a step that breaks; from now on it would not."""
    (bench.counts / "break").touch()
    assert "broken" in failure(bench.run(target))
    (bench.counts / "break").unlink()


def one(bench: Bench, pattern: str) -> Path:
    return next(iter(sorted(bench.prefix.glob(pattern))))


def committed(bench: Bench, target: Any) -> bool:
    return (step_folder(bench, target) / "commits").exists()


def test_a_flipped_digit_of_a_shards_value_is_seen(bench: Bench) -> None:
    target = maps_and_breaks()
    broken(bench, target)
    record = one(bench, "shards/**/record.json")
    replaced(record, '"value":1', '"value":2')
    assert f"{record}: not a record of a shard" in failure(bench.run(target))
    assert not committed(bench, target)
    with pytest.raises(CorruptOutput, match="its bytes are not those that were written"):
        read_shard(bench.objects, record.parent.name, int)


def test_a_flipped_digit_of_an_output_digest_in_a_commit_is_seen(bench: Bench) -> None:
    made = words(text="a b")
    first = digests(bench.run(made))["words"]
    commit = step_folder(bench, made) / "commits" / "1.json"
    replaced(commit, first, flipped(first))
    assert bench.statuses(made) == {"words": "blocked"}
    assert f"{commit}: not a commit" in failure(bench.run(times(count=made)))
    assert not committed(bench, times(count=made))
    with pytest.raises(CorruptOutput, match=r"commits/1\.json: not a commit"):
        _ = load(made.key, prefix=str(bench.prefix)).value


@pytest.mark.parametrize("field", ["number", "fence", "bytes"])
def test_another_number_in_a_commit_is_seen(inline: Bench, field: str) -> None:
    made = number(value=1)
    inline.run(made)
    commit = step_folder(inline, made) / "commits" / "1.json"
    replaced(commit, f'"{field}":', f'"{field}":1')
    assert f"{commit}: not a commit" in failure(inline.run(made))


def test_a_flipped_digit_in_the_record_of_a_finished_part_is_seen(bench: Bench) -> None:
    target = works_and_breaks()
    broken(bench, target)
    record = one(bench, "steps/**/work/*/part/record.json")
    (entry,) = json.loads(record.read_text())["files"]
    replaced(record, entry["sha256"], flipped(entry["sha256"]))
    assert f"{record}: not a record of a part" in failure(bench.run(target))
    assert not committed(bench, target)
    work = StoredWork(bench.objects, str(record.parent.parent.relative_to(bench.prefix)))
    with pytest.raises(CorruptOutput, match="its bytes are not those that were written"):
        work.open("part")


def test_a_shards_file_whose_bytes_changed_is_not_adopted(bench: Bench) -> None:
    target = maps_and_breaks()
    broken(bench, target)
    file = one(bench, "shards/**/text.txt")
    file.write_text("ITEM 1")
    assert "its bytes are not those that were committed" in failure(bench.run(target))
    assert not committed(bench, target)


@pytest.mark.parametrize("pattern", ["shards/**/text.txt", "shards/**/record.json"])
def test_a_forced_step_without_a_commit_looks_at_no_damaged_shard(bench: Bench, pattern: str) -> None:
    target = maps_and_breaks()
    broken(bench, target)
    for file in bench.prefix.glob(pattern):
        file.write_text("{}")
    assert not bench.run(target).ok
    result = bench.run(target, force="maps_and_breaks")
    assert result.ok
    assert value(result, "maps_and_breaks") == [11, 12]
    assert [(result.artifacts["maps_and_breaks"] / name).read_text() for name in ("0.txt", "1.txt")] == [
        "item 1",
        "item 2",
    ]


@pytest.mark.parametrize("pattern", ["steps/**/work/**/text.txt", "steps/**/work/**/record.json"])
def test_a_forced_step_without_a_commit_looks_at_no_damaged_part(bench: Bench, pattern: str) -> None:
    target = works_and_breaks()
    broken(bench, target)
    one(bench, pattern).write_text("4321")
    assert not bench.run(target).ok
    assert value(bench.run(target, force="works_and_breaks"), "works_and_breaks") == "1234"
