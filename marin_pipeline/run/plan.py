"""What would be done, and why: a pure function of the graph and of one look at the store.

A step whose key has a current commit is not done again, unless its inputs were rebuilt with other bytes since, or
somebody forces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.run.explain import PieceChange, Reason, code_text, compare_code, keyed_arguments, told
from marin_pipeline.run.task import write_call
from marin_pipeline.run.words import bytes_text, counted, few
from marin_pipeline.store.commit import Commit, Elsewhere, Look

Status = Literal["cached", "run", "blocked", "leased", "drift", "stale"]
CodePolicy = Literal["stop", "accept", "rerun"]


@dataclass(frozen=True)
class Earlier:
    """An earlier result to compare with."""

    key: str
    commit: Commit
    step: str
    """Id of the step that made it."""
    version: int | None


class Compared(Protocol):
    """Finds the results that new ones are compared with, to say what changed."""

    exhausted: bool
    """Whether something was not read because so much had been."""

    def inputs_that_differ(self, node: Node, names: Mapping[str, str]) -> list[str]:
        """Names of the inputs that alone set a step apart from an earlier result; empty when there is more to it, or it
        is not known without reading that result.
        """
        ...

    def __call__(self, node: Node) -> Earlier | None:
        """The nearest earlier result, or None."""
        ...


class NothingEarlier:
    """There is nothing to compare with."""

    exhausted = False

    def inputs_that_differ(self, node: Node, names: Mapping[str, str]) -> list[str]:
        return []

    def __call__(self, node: Node) -> Earlier | None:
        return None


RUNNING = ("run", "stale", "leased")
"""Statuses of a step that gets a new output."""


ACCEPT_OR_RERUN = "--code accept (the change does not matter) or --code rerun"
"""What there is to say of an output that was made by other code than the present one."""


@dataclass(frozen=True)
class Policy:
    """What was asked for."""

    force: frozenset[str] = frozenset()
    """Keys to make again."""
    code: CodePolicy = "stop"
    """What to do where a committed output was made by other code than the present one."""
    selected: frozenset[str] | None = None
    """Keys that may run; None for all."""


@dataclass(frozen=True)
class PlannedNode:
    """One step with what would become of it."""

    node: Node
    status: Status
    reasons: tuple[Reason, ...]
    look: Look
    taken: Elsewhere | None = None
    """Where its output is taken from instead of being made; with `cached`, where it is left because nothing here needs
    it.
    """
    unless: str = ""
    """Name of the step whose new bytes, if they are other ones, would make this one be made again; empty for none."""

    @property
    def is_fetched(self) -> bool:
        """Whether its output is taken from another store, so that it need not run."""
        return self.taken is not None and self.status == "run"

    @property
    def is_made(self) -> bool:
        """Whether the step runs: it gets a new output that is not taken from another store."""
        return self.status in RUNNING and self.taken is None

    @property
    def reason(self) -> str:
        """All reasons in one line."""
        return "; ".join(str(reason) for reason in self.reasons)

    @property
    def told(self) -> str:
        """The root causes in one line: what it is downstream of only where it has no cause of its own."""
        own = [reason for reason in self.reasons if not reason.is_downstream]
        roots = [reason.path for reason in self.reasons if reason.is_downstream]
        if not roots or any(reason.kind != "failed before" for reason in own):
            return "; ".join(map(str, own))
        return "; ".join([f"downstream of {few(roots)}", *map(str, own)])

    @property
    def hangs_on_others(self) -> bool:
        """Whether all of its reasons are what it is downstream of."""
        return bool(self.reasons) and all(reason.is_downstream for reason in self.reasons)

    def tree(self) -> Tree:
        """The line of `plan --json`."""
        return {
            "name": self.node.name,
            "names": list(self.node.names),
            "id": self.node.id,
            "key": self.node.key,
            "status": self.status,
            "reason": self.reason,
            "depends_on": self.node.depends_on,
            "unpinned": list(self.node.unpinned),
            **({"from": self.taken.objects.url} if self.is_fetched and self.taken is not None else {}),
        }


@dataclass(frozen=True)
class Plan:
    """Every step of a graph with what would become of it, dependencies first."""

    graph: Graph
    nodes: Mapping[str, PlannedNode] = field(default_factory=dict[str, PlannedNode])

    def counts(self) -> Counter[str]:
        """How many steps have each status."""
        return Counter(planned.status for planned in self.nodes.values())

    @property
    def fetches(self) -> list[PlannedNode]:
        """The steps whose output is taken from another store."""
        return [planned for planned in self.nodes.values() if planned.is_fetched]

    @property
    def running(self) -> list[PlannedNode]:
        """The steps that run."""
        return [planned for planned in self.nodes.values() if planned.is_made]

    @property
    def left(self) -> frozenset[str]:
        """Keys whose output is left in another store, since nothing here needs it."""
        return frozenset(key for key, each in self.nodes.items() if each.taken is not None and each.status == "cached")

    @property
    def has_work(self) -> bool:
        """Whether anything is left to do or to decide."""
        return any(planned.status != "cached" for planned in self.nodes.values())


def pieces_of(node: Node) -> dict[str, str]:
    """Digest of each piece of code that a step reaches, by name."""
    return {piece.name: piece.digest for piece in node.declaration.code.pieces}


def is_drifted(node: Node, look: Look) -> bool:
    """Whether the committed output was made by other code than the present one, and nobody has accepted that."""
    commit = look.commit
    if node.loaded:
        return False
    code = node.declaration.code.digest
    return commit is not None and commit.code != code and code[:16] not in look.accepted


def takeable(node: Node, look: Look, compared: Mapping[str, str | None], policy: Policy) -> Elsewhere | None:
    """Where the output of a step that has none here is taken from: the first other store whose output is made by the
    present code, and from inputs that are as they are here. None for one that was ended on purpose, or is forced.

    Args:
        compared: as for `assess`.
    """
    if look.commit is not None or look.damage or look.fallen or look.begins_anew or node.key in policy.force:
        return None
    for each in look.elsewhere:
        other_code = is_drifted(node, each.look) and policy.code != "accept"
        if not other_code and not _stale(each.commit, compared):
            return each
    return None


def _stale(commit: Commit, compared: Mapping[str, str | None]) -> list[Reason]:
    return [
        Reason("stale", role, record.compared, compared[record.key])
        for role, record in commit.inputs.items()
        if record.key in compared and record.compared is not None and compared[record.key] != record.compared
    ]


def assess(
    node: Node, look: Look, compared: Mapping[str, str | None], policy: Policy
) -> tuple[Status, tuple[Reason, ...]]:
    """The status of one step whose dependencies are known.

    Args:
        compared: what the current commit of each dependency is compared by; without an entry for one that would run.
    """
    commit = look.commit
    if look.fallen:
        return "run", (Reason("invalidated", text=look.fallen),)
    if look.damage and node.key not in policy.force:
        return "blocked", (Reason("missing object", text=look.damage),)
    if node.loaded and (commit is None or node.key in policy.force):
        return "blocked", (Reason("missing object", text=node.why_not_made),)
    if commit is None:
        if look.leased is not None:
            who = f"{look.leased.user}@{look.leased.host}, process {look.leased.pid}"
            return "leased", (Reason("leased", text=who),)
        reasons: list[Reason] = [Reason("forced")] if node.key in policy.force else []
        if look.invalidation is not None:
            ended = look.invalidation
            # A run that nobody gave a reason writes why it ran.
            is_told = ended.reason == "invalidated" or ended.text.startswith(ended.reason)
            text = ended.text if is_told else f"{ended.reason}: {ended.text}".removesuffix(": ")
            reasons.append(Reason("invalidated", text=text))
        elif look.failure is not None:
            reasons.append(Reason("failed before", text=look.failure.message.partition("\n")[0]))
        return "run", tuple(reasons)
    if node.key in policy.force:
        return "run", (Reason("forced"),)
    stale = _stale(commit, compared)
    if stale:
        return "stale", tuple(stale)
    if is_drifted(node, look) and policy.code != "accept":
        pieces = code_text(compare_code(commit.pieces, pieces_of(node)))
        if policy.code == "rerun":
            return "run", (Reason("code", pieces),)
        return "drift", (Reason("drift", pieces),)
    return "cached", ()


def plan(
    graph: Graph,
    looks: Mapping[str, Look],
    policy: Policy = Policy(),
    earlier: Compared = NothingEarlier(),
) -> Plan:
    """What would become of every step of `graph`.

    Args:
        looks: what the store says, by key.
        earlier: finds the results that new ones are compared with, to say what changed; asked only for steps that would
            run.
    """
    nodes: dict[str, PlannedNode] = {}
    names = {key: node.name for key, node in graph.nodes.items()}
    compared: dict[str, str | None] = {}
    roots: dict[str, tuple[Reason, ...]] = {}
    for key, node in graph.nodes.items():
        look = looks[key]
        status, reasons = assess(node, look, compared, policy)
        dependencies = [nodes[each] for each in node.depends_on]
        taken = takeable(node, look, compared, policy) if look.elsewhere and status != "leased" else None
        unless = ""
        if taken is not None:
            compared[key] = taken.commit.compared
            again = _made_again(dependencies)
            unless = again[0] if again else ""
            doubt = f", unless {few(again)} gives other bytes" if again else ""
            text = f"from {taken}, {bytes_text(taken.commit.bytes)}{doubt}"
            status, reasons = "run", (Reason("substitute", str(taken), text=text),)
        elif status in ("cached", "drift") and look.commit is not None:
            compared[key] = look.commit.compared
            again = _made_again(dependencies)
            if again and status == "cached":
                unless = again[0]
                reasons = (Reason("input", again[0], text=f"kept unless {few(again)} gives other bytes"),)
        elif status in RUNNING:
            stopped = _stopped_by(dependencies) or _left_out(node, policy)
            if stopped is not None:
                status, reasons = "blocked", (stopped,)
            elif status == "run" and (not reasons or reasons[0].kind == "failed before"):
                reasons = (*_from_roots(_why(node, earlier, names, dependencies), roots), *reasons)
        nodes[key] = planned = PlannedNode(node, status, reasons, look, taken, unless)
        roots[node.name] = reasons if planned.hangs_on_others else (Reason("input", node.name),)
    return Plan(graph, _without_what_is_not_needed(graph, nodes))


def _without_what_is_not_needed(graph: Graph, nodes: dict[str, PlannedNode]) -> dict[str, PlannedNode]:
    """The plan without fetching what only steps are made from that are fetched themselves, or are here."""
    if not any(planned.taken for planned in nodes.values()):
        return nodes
    needed = set(graph.targets)
    for key, planned in reversed(nodes.items()):
        if planned.taken is not None and key not in needed:
            reason = Reason("substitute", str(planned.taken), text=f"in {planned.taken}, not needed here")
            nodes[key] = replace(planned, status="cached", reasons=(reason,), unless="")
        elif planned.unless or planned.is_made:
            needed.update(planned.node.depends_on)
    return nodes


def _stopped_by(dependencies: list[PlannedNode]) -> Reason | None:
    for planned in dependencies:
        if planned.status == "drift":
            text = (
                f"drift: {planned.node.name} was made by other code ({planned.reasons[0].path}); say {ACCEPT_OR_RERUN}"
            )
            return Reason("drift", planned.node.name, text=text)
        if planned.status == "blocked":
            return planned.reasons[0]
    return None


def _left_out(node: Node, policy: Policy) -> Reason | None:
    if policy.selected is None or node.key in policy.selected:
        return None
    remedy = "run without --only, or run it first"
    return Reason("left out", node.name, text=f"{node.name} was left out by --only, and has no output yet; {remedy}")


def _from_roots(reasons: tuple[Reason, ...], roots: Mapping[str, tuple[Reason, ...]]) -> tuple[Reason, ...]:
    """Reasons with each input that only hangs on others replaced by what that one hangs on.

    Args:
        roots: by name of the step, dependencies among them.
    """
    if len(reasons) == 1 and reasons[0].is_downstream:
        return roots.get(reasons[0].path, reasons)  # shared, since a graph may be deep
    found: list[Reason] = []
    named: set[str] = set()
    for reason in reasons:
        for each in roots.get(reason.path, (reason,)) if reason.is_downstream else (reason,):
            if not each.is_downstream or each.path not in named:
                found.append(each)
                named.update([each.path] if each.is_downstream else [])
    return tuple(found)


def _made_again(dependencies: list[PlannedNode]) -> list[str]:
    """Names of the steps whose new bytes, if they are other ones, would make a step stale that is done: dependencies
    that run, and what those that may become stale rest on.
    """
    found = [each.node.name for each in dependencies if each.is_made]
    doubtful = [each.unless for each in dependencies if each.unless]
    return list(dict.fromkeys([*found, *doubtful]))


def _why(
    node: Node, earlier: Compared, names: Mapping[str, str], dependencies: list[PlannedNode]
) -> tuple[Reason, ...]:
    """Root causes only: a step all of whose changes are inputs that run as well is downstream of them."""
    moved = earlier.inputs_that_differ(node, names)
    if moved:
        return tuple(Reason("input", name) for name in moved)
    found = earlier(node)
    if found is None:
        running = [each.node.name for each in dependencies if each.is_made]
        if earlier.exhausted:
            return (Reason("new", text="not compared, since so many steps are new"),)
        return (Reason("new"),) if not running else (Reason("new", text=f"after {few(running)}"),)
    changed = Comparison.of(node, found)
    reasons: list[Reason] = []
    if changed.version is not None:
        reasons.append(Reason("version", old=changed.version[0], new=changed.version[1]))
    elif node.declaration.step.version is None and node.declaration.code.digest != found.commit.code:
        reasons.append(Reason("code", code_text(changed.code)))
    reasons += told(changed.old, changed.new, names)
    return tuple(reasons) or (Reason("new"),)


@dataclass(frozen=True)
class Comparison:
    """What sets a step apart from an earlier result."""

    version: tuple[int | None, int | None] | None
    """Old and new, where they differ."""
    code: Sequence[PieceChange]
    """It is in the key of a step without a version only."""
    old: Mapping[str, Tree]
    """Arguments that are in the key."""
    new: Mapping[str, Tree]

    @classmethod
    def of(cls, node: Node, earlier: Earlier) -> Comparison:
        """Compare a declared step with an earlier result."""
        declaration = node.declaration
        version = declaration.step.version
        pieces: list[PieceChange] = []
        if earlier.commit.code != declaration.code.digest:
            pieces = compare_code(earlier.commit.pieces, pieces_of(node))
        annotations = declaration.step.annotations
        return cls(
            None if version == earlier.version else (earlier.version, version),
            pieces,
            keyed_arguments(earlier.commit.arguments, annotations),
            keyed_arguments(write_call(declaration.arguments), annotations),
        )


def summary_line(title: str, plan: Plan, store: str) -> str:
    """The plan in a line."""
    counts = plan.counts()
    counts["fetch"] = len(plan.fetches)
    counts["run"] -= counts["fetch"]
    words: dict[str, str] = {
        "cached": "cached",
        "run": "to run",
        "fetch": "to fetch",
        "stale": "stale",
        "drift": "drifted",
        "leased": "at work elsewhere",
        "blocked": "blocked",
    }
    parts: list[Any] = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    unpinned = sum(bool(planned.node.unpinned) for planned in plan.nodes.values())
    parts += [f"{unpinned} unpinned"] if unpinned else []
    return f"{title} · {counted(len(plan.nodes), 'step')} · {store} · {' · '.join(parts)}"
