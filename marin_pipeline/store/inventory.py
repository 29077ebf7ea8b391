"""What lies in a store, key by key, from one listing and the records: what cannot be read is told, and stops nobody."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.key import artifact_keys
from marin_pipeline.store import layout
from marin_pipeline.store.clock import moment
from marin_pipeline.store.commit import Commit, read_commit
from marin_pipeline.store.objects import ObjectInfo, ObjectStore, holds
from marin_pipeline.store.pages import read_manifest
from marin_pipeline.store.provenance import named_by
from marin_pipeline.store.records import parsed

T = TypeVar("T")
R = TypeVar("R")

_KEY_FOLDER = re.compile(r"(steps/(.+?)/([0-9a-f]{16}))/.+")
_COMMIT = re.compile(r"commits/([0-9]+)\.json")


@dataclass
class KeyState:
    """Everything about one key."""

    id: str
    short: str
    """First 16 digits of the key."""
    infos: list[ObjectInfo]
    """All that lies in its folder."""
    number: int = 1
    """Of the current commit, or of the next one."""
    current: Commit | None = None
    ended: dict[str, str] = field(default_factory=dict[str, str])
    """Attempts that were committed once, with the time at which that commit ended (UTC; empty when it cannot be read);
    what was adopted ends with what it was taken from.
    """
    needs: set[str] = field(default_factory=set[str])
    """Keys that it was made from, by its current commit and its spec."""
    refers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Objects outside of an attempt that the manifest of a committed attempt names, by attempt."""
    names: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """What the commit of an attempt names beside its files (see `provenance`), by attempt."""
    damaged: list[str] = field(default_factory=list[str])
    """Records that cannot be read, with the remedy."""
    needs_unknown: bool = False
    """Whether neither the commit nor the spec says what it was made from."""
    refers_unknown: bool = False
    """Whether a commit or a manifest that counts cannot be read: it may name any object."""

    @property
    def path(self) -> str:
        """Its folder."""
        return layout.step(self.id, self.short)

    @property
    def source(self) -> str | None:
        """Folder of the key that the current commit was adopted from; it counts for as long as that one's does."""
        source = self.current and self.current.falls_with
        return layout.step(source.id, source.key) if source else None

    def copied(self, attempt: str) -> list[str]:
        """When files of an attempt were copied here from another store, as times."""
        start = f"{self.path}/attempts/{attempt}/copied/"
        names = [info.path[len(start) :] for info in self.infos if info.path.startswith(start)]
        return [name for name in names if moment(name)]

    def below(self, folder: str) -> Mapping[str, int]:
        """Bytes by the names directly below one of its folders."""
        start, found = f"{self.path}/{folder}/", dict[str, int]()
        for info in self.infos:
            if info.path.startswith(start):
                name = info.path[len(start) :].partition("/")[0]
                found[name] = found.get(name, 0) + info.size
        return found


def in_parallel(objects: ObjectStore, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`work` of each item, in the items' order; at once where each of them waits for a store."""
    if not objects.shared:
        return [work(item) for item in items]
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(work, items))


def read_states(objects: ObjectStore) -> dict[str, KeyState]:
    """Every key of a store, by its folder."""
    return {
        state.path: state for state in in_parallel(objects, lambda each: read_state(objects, *each), _by_key(objects))
    }


def _by_key(objects: ObjectStore) -> Iterator[tuple[str, str, list[ObjectInfo]]]:
    folders: dict[str, tuple[str, str, list[ObjectInfo]]] = {}
    for info in objects.list("steps"):
        if (found := _KEY_FOLDER.fullmatch(info.path)) and layout.is_id(found[2]):
            folders.setdefault(found[1], (found[2], found[3], []))[2].append(info)
    yield from folders.values()


def read_state(objects: ObjectStore, id: str, short: str, infos: list[ObjectInfo] | None = None) -> KeyState:
    """One key.

    Args:
        infos: what lies in its folder, where it has been listed.
    """
    infos = objects.list(layout.step(id, short)) if infos is None else infos
    state = KeyState(id, short, infos)
    names = {info.path[len(state.path) + 1 :] for info in infos}
    numbers = sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))
    while state.number in numbers and f"invalidations/{state.number}.json" in names:
        state.number += 1
    for number in numbers:
        _add_commit(objects, state, number)
    _add_spec(objects, state)
    return state


def _add_commit(objects: ObjectStore, state: KeyState, number: int) -> None:
    try:
        commit = read_commit(objects, state.id, state.short, number)
    except CorruptOutput as error:
        commit, problem = None, str(error)
    else:
        problem = f"{objects.url}/{layout.commit(state.id, state.short, number)}: has gone while it was read"
    if commit is None:
        if number >= state.number:  # what has ended and cannot be read is only in the way
            state.damaged.append(problem)
            state.refers_unknown = True
        return
    state.names[commit.attempt] = named_by(commit)
    source = commit.falls_with
    end = layout.invalidation(source.id, source.key, source.number) if source and number == state.number else ""
    has_fallen = bool(end) and holds(objects, end)
    if number < state.number:
        state.ended[commit.attempt] = _ended_at(objects, layout.invalidation(state.id, state.short, number))
    elif has_fallen:
        state.ended[commit.attempt] = _ended_at(objects, end)
    elif number == state.number:
        state.current = commit
        state.needs |= {record.key for record in commit.inputs.values()}
    else:
        where = f"{objects.url}/{layout.commit(state.id, state.short, number)}"
        state.damaged.append(f"{where}: the commit {state.number} before it is missing; delete the later ones")
        state.refers_unknown = True
    try:
        state.refers[commit.attempt] = _outside(objects, state, commit)
    except CorruptOutput as error:
        if number >= state.number and not has_fallen:
            state.damaged.append(str(error))
            state.refers_unknown = True


def _ended_at(objects: ObjectStore, path: str) -> str:
    with suppress(CorruptOutput, ValueError, TypeError, KeyError):
        found = objects.read(path)
        at = parsed(found.data)["at"] if found is not None else ""
        return at if isinstance(at, str) else ""
    return ""


def _outside(objects: ObjectStore, state: KeyState, commit: Commit) -> set[str]:
    own = f"{layout.attempt(state.id, state.short, commit.attempt)}/"
    named = read_manifest(objects, state.id, state.short, commit).named_objects()
    return {each.path for each in named if not each.path.startswith(own)}


def _add_spec(objects: ObjectStore, state: KeyState) -> None:
    path = layout.spec(state.id, state.short)
    is_there = True
    try:
        found = objects.read(path)
        is_there = found is not None
        tree: Any = None if found is None else parsed(found.data)
        state.needs |= artifact_keys(tree)
    except (CorruptOutput, ValueError, TypeError, KeyError, AttributeError) as error:
        state.damaged.append(f"{objects.url}/{path}: not a spec ({error}); delete it, the next run writes it again")
        tree = None
    # Without a spec, attempts and commits nothing was made yet; what is wanted of it stands in the record of the run.
    # Attempts that were copied are of outputs of other keys, which were adopted from this one where they come from.
    begun = is_there or state.ended or any(not state.copied(name) for name in state.below("attempts"))
    state.needs_unknown = tree is None and state.current is None and bool(begun)


def key_folder(path: str) -> str | None:
    """Folder of the key that an object belongs to."""
    found = _KEY_FOLDER.fullmatch(path)
    return found[1] if found else None


def read_json(objects: ObjectStore, path: str) -> dict[str, Any]:
    """A record that is a JSON object.

    Raises:
        CorruptOutput: when it is missing or is none.
    """
    found = objects.read(path)
    try:
        tree = None if found is None else parsed(found.data)
    except ValueError as error:
        raise CorruptOutput(f"{objects.url}/{path}: cannot be read ({error}); delete it") from error
    if not isinstance(tree, dict):
        raise CorruptOutput(f"{objects.url}/{path}: {'has gone' if found is None else 'not a record'}; delete it")
    return tree
