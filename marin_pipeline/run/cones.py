"""What hangs on each root of a plan: steps that have no reason of their own, or just the same one.

A pure function of a plan, linear in its edges. A step below several roots belongs to the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marin_pipeline.run.plan import RUNNING, Plan, PlannedNode

FEW = 8
"""Steps without a reason of their own that a printed plan names one by one; more are counted at their roots."""


@dataclass
class Cone:
    """How many steps hang on one root, by what becomes of them."""

    alike: int = 0
    """The same pieces of their own code have changed."""
    downstream: int = 0
    """They run because of it."""
    doubtful: int = 0
    """They are done, and kept unless it gives other bytes."""
    blocked: int = 0
    """They cannot run because of it."""

    def __str__(self) -> str:
        counts = {
            "more": self.alike,
            "downstream": self.downstream,
            "kept unless it gives other bytes": self.doubtful,
            "blocked by it": self.blocked,
        }
        return ", ".join(f"+{count:,} {word}" for word, count in counts.items() if count)


@dataclass(frozen=True)
class Cones:
    """The roots of a plan, and which steps hang on them."""

    by_root: Mapping[str, Cone] = field(default_factory=dict[str, Cone])
    """By key of the root; without an entry for one on which nothing hangs."""
    roots: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key of the root by key of each step that hangs on one."""


def cones_of(plan: Plan) -> Cones:
    """The roots of a plan, and what hangs on each."""
    place = {key: index for index, key in enumerate(plan.nodes)}
    by_root: dict[str, Cone] = {}
    roots: dict[str, str] = {}
    first: dict[tuple[str, ...], str] = {}
    for key, planned in plan.nodes.items():
        causes = [each for each in planned.node.depends_on if _passes_on(planned, plan.nodes[each])]
        shared = () if causes else _shared_cause(planned)
        if shared and first.setdefault(shared, key) != key:
            roots[key] = first[shared]
            by_root.setdefault(roots[key], Cone()).alike += 1
        if not causes:
            continue
        roots[key] = root = min((roots.get(each, each) for each in causes), key=place.__getitem__)
        cone = by_root.setdefault(root, Cone())
        if planned.status == "blocked":
            cone.blocked += 1
        elif planned.status == "cached":
            cone.doubtful += 1
        else:
            cone.downstream += 1
    return Cones(by_root, roots)


def _shared_cause(planned: PlannedNode) -> tuple[str, ...]:
    """The same for steps whose own code has changed in the same way; empty for any other cause."""
    own = {reason.kind for reason in planned.reasons if not reason.is_downstream}
    if not own or not own <= {"code", "version", "drift"} or planned.status not in ("run", "drift"):
        return ()
    return planned.status, planned.told, planned.node.id if "version" in own else ""


def _passes_on(planned: PlannedNode, dependency: PlannedNode) -> bool:
    """Whether what becomes of a step is only what becomes of this dependency."""
    if planned.status == "blocked":
        return dependency.status == "drift" or (
            dependency.status == "blocked" and planned.reasons[:1] == dependency.reasons[:1]
        )
    if not planned.reasons or any(reason.kind != "input" for reason in planned.reasons):
        return False
    if planned.status == "cached":
        return dependency.status in RUNNING or (dependency.status == "cached" and bool(dependency.unless))
    return planned.status == "run" and dependency.status in RUNNING
