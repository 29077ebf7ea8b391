"""A grid is one artifact a combination: names that stay, lists that vary, limits that hold."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline import Artifact, Context, Grid, Resources, fixed, grid, step
from marin_pipeline.core.artifact import NAME
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.graph import Graph


class Schedule(enum.Enum):
    COSINE = 1
    Cosine = 2


@dataclass(frozen=True)
class Rates:
    first: float = 0.1


@step
def fit(ctx: Context, rate: float, seed: int = 0, sizes: list[int] | None = None) -> float:
    return rate


@step
def anything(ctx: Context, value: Any, other: Any = None) -> None: ...


@step
def judge(ctx: Context, model: Artifact[float]) -> float:
    return model.value


def names(made: Grid[Any]) -> list[str]:
    return [artifact.name for artifact in made.artifacts]


def test_every_combination_is_a_cell_in_the_order_of_the_product() -> None:
    made = grid(fit, rate=[1e-3, 0.5], seed=[0, -1])
    assert list(made) == [(1e-3, 0), (1e-3, -1), (0.5, 0), (0.5, -1)]
    assert names(made) == [
        "fit/rate-1e-3/seed-0",
        "fit/rate-1e-3/seed--1",
        "fit/rate-5e-1/seed-0",
        "fit/rate-5e-1/seed--1",
    ]
    assert made[0.5, 0].key == fit(rate=0.5, seed=0).key
    assert made.varied == ("rate", "seed")
    assert len(made) == 4
    with pytest.raises(KeyError) as caught:
        made[0.25, 0]
    told = "<grid of 4 over rate, seed> has no cell"
    assert str(caught.value) == f"{told} [0.25, 0]; rate is one of 0.001, 0.5; seed is one of 0, -1"
    with pytest.raises(KeyError, match=r"no cell \[0\.5\]; give a value for each of rate, seed"):
        made[0.5]
    assert made.get((0.25, 0)) is None
    assert (0.5, 0) in made


def test_a_grid_over_one_argument_is_indexed_by_the_value() -> None:
    made = grid(anything, value=[[1, 2], {"a": 1}, True, 1, None])
    assert made[[1, 2]].key == anything(value=[1, 2]).key
    assert made[({"a": 1},)].key == anything(value={"a": 1}).key
    assert made[True].key != made[1].key
    with pytest.raises(KeyError):
        made[object()]


def test_a_fixed_list_is_shared_and_a_list_that_should_be_is_told() -> None:
    made = grid(fit, rate=[0.1, 0.2], sizes=fixed([1, 3]))
    assert made[0.1].key == fit(rate=0.1, sizes=[1, 3]).key
    with pytest.raises(DeclarationError, match=r"sizes: expected list.*, got 1 .*written fixed\(\[\.\.\.\]\)"):
        grid(fit, rate=[0.1, 0.2], sizes=[1, 3])


def test_a_cell_is_named_by_the_value_that_the_step_gets() -> None:
    assert names(grid(fit, rate=[1, 2.5])) == names(grid(fit, rate=[1.0, 2.5])) == ["fit/rate-1e0", "fit/rate-25e-1"]


def test_adding_a_value_renames_no_cell() -> None:
    few = grid(anything, value=["a", "A", 1, 2.0, Schedule.COSINE])
    more = grid(anything, value=["a", "A", 1, 2.0, Schedule.COSINE, "b", 3, "1"])
    assert names(more)[:5] == names(few)
    assert names(few)[0] == "anything/value-a"
    assert names(few)[4] == "anything/value-cosine"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=60)
    | st.sampled_from(["1", "1e0", "true", "none", "nan", "x-deadbeef", "cosine", "COSINE", "a/b", "a_b", ""])
    | st.sampled_from([Schedule.COSINE, Schedule.Cosine, Rates(), Rates(0.2), b"x"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.lists(VALUES, min_size=2, max_size=8))
def test_different_cells_have_different_names_whatever_the_values(values: list[Any]) -> None:
    keys = [anything(value=value).key for value in values]
    distinct = list(dict(zip(keys, values, strict=True)).values())
    made = grid(anything, value=distinct)
    assert len(set(names(made))) == len(distinct)
    assert all(NAME.fullmatch(name) and len(name) <= 200 for name in names(made))
    Graph(made.artifacts)


def test_long_names_are_cut_and_still_differ() -> None:
    word = "x" * 32
    made = grid(anything, value=[word, "y"], other=[word, "z"]).named("base/" + "n" * 150)
    assert len(set(names(made))) == 4
    assert all(len(name) <= 200 for name in names(made))


def test_what_cannot_be_a_grid_is_refused_with_the_remedy() -> None:
    with pytest.raises(DeclarationError, match=r"grid\(fit\): nothing varies; give at least one argument as a list"):
        grid(fit, rate=1.0)
    with pytest.raises(DeclarationError, match=r"rate=\[\] leaves no cell"):
        grid(fit, rate=[])
    with pytest.raises(DeclarationError, match=r"rate has 1\.0 twice"):
        grid(fit, rate=[1.0, 2.0, 1])
    with pytest.raises(DeclarationError, match="at_most=0 must be an int from 1 on"):
        grid(fit, rate=[1.0], at_most=0)
    with pytest.raises(DeclarationError, match=r"Resources\(group='', at_most=2\)"):
        Resources(at_most=2)


def test_the_limit_is_not_in_the_key_and_two_grids_have_their_own() -> None:
    limited, other = grid(fit, rate=[0.1, 0.2], at_most=1), grid(fit, rate=[0.3], at_most=1)
    assert [each.key for each in limited.values()] == [each.key for each in grid(fit, rate=[0.1, 0.2]).values()]
    groups = {each.resources.group for each in [*limited.values(), *other.values()]}
    assert len(groups) == 2


def test_what_follows_a_cell_is_named_as_the_cell_is() -> None:
    judged = grid(fit, rate=[0.1, 0.2]).named("sweep").map(lambda model: judge(model=model))
    assert names(judged) == ["judge/rate-1e-1", "judge/rate-2e-1"]
    assert judged[0.1].key == judge(model=fit(rate=0.1)).key


def test_artifacts_vary_by_their_names() -> None:
    models = [fit(rate=0.1).named("a/b"), fit(rate=0.2).named("c")]
    assert names(grid(judge, model=models)) == ["judge/model-a_b", "judge/model-c"]
    unnamed = names(grid(judge, model=[fit(rate=0.1), fit(rate=0.2)]))
    assert len(set(unnamed)) == 2
