"""The lock file of an experiment, `x.lock.json` beside `x.py`: the key and the output digest of each step by name.

Written by `run --lock` after a run that came to its end, read by `plan`. Committed with the experiment it tells a
stranger, and a test, whether they get the same keys and the same bytes. No path of a machine and no time is in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Literal

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, InputError, MarinError
from marin_pipeline.core.whole_file import write_whole
from marin_pipeline.run.driver import RunResult
from marin_pipeline.run.plan import Plan
from marin_pipeline.run.words import counted
from marin_pipeline.store.local_objects import file_bytes
from marin_pipeline.store.objects import RECORD
from marin_pipeline.store.records import parsed, typed

SCHEMA = 1


@dataclass(frozen=True)
class LockedStep:
    """A step as it was."""

    id: str
    key: str
    """64 hex."""
    digest: str
    """Output digest, 64 hex."""
    logical: str | None = None
    """What the output is compared by, where that is not the output digest."""


@dataclass(frozen=True)
class Asked:
    """With which arguments an experiment was declared."""

    arguments: Mapping[str, str]
    """Options of the builder that are not at their default, as they were given."""
    overrides: tuple[str, ...]

    @classmethod
    def of(cls, arguments: Mapping[str, str], overrides: Sequence[str]) -> Asked:
        """What a command line asks for; of a path of this machine the last part stands for the whole."""
        plain = {name: _without_folders(text) for name, text in arguments.items()}
        pairs = [word.partition("=") for word in overrides]
        return cls(plain, tuple(sorted(f"{path}={_without_folders(text)}" for path, _, text in pairs)))

    def __str__(self) -> str:
        options = [f"--{name.replace('_', '-')} {text}" for name, text in sorted(self.arguments.items())]
        return " ".join([*options, *self.overrides]) or "no options"


def _without_folders(text: str) -> str:
    return f".../{PurePath(text).name}" if PurePath(text).is_absolute() else text


@dataclass(frozen=True)
class Difference:
    """One way in which an experiment is not as its lock file says."""

    change: Literal["added", "removed", "id", "key", "digest"]
    name: str
    """Of the step."""
    old: str | None
    """In the lock; None for a step that was added."""
    new: str | None
    """Now; None for a step that was removed."""

    def tree(self, lock: str) -> Tree:
        """The line of `plan --check --json`; `lock` is the name of the file."""
        return {"lock": lock, **asdict(self)}

    def __str__(self) -> str:
        if self.change in ("added", "removed"):
            return f"{self.name}  {self.change}"
        old, new = self.old or "", self.new or ""
        if self.change != "id":
            old, new = old[:8], new[:8]
        return f"{self.name}  {self.change} {old} → {new}"


@dataclass(frozen=True)
class LockFile:
    """What is written."""

    asked: Asked
    steps: Mapping[str, LockedStep]
    """By name; a step with several names is there under each."""

    def dumps(self) -> str:
        """The text of the file: sorted, one digest a line."""
        steps = {
            name: {field: text for field, text in vars(step).items() if text is not None}
            for name, step in self.steps.items()
        }
        asked = {"arguments": dict(self.asked.arguments), "overrides": list(self.asked.overrides)}
        return json.dumps({"schema": SCHEMA, **asked, "steps": steps}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> LockFile | None:
        """The lock at `path`; None when there is no file.

        Raises:
            InputError: when it is no lock.
        """
        try:
            tree = parsed(file_bytes(os.fspath(path), RECORD))
            if tree["schema"] != SCHEMA:
                raise ValueError(f"schema {tree['schema']}, and {SCHEMA} is known here")
            steps = typed(tree["steps"], Mapping[str, LockedStep], "steps")
            asked = {"arguments": tree["arguments"], "overrides": tree["overrides"]}
            return cls(typed(asked, Asked), steps)
        except FileNotFoundError:
            return None
        except (OSError, CorruptOutput, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: not the lock file of an experiment ({error}); take it from version control again, delete it, "
                "or write it anew with `run --lock`"
            ) from error

    def write(self, path: Path) -> None:
        """Replace the file, whole or not at all.

        Raises:
            MarinError: when it cannot be written.
        """
        try:
            write_whole(path, self.dumps().encode())
        except OSError as error:
            raise MarinError(f"{path}: the lock file cannot be written ({error.strerror}); the run is done") from error


def lock_path(experiment: Path) -> Path:
    """Where the lock file of an experiment lies."""
    return experiment.with_suffix(".lock.json")


def lock_of(result: RunResult, asked: Asked) -> LockFile:
    """The lock of a run in which every step is done."""
    steps: dict[str, LockedStep] = {}
    for node in result.graph.nodes.values():
        commit = result.settled[node.key].known
        if commit is not None:
            logical = commit.compared if commit.compared != commit.output else None
            steps |= dict.fromkeys(node.names, LockedStep(node.id, node.key, commit.output, logical))
    return LockFile(asked, steps)


def overwritten(path: Path, asked: Asked) -> str:
    """What to say of a lock that is about to be written anew: nothing, but where it is of other arguments."""
    try:
        lock = LockFile.read(path)
    except InputError:
        return "instead of one that could not be read"
    return "" if lock is None or lock.asked == asked else f"instead of that under {lock.asked}; this is {asked}"


def differences(lock: LockFile, plan: Plan, whole: bool = True) -> list[Difference]:
    """How a plan under the same arguments differs from the lock: by name, in the order of the plan.

    A step whose outputs are equal within a tolerance is compared by its key; so is one that has no output now.

    Args:
        whole: the plan has all steps of the experiment, so that one that is missing was removed.
    """
    found: list[Difference] = []
    names: set[str] = set()
    for planned in plan.nodes.values():
        node, commit = planned.node, planned.look.commit
        names.update(node.names)
        for name in node.names:
            locked = lock.steps.get(name)
            if locked is None:
                found.append(Difference("added", name, None, node.key))
            elif locked.id != node.id:
                found.append(Difference("id", name, locked.id, node.id))
            elif locked.key != node.key:
                found.append(Difference("key", name, locked.key, node.key))
            elif commit is not None and commit.compared is not None:
                was = locked.logical or locked.digest
                if was != commit.compared:
                    found.append(Difference("digest", name, was, commit.compared))
    gone = [name for name in lock.steps if name not in names] if whole else []
    return [*found, *(Difference("removed", name, lock.steps[name].key, None) for name in gone)]


@dataclass(frozen=True)
class Comparison:
    """How an experiment stands to its lock file."""

    file: str
    """Name of the lock file."""
    differences: Sequence[Difference]
    other: str = ""
    """Set when the lock was written under other arguments, so that nothing was compared: which, and which now."""

    def lines(self, each: bool, whole: bool) -> list[str]:
        """For people: each difference in a line, or the whole in one; that nothing was compared is always said."""
        if self.other:
            remedy = "; give the same arguments, or write it anew with `run --lock`" if each else ""
            return [f"lock     {self.file} {self.other}: not compared{remedy}"]
        found = [f"lock     {difference}" for difference in self.differences] if each else []
        if whole and self.differences:
            steps = counted(len(self.differences), "step")
            remedy = "`plan --check` lists them, `run --lock` writes it anew"
            found.append(f"lock     {self.file} differs in {steps}: {remedy}")
        return found

    @property
    def is_as_locked(self) -> bool:
        """Whether nothing is other than in the lock; a lock that was not compared says nothing of the kind."""
        return not self.differences and not self.other

    def trees(self) -> list[Tree]:
        """Each difference, and that nothing was compared, as the line of `plan --check --json`."""
        if self.other:
            return [{"lock": self.file, "change": "not compared", "text": f"{self.file} {self.other}"}]
        return [each.tree(self.file) for each in self.differences]


def compare(path: Path, plan: Plan, asked: Asked, whole: bool = True) -> Comparison:
    """How a plan stands to the lock file at `path`; without a file there is nothing to say.

    Raises:
        InputError: when the file is no lock.
    """
    lock = LockFile.read(path)
    if lock is None:
        return Comparison(path.name, ())
    if lock.asked != asked:
        return Comparison(path.name, (), f"was written under {lock.asked}, and this is {asked}")
    return Comparison(path.name, differences(lock, plan, whole))
