"""One step of a plan explained: why it would run, argument by argument and piece by piece of its code, and with which
earlier result it was compared.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator

from marin_pipeline.core.canonical import Tree
from marin_pipeline.run.cones import cones_of
from marin_pipeline.run.earlier import EarlierResults, name_with_number
from marin_pipeline.run.explain import ABSENT, Change, Reason, changes, shown
from marin_pipeline.run.plan import ACCEPT_OR_RERUN, Comparison, Earlier, Plan, PlannedNode, is_drifted
from marin_pipeline.run.words import few, listed, moment
from marin_pipeline.store.objects import ObjectStore

MANY_REASONS = 12
"""Reasons that are told one by one; more are counted."""


class Explanation:
    """What there is to say of one step of a plan."""

    def __init__(self, plan: Plan, selector: str, objects: ObjectStore, earlier: EarlierResults) -> None:
        self._plan = plan
        self._names = {key: node.name for key, node in plan.graph.nodes.items()}
        self._by_name = {planned.node.name: planned for planned in plan.nodes.values()}
        self._planned: PlannedNode = plan.nodes[plan.graph.select(selector).key]
        node = self._planned.node
        commit, found = self._planned.look.commit, None
        if self._planned.status == "run" and commit is None:
            found = earlier(node)
        elif self._planned.status in ("run", "drift") and commit is not None and is_drifted(node, self._planned.look):
            found = Earlier(node.key, commit, node.id, node.declaration.step.version)  # only its code can differ
        self._earlier: Earlier | None = found
        self._label = "" if found is None else name_with_number(objects, node.name, found.key)
        self._compared = None if found is None else Comparison.of(node, found)

    def _changes(self) -> list[Change]:
        return [] if self._compared is None else list(changes(dict(self._compared.old), dict(self._compared.new)))

    def tree(self) -> Tree:
        """The line of `explain --json`: that of the plan, the reasons as data, and every difference."""
        found, compared = self._earlier, self._compared
        return {
            **self._planned.tree(),
            "reasons": [
                {**reason.tree(), "text": f"{reason}{self._because(reason)}"} for reason in self._planned.reasons
            ],
            "compared_with": None
            if found is None
            else {"name": self._label, "id": found.step, "key": found.key, "made": found.commit.finished},
            "changes": [
                {
                    "path": change.path,
                    "old": None if change.old is ABSENT else change.old,
                    "new": None if change.new is ABSENT else change.new,
                    "text": self._text(change),
                }
                for change in self._changes()
            ],
            "code": [] if compared is None else [vars(piece) for piece in compared.code],
            "version": None if compared is None or compared.version is None else list(compared.version),
        }

    def _text(self, change: Change) -> str:
        return f"{shown(change.old, self._names)} → {shown(change.new, self._names)}"

    def _because(self, reason: Reason | str) -> str:
        """Why the root runs that a step hangs on."""
        root = self._by_name.get(reason.path) if isinstance(reason, Reason) and reason.is_downstream else None
        return f" ({root.told})" if root is not None and root.told else ""

    def _of_the_output(self) -> Iterator[str]:
        """What is to be known of an output that is there, and of those that it was made from."""
        commit = self._planned.look.commit
        if commit is not None and commit.adopted_from is not None:
            source = commit.adopted_from
            yield f"  adopted from {source.id} {source.key[:8]}: equal inputs and code"
        if self._planned.node.unpinned:
            yield f"  unpinned: no key fixes {few(list(self._planned.node.unpinned))}"
        for key in self._planned.node.depends_on if self._planned.status != "blocked" else ():
            if self._plan.nodes[key].status == "drift":
                name = self._plan.nodes[key].node.name
                yield f"  its input {name} was made by other code, and nothing new is built on it: {ACCEPT_OR_RERUN}"

    def lines(self) -> Iterator[str]:
        """The explanation for people."""
        planned, node = self._planned, self._planned.node
        yield f"{planned.status}  {node.key[:8]}  {node.name}  ({node.id})"
        reasons = [f"  {reason}{self._because(reason)}" for reason in planned.reasons]
        yield from listed(reasons or ["  done, and nothing that it depends on has changed"], MANY_REASONS)
        yield from self._of_the_output()
        if self._compared is not None and self._earlier is not None:
            made = moment(self._earlier.commit.finished)
            key = self._earlier.key[:8]
            yield f"compared with {self._label}{'' if self._label == key else f' ({key})'}, made {made}"
            found = self._changes()
            for change in found:
                yield f"  {change.path}  {self._text(change)}"
            if self._compared.version is not None:
                yield f"  version  {self._compared.version[0]} → {self._compared.version[1]}"
            for piece in self._compared.code:
                yield f"  code {piece.change}: {piece.name}"
            if not found and not self._compared.code and self._compared.version is None:
                yield "  no argument and no code differs"
        if not node.loaded:
            yield "arguments"
        for role, key in node.dependencies.items():
            dependency = self._plan.nodes[key]
            yield f"  {role} = {dependency.node.name} {key[:8]} ({dependency.status})"
        for argument, value in () if node.loaded else node.declaration.arguments.items():
            if argument not in node.dependencies:
                yield f"  {argument} = {reprlib.repr(value)}"
        waiting = self._downstream()
        if planned.status != "cached" and waiting:
            yield f"+{len(waiting):,} downstream: {few(waiting)}"

    def _downstream(self) -> list[str]:
        """Names of the steps below this one that are not simply done."""
        below = {self._planned.node.key}
        doubtful = cones_of(self._plan).roots
        found: list[str] = []
        for key, each in self._plan.nodes.items():  # dependencies come first
            if not below.isdisjoint(each.node.depends_on):
                below.add(key)
                if each.status != "cached" or key in doubtful:
                    found.append(each.node.name)
        return found
