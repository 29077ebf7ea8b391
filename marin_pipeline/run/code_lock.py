"""`code.lock`: which codes of a step with a version were found to be equal, and what its golden inputs gave.

It lies in the folder of the step's file. An entry is written by `marin-pipeline code accept` alone, which has run the
step's golden inputs (see `golden`) and found their outputs unchanged. Nothing is called equal that no golden run has
covered: a state of the code is accepted as a whole, all pieces that a golden run reached, and what a step reaches
beside them (the classes of other arguments) must be the same.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marin_pipeline.core.canonical import Tree, is_mapping, is_sequence
from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.core.graph import Node
from marin_pipeline.core.source import digest_of
from marin_pipeline.core.step import Step
from marin_pipeline.core.whole_file import write_whole
from marin_pipeline.run.plan import is_drifted, pieces_of
from marin_pipeline.store.commit import Look, is_accepted
from marin_pipeline.store.local_objects import file_bytes
from marin_pipeline.store.objects import RECORD, ObjectStore
from marin_pipeline.store.records import parsed, typed

LOCK = "code.lock"
SCHEMA = 1

RELATIVE_TOLERANCE = 1e-5
"""By which a figure of a step with `exact="tolerance"` may differ: other machines add in another order. With
and without AVX-512 the golden losses of the step library differ by 1e-7."""

Pieces = Mapping[str, str]
"""Digest of each piece of a code by name."""
_Changed = Mapping[str, str | None]


@dataclass(frozen=True)
class Golden:
    """What one golden input gave. It holds what its step is compared by, as `exact` says."""

    key: str
    """Of the artifact, 64 hex: the golden input itself."""
    output: str | None = None
    """Output digest, where all bytes count."""
    files: Mapping[str, str] | None = None
    """sha256 by path, `value.json` among them, where all bytes count."""
    logical: str | None = None
    """Logical digest, where that counts."""
    figures: Mapping[str, float] | None = None
    """Numbers of the value by path, where they count: floats within `RELATIVE_TOLERANCE`."""

    def tree(self) -> Tree:
        """As JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Entry:
    """What the lock says of one step."""

    version: int
    golden: Mapping[str, Golden]
    """By the name of the artifact."""
    accepted: tuple[Pieces, ...]
    """States of the code that gave these outputs, in the order of their acceptance."""

    @property
    def inputs(self) -> dict[str, str]:
        """Keys of the golden inputs by name."""
        return {name: golden.key for name, golden in self.golden.items()}

    def accepting(self, pieces: Pieces) -> Entry:
        """The entry with one more accepted state."""
        return self if dict(pieces) in self.accepted else replace(self, accepted=(*self.accepted, dict(pieces)))

    def covers(self, pieces: Pieces) -> bool:
        """Whether a code is an accepted state, or one with pieces beside it of which the lock knows no other state."""
        known = {name for state in self.accepted for name in state}
        return any(
            state.items() <= pieces.items() and known.isdisjoint(pieces.keys() - state.keys())
            for state in self.accepted
        )

    def vouches(self, made: Pieces, present: Pieces) -> bool:
        """Whether two codes are equal but for states that were both accepted.

        Each must hold the whole of an accepted state; what it holds beside that must be the same in both.
        """
        return not self._beside(made).isdisjoint(self._beside(present))

    def _beside(self, pieces: Pieces) -> set[frozenset[tuple[str, str]]]:
        """What `pieces` hold beside each accepted state that they hold."""
        own = set(pieces.items())
        return {frozenset(own.difference(state.items())) for state in self.accepted if state.items() <= own}


@dataclass(frozen=True)
class CodeLock:
    """The lock of one folder."""

    steps: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    """By the step's id."""

    def dumps(self) -> str:
        """The text of the file: sorted, one digest a line."""
        steps = {id: _entry_tree(entry) for id, entry in self.steps.items()}
        return json.dumps({"schema": SCHEMA, "steps": steps}, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def loads(cls, text: str) -> CodeLock:
        """Read the text of the file.

        Raises:
            ValueError: when it is not one, or a code is not the digest of its pieces.
        """
        try:
            tree = parsed(text)
            if tree["schema"] != SCHEMA:
                raise ValueError(f"schema {tree['schema']}, and {SCHEMA} is known here")
            return cls({id: _read_entry(entry) for id, entry in tree["steps"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from error


def _entry_tree(entry: Entry) -> Tree:
    """A state is written as what changed since the one before, None for what has gone, so that a diff is short."""
    codes: list[Tree] = []
    before: Pieces = {}
    for pieces in entry.accepted:
        changed: dict[str, Tree] = {name: digest for name, digest in pieces.items() if before.get(name) != digest}
        changed |= {name: None for name in before if name not in pieces}
        codes.append({"code": digest_of(pieces), "pieces": changed})
        before = pieces
    golden = {name: each.tree() for name, each in entry.golden.items()}
    return {"version": entry.version, "golden": golden, "codes": codes}


def _read_entry(tree: Mapping[str, Any]) -> Entry:
    accepted: list[Pieces] = []
    pieces: dict[str, str] = {}
    for state in tree["codes"]:
        changed = {**pieces, **state["pieces"]}
        pieces = {name: digest for name, digest in typed(changed, _Changed).items() if digest is not None}
        if digest_of(pieces) != state["code"]:
            raise ValueError(f"{state['code'][:8]} is not the digest of its pieces")
        accepted.append(pieces)
    if not accepted:
        raise ValueError("a step without any code")
    golden = typed(tree["golden"], Mapping[str, Golden], "golden")
    return Entry(typed(tree["version"], int, "version"), golden, tuple(accepted))


# What outputs are compared by ----------------------------------------------------------------------------------------


def figures(tree: Tree, path: str = "value") -> Iterator[tuple[str, float]]:
    """The numbers of a canonical tree, each with its path; whatever else it holds is left out."""
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        yield path, tree
    elif is_sequence(tree):
        for index, item in enumerate(tree):
            yield from figures(item, f"{path}[{index}]")
    elif is_mapping(tree):
        if "~float" in tree:
            raise InputError(f"{path} is {tree['~float']}: a golden output must be made of finite numbers")
        for name, item in (tree["fields"] if "~data" in tree else tree).items():
            yield from figures(item, f"{path}.{name}")


def differences(old: Golden, new: Golden) -> list[str]:
    """How the outputs of one golden input differ, for people; nothing when they count as equal."""
    if old.logical != new.logical:
        return [f"logical digest {_short(old.logical)} → {_short(new.logical)}"]
    if (old.files is None, old.figures is None) != (new.files is None, new.figures is None):
        return ["it is compared by another measure now (exact=)"]
    found = [
        f"{path}: {_short(digest)} → {_short(other)}" for path, digest, other in _both(old.files or {}, new.files or {})
    ]
    for path, one, two in _both(old.figures or {}, new.figures or {}):
        # A count is a count on every machine.
        are_measured = isinstance(one, float) and isinstance(two, float)
        if not are_measured or not math.isclose(one, two, rel_tol=RELATIVE_TOLERANCE):
            found.append(f"{path}: {one} → {two}")
    return found


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs, with both values; None for one that is not there."""
    names = [*old, *(name for name in new if name not in old)]
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:8]


# The file ------------------------------------------------------------------------------------------------------------


def read_lock(folder: Path) -> CodeLock:
    """The lock of a folder; an empty one when there is no file.

    Raises:
        InputError: when the file is damaged.
    """
    path = folder / LOCK
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        return CodeLock()
    except (OSError, CorruptOutput, ValueError) as error:
        raise InputError(
            f"{path}: not a lock of code ({error}); take it from version control again, or delete it and run "
            "`marin-pipeline code accept --all`"
        ) from error


@functools.lru_cache(maxsize=16)
def _read(path: Path, modified: int, size: int) -> CodeLock:
    return CodeLock.loads(file_bytes(os.fspath(path), RECORD).decode("utf-8"))


def write_lock(folder: Path, lock: CodeLock) -> None:
    """Replace the lock of a folder, whole or not at all.

    Raises:
        InputError: when it cannot be written.
    """
    path = folder / LOCK
    try:
        write_whole(path, lock.dumps().encode())
    except OSError as error:
        raise InputError(
            f"{path}: the lock of code cannot be written ({error.strerror}), and is as it was; mend that, and run "
            "`marin-pipeline code accept` again"
        ) from error


def vouched(step: Step[Any, Any], made: Pieces, present: Pieces) -> bool:
    """Whether the lock beside a step says that two codes of its present version are equal.

    Raises:
        InputError: when the lock is damaged.
    """
    if step.version is None:
        return False
    entry = read_lock(step.file.parent).steps.get(step.id)
    return entry is not None and entry.version == step.version and entry.vouches(made, present)


def with_accepted(objects: ObjectStore, node: Node, look: Look) -> Look:
    """The look at a step. Where other code made its output, the present code counts as accepted in it if the lock
    beside the step vouches for both, or a person has said so in this store.

    Raises:
        InputError: when the lock is damaged.
    """
    if look.commit is None or not is_drifted(node, look):
        return look
    declaration = node.declaration
    code = declaration.code.digest
    is_equal = vouched(declaration.step, look.commit.pieces, pieces_of(node))
    if is_equal or is_accepted(objects, node.id, node.key, look.number, code):
        return replace(look, accepted=look.accepted | {code[:16]})
    return look
