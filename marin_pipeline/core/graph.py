"""The graph of what is declared: each node once, by key, in topological order.

Names belong to the graph, not to the nodes: two artifacts of one key are one node that may bear several names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from marin_pipeline.core.arguments import references, transform
from marin_pipeline.core.artifact import Artifact, File
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

    @property
    def declaration(self) -> Declaration:
        """The step and its arguments."""
        if self.artifact.declaration is None:
            raise UsageError(f"{self.artifact!r} was loaded from a store and cannot be run again here")
        return self.artifact.declaration

    @property
    def id(self) -> str:
        """The step's id."""
        return self.declaration.step.id

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
        self.targets: list[str] = []
        """Keys of the artifacts that were asked for."""
        artifacts: dict[str, list[Artifact[Any]]] = {}
        dependencies: dict[str, dict[str, str]] = {}
        order: list[str] = []
        for target in targets:
            self.targets.append(target.key)
            _visit(target, artifacts, dependencies, order)
        self.nodes: dict[str, Node] = {
            key: Node(key, artifacts[key][0], (), dependencies[key]) for key in order
        }
        """Nodes by key, dependencies before dependents."""
        for key, names in _names(order, artifacts).items():
            self.nodes[key] = replace(self.nodes[key], names=names)

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
        exact = [node for node in self.nodes.values() if selector in node.names]
        found = exact or [
            node
            for node in self.nodes.values()
            if selector in (node.id, node.id.rpartition("/")[2])
            or any(name.startswith(f"{selector}[") for name in node.names)
            or (len(selector) >= 6 and node.key.startswith(selector))
        ]
        if len(found) == 1:
            return found[0]
        known = ", ".join(name for node in self.nodes.values() for name in node.names)
        if not found:
            raise UsageError(f"no step is called {selector!r} here; there are: {known}")
        raise UsageError(f"{selector!r} fits several steps: {', '.join(node.name for node in found)}; use one of these names")


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
        key = artifact.key
        if leaving:
            if key not in artifacts:
                artifacts[key] = []
                order.append(key)
            if not any(artifact.label == other.label for other in artifacts[key]):
                artifacts[key].append(artifact)
            continue
        if key in artifacts:
            if not any(artifact.label == other.label for other in artifacts[key]):
                artifacts[key].append(artifact)
            continue
        if key in dependencies:
            raise UsageError(f"{artifact.name} needs itself; a step cannot be among its own inputs")
        stack.append((artifact, True))
        found = artifact_references(artifact)
        dependencies[key] = {role: dependency.key for role, dependency in found}
        stack.extend((dependency, False) for _, dependency in reversed(found))


def artifact_references(artifact: Artifact[Any]) -> list[tuple[str, Artifact[Any]]]:
    """The artifacts among the arguments, files' included, each with its role."""
    if artifact.declaration is None:
        return []
    found: list[tuple[str, Artifact[Any]]] = []
    for name, value in artifact.declaration.arguments.items():
        for role, reference in references(value, name):
            if isinstance(reference, Artifact):
                found.append((role, reference))
            elif isinstance(reference, File):
                found.append((role, reference.artifact))
    return found


def _names(order: list[str], artifacts: Mapping[str, list[Artifact[Any]]]) -> dict[str, tuple[str, ...]]:
    """Names by key. A name that two keys bear is shown as `name[key8]`; one that was given twice on purpose is refused."""
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
                raise UsageError(f"two different steps are named {label!r}; give each a name of its own")
    return {
        key: tuple(
            name if len(bearers[name]) == 1 or given.get(name) == key else f"{name}[{key[:8]}]" for name in names[key]
        )
        for key in order
    }


def rebuild(graph: Graph, change: Callable[[Node, dict[str, Any]], dict[str, Any]]) -> list[Artifact[Any]]:
    """The targets declared again after `change(node, arguments)` has been applied to every node, dependencies first.

    Nodes whose arguments stay as they were keep their artifact; descendants of a changed one are declared anew.
    """
    rebuilt: dict[str, Artifact[Any]] = {}
    for key, node in graph.nodes.items():
        old = node.artifact
        if old.declaration is None:
            rebuilt[key] = old
            continue

        def renew(reference: Reference) -> Any:
            if isinstance(reference, Artifact):
                return _relabelled(rebuilt[reference.key], reference)
            if isinstance(reference, File):
                artifact = _relabelled(rebuilt[reference.artifact.key], reference.artifact)
                return reference if artifact is reference.artifact else File(artifact, reference.sub)
            return reference

        arguments = {name: transform(value, renew) for name, value in old.declaration.arguments.items()}
        changed = change(node, arguments)
        if all(changed[name] is value for name, value in old.declaration.arguments.items()):
            rebuilt[key] = old
        else:
            new = old.declaration.step.declare(changed)
            rebuilt[key] = _relabelled(new, old)
    return [rebuilt[key] for key in graph.targets]


def _relabelled(new: Artifact[Any], old: Artifact[Any]) -> Artifact[Any]:
    if new.key == old.key:
        return old
    renamed = new.named(old.label) if old.label is not None else new
    return renamed.using(old.resources)
