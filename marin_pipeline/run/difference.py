"""What sets two keys, or two runs, apart: `marin-pipeline diff`.

Inputs are followed to the root causes, each pair of ancestors once. What is compared is read from specs and commits; no
code is imported and no file of an output is opened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.run.explain import Change, PieceChange, artifact_of, changes, compare_code, shown
from marin_pipeline.run.history import HAVE_OUTPUT, RunAt, RunRecord
from marin_pipeline.run.output_difference import OutputDifference, change_tree
from marin_pipeline.run.words import listed, moment
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.records import spec_tree

_KEY16 = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Side:
    """One key, as far as the store knows it."""

    id: str
    """Of the step; empty when the store does not have the key."""
    key: str
    spec: Tree
    """None when it is not in the store."""
    commit: Commit | None

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.id.rpartition('/')[2] or 'a step'} {self.key[:8]}"


class Sides:
    """Reads keys, each once."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: dict[str, Side] = {}

    def side(self, key: str, id: str = "") -> Side:
        """A key, its spec and its commit.

        Args:
            id: of its step, where it is known.

        Raises:
            CorruptOutput: when the spec or the commit cannot be read.
        """
        if key not in self._known:
            id = id or self._ids.get(key[: layout.SHORT], "")
            found = self._objects.read(layout.spec(id, key)) if id else None
            where = f"{self._objects.url}/{layout.spec(id, key)}" if id else ""
            if found is not None and hashlib.sha256(found.data).hexdigest() != key:
                raise CorruptOutput(
                    f"{where}: its bytes are not those of the key {key[:8]}; delete it, a run writes it again"
                )
            spec = None if found is None else spec_tree(found.data, where)
            commit = look(self._objects, id, key).commit if id else None
            self._known[key] = Side(id, key, spec, commit)
        return self._known[key]

    @cached_property
    def _ids(self) -> dict[str, str]:
        """The step's id by the first 16 digits of every key in the store."""
        found: dict[str, str] = {}
        todo = [""]
        while todo:
            id = todo.pop()
            for name in self._objects.names(f"steps/{id}" if id else "steps"):
                if id and _KEY16.fullmatch(name):
                    found[name] = id
                elif name != layout.LISTED:
                    todo.append(f"{id}/{name}" if id else name)
        return found


@dataclass(frozen=True)
class Own:
    """What sets two steps apart, besides what their inputs are made from."""

    step: tuple[str, str] | None = None
    """Ids, where they differ; nothing else is compared then."""
    version: tuple[Any, Any] | None = None
    code: Sequence[PieceChange] = ()
    """Pieces of a step that follows its source; of one with a version, what differs though it is not in the key."""
    arguments: Sequence[Change] = ()
    unkeyed: Sequence[Change] = ()
    """Arguments that are not in the key (`Runtime`)."""
    inputs: Sequence[tuple[str, str, str]] = ()
    """Role, and the keys of two different artifacts that stand there."""
    versioned: bool = False
    """Both follow a version, so that their code is not in their keys."""
    unknown: str = ""
    """What is not in the store, so that nothing can be compared."""

    @property
    def is_cause(self) -> bool:
        """Whether the keys would differ with equal inputs."""
        code = bool(self.code) and not self.versioned
        return bool(self.step or self.version or self.arguments or self.unknown or code)

    def lines(self) -> Iterator[str]:
        """The differences for people, without the inputs."""
        if self.unknown:
            yield self.unknown
        if self.step is not None:
            yield f"step  {self.step[0]} → {self.step[1]}"
        if self.version is not None:
            yield f"version  {_version(self.version[0])} → {_version(self.version[1])}"
        for piece in self.code:
            note = ", not in the key" if self.versioned else ""
            yield f"code  {piece.change}{note}: {piece.name}"
        for change in self.arguments:
            yield f"argument  {change.path}  {shown(change.old)} → {shown(change.new)}"
        for change in self.unkeyed:
            yield f"not in the key  {change.path}  {shown(change.old)} → {shown(change.new)}"

    def tree(self) -> dict[str, Tree]:
        """The differences as JSON values."""
        return {
            "step": self.step,
            "version": self.version,
            "code": [vars(piece) for piece in self.code],
            "arguments": [change_tree(change) for change in self.arguments],
            "not_in_key": [change_tree(change) for change in self.unkeyed],
            "unknown": self.unknown,
        }


def _version(version: Any) -> str:
    return "its source" if version is None else str(version)


def own_difference(a: Side, b: Side) -> Own:
    """What sets two steps apart, besides what their inputs are made from."""
    if a.spec is None or b.spec is None:
        missing = a if a.spec is None else b
        return Own(unknown=f"the spec of {missing.key[:8]} is not in the store: it was never tried there")
    if a.id != b.id:
        return Own(step=(a.id, b.id))
    versions = a.spec["code"].get("version"), b.spec["code"].get("version")
    code: list[PieceChange] = []
    if a.commit is not None and b.commit is not None and a.commit.code != b.commit.code:
        code = compare_code(a.commit.pieces, b.commit.pieces)
    elif a.spec["code"].get("source") != b.spec["code"].get("source"):
        code = [PieceChange("its pieces are not known, as one of the two has no commit", "changed")]
    arguments: list[Change] = []
    inputs: list[tuple[str, str, str]] = []
    for change in changes(a.spec["arguments"], b.spec["arguments"]):
        old, new = artifact_of(change.old), artifact_of(change.new)
        if old is not None and new is not None and change.old.get("path") == change.new.get("path"):
            inputs.append((change.path, old, new))
        else:
            arguments.append(change)
    return Own(
        version=None if versions[0] == versions[1] else versions,
        code=code,
        arguments=arguments,
        unkeyed=_unkeyed(a, b),
        inputs=inputs,
        versioned=None not in versions,
    )


def _unkeyed(a: Side, b: Side) -> list[Change]:
    """Arguments that differ and are not in the key; not told of a chain, whose spec does not name its arguments."""
    if a.commit is None or b.commit is None:
        return []
    keyed = {change.path for change in changes(a.spec["arguments"], b.spec["arguments"])}
    if not set(a.spec["arguments"]) <= set(a.commit.arguments):
        return []
    return [change for change in changes(a.commit.arguments, b.commit.arguments) if change.path not in keyed]


@dataclass(frozen=True)
class Cause:
    """A pair of steps that differ by themselves, at or above the two that were asked about."""

    roles: tuple[str, ...]
    """How it is reached: the role in the step asked about, the role in that input, …; empty for the step itself."""
    a: Side
    b: Side
    own: Own


def causes(sides: Sides, a: Side, b: Side) -> list[Cause]:
    """The root causes of a difference, the nearest first; each pair of ancestors is looked at once."""
    found: list[Cause] = []
    seen = {(a.key, b.key)}
    todo: list[tuple[tuple[str, ...], Side, Side]] = [((), a, b)]
    for roles, left, right in todo:  # grows while it is gone through
        own = own_difference(left, right)
        if own.is_cause:
            found.append(Cause(roles, left, right, own))
        for role, old, new in own.inputs:
            if old != new and (old, new) not in seen:
                seen.add((old, new))
                todo.append(((*roles, role), sides.side(old), sides.side(new)))
    return found


@dataclass
class KeyDifference:
    """What sets two keys apart."""

    a: Side
    b: Side
    own: Own
    causes: Sequence[Cause]
    output: OutputDifference | None = None
    """None unless both have an output, and are not one key."""

    @classmethod
    def of(cls, objects: ObjectStore, a: tuple[str, str], b: tuple[str, str]) -> KeyDifference:
        """Compare two keys, given as step's id and key."""
        sides = Sides(objects)
        left, right = sides.side(a[1], a[0]), sides.side(b[1], b[0])
        found = cls(left, right, own_difference(left, right), [] if a == b else causes(sides, left, right))
        if left.commit is None or right.commit is None or a == b:
            return found
        found.output = OutputDifference.of(
            CommittedOutput(objects, left.id, left.key, left.commit),
            CommittedOutput(objects, right.id, right.key, right.commit),
        )
        return found

    @property
    def is_equal(self) -> bool:
        """Whether the two are one key: then all else is equal too."""
        return self.a.key == self.b.key

    def tree(self) -> dict[str, Tree]:
        """The whole difference as JSON values."""
        outputs = [None if side.commit is None else side.commit.output for side in (self.a, self.b)]
        return {
            "equal": self.is_equal,
            "a": {"id": self.a.id, "key": self.a.key, "output": outputs[0]},
            "b": {"id": self.b.id, "key": self.b.key, "output": outputs[1]},
            **self.own.tree(),
            "inputs": [{"role": role, "old": old, "new": new} for role, old, new in self.own.inputs],
            "causes": [
                {"roles": cause.roles, "id": cause.b.id, "old": cause.a.key, "new": cause.b.key, **cause.own.tree()}
                for cause in self.causes
                if cause.roles
            ],
            **(self.output or OutputDifference()).tree(),
        }

    def lines(self) -> Iterator[str]:
        """The difference for people."""
        for mark, side in (("a", self.a), ("b", self.b)):
            made = "has no output" if side.commit is None else f"made {moment(side.commit.finished)}"
            yield f"{mark}  {side.key[:8]}  {side.id}  {made}"
        if self.is_equal:
            yield "one key: there is nothing to compare"
            return
        yield from self.own.lines()
        for role, old, new in self.own.inputs:
            yield f"input  {role}  {old[:8]} → {new[:8]}"
        for cause in self.causes:
            if cause.roles:
                yield f"  {' → '.join(cause.roles)}: {cause.a.label} → {cause.b.label}"
                yield from (f"    {line}" for line in cause.own.lines())
        if self.output is not None:
            yield from self.output.lines()


# Runs -----------------------------------------------------------------------------------------------------------------


@dataclass
class RunDifference:
    """What sets two runs apart, by the names of their steps."""

    a: RunAt
    b: RunAt
    added: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    changed: dict[str, Own] = field(default_factory=dict[str, Own])
    """Steps of another key that differ by themselves, by name."""
    downstream: list[str] = field(default_factory=list[str])
    """Steps of another key whose inputs alone differ."""
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Where one of the two has an output and the other has not."""
    remade: list[str] = field(default_factory=list[str])
    """Steps of one key that came out with other bytes."""
    outputs: dict[str, OutputDifference] = field(default_factory=dict[str, OutputDifference])
    """Of all steps whose outputs differ, by name."""

    @classmethod
    def of(cls, objects: ObjectStore, a: tuple[RunAt, RunRecord], b: tuple[RunAt, RunRecord]) -> RunDifference:
        """Compare two runs. Specs are read of steps only that differ by themselves, outputs of all that differ."""
        (left, old), (right, new) = a, b
        found = cls(left, right)
        sides = Sides(objects)
        found.added = [name for name in new.steps if name not in old.steps]
        found.removed = [name for name in old.steps if name not in new.steps]
        for name, (id, key) in new.steps.items():
            if name not in old.steps:
                continue
            before = old.statuses.get(name, ""), new.statuses.get(name, "")
            if (before[0] in HAVE_OUTPUT) != (before[1] in HAVE_OUTPUT):
                found.outcomes[name] = before
            old_id, old_key = old.steps[name]
            outputs = old.outputs.get(name), new.outputs.get(name)
            if outputs[0] is not None and outputs[1] is not None and outputs[0] != outputs[1]:
                found.outputs[name] = OutputDifference.between(
                    objects, (old_id, old_key, outputs[0]), (id, key, outputs[1])
                )
            if old_key == key:
                if name in found.outputs:
                    found.remade.append(name)
                continue
            recipe = old.recipes.get(name)
            if recipe and recipe == new.recipes.get(name):
                found.downstream.append(name)
                continue
            own = own_difference(sides.side(old_key, old_id), sides.side(key, id))
            if own.is_cause:
                found.changed[name] = own
            else:
                found.downstream.append(name)
        return found

    @property
    def is_equal(self) -> bool:
        """Whether the two have the same steps, with the same outputs and without."""
        differ = self.added or self.removed or self.changed or self.downstream or self.outcomes or self.outputs
        return not differ

    def tree(self) -> dict[str, Tree]:
        """The whole difference as JSON values."""
        return {
            "equal": self.is_equal,
            "a": self.a.name,
            "b": self.b.name,
            "added": self.added,
            "removed": self.removed,
            "changed": [{"name": name, **own.tree()} for name, own in self.changed.items()],
            "downstream": self.downstream,
            "outcomes": self.outcomes,
            "remade": self.remade,
            "outputs": {name: output.tree() for name, output in self.outputs.items()},
        }

    def lines(self) -> Iterator[str]:
        """The difference for people."""
        yield f"a  {self.a.name}  {self.a.stem}"
        yield f"b  {self.b.name}  {self.b.stem}"
        yield from listed([f"added  {name}" for name in self.added])
        yield from listed([f"removed  {name}" for name in self.removed])
        for name, own in self.changed.items():
            yield f"changed  {name}"
            yield from (f"  {line}" for line in own.lines())
            yield from self._output_lines(name)
        for name in self.remade:
            yield f"other bytes  {name}, of the same key"
            yield from self._output_lines(name)
        if self.downstream:
            yield f"+{len(self.downstream):,} downstream"
            # The figures at the end are what two runs are compared for.
            below = [name for name in self.downstream if name in self.outputs]
            yield from listed([f"  {name}  {line}" for name in below for line in self.outputs[name].figure_lines()])
        yield from listed(
            [f"outcome  {name}  {old or 'none'} → {new or 'none'}" for name, (old, new) in self.outcomes.items()]
        )
        if self.is_equal:
            yield "the same steps with the same keys and outputs"

    def _output_lines(self, name: str) -> Iterator[str]:
        if name in self.outputs:
            yield from (f"  {line}" for line in self.outputs[name].lines())
