"""A plan says what would be done and why: argument, code, version, input, stale, drift, blocked."""

from __future__ import annotations

import xml.etree.ElementTree
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, File, LocalFile, step
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.run import drawing
from marin_pipeline.run import plan as planning
from marin_pipeline.store.commit import Invalidation, Look
from tests.conftest import Program
from tests.run.sample_steps import add, fails, first_line, increment, number, size, sizes, times, words
from tests.run.sessions import Bench

PROJECT = '[project]\nname = "sample"\n'
VERSIONED = """
from marin_pipeline import Artifact, Context, main, step

@step(version=1)
def make(ctx: Context, size: int) -> int:
    return size * 2

@step(version=1)
def use(ctx: Context, made: Artifact[int], note: str) -> int:
    return made.value

def build(note: str = "a") -> Artifact[int]:
    return use(made=make(size=3), note=note)

if __name__ == "__main__":
    main(build)
"""


def test_a_changed_argument_is_named_with_both_values(inline: Bench) -> None:
    inline.run(times(count=words(text="a b"), factor=2))
    assert inline.reasons(times(count=words(text="a b"), factor=3)) == {"words": "", "times": "factor 2 → 3"}


def test_a_changed_input_is_named_by_its_root_cause(inline: Bench) -> None:
    inline.run(times(count=words(text="a b")))
    assert inline.reasons(times(count=words(text="a b c"))) == {
        "words": "text 'a b' → 'a b c'",
        "times": "downstream of words",
    }


def test_an_edited_local_file_is_named_by_its_content(inline: Bench, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    contents: list[str] = []
    for text in ("one", "two"):
        file.write_text(text)
        contents.append(LocalFile(file).sha256[:8])
        reasons = inline.reasons(first_line(file=LocalFile(file)))
        inline.run(first_line(file=LocalFile(file)))
    assert reasons == {"first_line": f"file content {contents[0]} → {contents[1]}"}


def test_many_changed_files_are_counted_in_one_short_line(inline: Bench, tmp_path: Path) -> None:
    def files(names: Iterable[int]) -> dict[str, File | LocalFile]:
        for name in names:
            (tmp_path / f"{name}.txt").write_text(str(name))
        return {f"{name}.txt": LocalFile(tmp_path / f"{name}.txt") for name in names}

    inline.run(sizes(files=files(range(30))))
    assert inline.reasons(sizes(files=files(range(5, 40)))) == {"sizes": "files 10 added, 5 removed"}


def test_a_parameter_for_a_file_takes_a_local_file(inline: Bench, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("four")
    result = inline.run(size(file=LocalFile(tmp_path / "text.txt")))
    assert result.artifacts["size"].value == 4


def test_a_diamond_of_a_billion_paths_is_planned_once_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    assess = planning.assess

    def counting(node: Node, *rest: Any) -> Any:
        asked[node.key] += 1
        return assess(node, *rest)

    monkeypatch.setattr(planning, "assess", counting)
    made: Artifact[int] = number(value=1)
    for _ in range(30):
        made = add(numbers=[made, made])
    graph = Graph([made])
    plan = planning.plan(graph, {key: Look(1, None, None, None) for key in graph.nodes})
    assert plan.counts() == {"run": 31}
    assert asked == dict.fromkeys(graph.nodes, 1)


def test_two_keys_under_one_name_are_shown_with_their_keys(inline: Bench) -> None:
    targets = [number(value=1), number(value=2)]
    assert list(inline.statuses(targets)) == [f"number[{each.key[:8]}]" for each in targets]
    only = f"number[{targets[1].key[:8]}]"
    assert inline.outcomes(targets, only=only) == {only: "done"}


def test_until_and_only_leave_the_names_as_they_are_in_the_whole(inline: Bench) -> None:
    targets = [number(value=1), number(value=2)]
    first = f"number[{targets[0].key[:8]}]"
    assert list(inline.statuses(targets, until=first)) == [first]


def test_only_runs_one_step_and_its_inputs_must_be_there(inline: Bench) -> None:
    target = times(count=words(text="a"))
    assert inline.outcomes(target, only="times") == {"words": "blocked", "times": "blocked"}
    assert inline.outcomes(target, only="words") == {"words": "done"}
    assert inline.outcomes(target, only="times") == {"words": "cached", "times": "done"}


def test_a_plan_says_blocked_where_the_run_does(inline: Bench) -> None:
    target = increment(before=increment(before=number(value=1).named("first")).named("second")).named("third")
    for only in ("third", "second"):
        planned = inline.plan(target, only=only).nodes
        assert {each.node.name: each.status for each in planned.values()} == inline.outcomes(target, only=only)
    reason = "first was left out by --only, and has no output yet; run without --only, or run it first"
    assert inline.reasons(target, only="second")["second"] == reason
    assert inline.statuses(target, only="first") == {"first": "run"}


def test_what_is_forced_and_left_out_is_a_contradiction(inline: Bench) -> None:
    with pytest.raises(Exception, match="times is asked for, and left out by --until or --only"):
        inline.plan(times(count=words(text="a")), until="words", force="times")


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (("invalidated", "wrong"), "invalidated: wrong"),
        (("invalidated", ""), "invalidated"),
        (("collected", "no root reached it"), "invalidated: collected: no root reached it"),
        (("forced", "forced"), "invalidated: forced"),
        (("stale", "stale: x was rebuilt"), "invalidated: stale: x was rebuilt"),
    ],
)
def test_why_an_output_was_ended_is_said_once(inline: Bench, ended: tuple[str, str], told: str) -> None:
    (node,) = Graph([number(value=1)]).nodes.values()
    look = Look(2, None, Invalidation(*ended, ""), None)
    assert "; ".join(map(str, planning.assess(node, look, {}, planning.Policy())[1])) == told


def test_pictures_are_valid_whatever_a_reason_says(inline: Bench) -> None:
    target = times(count=words(text="<&\"'\x1b[31m\x00"))
    inline.run(fails(word="\x1b[31m<b>"))
    for artifact in (target, fails(word="\x1b[31m<b>")):
        plan = inline.plan(artifact)
        root = xml.etree.ElementTree.fromstring(drawing.svg(plan))
        assert root.tag.endswith("svg")
        assert drawing.mermaid(plan).startswith("flowchart TD\n")


def test_pictures_of_large_graphs_are_linear_and_no_wider_than_a_line(inline: Bench) -> None:
    root = number(value=0)
    wide = [add(numbers=[root] * (index + 1)).named(f"wide/{'x' * 150}-{index}") for index in range(300)]
    plan = inline.plan(wide)
    picture = drawing.svg(plan)
    root_element = xml.etree.ElementTree.fromstring(picture)
    assert float(root_element.attrib["width"]) < 10_000
    assert picture.count("<rect") == 301
    assert picture.count('marker-end="url(#end)"') == 300
    assert len(picture) < 300_000
    text = drawing.mermaid(plan)
    assert text.count(" --> ") == 300


@step
def Größe(ctx: Context) -> int:
    return 1


def test_odd_names_are_escaped_in_pictures(inline: Bench) -> None:
    plan = inline.plan([Größe(), number(value=1), number(value=2)])
    assert "größe" in drawing.svg(plan)
    text = drawing.mermaid(plan)
    assert '["größe<br/>' in text
    assert f'["number[{number(value=1).key[:8]}]<br/>' in text


@pytest.fixture
def versioned(tmp_path: Path, program: Program) -> tuple[Callable[..., Any], Path]:
    """A project whose steps have versions, already run; the program and its file."""
    file = tmp_path / "project" / "versioned.py"
    file.parent.mkdir()
    (file.parent / "pyproject.toml").write_text(PROJECT)
    file.write_text(VERSIONED)
    assert program(file).code == 0
    file.write_text(VERSIONED.replace("size * 2", "size + size"))
    return program, file


def test_drift_is_shown_and_nothing_new_is_built_on_it(versioned: tuple[Program, Path]) -> None:
    program, file = versioned
    lines = program(file, "plan").out.splitlines()
    assert lines[1][9 + 8 :] == "  make  code changed since it was made: versioned:make"
    assert "its input make was made by other code" in program(file, "explain", "use").out
    plan = {line["name"]: line for line in program(file, "plan", "--json").events}
    assert plan["make"]["status"] == "drift"
    assert "versioned:make" in plan["make"]["reason"]
    assert plan["use"]["status"] == "cached"
    assert program(file, "plan", "--check").code == 3
    assert program(file, "--json").code == 0
    ran = program(file, "--json", "--note", "b")
    assert ran.code == 1
    assert {name: step["status"] for name, step in ran.summary.items()} == {"make": "cached", "use": "blocked"}
    assert "--code accept" in ran.summary["use"]["message"]


def test_drift_that_is_accepted_stays_accepted_with_its_reason(versioned: tuple[Program, Path], tmp_path: Path) -> None:
    program, file = versioned
    ran = program(file, "--json", "--note", "b", "--code", "accept", "--reason", "the same sum")
    assert {name: step["status"] for name, step in ran.summary.items()} == {"make": "cached", "use": "done"}
    (record,) = (tmp_path / "store").glob("steps/sample/make/*/accepted/*.json")
    assert "the same sum" in record.read_text()
    assert program(file, "plan", "--check", "--note", "b").code == 0


def test_drift_that_is_rerun_makes_a_new_commit(versioned: tuple[Program, Path], tmp_path: Path) -> None:
    program, file = versioned
    ran = program(file, "--json", "--code", "rerun")
    assert {name: step["status"] for name, step in ran.summary.items()} == {"make": "done", "use": "cached"}
    (commits,) = (tmp_path / "store").glob("steps/sample/make/*/commits")
    assert sorted(file.name for file in commits.iterdir()) == ["1.json", "2.json"]


def test_drift_that_was_accepted_of_one_output_is_not_accepted_of_the_next(
    versioned: tuple[Program, Path], tmp_path: Path
) -> None:
    program, file = versioned

    def run(factor: int, *options: str) -> Any:
        file.write_text(VERSIONED.replace("size * 2", f"size * {factor}"))
        return program(file, *options)

    assert run(2).code == 0
    assert run(3, "--code", "accept", "--reason", "the same for us").code == 0
    assert "cached" in run(3, "plan").out
    assert run(5, "--code", "rerun").code == 0
    plan = run(3, "plan", "--json")
    assert {event["name"]: event["status"] for event in plan.events}["make"] == "drift"


def test_what_was_accepted_is_shown_with_its_reason(versioned: tuple[Program, Path], tmp_path: Path) -> None:
    from marin_pipeline.run import inspection
    from marin_pipeline.store.objects import open_objects

    program, file = versioned
    assert program(file, "--code", "accept", "--reason", "only a refactoring").code == 0
    lines = list(inspection.show(open_objects(str(tmp_path / "store")), "make", False))
    assert any(line.startswith("accepted   commit 1, code ") and "only a refactoring" in line for line in lines), lines
