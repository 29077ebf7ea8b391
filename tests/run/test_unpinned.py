"""What no key fixes is shown at the step that reads it and at all that is made from it, and is kept with outputs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from marin_pipeline.core.errors import DeclarationError, InputError
from marin_pipeline.core.graph import Graph
from marin_pipeline.core.step import Step
from marin_pipeline.run import drawing, inspection
from marin_pipeline.run.driver import load
from marin_pipeline.run.explanation import Explanation
from marin_pipeline.run.screen import output_lines, plan_lines, summary_tree
from marin_pipeline.store.commit import Commit
from tests.run.sessions import Bench
from tests.run.unpinned_steps import both, fetch, telling

OPEN = fetch(address="a").named("open")
OTHER = fetch(address="b").named("other")
FIXED = fetch(address="c", sha256="0" * 64).named("fixed")
ALL = both(parts=[both(parts=[OPEN, FIXED]).named("upper"), OTHER, OPEN]).named("all")
UNPINNED = {"open": ("a",), "fixed": (), "upper": ("a",), "other": ("b",), "all": ("a", "b")}


def test_a_step_and_all_its_descendants_know_what_is_not_fixed() -> None:
    assert {node.name: node.unpinned for node in Graph([ALL]).nodes.values()} == UNPINNED
    assert OPEN.unpinned == ("a",)
    assert ALL.unpinned == ()  # by itself


def test_it_is_in_no_key() -> None:
    pinned = Step(fetch.fn, unpinned=lambda arguments: ())
    assert pinned(address="a").key == OPEN.key


def test_arguments_that_name_nothing_are_refused_when_they_are_declared() -> None:
    with pytest.raises(InputError, match=r"step fetch .*: address 'a b': no address has a space; write %20"):
        fetch(address="a b")


def test_what_a_step_brings_in_is_known_before_it_runs() -> None:
    declaration = fetch(address="a", size=5).declaration
    assert declaration is not None
    assert declaration.transfers == [5]
    assert Graph([ALL]).nodes[ALL.key].declaration.transfers == ()


def test_plan_run_show_ls_and_the_picture_say_so(inline: Bench) -> None:
    session = inline.session(ALL)
    plan = session.plan()
    assert {planned.node.name: tuple(planned.tree()["unpinned"]) for planned in plan.nodes.values()} == UNPINNED
    told = plan_lines(plan, "title", "store")
    assert told[0].endswith(" · 4 unpinned")
    assert [line.partition("  unpinned")[2] for line in told[1:] if "  open" in line] == [": a"]
    assert [line.endswith("  unpinned") for line in told[1:] if "  upper" in line] == [True]
    assert not any("unpinned" in line for line in told[1:] if "  fixed" in line)
    assert drawing.mermaid(plan).count(" unpinned") == 4
    assert drawing.svg(plan).count("stroke-dasharray") == 4
    explained = list(Explanation(plan, "all", session.objects, session.earlier()).lines())
    assert "  unpinned: no key fixes a, b" in explained

    result = inline.run(ALL)
    summary = {step["name"]: tuple(step.get("unpinned", ())) for step in summary_tree(result)["steps"]}
    assert summary == UNPINNED
    assert "unpinned a, b" in output_lines(result)
    shown = list(inspection.show(result.objects, ALL.key, as_json=False))
    assert [line for line in shown if line.startswith("unpinned")] == ["unpinned   a", "unpinned   b"]
    listed = [json.loads(line) for line in inspection.list_steps(result.objects, as_json=True)]
    assert {
        step["names"][0].rpartition("/")[2].partition("@")[0]: tuple(step.get("unpinned", ())) for step in listed
    } == UNPINNED
    assert "  unpinned: a, b" in list(inspection.list_steps(result.objects, as_json=False))


def test_a_step_that_failed_does_not_say_how_to_pin_what_it_read(inline: Bench) -> None:
    result = inline.run(telling(address="fails"))
    assert not result.ok
    assert not [line for line in output_lines(result) if line.startswith("unpinned")]


def test_the_commit_keeps_it_and_what_is_made_from_a_loaded_output_inherits_it(inline: Bench) -> None:
    result = inline.run(ALL)
    commit = result.settled[ALL.key].commit
    assert commit is not None
    assert commit.unpinned == ("a", "b")
    assert Commit.loads(commit.dumps(), "here") == commit
    loaded: Any = load(ALL.key, prefix=result.objects.url)
    above = both(parts=[loaded]).named("above")
    assert Graph([above]).nodes[above.key].unpinned == ("a", "b")


def test_a_commit_without_it_is_written_and_read_as_before(inline: Bench) -> None:
    result = inline.run(FIXED)
    commit = result.settled[FIXED.key].commit
    assert commit is not None
    assert "unpinned" not in commit.tree()
    assert Commit.loads(commit.dumps(), "here").unpinned == ()
    assert dataclasses.replace(commit, unpinned=("a",)).dumps() != commit.dumps()


def _nothing() -> list[str]:
    return []


@pytest.mark.parametrize(
    ("option", "hook", "problem"),
    [
        ("unpinned", lambda url: [url], "returned a list with a .* in it"),
        ("unpinned", lambda arguments: arguments["address"], "returned a str"),
        ("unpinned", lambda arguments: arguments["adress"], "raised KeyError: 'adress'"),
        ("unpinned", lambda arguments: arguments, "returned a dict"),
        ("unpinned", lambda arguments: None, "returned a NoneType"),
        ("unpinned", lambda address, sha256: [address], "cannot be called so .missing a required argument: 'sha256'"),
        ("unpinned", _nothing, "cannot be called so"),
        ("unpinned", ["a"], "cannot be called so"),
        ("transfers", lambda arguments: 5, "returned a int"),
        ("transfers", lambda arguments: [-1], "returned a list with a int in it, '-1'"),
        ("transfers", lambda arguments: [arguments["address"]], "returned a list with a str in it, 'a'"),
        ("transfers", lambda size, address: [size], "cannot be called so"),
        ("chain", lambda a, b: None, "cannot be called so"),
        ("exact", _nothing, "cannot be called so"),
    ],
)
def test_a_function_of_the_arguments_that_does_not_fit_is_told_with_the_step(
    option: str, hook: Any, problem: str
) -> None:
    expected = rf"step fetch \(unpinned_steps\.py:\d+\): {option}= {problem}.*it is a function of one argument"

    def declared() -> Any:
        made = Step(fetch.fn, **{option: hook})(address="a")
        assert made.declaration is not None
        return made.declaration.transfers

    with pytest.raises(DeclarationError, match=expected) as told:
        declared()
    assert f"`{option}=lambda arguments: " in str(told.value)


def test_how_to_pin_it_is_said_where_the_step_knows_it(inline: Bench) -> None:
    lines = output_lines(inline.run([telling(address="c"), OPEN]))
    assert [line for line in lines if line.startswith("unpinned")] == ["unpinned c: see its log", "unpinned a"]
