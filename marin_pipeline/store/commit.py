"""The records of a key: commits, invalidations, failures, accepted drift. Each is written once and never changed.

The current commit is the first one without an invalidation of the same number. What is read here decides what is done;
nothing is believed because a folder exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

from marin_pipeline.core.canonical import Tree, dumps
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.visible import is_line
from marin_pipeline.store import layout
from marin_pipeline.store.clock import is_moment
from marin_pipeline.store.guard import put_record
from marin_pipeline.store.lease import Holder, read_lease
from marin_pipeline.store.objects import NoAnswer, ObjectStore, answered, holds, shown_url, together
from marin_pipeline.store.records import parsed, typed
from marin_pipeline.store.sealed import UnknownSchema, seal, unseal


class InputRecord(NamedTuple):
    """One input, as it was read."""

    key: str
    output: str
    """Output digest."""
    compared: str | None
    """What staleness compares: the output digest, the logical digest, or None when a difference makes nobody stale."""


@dataclass(frozen=True)
class Source:
    """The commit that an adopted output was taken from."""

    id: str
    """Of its step."""
    key: str
    number: int
    attempt: str
    """The attempt that made the bytes."""

    def named(self) -> dict[str, Tree]:
        """Which commit it is, for programs."""
        return {"id": self.id, "key": self.key, "number": self.number}


_OPTIONAL = ("adopted_from", "copied_from", "unpinned", "origin", "target")


@dataclass(frozen=True)
class Commit:
    """The record that makes an attempt the output of its key."""

    number: int
    """1, 2, …: grows when a commit is invalidated and the step runs again."""
    attempt: str
    fence: int
    """Of the lease under which the attempt ran."""
    manifest: str
    """sha256 of the manifest's bytes."""
    output: str
    """Output digest, over files and value."""
    compared: str | None
    """What dependents compare: `output`, the logical digest, or None where a difference makes nobody stale."""
    inputs: Mapping[str, InputRecord]
    """By role."""
    resolved: str
    """sha256 of the spec with its dependencies by what was read instead of by key."""
    code: str
    """Digest of the code that ran."""
    pieces: Mapping[str, str]
    """Digest of each piece of that code by name, so that a difference can be named."""
    arguments: Mapping[str, Tree]
    """All arguments as they were given, `Runtime` ones too; artifacts by key, secrets by name."""
    fingerprint: Mapping[str, Any]
    """Versions, instruction set, chip and flags of the machine that ran it."""
    started: str
    """UTC."""
    finished: str
    """UTC."""
    seconds: float
    bytes: int
    """Of all files."""
    key: str = ""
    """Whose output it is: a commit that lies under another key is damage. Empty in those of an earlier version."""
    adopted_from: Source | None = None
    """Where the output was taken from, when an equal result was there already; it falls with that commit."""
    copied_from: str = ""
    """URL of the store that it was copied from, without user and password; empty in what was made here."""
    unpinned: tuple[str, ...] = ()
    """Names of what it was made from and no key fixes, such as an address without a digest."""
    origin: str = ""
    """Digest of the record of the run that made it: code, packages, machine. Empty where nobody wrote one."""
    target: Mapping[str, Any] | None = None
    """Where the step's function is found in the code of that run: `module`, `file` (relative to the project's root),
    `qualname`, and `main`, whether it was run as a program."""

    @property
    def falls_with(self) -> Source | None:
        """The commit whose end ends this one too. What was copied has all of its bytes here, and stands by itself:
        `adopted_from` then speaks of the store that it came from.
        """
        return None if self.copied_from else self.adopted_from

    def tree(self) -> dict[str, Tree]:
        """The commit as JSON values."""
        tree = {**vars(self), "inputs": {role: record._asdict() for role, record in self.inputs.items()}}
        if self.adopted_from is not None:
            tree["adopted_from"] = vars(self.adopted_from)
        if self.unpinned:
            tree["unpinned"] = list(self.unpinned)
        # What a commit does not have is left out, so that those of earlier versions stay as they are.
        return {name: value for name, value in tree.items() if value or name not in _OPTIONAL}

    def dumps(self) -> bytes:
        """The bytes that are written."""
        return seal(self.tree())

    @classmethod
    def loads(cls, data: bytes, where: str) -> Commit:
        """Read a commit back.

        Raises:
            CorruptOutput: when it is not one.
        """
        try:
            tree = unseal(data)
            tree["inputs"] = {role: InputRecord(**record) for role, record in tree["inputs"].items()}
            tree.setdefault("key", "")
            tree.setdefault("copied_from", "")
            source = tree.get("adopted_from")
            tree["adopted_from"] = None if source is None else Source(**source)
            tree.setdefault("origin", "")
            tree.setdefault("target", None)
            unpinned = tree.get("unpinned")
            tree["unpinned"] = () if unpinned is None else _lines(unpinned)
            if tree.keys() != cls.__dataclass_fields__.keys():
                raise ValueError(f"its fields are {', '.join(sorted(tree))}")
            _refuse_others(tree)
            _refuse_elsewhere(tree)
            # A plan reads thousands, and the __init__ of a frozen dataclass, which sets each field by a call, takes as
            # long as reading the JSON.
            commit = object.__new__(cls)
            commit.__dict__.update(tree)
            return commit
        except UnknownSchema as error:
            problem = f"written by a newer version of marin_pipeline ({error}); use that one"
            raise CorruptOutput(f"{where}: {problem}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptOutput(f"{where}: not a commit ({error}); `--force` the step to make it again") from error


_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("manifest", "output", "resolved", "code", "origin"), (str,)),
    **dict.fromkeys(("pieces", "arguments", "fingerprint"), (dict,)),
    **dict.fromkeys(("fence", "bytes"), (int,)),
    "compared": (str, NoneType),
    "seconds": (float, int),
    "target": (dict, NoneType),
}
_TARGET = {"module": str, "file": str, "qualname": str, "main": bool}


def _refuse_others(tree: Mapping[str, Any]) -> None:
    """What is read must be of the types that its readers take it for; `records.typed` would take too long."""
    for name, kinds in _KINDS.items():
        if type(tree[name]) not in kinds:
            raise ValueError(f"its field {name} is of another type")
    for key, output, compared in tree["inputs"].values():
        if type(key) is not str or type(output) is not str or type(compared) not in (str, NoneType):
            raise ValueError("an input of it is none")
    target = tree["target"]
    if target is not None and {name: type(each) for name, each in target.items()} != _TARGET:
        raise ValueError("where its function is found is not said")


def _refuse_elsewhere(tree: Mapping[str, Any]) -> None:
    """What becomes a path must be able to be one, and what is shown must be text: a commit may be anybody's."""
    if type(tree["number"]) is not int or not layout.is_name(tree["attempt"]) or type(tree["key"]) is not str:
        raise ValueError("its number, attempt or key is none")
    source = tree["adopted_from"]
    if source is not None and not (
        type(source.number) is int
        and layout.is_name(source.attempt)
        and layout.is_id(source.id)
        and layout.is_key(source.key)
    ):
        raise ValueError("what it says to be adopted from is none")
    if not (is_moment(tree["started"]) and is_moment(tree["finished"])):
        raise ValueError("when it started or finished is no time")
    copied = tree["copied_from"]
    if copied != "" and not (is_line(copied) and ("@" not in copied or shown_url(copied) == copied)):
        raise ValueError("what it says to be copied from is no URL, or has a user or password in it")


def _lines(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(map(is_line, given)):
        raise ValueError("what it says to be unpinned is none")
    return tuple(given)


@dataclass(frozen=True)
class Invalidation:
    """Why a commit no longer counts."""

    reason: str
    """`forced`, `stale`, `code`, `invalidated` or `collected`."""
    text: str
    """For people."""
    at: str
    """UTC."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed."""

    attempt: str
    kind: str
    """`user`, `infrastructure`, `preempted` or `memory`."""
    message: str
    traceback: str
    at: str
    """UTC."""


@dataclass(frozen=True)
class Elsewhere:
    """A current output of a key in another store, which is only looked in."""

    objects: ObjectStore
    look: Look
    """What that store says of the key."""
    commit: Commit

    def __str__(self) -> str:
        return shown_url(self.objects.url)


@dataclass(frozen=True)
class Look:
    """What the store says of one key."""

    number: int
    """Number of the current commit, or of the next one when there is none."""
    commit: Commit | None
    invalidation: Invalidation | None
    """Of the commit before, when there is no current one."""
    leased: Holder | None
    """Who is at work on it; looked up only where there is no commit."""
    failure: Failure | None = None
    """The last failed attempt; looked up only where there is no commit."""
    damage: str = ""
    """What is wrong with the current commit, and the remedy: nothing is built on it, and `--force` ends it."""
    fallen: str = ""
    """Why the commit of this number, which was adopted, counts no more: what it was taken from was ended."""
    accepted: frozenset[str] = field(default_factory=frozenset[str])
    """First 16 hex of the code digests that count as the one that made the commit."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Where else there is a current output, in the order in which it is taken from; looked up only where none is here.
    """

    @property
    def begins_anew(self) -> bool:
        """Whether somebody ended the last output on purpose: then nothing of what was made before is used."""
        return self.invalidation is not None and self.invalidation.reason not in ("stale", "collected")


def read_invalidation(objects: ObjectStore, id: str, key: str, number: int) -> Invalidation | None:
    """The end of a commit. That the object exists is what ends it; what it says is for people."""
    path = layout.invalidation(id, key, number)
    try:
        found = objects.read(path)
        return None if found is None else typed(parsed(found.data), Invalidation)
    except (CorruptOutput, ValueError):
        return Invalidation("invalidated", f"the reason cannot be read: {objects.url}/{path}", "")


def _last_failure(objects: ObjectStore, id: str, key: str) -> Failure | None:
    """The last failed attempt. It decides nothing, so a damaged record is shown as one and stops nobody."""
    names = [name for name in objects.names(f"{layout.step(id, key)}/failures") if name.endswith(".json")]
    if not names:
        return None
    attempt = names[-1].removesuffix(".json")
    path = layout.failure(id, key, attempt)
    try:
        found = objects.read(path)
        return None if found is None else typed(parsed(found.data), Failure)
    except (CorruptOutput, ValueError):
        return Failure(attempt, "infrastructure", f"the record cannot be read: {objects.url}/{path}", "", "")


def read_commit(objects: ObjectStore, id: str, key: str, number: int) -> Commit | None:
    """One commit by its number."""
    path = layout.commit(id, key, number)
    found = objects.read(path)
    return None if found is None else _loaded(found.data, f"{objects.url}/{path}", key, number)


def _loaded(data: bytes, where: str, key: str, number: int) -> Commit:
    commit = Commit.loads(data, where)
    if commit.number != number:
        raise CorruptOutput(f"{where}: says that it is the commit {commit.number}; `--force` the step to make it again")
    if commit.key and not commit.key.startswith(key):  # who reads a store from its listing knows 16 digits
        raise CorruptOutput(f"{where}: is the commit of {commit.key[:8]}; `--force` the step to make its own again")
    return commit


def look(objects: ObjectStore, id: str, key: str) -> Look:
    """What the store says of one key. Reads records by name; lists only where a commit is missing."""
    found = look_again(objects, id, key, Look(1, None, None, None))
    if found.commit is not None or found.damage or found.fallen:
        return found
    leased = None
    with suppress(CorruptOutput):  # whoever wants the lease is told
        leased = read_lease(objects, layout.lease(id, key))
    return replace(found, leased=leased, failure=_last_failure(objects, id, key))


def look_again(objects: ObjectStore, id: str, key: str, before: Look) -> Look:
    """The current commit, or that there is none; begins where an earlier look ended, since what is ended stays so."""
    number, invalidation = before.number, before.invalidation
    while True:
        found, damage = None, ""
        try:
            found = objects.read(layout.commit(id, key, number))
        except CorruptOutput as error:
            damage = f"{error}; `--force` the step to make its own again"
        if found is None and not damage:
            return Look(number, None, invalidation, None)
        ended = read_invalidation(objects, id, key, number)
        if ended is not None:
            number, invalidation = number + 1, ended
        elif found is None:
            return Look(number, None, invalidation, None, damage=damage)
        else:
            where = f"{objects.url}/{layout.commit(id, key, number)}"
            return _current(objects, key, number, invalidation, found.data, where)


def _current(
    objects: ObjectStore, key: str, number: int, invalidation: Invalidation | None, data: bytes, where: str
) -> Look:
    try:
        commit = _loaded(data, where, key, number)
    except CorruptOutput as error:
        return Look(number, None, invalidation, None, damage=str(error))
    source = commit.falls_with
    ended = source and read_invalidation(objects, source.id, source.key, source.number)
    if source and ended:
        text = f"adopted from {source.id} {source.key[:8]}, whose output was ended ({ended.reason}: {ended.text})"
        return Look(number, None, invalidation, None, fallen=text)
    return Look(number, commit, None, None)


def look_many(objects: ObjectStore, keys: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """What the store says of many (id, key), in one batch; by key.

    Raises:
        NoAnswer: when the store does not answer one of them: the rest is not asked for.
    """
    wanted = list(keys)
    silence: list[NoAnswer] = []

    def asked(id: str, key: str) -> Look:
        if silence:
            raise silence[0]
        try:
            return answered(partial(look, objects, id, key))
        except NoAnswer as error:
            silence.append(error)
            raise

    found = together(objects, *(partial(asked, id, key) for id, key in wanted))
    return {key: each for (_, key), each in zip(wanted, found, strict=True)}


def is_accepted(objects: ObjectStore, id: str, key: str, number: int, code: str) -> bool:
    """Whether a person said that the output of this commit counts as made by the code with this digest."""
    return holds(objects, layout.accepted(id, key, number, code))


def accept(objects: ObjectStore, id: str, key: str, number: int, code: str, reason: str, at: str) -> None:
    """Record that the output of this commit, and of no later one, counts as made by the code with this digest."""
    record = {"number": number, "code": code, "reason": reason, "at": at}
    put_record(objects, layout.accepted(id, key, number, code), dumps(record))


@dataclass(frozen=True)
class Acceptance:
    """That the output of a commit counts as made by another code, as a person said."""

    number: int
    """Of the commit."""
    code: str
    """Digest."""
    reason: str
    at: str
    """UTC."""


def acceptances(objects: ObjectStore, id: str, key: str) -> list[Acceptance]:
    """The codes that a person accepted for a key. A record that cannot be read is passed over: it is for people."""
    found: list[Acceptance] = []
    folder = f"{layout.step(id, key)}/accepted"
    for name in objects.names(folder):
        with suppress(CorruptOutput, ValueError):
            data = objects.read(f"{folder}/{name}")
            found.append(typed(parsed(data.data if data else b""), Acceptance))
    return found


def invalidate(objects: ObjectStore, id: str, key: str, number: int, record: Invalidation) -> None:
    """End a commit. Nothing happens when it is ended already."""
    put_record(objects, layout.invalidation(id, key, number), dumps(asdict(record)))


def record_failure(objects: ObjectStore, id: str, key: str, failure: Failure) -> None:
    """Keep why an attempt failed."""
    put_record(objects, layout.failure(id, key, failure.attempt), dumps(asdict(failure)))


def write_spec(objects: ObjectStore, id: str, key: str, spec: bytes) -> None:
    """Write the spec, or compare it with the one that is there.

    Raises:
        CorruptOutput: when another spec lies there: a damaged file, or two keys with the same first 16 hex.
    """
    path = layout.spec(id, key)
    if put_record(objects, path, spec).data != spec:
        raise CorruptOutput(
            f"{objects.url}/{path}: is not the spec of {key}; the file is damaged (delete it and run again), "
            "or two keys share their first 16 hex (use another prefix)"
        )


def publish_commit(objects: ObjectStore, id: str, key: str, commit: Commit) -> tuple[Commit, bool]:
    """Write the commit, unless one of its number is there.

    Returns:
        The commit that counts, and whether it is ours. When another's differs from ours, a divergence is recorded.
    """
    path = layout.commit(id, key, commit.number)
    winner = _loaded(put_record(objects, path, commit.dumps()).data, f"{objects.url}/{path}", key, commit.number)
    if winner.attempt == commit.attempt:
        return winner, True
    if winner.output != commit.output:
        record = {
            "attempt": commit.attempt,
            "output": commit.output,
            "winner": winner.attempt,
            "winner_output": winner.output,
        }
        put_record(objects, layout.divergence(id, key, commit.attempt), dumps(record))
    return winner, False
