"""Explanations: root causes, compared with the nearest earlier result, at a bounded cost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline import Artifact
from marin_pipeline.core.canonical import encode
from marin_pipeline.core.errors import StoreError
from marin_pipeline.run.cones import cones_of
from marin_pipeline.run.earlier import READ, SIMILAR
from marin_pipeline.run.explain import ABSENT, changes, shown
from marin_pipeline.run.explanation import Explanation
from marin_pipeline.run.screen import plan_lines
from marin_pipeline.store.objects import ObjectStore
from tests.conftest import Program
from tests.faults.faulty_objects import FaultyObjects
from tests.run.sample_steps import add, increment, number, times, words
from tests.run.sessions import Bench, step_folder

CODED = """
from dataclasses import dataclass, field
from enum import Enum
from marin_pipeline import Artifact, Context, main, step

class Case(Enum):
    LOW = 1
    HIGH = 2

@dataclass(frozen=True)
class Rules:
    case: Case = Case.LOW
    sizes: tuple[int, ...] = (1, 2)

def helper(size: int) -> int:
    return size * 2

@step
def make(ctx: Context, size: int, rules: Rules = Rules()) -> int:
    return helper(size)

@step
def use(ctx: Context, made: Artifact[int]) -> int:
    return made.value

def build(size: int = 1) -> Artifact[int]:
    return use(made=make(size=size))

if __name__ == "__main__":
    main(build)
"""


class Counting(FaultyObjects):
    """Counts what is asked of a store."""

    def __init__(self, objects: ObjectStore, seen: Counter[str]) -> None:
        super().__init__(objects, lambda operation, path: seen.update([operation]))
        self._seen = seen

    def names(self, folder: str) -> list[str]:
        self._seen["names"] += 1
        return super().names(folder)


def fan(root: Artifact[int], many: int) -> list[Artifact[int]]:
    """As many different steps below one root, each with a name of its own."""
    return [add(numbers=[root] * (index + 1)).named(f"fan/{index}") for index in range(many)]


def test_steps_that_are_only_downstream_are_explained_without_a_look_at_their_results(inline: Bench) -> None:
    inline.run(fan(number(value=1).named("root"), 60))
    seen: Counter[str] = Counter()
    target = fan(number(value=2).named("root"), 60)
    session = inline.session(target)
    looks = session.looks()
    inline.wrap = lambda objects: Counting(objects, seen)
    plan = inline.session(target).plan(looks)
    reasons = {planned.node.name: planned.reason for planned in plan.nodes.values()}
    assert reasons == {"root": "value 1 → 2", **{f"fan/{index}": "downstream of root" for index in range(60)}}
    assert sum(seen.values()) < 15


def test_what_is_read_for_explanations_is_bounded(inline: Bench) -> None:
    inline.run([number(value=each) for each in range(150)])
    seen: Counter[str] = Counter()
    target = [number(value=each).named(f"number/{each}") for each in range(1000, 1600)]
    looks = inline.session(target).looks()
    inline.wrap = lambda objects: Counting(objects, seen)
    plan = inline.session(target).plan(looks)
    assert {planned.status for planned in plan.nodes.values()} == {"run"}
    assert all("→ 1" in planned.reason for planned in plan.nodes.values())
    assert seen["read"] <= 4 * (SIMILAR + 1) + READ + 10
    assert seen["names"] <= 2 * READ + 100


def test_the_most_alike_of_the_same_step_is_compared_with_when_no_name_tells(inline: Bench) -> None:
    inline.run([times(count=words(text="a"), factor=2), times(count=words(text="a b c"), factor=3)])
    new = times(count=words(text="a b c"), factor=4)
    assert inline.reasons(new)["times"] == "factor 3 → 4"


def test_of_a_list_that_grew_only_the_addition_is_told(inline: Bench) -> None:
    one, two, three = (number(value=each).named(f"n{each}") for each in (1, 2, 3))
    inline.run(add(numbers=[one, three]))
    assert inline.reasons(add(numbers=[one, two, three]))["add"] == "numbers[1] absent → n2"
    assert inline.reasons([add(numbers=[one, two]), three])["add"] == "numbers[1] n3 → n2"
    assert inline.reasons([add(numbers=[three, one, two]), one])["add"] == "numbers[0] absent → n3; numbers[2] n3 → n2"


def test_what_is_not_a_number_is_shown_as_one() -> None:
    assert [shown(encode(value, "")) for value in (float("nan"), float("-inf"), "nan")] == ["nan", "-inf", "'nan'"]


def test_items_of_lists_are_aligned() -> None:
    found = list(changes([1, 2, 3, 4], [0, 1, 3, 4, 5], "x"))
    assert [(change.path, change.old, change.new) for change in found] == [
        ("x[0]", ABSENT, 0),
        ("x[1]", 2, ABSENT),
        ("x[4]", ABSENT, 5),
    ]
    assert len(list(changes(list(range(5000)), list(range(1, 6000))))) == 5999


def test_a_printed_plan_counts_a_cone_at_its_first_root(inline: Bench) -> None:
    def experiment(first: int, second: int) -> Artifact[int]:
        roots = [number(value=first).named("first"), number(value=second).named("second")]
        sides = [
            add(numbers=[root] * (index + 1)).named(f"{root.name}/{index}") for root in roots for index in range(5)
        ]
        return add(numbers=[*sides, roots[1]]).named("all")

    inline.run(experiment(1, 2))
    plan = inline.plan(experiment(3, 4))
    lines = plan_lines(plan, "t", "s")
    assert [line[19:] for line in lines[1:]] == [
        "first  value 1 → 3  +6 downstream",
        "second  value 2 → 4  +5 downstream",
    ]
    assert len(plan_lines(plan, "t", "s", whole=True)) == 14
    assert len(plan_lines(inline.plan(experiment(3, 2)), "t", "s")) == 14, "few enough to be named"


LAYERS = """
from marin_pipeline import Artifact, Context, main, step

@step
def leaf(ctx: Context, k: int) -> int:
    return k

@step
def node(ctx: Context, inputs: list[Artifact[int]], k: int = 0) -> int:
    return sum(each.value for each in inputs) + k

def build(k: int = 0) -> list[Artifact[int]]:
    layer = [leaf(k=index).named(f"l0/{index}") for index in range(4)]
    for number in range(1, 8):
        layer = [
            node(inputs=[layer[index], layer[index - 1]], k=k if (number, index) == (3, 0) else 0).named(
                f"l{number}/{index}"
            )
            for index in range(4)
        ]
    return layer

if __name__ == "__main__":
    main(build)
"""


def test_what_the_same_code_changed_is_told_once_and_no_step_hangs_on_what_is_told(
    program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "layers.py"
    file.write_text(LAYERS)
    assert program(file, "--backend", "inline").code == 0
    file.write_text(LAYERS.replace("+ k", "+ k + 0"))
    lines = program(file, "plan").out.splitlines()
    told = [line for line in lines if "code changed" in line]
    assert [line.partition("  code")[2] for line in told] == [" changed: layers:node  +27 more"]
    assert len(lines) == 1 + 4 + 1, "the leaves are cached, and stand for themselves"
    whole = program(file, "plan", "-v").out.splitlines()
    assert sorted(line[17:] for line in whole if line.startswith("run")) == [
        f"  l{number}/{index}  code changed: layers:node" for number in range(1, 8) for index in range(4)
    ]
    reasons = {line["name"]: line["reason"] for line in program(file, "plan", "--json").events}
    assert reasons["l7/2"] == "code changed: layers:node; downstream of l6/1; downstream of l6/2"


def test_a_step_far_below_names_the_roots_and_their_reasons(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "layers.py"
    file.write_text(LAYERS)
    assert program(file, "--backend", "inline").code == 0
    assert "  downstream of l3/0 (k 0 → 5)\n" in program(file, "explain", "l7/2", "--k", "5").out
    (line,) = program(file, "explain", "l7/2", "--k", "5", "--json").events
    assert line["reason"] == "downstream of l3/0"
    assert [reason["text"] for reason in line["reasons"]] == ["downstream of l3/0 (k 0 → 5)"]


def test_a_step_below_many_roots_names_each_once(inline: Bench) -> None:
    def experiment(shift: int) -> Artifact[int]:
        roots = [number(value=each + shift).named(f"root/{each}") for each in range(5)]
        sides = [add(numbers=[root, roots[0]]).named(f"side/{index}") for index, root in enumerate(roots)]
        return add(numbers=[*sides, roots[1]]).named("all")

    inline.run(experiment(0))
    (planned,) = [each for each in inline.plan(experiment(10)).nodes.values() if each.node.name == "all"]
    assert sorted(reason.path for reason in planned.reasons) == [f"root/{each}" for each in range(5)]
    assert planned.told.endswith(" and 2 more")
    assert planned.reason.count("downstream of") == 5


def test_forced_stale_and_drifted_roots_have_their_cones_too(inline: Bench) -> None:
    target = fan(number(value=1).named("root"), 10)
    inline.run(target)
    lines = plan_lines(inline.plan(target, force="root"), "t", "s")
    assert len(lines) == 2
    assert lines[1].endswith("root  forced  +10 kept unless it gives other bytes")
    last = add(numbers=[add(numbers=target[:1]).named("next")]).named("last")
    inline.run(last)
    reasons = inline.reasons(last, force="root")
    assert reasons["last"] == "kept unless root gives other bytes"


def test_explain_shows_every_difference_and_what_it_was_compared_with(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "coded.py"
    file.write_text(CODED)
    assert program(file).code == 0
    file.write_text(CODED.replace("size * 2", "size + size"))
    ran = program(file, "explain", "make", "--size", "3", "make.rules.case=HIGH", "make.rules.sizes=[1,5,2]")
    assert ran.code == 0, ran.err
    for line in (
        "compared with make@1 (",
        "  size  1 → 3",
        "  rules.case  LOW → HIGH",
        "  rules.sizes[1]  absent → 5",
        "  code changed: coded:helper",
        "+1 downstream: use",
    ):
        assert line in ran.out
    (line,) = program(file, "explain", "make", "--json", "--size", "3").events
    assert line["compared_with"]["name"] == "make@1"
    assert line["changes"] == [{"path": "size", "old": 1, "new": 3, "text": "1 → 3"}]
    assert line["code"] == [{"name": "coded:helper", "change": "changed"}]
    (line,) = program(file, "explain", "use", "--json").events
    assert line["reason"] == "downstream of make"


def test_an_explanation_of_what_is_done_compares_with_nothing(inline: Bench) -> None:
    inline.run(number(value=1))
    session = inline.session(number(value=1))
    explanation = Explanation(session.plan(), "number", session.objects, session.earlier())
    assert explanation.tree()["compared_with"] is None
    assert "done, and nothing that it depends on has changed" in "\n".join(explanation.lines())


def test_damaged_records_cost_an_explanation_and_nothing_else(inline: Bench) -> None:
    inline.run(times(count=words(text="a"), factor=2))
    (step_folder(inline, times(count=words(text="a"), factor=2)) / "spec.json").write_bytes(b"\xff")
    for file in (inline.prefix / "experiments").rglob("*.json"):
        file.write_text("{")
    assert inline.reasons(times(count=words(text="a"), factor=3))["times"] == "new"


def test_a_store_that_fails_while_a_plan_is_explained_is_told(inline: Bench) -> None:
    inline.run(number(value=1))
    looks = inline.session(number(value=2)).looks()
    inline.wrap = lambda objects: FaultyObjects(objects, lambda operation, path: "before")
    with pytest.raises(StoreError):
        inline.session(number(value=2)).plan(looks)


# As trees are written: what is not finite stands as a tag.
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


@given(TREES, TREES)
def test_two_trees_differ_somewhere_exactly_when_they_are_not_equal(old: Any, new: Any) -> None:
    assert not list(changes(old, old))
    different = json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True)
    assert bool(list(changes(old, new))) == different
    for change in changes(old, new):
        assert shown(change.old)
        assert len(shown(change.new)) <= 60


def test_a_cone_is_told_once(inline: Bench) -> None:
    last = number(value=0)
    for _ in range(200):
        last = increment(before=last)
    inline.run(last)
    plan = inline.plan(last, force="number")
    cones = cones_of(plan)
    assert sum(cone.doubtful for cone in cones.by_root.values()) == 200
