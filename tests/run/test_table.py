"""Results side by side: what differs, and the figures, by name."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from marin_pipeline import Artifact, Context, Runtime, grid, step
from marin_pipeline.core.errors import UsageError
from marin_pipeline.run.figures import figures, leaves
from marin_pipeline.run.table import FIGURES, table
from tests.run.sample_steps import number
from tests.run.sessions import Bench


@dataclass(frozen=True)
class Schedule:
    peak: float = 0.1
    warm_up: int = 10


@dataclass(frozen=True)
class Score:
    loss: float
    by_source: dict[str, float]
    steps: tuple[int, ...] = (1, 2)
    note: str = "text"


@step
def score(
    ctx: Context, data: Artifact[int], schedule: Schedule, seed: int, note: str = "same", workers: Runtime[int] = 1
) -> Score:
    return Score(schedule.peak + seed, {"web": float("nan"), "code": 1234.5})


@step
def many(ctx: Context, count: int) -> dict[str, int]:
    return {f"figure{index:02}": index for index in range(count)}


def test_rows_show_the_arguments_that_differ_and_the_figures(inline: Bench) -> None:
    data = number(value=1)
    sweep = grid(score, data=data, schedule=[Schedule(0.5), Schedule(0.25)], seed=[1, 0]).named("sweep")
    inline.run([*sweep.artifacts, score(data=data, schedule=Schedule(9.0), seed=7).named("sweeper")])
    header, *rows = table(inline.objects, "sweep", "", False)
    assert header.split() == [
        "name",
        "schedule.peak",
        "seed",
        "loss",
        "by_source.code",
        "by_source.web",
        "steps[0]",
        "steps[1]",
    ]
    assert [row.split()[0] for row in rows] == sorted(artifact.name for artifact in sweep.artifacts)
    assert {tuple(row.split()[1:5]) for row in rows} == {
        ("0.5", "0", "0.5", "1234.5"),
        ("0.5", "1", "1.5", "1234.5"),
        ("0.25", "0", "0.25", "1234.5"),
        ("0.25", "1", "1.25", "1234.5"),
    }
    trees = [json.loads(line) for line in table(inline.objects, "sweep/", "", True)]
    assert trees[0]["arguments"].keys() == {"data", "schedule.peak", "schedule.warm_up", "seed", "note", "workers"}
    assert trees[0]["figures"]["by_source.web"] is None


def test_columns_are_chosen_by_path(inline: Bench) -> None:
    sweep = grid(score, data=number(value=1), schedule=fixed_schedule(), seed=[1, 0])
    inline.run(sweep.artifacts)
    header, *_ = table(inline.objects, "score", "note, loss", False)
    assert header.split() == ["name", "note", "loss"]
    with pytest.raises(UsageError, match=r"no row has 'los'; there are seed, loss, by_source"):
        table(inline.objects, "score", "los", False)


def fixed_schedule() -> Schedule:
    return Schedule()


def test_all_keys_of_a_step_are_found_by_its_id_with_their_inputs_by_name(inline: Bench) -> None:
    for value in (1, 2):
        inline.run(score(data=number(value=value).named(f"data/{value}"), schedule=Schedule(), seed=1))
    header, *rows = table(inline.objects, "tests/run/test_table.score", "data", False)
    assert header.split() == ["name", "data"]
    assert {row.split()[1] for row in rows} == {"data/1", "data/2"}


def test_without_a_name_each_step_with_two_results_has_a_table_of_its_own(inline: Bench) -> None:
    assert list(table(inline.objects, "", "", True)) == []
    assert "no step has two results" in next(table(inline.objects, "", "", False))
    for note in ("one word", "another"):
        inline.run(score(data=number(value=1), schedule=Schedule(), seed=1, note=note))
    for count in (1, 2):
        inline.run(many(count=count))
    found = list(table(inline.objects, "", "", False))
    assert found[0] == many.id
    assert found[1].split() == ["name", "count", "figure00", "figure01"]
    assert found[4:6] == ["", score.id]
    assert found[6].split()[:3] == ["name", "note", "loss"]
    assert any("  one word  " in row for row in found[7:])
    assert len(found) == 9, "number has one result"
    (chosen, *_) = table(inline.objects, "", "note", False)
    assert chosen == score.id


def test_many_figures_are_counted(inline: Bench) -> None:
    inline.run(many(count=FIGURES + 3))
    *_, last = table(inline.objects, "many", "", False)
    assert last.startswith("3 more figures; choose with --columns")


def test_what_has_no_row_is_told(inline: Bench) -> None:
    inline.run(number(value=1))
    with pytest.raises(UsageError, match="'train' is no name with a result"):
        table(inline.objects, "train", "", False)


def test_figures_are_the_numbers_by_path() -> None:
    tree = {"~data": "m:C", "fields": {"a": 1, "b": [True, 2.5, {"~float": "inf"}], "c": {"~~x": 3, "d": "4"}}}
    assert figures(tree) == {"a": 1, "b[1]": 2.5, "b[2]": float("inf"), "c.~~x": 3}
    assert figures(7) == {"value": 7}
    assert dict(leaves({"f": {"~file": "ab"}})) == {"f": {"~file": "ab"}}
