"""Bytes that a run brings from afar: what it takes from other stores, what its steps download, and what they read from
a store in another region. They are shown before anything runs, and held against a limit.

Pure functions of a plan and of where things lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from marin_pipeline.core.canonical import Tree
from marin_pipeline.store.location import HERE

if TYPE_CHECKING:
    from marin_pipeline.run.plan import Plan, PlannedNode


def bytes_text(size: float) -> str:
    """A number of bytes for people."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def crosses(source: str, here: str) -> bool:
    """Whether bytes that lie in one region come from afar when they are read in another.

    Args:
        source: region in which they lie: `HERE` for this machine, empty when it is not known.
        here: region of this machine; empty when it is not known, as outside of any cloud.
    """
    return source != HERE and (not source or source != here)


Kind = Literal["fetches", "downloads", "reads"]


@dataclass
class Part:
    """What comes from one place."""

    kind: Kind
    source: str
    """URL of the store; empty for downloads, whose sources the steps name."""
    region: str = ""
    """Of the source; empty when it is not known."""
    bytes: int = 0
    """As far as they are known."""
    what: list[str] = field(default_factory=list[str])
    """Names: of the outputs that are fetched or read, of the steps that download."""
    unknown: list[str] = field(default_factory=list[str])
    """Of these, names of those whose size is not declared."""
    made: list[str] = field(default_factory=list[str])
    """Of these, names of those that this run makes, so that their size is known only then."""

    def line(self, here: str) -> str:
        """For people."""
        size = [bytes_text(self.bytes)] if self.bytes or not (self.unknown or self.made) else []
        size += ["an unknown number of bytes"] if self.unknown else []
        size += ["what is made in this run"] if self.made else []
        place = f" from {self.source}" if self.source else ""
        place += f" ({self.region or 'region not known'})" if self.kind == "reads" else ""
        to = f" here ({here or 'region not known'})" if self.kind == "reads" else ""
        return f"{self.kind} {' and '.join(size)}{place}{to}: {_few(self.what)}"

    def tree(self) -> Tree:
        """For programs."""
        names = {"what": self.what, "unknown": self.unknown, "made": self.made}
        place = {"from": self.source or None, "region": self.region or None}
        return {"kind": self.kind, **place, "bytes": self.bytes, **names}


@dataclass(frozen=True)
class Transfers:
    """All that a run brings from afar."""

    parts: Sequence[Part] = ()
    here: str = ""
    """Region of this machine; empty when it is not known."""
    limit: int | None = None
    """Bytes, at most; None for no limit."""
    far: bool = False
    """Whether the run's own store lies afar, so that its steps' inputs count."""

    @property
    def bytes(self) -> int:
        """As far as they are known."""
        return sum(part.bytes for part in self.parts)

    @property
    def unknown(self) -> list[str]:
        """Names of what has a size that is not declared."""
        return [name for part in self.parts for name in part.unknown]

    def lines(self) -> list[str]:
        """For people, a line a place; nothing when nothing comes from afar."""
        found = [f"{'transfer':<9}{part.line(self.here)}" for part in self.parts]
        if found and self.limit is not None:
            limit = f"--max-transfer {_limit(self.limit)}"
            if self.bytes > self.limit:
                told = f"{bytes_text(self.bytes)} in all, more than {limit}: a run is refused"
            elif self.unknown:
                known = f"{bytes_text(self.bytes)} and " if self.bytes else ""
                told = f"{known}an unknown number of bytes in all, and {limit} is the most: a run is refused"
            else:
                told = f"{bytes_text(self.bytes)} in all, within {limit}"
            found.append(f"{'transfer':<9}{told}")
        return found

    def tree(self) -> dict[str, Tree]:
        """For programs; empty when nothing comes from afar."""
        if not self.parts:
            return {}
        total: dict[str, Tree] = {"bytes": self.bytes, "limit": self.limit, "refused": bool(self.refusal())}
        parts: list[Tree] = [part.tree() for part in self.parts]
        return {**total, "here": self.here or None, "parts": parts}

    def refusal(self, otherwise: str = "run where the bytes lie, or do a part (--until)") -> str:
        """Why the run is not started; empty when it is.

        Args:
            otherwise: what can be done instead of allowing more.
        """
        if self.limit is None or not (self.bytes > self.limit or self.unknown):
            return ""
        told = "; ".join(part.line(self.here) for part in self.parts)
        if self.bytes > self.limit:
            what = f"{bytes_text(self.bytes)} would be transferred, and {_limit(self.limit)} is the most: {told}"
            remedy = f"allow more (--max-transfer), {otherwise}"
        else:
            what = f"how much would be transferred is not known, and {_limit(self.limit)} is the most: {told}"
            remedy = f"declare the size of what {_few(self.unknown)} downloads, or leave --max-transfer away"
        return f"{what}. Nothing was started; {remedy}"


def transfers_of(plan: Plan, store: str, region: str, here: str, limit: int | None = None) -> Transfers:
    """What a plan brings from afar. Each input is counted once, whole, however many steps read it.

    Args:
        store: URL of the run's own store.
        region: where that lies, as for `crosses`.
        limit: bytes, at most; None for no limit.
    """
    fetches: dict[str, Part] = {}
    for planned in plan.fetches:
        part = fetches.setdefault(str(planned.taken), Part("fetches", str(planned.taken)))
        _add(part, planned)
    downloads = Part("downloads", "")
    reads = Part("reads", store, region)
    seen: set[str] = set()
    for planned in plan.running:
        if not planned.node.loaded and planned.node.declaration.step.transfers is not None:
            _add_sizes(downloads, planned.node.name, planned.node.declaration.transfers)
        for key in planned.node.depends_on if crosses(region, here) else ():
            if key not in seen:
                seen.add(key)
                _add(reads, plan.nodes[key])
    parts = [*fetches.values(), downloads, reads]
    return Transfers([part for part in parts if part.what], here, limit, crosses(region, here))


def _add(part: Part, planned: PlannedNode) -> None:
    """Count an output, as it is found; one that this run makes is not known yet."""
    commit = planned.taken.commit if planned.taken is not None else planned.look.commit
    if planned.is_made or commit is None:
        part.what.append(planned.node.name)
        part.made.append(planned.node.name)
    else:
        _add_sizes(part, planned.node.name, [commit.bytes])


def _add_sizes(part: Part, name: str, sizes: Sequence[int | None]) -> None:
    if not sizes:  # nothing comes from outside
        return
    part.what.append(name)
    part.bytes += sum(size for size in sizes if size is not None)
    if None in sizes:
        part.unknown.append(name)


class Budget:
    """Holds what the steps of a run read against the limit, once the sizes of what it made itself are known."""

    def __init__(self, transfers: Transfers) -> None:
        """Args:
        transfers: as planned, within the limit.
        """
        self._limit = transfers.limit if transfers.far else None
        self._bytes = transfers.bytes
        reads = [part for part in transfers.parts if part.kind == "reads"]
        self._counted = {name for part in reads for name in part.what if name not in part.made}

    def refusal(self, inputs: Mapping[str, int]) -> str:
        """Why a step must not read its inputs; empty, and then they count, when it may.

        Args:
            inputs: their bytes, by name.
        """
        if self._limit is None:
            return ""
        new = {name: size for name, size in inputs.items() if name not in self._counted}
        total = self._bytes + sum(new.values())
        if total > self._limit:
            return (
                f"with {_few(list(new))}, which this run has made, {bytes_text(total)} would be transferred, and "
                f"{_limit(self._limit)} is the most; allow more (--max-transfer), or run where the bytes lie"
            )
        self._bytes = total
        self._counted |= new.keys()
        return ""


def _limit(size: int) -> str:
    return bytes_text(size).replace(".0 ", " ")


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
