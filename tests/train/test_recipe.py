"""The law of recipes: the state at n is named by what the steps [0, n) depend on, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train.recipe import Recipe, lower

MODEL = LlamaConfig(vocabulary=64, width=16, layers=1, heads=2, feed_forward=32)

counts = st.integers(1, 200)


def recipe(**changes: Any) -> Recipe:
    arguments: dict[str, Any] = {
        "tokens": "digest",
        "model": MODEL,
        "steps": 100,
        "learning_rate": 6e-3,
        "muon_learning_rate": 0.02,
        "optimizer": "muon",
        "schedule": "constant",
        "warmup": 20,
        "final_fraction": 0.05,
        "weight_decay": 0.1,
        "clip": 1.0,
        "batch_size": 8,
        "sequence_length": 128,
        "seed": 0,
        "data_seed": 0,
        "numerics": "fast",
    }
    return lower(**{**arguments, **changes})


@given(shorter=counts, longer=counts, n=counts, warmup=st.integers(0, 60))
def test_under_a_constant_schedule_the_length_of_a_run_is_in_no_earlier_state(
    shorter: int, longer: int, n: int, warmup: int
):
    n = min(n, shorter, longer)
    a, b = recipe(steps=shorter, warmup=warmup), recipe(steps=longer, warmup=warmup)
    assert a.initial() == b.initial()
    assert a.pieces(n) == b.pieces(n)


@given(a=counts, b=counts, n=counts, warmup=st.integers(0, 60), shape=st.sampled_from(["cosine", "linear"]))
def test_a_horizon_is_in_the_recipe_exactly_from_the_step_that_uses_it(a: int, b: int, n: int, warmup: int, shape: str):
    n = min(n, a, b)
    first, second = recipe(steps=a, warmup=warmup, schedule=shape), recipe(steps=b, warmup=warmup, schedule=shape)
    assert (first.pieces(n) == second.pieces(n)) == (a == b or n <= warmup)


@given(n=counts, steps=counts)
def test_equal_recipes_have_equal_factors(n: int, steps: int):
    """Behind the names: where two recipes agree, the updates do."""
    a, b = recipe(steps=steps, schedule="cosine"), recipe(steps=200, schedule="cosine")
    n = min(n, steps)
    if a.pieces(n) == b.pieces(n):
        assert all(a.schedule.factor(step) == b.schedule.factor(step) for step in range(n))


MIXTURE = Mixture(
    (Source("a"), Source("b", max_epochs=None)),
    (Phase(0, {"a": 1}), Phase(50 * 8 * 128, {"a": "1/2", "b": "1/2"})),
)


def test_a_source_is_in_the_recipe_from_the_step_that_reads_it() -> None:
    both = {"tokens": {"a": "x", "b": "y"}, "mixture": MIXTURE}
    assert recipe(**both).pieces(50) == recipe(**{**both, "tokens": {"a": "x", "b": "z"}}).pieces(50)
    assert recipe(**both).pieces(51) != recipe(**{**both, "tokens": {"a": "x", "b": "z"}}).pieces(51)
    alone = Mixture((Source("a"),), (Phase(0, {"a": 1}),))
    assert recipe(**both).pieces(50) == recipe(tokens={"a": "x"}, mixture=alone).pieces(50)


def test_what_only_refuses_a_run_is_not_in_the_recipe() -> None:
    assert recipe(max_epochs=None).pieces(50) == recipe().pieces(50)
    expected = Mixture((Source("tokens", expected_tokens=10**9),), (Phase(0, {"tokens": 1}),))
    assert recipe(mixture=expected).pieces(50) == recipe().pieces(50)


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1e-3},
        {"muon_learning_rate": 0.01},
        {"optimizer": "adamw"},
        {"warmup": 10},
        {"schedule": "cosine"},
        {"weight_decay": 0.0},
        {"clip": 2.0},
        {"batch_size": 4},
        {"sequence_length": 64},
        {"data_seed": 1},
        {"tokens": "other"},
        {"separate_documents": True},
        {"packing": "plan"},
        {"shuffle": Shuffle(block=8)},
    ],
)
def test_what_a_person_decides_is_in_the_recipe(change: dict[str, Any]):
    assert recipe(**change).pieces(50) != recipe().pieces(50)


def test_the_initial_state_is_model_and_seed():
    assert recipe(seed=1).initial() != recipe().initial()
    assert recipe(learning_rate=1.0, steps=5).initial() == recipe().initial()


def test_what_a_choice_leaves_unused_is_not_in_the_recipe():
    adamw = recipe(optimizer="adamw", muon_learning_rate=0.5)
    assert adamw.pieces(50) == recipe(optimizer="adamw").pieces(50)
    assert recipe(final_fraction=0.5).pieces(50) == recipe().pieces(50)


def test_numerics_and_their_shards_are_in_the_recipe_and_no_default_moves_a_key():
    assert recipe().pieces(5)[0]["numerics"] == "fast"
    assert "compute" not in recipe().pieces(5)[0]
    made = [recipe(numerics="invariant", logical_shards=shards).pieces(5)[0] for shards in (2, 4)]
    assert made[0]["numerics"] != made[1]["numerics"]
    assert recipe(compute="bfloat16").pieces(5) != recipe().pieces(5)


def test_nothing_has_happened_at_step_0():
    assert recipe().pieces(0) == recipe(learning_rate=1.0).pieces(0) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"numerics": "invariant", "logical_shards": 3}, "power of two"),
        ({"numerics": "invariant", "logical_shards": 64}, "not divided by logical_shards=64"),
        ({"logical_shards": 4}, "numerics='fast' has none"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"clip": -1.0}, "clip"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"seed": -1}, "seed"),
        ({"data_seed": 2**32}, "data_seed"),
        ({"tokens": {"a": 1, "b": 2}}, "2 sources and there is no mixture"),
        ({"tokens": {"a": 1}, "mixture": MIXTURE}, "source 'b' of the mixture is missing"),
        ({"tokens": {"a": 1, "b": 2, "c": 3}, "mixture": MIXTURE}, "tokens 'c' are given"),
        ({"tokens": {"a": 1, "b": 2}, "packing": {"a": 1}, "mixture": MIXTURE}, "packing is given for a"),
        ({"tokens": {"a": 1, "b": 2}, "mixture": MIXTURE, "max_epochs": 2}, "max_epochs is for a run without"),
        ({"mixture": Mixture((Source("tokens", 2, 1000),), (Phase(0, {"tokens": 1}),))}, "expected to hold 1,000"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(change: dict[str, Any], named: str):
    with pytest.raises(InputError, match=named):
        recipe(**change)
