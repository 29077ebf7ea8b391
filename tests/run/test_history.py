"""Runs are recorded: at the beginning, so that they can be seen, and at the end."""

from __future__ import annotations

import os
from pathlib import Path

from marin_pipeline import Context, step
from marin_pipeline.run.driver import Session
from marin_pipeline.run.history import RunAt, all_runs, newest_records
from marin_pipeline.run.options import Options
from marin_pipeline.run.selection import find_step
from tests.faults.faulty_objects import Fault, FaultyObjects
from tests.run.sample_steps import fails, number
from tests.run.sessions import Bench, value


@step
def sees_its_run(ctx: Context, folder: str) -> list[str]:
    """The records of runs that are there while it runs."""
    return sorted(file.suffix for file in Path(folder).rglob("*") if file.is_file())


def test_a_run_is_recorded_before_its_first_step_begins(bench: Bench) -> None:
    target = sees_its_run(folder=str(bench.prefix / "experiments"))
    result = bench.run([target])
    assert value(result, "sees_its_run") == [".begun"]
    (run,) = all_runs(bench.objects)
    record = run.read(bench.objects)
    assert record is not None
    begun = RunAt(run.experiment, run.number, run.stem, ended=False).read(bench.objects)
    assert begun is not None
    assert (begun.steps, begun.started, begun.recipes) == (record.steps, record.started, record.recipes)
    assert (begun.ok, begun.finished, begun.statuses) == (False, "", {})
    assert begun.process is not None
    assert begun.process.pid == os.getpid()
    assert record.statuses == {"sees_its_run": "done"}


def test_a_store_that_does_not_take_the_beginning_fails_no_run(inline: Bench) -> None:
    def rule(operation: str, path: str) -> Fault | None:
        return "before" if path.endswith(".begun") else None

    inline.wrap = lambda objects: FaultyObjects(objects, rule)
    assert inline.outcomes(number(value=1)) == {"number": "done"}
    assert [run.ended for run in all_runs(inline.objects)] == [True]


def test_damaged_records_are_passed_over(inline: Bench) -> None:
    inline.run(number(value=1))
    inline.run(fails(word="a"))
    for file in (inline.prefix / "experiments").rglob("*"):
        if file.is_file() and '"fails"' in file.read_text():
            file.write_bytes(b"\xff{")
    assert [record.steps.keys() for record in newest_records(inline.objects, "tests/bench", 5)] == [{"number"}]
    assert find_step(inline.objects, "number")[1] == number(value=1).key


def test_runs_are_numbered_by_their_start_whatever_else_lies_there(inline: Bench) -> None:
    for given in (1, 2, 3):
        inline.run(number(value=given))
    folder = inline.prefix / "experiments" / "tests" / "bench"
    (folder / "notes.json").write_text("{}")
    (folder / "other").mkdir()
    assert [(run.name, run.ended) for run in all_runs(inline.objects)] == [
        (f"tests/bench@{number}", True) for number in (1, 2, 3)
    ]
    assert all_runs(inline.objects, "tests/other") == []


def test_an_experiment_may_be_called_as_a_record_is(inline: Bench) -> None:
    for name in ("x.json", "x.json/y.begun"):
        Session.open([number(value=1)], Options(prefix=str(inline.prefix), backend="inline"), name).run()
    assert [run.experiment for run in all_runs(inline.objects)] == ["x.json", "x.json/y.begun"]
    assert [record.experiment for record in newest_records(inline.objects, "x.json", 1)] == ["x.json"]
