"""What a name stands for: the last good result that its owner ran under it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, load, run
from marin_pipeline.core.errors import UsageError
from tests.faults.faulty_objects import FaultyObjects
from tests.run.sample_steps import nested, number, squares
from tests.run.sessions import Bench


def ran(bench: Bench, experiment: str, target: Artifact[Any]) -> bool:
    """Run as one of several experiments on the same store."""
    return replace(bench.session(target), experiment=f"tests/{experiment}").run().ok


def loaded(bench: Bench, name: str) -> Any:
    return load(name, prefix=str(bench.prefix)).value


def test_of_two_experiments_with_one_name_the_one_that_ran_last_has_it(inline: Bench) -> None:
    for experiment, given in (("a", 1), ("b", 2), ("a", 1), ("b", 2), ("b", 2)):
        assert ran(inline, experiment, number(value=given).named("shared"))
        assert loaded(inline, "shared") == given


def test_who_runs_what_others_have_done_gets_names_too(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_OWNER", "ada")
    assert inline.outcomes(number(value=1)) == {"number": "done"}
    monkeypatch.setenv("MARIN_OWNER", "grace")
    with pytest.raises(UsageError, match="'number' is no name"):
        loaded(inline, "number")
    assert inline.outcomes(number(value=1)) == {"number": "cached"}
    assert loaded(inline, "number") == 1
    assert inline.outcomes(number(value=2)) == {"number": "done"}
    assert loaded(inline, "number") == 2
    assert loaded(inline, "ada/number") == 1


def test_a_failed_run_leaves_the_name_at_the_last_good_result_and_plans_compare_with_it(inline: Bench) -> None:
    assert inline.run(squares(numbers=[2])).ok
    assert not inline.run(squares(numbers=[13])).ok
    assert loaded(inline, "squares") == [4]
    assert inline.reasons(squares(numbers=[3])) == {"squares": "numbers[0] 2 → 3"}


def test_a_blocked_run_leaves_the_name_at_the_last_good_result_and_plans_compare_with_it(inline: Bench) -> None:
    assert inline.run(nested(squares=squares(numbers=[2]), numbers=[5])).ok
    blocked = nested(squares=squares(numbers=[13]), numbers=[5])
    assert inline.outcomes(blocked) == {"squares": "failed", "nested": "blocked"}
    assert loaded(inline, "nested") == ["44", "252525"]
    assert inline.reasons(nested(squares=squares(numbers=[2]), numbers=[6]))["nested"] == "numbers[0] 5 → 6"


@pytest.mark.parametrize("owner", ["../../x", "/x", "a/b", ".", "..", "-x", "x" * 100, "a\nb", "a b"])
def test_an_owner_that_is_no_plain_name_is_refused_and_nothing_runs(
    inline: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: str
) -> None:
    monkeypatch.setenv("MARIN_OWNER", owner)
    with pytest.raises(UsageError, match="MARIN_OWNER="):
        run(number(value=1), prefix=str(inline.prefix), backend="inline", quiet=True)
    assert not inline.ran()
    assert not list(tmp_path.rglob("names"))


def test_who_cannot_write_a_store_can_use_what_is_done_in_it(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.run(number(value=1))
    monkeypatch.setenv("MARIN_OWNER", "guest")
    inline.wrap = lambda objects: FaultyObjects(
        objects, lambda operation, path: None if operation == "read" else "before"
    )
    assert inline.outcomes(number(value=1)) == {"number": "cached"}
