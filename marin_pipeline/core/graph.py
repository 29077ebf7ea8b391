"""The graph of what is declared: each node once, by key, in topological order.

Names belong to the graph, not to the nodes: two artifacts of one key are one node that may bear several names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from marin_pipeline.core.adopted import PREFIX
from marin_pipeline.core.arguments import roles, transform
from marin_pipeline.core.artifact import Artifact, OutputFile
from marin_pipeline.core.canonical import Reference
from marin_pipeline.core.errors import UsageError
from marin_pipeline.core.step import Declaration


@dataclass(frozen=True)
class Node:
    """One step to be made, with the names it bears in this graph."""

    key: str
    artifact: Artifact[Any]
    names: tuple[str, ...]
    dependencies: Mapping[str, str]
    """Role (the path of the argument) to the key of the artifact that stands there."""
    unpinned: tuple[str, ...] = ()
    """Names of what it is made from and no key fixes, by itself or through what it depends on."""

    @property
    def declaration(self) -> Declaration:
        """The step and its arguments."""
        if self.artifact.declaration is None:
            raise UsageError(f"{self.artifact!r} was loaded from a store and cannot be run again here")
        return self.artifact.declaration

    @property
    def loaded(self) -> bool:
        """Whether it was loaded from a store: its output can be used, but not made again here."""
        return self.artifact.declaration is None

    @property
    def id(self) -> str:
        """The step's id."""
        return self.artifact.output.id if self.loaded else self.declaration.step.id

    @property
    def why_not_made(self) -> str:
        """Why one that is `loaded` cannot be made here, and what to do."""
        if self.id.startswith(PREFIX):
            name = self.id.removeprefix(PREFIX)
            return (
                f"it was made elsewhere: `marin-pipeline adopt PATH --as {name}` takes it into a store, and prints the "
                f"key {self.key[:8]} when PATH holds what is meant"
            )
        return "it was loaded from a store, and is not made again here; pass the declared artifact, or the same prefix"

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]

    @property
    def depends_on(self) -> list[str]:
        """Keys of the dependencies, each once, in the order of their roles."""
        return list(dict.fromkeys(self.dependencies.values()))


class Graph:
    """The nodes that a list of artifacts needs, in topological order."""

    def __init__(self, targets: Iterable[Artifact[Any]]) -> None:
        self.asked = list(targets)
        """The artifacts that were asked for."""
        self.targets = [target.key for target in self.asked]
        """Their keys."""
        artifacts: dict[str, list[Artifact[Any]]] = {}
        dependencies: dict[str, dict[str, str]] = {}
        order: list[str] = []
        for target in self.asked:
            _visit(target, artifacts, dependencies, order)
        names = _names(order, artifacts)
        unpinned = _unpinned(order, artifacts, dependencies)
        self.nodes: dict[str, Node] = {
            key: Node(key, _with_resources(artifacts[key]), names[key], dependencies[key], unpinned.get(key, ()))
            for key in order
        }
        """Nodes by key, dependencies before dependents."""

    def dependents(self) -> dict[str, list[str]]:
        """Keys of the direct dependents of each node."""
        found: dict[str, list[str]] = {key: [] for key in self.nodes}
        for node in self.nodes.values():
            for key in node.depends_on:
                found[key].append(node.key)
        return found

    def ancestors(self, keys: Iterable[str]) -> set[str]:
        """`keys` and everything that they need."""
        found: set[str] = set()
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo.extend(self.nodes[key].depends_on)
        return found

    def select(self, selector: str) -> Node:
        """The node that a name, a step's id or a prefix of a key (6 hex or more) names.

        Raises:
            UsageError: when none or several fit; the message lists the names.
        """
        found = [node for node in self.nodes.values() if selector in node.names]
        found = found or [node for node in self.nodes.values() if _answers_to(node, selector)]
        if len(found) == 1:
            return found[0]
        if not found:
            known = [name for node in self.nodes.values() for name in node.names]
            import difflib

            near = difflib.get_close_matches(selector, known, 1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(f"no step is called {selector!r} here{guess}; there are: {', '.join(known)}")
        several = ", ".join(node.name for node in found)
        raise UsageError(f"{selector!r} fits several steps: {several}; use one of these names")


def _answers_to(node: Node, selector: str) -> bool:
    if len(selector) >= 6 and node.key.startswith(selector):
        return True
    declaration = node.artifact.declaration
    return declaration is not None and selector in (
        declaration.step.id,
        declaration.step.id.rpartition("/")[2],
        declaration.step.name,
    )


def _visit(
    target: Artifact[Any],
    artifacts: dict[str, list[Artifact[Any]]],
    dependencies: dict[str, dict[str, str]],
    order: list[str],
) -> None:
    """Depth first without recursion: a deep graph is walked node by node, never path by path."""
    stack: list[tuple[Artifact[Any], bool]] = [(target, False)]
    while stack:
        artifact, leaving = stack.pop()
        if leaving:
            order.append(artifact.key)
            continue
        seen = artifacts.setdefault(artifact.key, [])
        if all((artifact.label, artifact.resources) != (other.label, other.resources) for other in seen):
            seen.append(artifact)
        if artifact.key not in dependencies:
            stack.append((artifact, True))
            found = artifact_references(artifact)
            dependencies[artifact.key] = {role: dependency.key for role, dependency in found}
            stack.extend((dependency, False) for _, dependency in reversed(found))


def _unpinned(
    order: list[str], artifacts: Mapping[str, list[Artifact[Any]]], dependencies: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, ...]]:
    """By key, what no key fixes, each step's own first; without an entry for one that is pinned."""
    found: dict[str, tuple[str, ...]] = {}
    for key in order:
        sources = [each for dependency in dependencies[key].values() if (each := found.get(dependency))]
        own = artifacts[key][0].unpinned
        if own or len(sources) > 1:
            found[key] = tuple(dict.fromkeys([*own, *(name for each in sources for name in each)]))
        elif sources:
            found[key] = sources[0]  # shared, since a graph may be deep
    return found


def _with_resources(artifacts: list[Artifact[Any]]) -> Artifact[Any]:
    """Of the artifacts of one key, the one whose resources were chosen with `using`, wherever it stands."""

    def are_chosen(artifact: Artifact[Any]) -> bool:
        return artifact.declaration is not None and artifact.resources != artifact.declaration.step.resources

    return next(filter(are_chosen, artifacts), artifacts[0])


def artifact_references(artifact: Artifact[Any]) -> list[tuple[str, Artifact[Any]]]:
    """The artifacts among the arguments, files' included, each with its role."""
    if artifact.declaration is None:
        return []
    found: list[tuple[str, Artifact[Any]]] = []
    for name, value in artifact.declaration.arguments.items():
        for role, reference in roles(value, name):
            needed = _artifact_of(reference)
            if needed is not None:
                found.append((role, needed))
    return found


def _artifact_of(reference: Reference) -> Artifact[Any] | None:
    if isinstance(reference, OutputFile):
        return reference.artifact
    return cast("Artifact[Any]", reference) if isinstance(reference, Artifact) else None


def _names(order: list[str], artifacts: Mapping[str, list[Artifact[Any]]]) -> dict[str, tuple[str, ...]]:
    """Names by key. A name that two keys bear is shown as `name[key8]`; one that was given to both is refused."""
    bearers: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for key in order:
        labelled = [artifact.label for artifact in artifacts[key] if artifact.label is not None]
        names[key] = list(dict.fromkeys(labelled)) or [artifacts[key][0].name]
        for name in names[key]:
            bearers.setdefault(name, []).append(key)
        for label in labelled:
            if given.setdefault(label, key) != key:
                raise UsageError(
                    f"two different artifacts are named {label!r} ({given[label][:8]} and {key[:8]}); "
                    "give each a name of its own with .named(...)"
                )
    return {
        key: tuple(
            name if len(bearers[name]) == 1 or given.get(name) == key else f"{name}[{key[:8]}]" for name in names[key]
        )
        for key in order
    }


def rebuild(graph: Graph, change: Callable[[Node, dict[str, Any]], dict[str, Any]]) -> list[Artifact[Any]]:
    """The targets declared again after `change(node, arguments)` has been applied to every node, dependencies first.

    Nodes whose arguments stay as they were keep their artifact; descendants of a changed one are declared anew, also
    where the keys stay, as under a change of a `Runtime` argument.
    """
    changed: dict[str, Artifact[Any]] = {}

    def renewed(reference: Reference) -> Any:
        old = _artifact_of(reference)
        if old is None or old.key not in changed:
            return reference
        new = _labelled(changed[old.key], old)
        return OutputFile(new, reference.sub) if isinstance(reference, OutputFile) else new

    for key, node in graph.nodes.items():
        declaration = node.artifact.declaration
        if declaration is None:
            continue
        arguments = {name: transform(value, renewed) for name, value in declaration.arguments.items()}
        arguments = change(node, arguments)
        if any(arguments[name] is not value for name, value in declaration.arguments.items()):
            changed[key] = declaration.step.declare(arguments)
    return [renewed(target) for target in graph.asked]


def _labelled(new: Artifact[Any], old: Artifact[Any]) -> Artifact[Any]:
    """`new` under the name and with the resources of `old`."""
    renamed = new.named(old.label) if old.label is not None else new
    return renamed.using(old.resources)
