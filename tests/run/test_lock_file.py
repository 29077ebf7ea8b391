"""The lock file of an experiment says whether somebody else, or a later day, gets the same keys and bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.run.lock_file import LockFile
from tests.conftest import Program, Ran

EXPERIMENT = """
import os
from dataclasses import dataclass
from marin_pipeline import Artifact, Context, main, step


@dataclass(frozen=True)
class Rows:
    count: int
    logical_digest: str


@step
def first(ctx: Context, size: int) -> int:
    (ctx.out / "a.txt").write_text("x" * size + os.environ.get("BYTES", ""))
    return size


@step(exact="tolerance")
def about(ctx: Context, made: Artifact[int]) -> float:
    return made.value + float(os.environ.get("NOISE", "0"))


@step(exact="logical")
def rows(ctx: Context, made: Artifact[int]) -> Rows:
    (ctx.out / "rows").write_text(os.environ.get("LAYOUT", ""))
    return Rows(made.value, "d" * 64 if "ROWS" not in os.environ else "e" * 64)


@step
def broken(ctx: Context) -> int:
    raise ValueError("broken")


def build(size: int = 3, fails: bool = False, text: str = ""):
    made = first(size=size).named("made")
    return [about(made), rows(made), made.named("same"), *([broken()] if fails else [])]


if __name__ == "__main__":
    main(build)
"""


@pytest.fixture
def experiment(tmp_path: Path, program: Program) -> Path:
    """An experiment that has run and is locked."""
    file = tmp_path / "project" / "x.py"
    file.parent.mkdir()
    file.write_text(EXPERIMENT)
    ran = program(file, "--lock")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == "lock     x.lock.json"
    return file


def lock_of(file: Path) -> dict[str, Any]:
    return json.loads(file.with_suffix(".lock.json").read_text())


def told(ran: Ran) -> list[str]:
    """What is said of the lock."""
    return [line.removeprefix("lock     ") for line in (ran.out + ran.err).splitlines() if line.startswith("lock")]


def test_it_holds_keys_and_digests_by_name_and_nothing_of_the_machine(
    experiment: Path, program: Program, tmp_path: Path
) -> None:
    lock = lock_of(experiment)
    summary = program(experiment, "--json").summary
    assert set(lock["steps"]) == {"made", "same", "about", "rows"}
    assert lock["steps"]["same"] == lock["steps"]["made"]
    assert {field: lock["steps"]["made"][field] for field in ("key", "digest")} == {
        field: summary["made"][field] for field in ("key", "digest")
    }
    assert lock["steps"]["made"]["id"] == "x.first"
    text = experiment.with_suffix(".lock.json").read_text()
    assert str(tmp_path) not in text
    # Written again, in another store and from nothing, it is the same file.
    assert program(experiment, "--lock", "--json", prefix=tmp_path / "other").summary["made"]["status"] == "done"
    assert experiment.with_suffix(".lock.json").read_text() == text
    assert [each.name for each in experiment.parent.iterdir() if "lock" in each.name] == ["x.lock.json"]


def test_a_plan_that_is_as_the_lock_says_has_nothing_to_tell(experiment: Path, program: Program) -> None:
    ran = program(experiment, "plan", "--check")
    assert (ran.code, told(ran)) == (0, [])
    ran = program(experiment, "plan", "--check", "--json")
    assert (ran.code, len(ran.events), told(ran)) == (0, 3, [])


def test_other_keys_and_names_are_told_with_what_they_were(experiment: Path, program: Program) -> None:
    old = lock_of(experiment)["steps"]
    experiment.write_text(EXPERIMENT.replace('"x" * size', '"y" * size').replace('made.named("same")', "first(size=9)"))
    assert program(experiment).code == 0
    assert told(program(experiment, "plan")) == [
        "x.lock.json differs in 5 steps: `plan --check` lists them, `run --lock` writes it anew"
    ]
    checked = program(experiment, "plan", "--check")
    assert checked.code == 3
    new = {line["name"]: line["key"] for line in program(experiment, "plan", "--json").events}
    assert told(checked) == [
        f"made  key {old['made']['key'][:8]} → {new['made'][:8]}",
        f"about  key {old['about']['key'][:8]} → {new['about'][:8]}",
        f"rows  key {old['rows']['key'][:8]} → {new['rows'][:8]}",
        "first  added",
        "same  removed",
    ]
    lines = program(experiment, "plan", "--check", "--json").events
    assert [line["name"] for line in lines if "status" in line] == ["made", "about", "rows", "first"]
    assert [line for line in lines if "lock" in line][-1] == {
        "lock": "x.lock.json",
        "change": "removed",
        "name": "same",
        "old": old["same"]["key"],
        "new": None,
    }
    # Of a part of the experiment only that part is compared.
    assert len(told(program(experiment, "plan", "--check", "--until", "made"))) == 1


def test_other_bytes_under_the_same_key_are_told_where_they_count(
    experiment: Path, program: Program, tmp_path: Path
) -> None:
    old = lock_of(experiment)["steps"]
    other = tmp_path / "other"
    assert program(experiment, prefix=other, extra={"NOISE": "0.001", "LAYOUT": "another"}).code == 0
    assert program(experiment, "plan", "--check", prefix=other).code == 0
    other = tmp_path / "third"
    assert program(experiment, prefix=other, extra={"BYTES": "more", "ROWS": "other"}).code == 0
    checked = program(experiment, "plan", "--check", prefix=other)
    assert checked.code == 3
    assert [line.split(" → ")[0] for line in told(checked)] == [
        f"made  digest {old['made']['digest'][:8]}",
        f"same  digest {old['made']['digest'][:8]}",
        "rows  digest dddddddd",
    ]


def test_under_other_arguments_it_says_so_and_compares_nothing(experiment: Path, program: Program) -> None:
    for arguments, shown in (("--size", "4"), "--size 4"), (("made.size=4",), "made.size=4"):
        assert program(experiment, *arguments).code == 0
        checked = program(experiment, "plan", "--check", *arguments)
        assert checked.code == 3, "a check that compares nothing is none"
        text = f"x.lock.json was written under no options, and this is {shown}"
        remedy = "; give the same arguments, or write it anew with `run --lock`"
        assert told(checked) == [f"{text}: not compared{remedy}"]
        checked = program(experiment, "plan", "--check", "--json", *arguments)
        assert checked.code == 3
        assert ["status" in line for line in checked.events] == [True] * 3 + [False]
        assert checked.events[-1] == {"lock": "x.lock.json", "change": "not compared", "text": text}
        assert "not compared" in checked.err
        assert program(experiment, "plan", *arguments).code == 0
    assert program(experiment, "plan", "--check", "--size", "3").code == 0
    ran = program(experiment, "--lock", "--size", "4", "--text", "/home/somebody/texts")
    assert told(ran) == ["x.lock.json  instead of that under no options; this is --size 4 --text .../texts"]
    assert lock_of(experiment)["arguments"] == {"size": "4", "text": ".../texts"}
    assert told(program(experiment, "plan")) == [
        "x.lock.json was written under --size 4 --text .../texts, and this is no options: not compared"
    ]


def test_a_run_that_fails_or_is_partial_writes_nothing(experiment: Path, program: Program) -> None:
    before = experiment.with_suffix(".lock.json").read_text()
    assert program(experiment, "--lock", "--fails", "true").code == 1
    for arguments in (["run", "--only", "made"], ["--until", "made"], ["plan"], ["graph"]):
        ran = program(experiment, "--lock", *arguments)
        assert (ran.code, "whole experiment" in ran.err) == (2, True)
    assert experiment.with_suffix(".lock.json").read_text() == before


def test_a_lock_that_has_no_end_is_refused_and_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name, why in (("huge", "has more than 67,108,864 bytes"), ("endless", "no file at all")):
        with pytest.raises(InputError, match=f"{name}: not the lock file of an experiment .*{why}"):
            LockFile.read(tmp_path / name)


def test_a_damaged_lock_hides_no_plan_fails_a_check_and_is_written_anew(experiment: Path, program: Program) -> None:
    before = experiment.with_suffix(".lock.json").read_text()
    for text in ("<<<<<<< ours", "[]", before.replace('"schema": 1', '"schema": 2')):
        experiment.with_suffix(".lock.json").write_text(text)
        for arguments, code, told in ((), 0, "warning: "), (("--check",), 2, "error: "), (("--json",), 0, "warning: "):
            ran = program(experiment, "plan", *arguments)
            assert ran.code == code
            assert ran.err.startswith(told)
            assert "run --lock" in ran.err
            assert len(ran.err.splitlines()) == 1
            assert "cached" in ran.out
    assert program(experiment, "--lock").code == 0
    assert experiment.with_suffix(".lock.json").read_text() == before
