"""The index of results by what they were made from: the spec with its dependencies by what they hold instead of by key.

Two keys with the same entry ask for the same work on the same bytes, so the second may take the first one's result. It
is an index only: what it names counts while its commit is current, and where it names nothing the step runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from marin_pipeline.core.canonical import Tree, digest
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, Look, Source, look_again
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.records import parsed, typed
from marin_pipeline.store.sealed import seal, unseal


def resolved_digest(spec: bytes, read: Mapping[str, str]) -> str:
    """Digest of a spec with each dependency by the digest of what was read from it.

    Args:
        read: by the key of the dependency.

    Raises:
        ValueError: when the spec is none, or is nested too deeply.
        KeyError: when it names a dependency that is not among what was read.
    """
    try:
        return digest(_resolved(parsed(spec), read))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _resolved(tree: Any, read: Mapping[str, str]) -> Tree:
    if isinstance(tree, list):
        return [_resolved(item, read) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "~artifact" in tree:
        return {**tree, "~artifact": read[tree["~artifact"]]}
    return {name: _resolved(item, read) for name, item in tree.items()}


@dataclass(frozen=True)
class Entry:
    """What stands at one place of the index."""

    id: str
    """Of the step."""
    key: str
    number: int
    """Of the commit."""
    version: str
    """Of the object that holds it."""


def read_entry(objects: ObjectStore, resolved: str) -> Entry | None:
    """The entry, or None; a damaged one is none."""
    found = None
    with suppress(CorruptOutput):
        found = objects.read(layout.resolved(resolved))
    if found is None:
        return None
    try:
        tree = unseal(found.data)
        return typed({**tree, "version": found.version}, Entry)
    except ValueError:
        return Entry("", "", 0, found.version)


def enter(objects: ObjectStore, resolved: str, id: str, key: str, number: int, instead: Entry | None) -> None:
    """Make a commit known as the result of `resolved`, instead of an entry whose own commit has ended."""
    data = seal({"id": id, "key": key, "number": number})
    if instead is None:
        objects.create(layout.resolved(resolved), data)
    else:
        objects.swap(layout.resolved(resolved), data, instead.version)


def adoptable(objects: ObjectStore, entry: Entry, id: str, code: str, resolved: str) -> tuple[Commit, Source] | None:
    """The commit that an entry names and where its bytes lie, when it is current and of the same step, code and
    contents (`resolved`): the entry alone is not believed.
    """
    if entry.id != id:
        return None
    found = look_again(objects, entry.id, entry.key, Look(entry.number, None, None, None))
    commit = found.commit
    if commit is None or commit.number != entry.number or (commit.code, commit.resolved) != (code, resolved):
        return None
    return commit, commit.falls_with or Source(entry.id, entry.key, commit.number, commit.attempt)
