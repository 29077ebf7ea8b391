"""A damaged object is named with its remedy, without a traceback, and the remedy works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.run.sample_steps import number, times, words
from tests.run.sessions import Bench, digests, failure, outcomes, step_folder

TARGET = [times(count=words(text="a b")), number(value=1)]


def damaged(file: Path, data: bytes = b"\x00garbage") -> None:
    assert file.is_file(), file
    file.write_bytes(data)


def test_a_damaged_commit_stops_what_needs_it_and_force_gets_past(inline: Bench) -> None:
    before = digests(inline.run(TARGET))
    damaged(step_folder(inline, words(text="a b")) / "commits" / "1.json")
    assert inline.statuses(TARGET) == {"words": "blocked", "times": "cached", "number": "cached"}
    result = inline.run(TARGET)
    assert outcomes(result) == {"words": "failed", "times": "cached", "number": "cached"}
    assert result.exit_code == 1
    assert "commits/1.json: not a commit" in failure(result)
    assert "--force" in failure(result)
    assert inline.outcomes(TARGET, force="words") == {"words": "done", "times": "cached", "number": "cached"}
    assert digests(inline.run(TARGET)) == before


@pytest.mark.parametrize("data", [b"", b"{}"])
def test_a_damaged_manifest_is_named_and_force_gets_past(inline: Bench, data: bytes) -> None:
    made = words(text="a b")
    inline.run(made)
    (manifest,) = step_folder(inline, made).glob("attempts/*/manifest.json")
    damaged(manifest, data)
    result = inline.run(times(count=made))
    assert "manifest.json: the manifest is not the one that was committed; run the step again with --force" in failure(
        result
    )
    assert inline.run(times(count=made), force="words").ok


def test_a_missing_manifest_is_named_and_force_gets_past(inline: Bench) -> None:
    made = words(text="a b")
    inline.run(made)
    (manifest,) = step_folder(inline, made).glob("attempts/*/manifest.json")
    manifest.unlink()
    assert "the manifest is missing" in failure(inline.run(times(count=made)))
    assert inline.run(times(count=made), force="words").ok


def test_a_damaged_lease_is_named_and_its_removal_is_the_remedy(inline: Bench) -> None:
    inline.run(TARGET)
    lease = step_folder(inline, number(value=1)) / "lease.json"
    damaged(lease)
    result = inline.run(TARGET, force="number")
    assert outcomes(result)["number"] == "failed"
    assert f"{lease}: not a lease" in failure(result)
    assert "delete this file when no run is at work on the step" in failure(result)
    lease.unlink()
    assert inline.run(TARGET).ok


def test_a_damaged_spec_is_named_and_its_removal_is_the_remedy(inline: Bench) -> None:
    inline.run(TARGET)
    spec = step_folder(inline, number(value=1)) / "spec.json"
    damaged(spec)
    result = inline.run(TARGET, force="number")
    assert f"{spec}: is not the spec of" in failure(result)
    spec.unlink()
    assert inline.run(TARGET).ok


def test_damage_in_an_earlier_result_does_not_stop_a_new_one(inline: Bench) -> None:
    inline.run(number(value=1))
    damaged(step_folder(inline, number(value=1)) / "spec.json")
    assert inline.outcomes(number(value=2)) == {"number": "done"}
    damaged(step_folder(inline, number(value=2)) / "commits" / "1.json")
    assert inline.outcomes(number(value=3)) == {"number": "done"}


def test_a_damaged_record_of_a_run_stops_nothing(inline: Bench) -> None:
    inline.run(number(value=1))
    (record,) = (inline.prefix / "experiments").rglob("*.json")
    for data in (b"null", b"{", b"[" * 200_000):
        record.write_bytes(data)
        assert inline.run(number(value=1)).ok
        assert inline.run(number(value=2)).ok


@pytest.mark.parametrize("record", ["lease.json", "commits/1.json", "spec.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_in_place_of_a_record_is_named_and_its_removal_helps(
    inline: Bench, record: str, kind: str
) -> None:
    made = number(value=1)
    file = step_folder(inline, made) / record
    file.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("nowhere")
    result = inline.run(made)
    assert result.exit_code == 1
    assert record in failure(result)
    assert "delete" in failure(result) or "--force" in failure(result)
    if kind == "folder":
        file.rmdir()
    else:
        file.unlink()
    assert inline.run(made).ok
