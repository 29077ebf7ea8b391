"""How a step came out, and what a person or a program that watches is told on the way."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.run.plan import ACCEPT_OR_RERUN
from marin_pipeline.store.commit import Commit, Elsewhere

Outcome = Literal["cached", "done", "failed", "blocked"]
Verb = Literal[
    "cached",
    "adopt",
    "wait",
    "run",
    "fetch",
    "progress",
    "done",
    "fetched",
    "retry",
    "fail",
    "blocked",
    "diverged",
    "drift",
]


@dataclass
class Settled:
    """How a step came out."""

    outcome: Outcome
    commit: Commit | None = None
    seconds: float = 0.0
    message: str = ""
    """Why it failed or is blocked."""
    drifted: bool = False
    """The output was made by other code; nothing new is built on it."""
    stopped: bool = False
    """It was at work when the run was stopped."""
    fetched: bool = False
    """The output was copied here from another store, in this run."""
    left: Elsewhere | None = None
    """Another store has the output, and nothing here needs it: it was left there."""

    @property
    def known(self) -> Commit | None:
        """The record of the output, here or where it was left."""
        return self.left.commit if self.left is not None else self.commit


def why_blocked(node: Node, graph: Graph, settled: Mapping[str, Settled], selected: Set[str] | None) -> str:
    """Why a step that is to be made cannot be, by how its dependencies came out; empty when it can.

    Args:
        selected: keys that may run; None for all.
    """
    for key in node.depends_on:
        name = graph.nodes[key].name
        if settled[key].outcome in ("failed", "blocked"):
            return f"blocked by {name}"
        if settled[key].drifted:
            return f"drift: {name} was made by other code than the present one; say {ACCEPT_OR_RERUN}"
    if selected is not None and node.key not in selected:
        return "was left out by --only, and has no output yet; run without --only, or run it first"
    return ""


@dataclass(frozen=True)
class Notice:
    """Something that a person or a program that watches should know."""

    verb: Verb
    node: Node
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
