"""The graph: each node once, names that tell nodes apart, work that grows with the nodes and not with the paths."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, Resources, Runtime, step
from marin_pipeline.core import canonical
from marin_pipeline.core import graph as core_graph
from marin_pipeline.core.errors import UsageError
from marin_pipeline.core.graph import Graph, Node, rebuild
from tests.core.costs import calls


@step(version=1)
def count(ctx: Context, text: str, workers: Runtime[int] = 1) -> int:
    return len(text)


@step(version=1)
def add(ctx: Context, left: Artifact[int], right: Artifact[int], times: int = 1) -> int:
    return left.value + right.value


@step(version=1)
def gather(ctx: Context, parts: dict[str, list[Artifact[int]]]) -> int:
    return 0


def names(graph: Graph) -> list[str]:
    return [name for node in graph.nodes.values() for name in node.names]


def test_each_key_is_one_node_and_dependencies_come_first() -> None:
    one, again, two = count(text="a"), count(text="a"), count(text="b")
    total = add(left=one, right=add(left=again, right=two))
    graph = Graph([total, two])
    assert list(graph.nodes) == [one.key, two.key, add(left=one, right=two).key, total.key]
    assert graph.targets == [total.key, two.key]
    assert graph.nodes[total.key].dependencies == {"left": one.key, "right": add(left=one, right=two).key}
    assert graph.dependents()[one.key] == [add(left=one, right=two).key, total.key]
    assert graph.ancestors([two.key]) == {two.key}
    assert graph.ancestors([total.key]) == set(graph.nodes)


def test_dependencies_are_found_at_any_depth_files_included() -> None:
    one, two = count(text="a"), count(text="b")
    made = gather(parts={"x": [one, one], "y": [two]})
    node = Graph([made]).nodes[made.key]
    assert node.dependencies == {"parts[x][0]": one.key, "parts[x][1]": one.key, "parts[y][0]": two.key}
    assert node.depends_on == [one.key, two.key]


@step(version=1)
def unordered(ctx: Context, parts: set[Artifact[int]] | frozenset[tuple[str, Artifact[int]]]) -> int:
    return 0


def test_every_artifact_in_a_set_is_a_dependency() -> None:
    parts = [count(text=text) for text in "abcdef"]
    keys = sorted(part.key for part in parts)
    for order in (parts, parts[::-1]):
        graph = Graph([unordered(parts=set(order))])
        node = graph.nodes[graph.targets[0]]
        assert node.dependencies == {f"parts{{{number}}}": key for number, key in enumerate(keys)}
        assert list(graph.nodes) == [*keys, node.key]
    pairs = unordered(parts=frozenset({("x", parts[0]), ("y", parts[1])}))
    assert Graph([pairs]).nodes[pairs.key].dependencies == {"parts{0}[1]": parts[0].key, "parts{1}[1]": parts[1].key}
    (moved,) = rebuild(Graph([pairs]), replaced("text", "z"))
    assert Graph([moved]).nodes[moved.key].depends_on == [count(text="z").key]


def layers(depth: int) -> Artifact[int]:
    made = count(text="a")
    for _ in range(depth):
        made = add(left=made, right=made)
    return made


def test_a_diamond_of_a_billion_paths_is_walked_node_by_node() -> None:
    graph = Graph([layers(30)])
    assert len(graph.nodes) == 31
    assert (
        len(rebuild(graph, lambda node, arguments: {**arguments, "times": 2} if "times" in arguments else arguments))
        == 1
    )


def test_a_step_in_a_deep_graph_costs_what_one_in_a_shallow_graph_costs() -> None:
    def costs(depth: int) -> tuple[float, float, float]:
        made: list[Artifact[int]] = []
        graphs: list[Graph] = []
        change = replaced("text", "b")
        declaring = calls(lambda: made.append(layers(depth)))
        walking = calls(lambda: graphs.append(Graph(made)))
        rebuilding = calls(lambda: rebuild(graphs[0], change))
        return declaring / depth, walking / depth, rebuilding / depth

    costs(10)  # what is computed once
    for few, many in zip(costs(30), costs(600), strict=True):
        assert many < 1.1 * few + 1
        assert many < 2000


def test_ten_thousand_steps_are_written_and_visited_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.getrecursionlimit() < 10_000
    done: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counting(*args: Any) -> Any:
            done[name] += 1
            return function(*args)

        monkeypatch.setattr(module, name, counting)

    counted(canonical, "_encode")
    counted(core_graph, "artifact_references")
    graph = Graph([layers(10_000)])
    assert len(graph.nodes) == 10_001
    # Of each step: both inputs, and the number of times when it is checked and when it is written.
    assert done["_encode"] <= 4 * 10_001
    assert done["artifact_references"] == 10_001


def test_many_steps_that_share_inputs_cost_each_the_same() -> None:
    def cost(number: int) -> float:
        def declare() -> None:
            texts = [count(text=str(index % 10)) for index in range(number)]
            Graph([add(left=text, right=texts[0], times=index) for index, text in enumerate(texts)])

        return calls(declare) / number

    cost(10)
    assert cost(500) < 1.1 * cost(100)


def test_one_artifact_may_bear_several_names() -> None:
    made = count(text="a")
    graph = Graph([made.named("first"), made, made.named("second/again")])
    assert [node.names for node in graph.nodes.values()] == [("first", "second/again")]
    assert graph.select("second/again") is graph.select("first")


def test_two_keys_under_one_default_name_are_told_apart() -> None:
    one, two = count(text="a"), count(text="b")
    assert names(Graph([one, two])) == [f"count[{one.key[:8]}]", f"count[{two.key[:8]}]"]
    assert names(Graph([one.named("mine"), two])) == ["mine", "count"]
    assert names(Graph([one.named("count"), two])) == ["count", f"count[{two.key[:8]}]"]


def test_one_given_name_for_two_keys_is_refused() -> None:
    with pytest.raises(UsageError, match=r"two different artifacts are named 'x' \(.*\); give each a name of its own"):
        Graph([count(text="a").named("x"), count(text="b").named("x")])


def test_chosen_resources_hold_wherever_the_artifact_was_given_them() -> None:
    made = count(text="a")
    for targets in ([made, made.using(Resources(cpus=8))], [made.using(Resources(cpus=8)), made]):
        assert Graph(targets).nodes[made.key].artifact.resources.cpus == 8


def test_a_node_is_selected_by_name_id_or_key() -> None:
    one, two = count(text="a"), count(text="b").named("other")
    total = add(left=one, right=two)
    graph = Graph([total])
    for selector in ("add", "marin_pipeline/add", total.key, total.key[:6]):
        assert graph.select(selector).key == total.key
    assert graph.select("count").key == one.key
    with pytest.raises(UsageError, match=r"no step is called 'missing' here; there are: count, other, add"):
        graph.select("missing")
    with pytest.raises(UsageError, match="no step is called"):
        graph.select(total.key[:5])
    same = Graph([one, count(text="c")])
    with pytest.raises(UsageError, match=rf"'count' fits several steps: count\[{one.key[:8]}\]"):
        same.select("count")
    assert same.select(f"count[{one.key[:8]}]").key == one.key


def test_a_loaded_artifact_is_a_leaf() -> None:
    loaded = Artifact[Any]("0" * 64, name="loaded")
    graph = Graph([add(left=loaded, right=count(text="a"))])
    assert graph.select("add").dependencies["left"] == loaded.key
    with pytest.raises(UsageError, match="was loaded from a store"):
        _ = graph.select("loaded").declaration


def replaced(name: str, value: Any) -> Any:
    def change(node: Node, arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, name: value} if name in arguments else arguments

    return change


def test_rebuilding_moves_descendants_and_nothing_else() -> None:
    one = count(text="a").named("one").using(Resources(cpus=2))
    kept = add(left=count(text="b"), right=count(text="b"))
    total = add(left=one, right=kept).named("total")
    (new,) = rebuild(
        Graph([total]), lambda node, arguments: {**arguments, "text": "c"} if node.name == "one" else arguments
    )
    graph = Graph([new])
    assert new.key == add(left=count(text="c"), right=kept).key
    assert graph.select("one").artifact.resources.cpus == 2
    assert graph.nodes[kept.key].artifact is kept
    assert new.name == "total"


def test_a_change_of_a_runtime_argument_reaches_the_run_and_leaves_keys() -> None:
    total = add(left=count(text="a"), right=count(text="b"))
    (new,) = rebuild(Graph([total]), replaced("workers", 7))
    assert new.key == total.key
    counted = Graph([new]).nodes[count(text="a").key]
    assert counted.declaration.arguments["workers"] == 7


def test_every_name_of_a_target_survives_rebuilding() -> None:
    made = count(text="a")
    new = rebuild(Graph([made.named("x"), made.named("y")]), replaced("text", "z"))
    assert [artifact.name for artifact in new] == ["x", "y"]
    assert {artifact.key for artifact in new} == {count(text="z").key}
