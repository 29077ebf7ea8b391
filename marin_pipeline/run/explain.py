"""Why a step would run, as data: what is new, what changed from what to what, what it hangs on.

Pure functions of two records; drawing them is the screen's.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marin_pipeline.core.canonical import TAG, Tree, dumps
from marin_pipeline.core.marks import marks_of
from marin_pipeline.run.words import few

Kind = Literal[
    "new",
    "argument",
    "code",
    "version",
    "input",
    "stale",
    "forced",
    "failed before",
    "invalidated",
    "missing object",
    "left out",
    "drift",
    "leased",
    "substitute",
    "refused",
]


@dataclass(frozen=True)
class Reason:
    """One reason."""

    kind: Kind
    path: str = ""
    """The argument, the piece of code, or the name of the step that it hangs on."""
    old: Any = None
    new: Any = None
    text: str = ""
    """Said in addition."""

    @property
    def is_downstream(self) -> bool:
        """Whether it says no more than on which other step, `path`, this one hangs."""
        return self.kind == "input" and not self.text

    def __str__(self) -> str:
        if self.kind == "argument":
            return f"{self.path} {self.text or f'{shown(self.old)} → {shown(self.new)}'}"
        if self.kind == "code":
            return f"code changed: {self.path}"
        if self.kind == "version":
            return f"version {self.old} → {self.new}"
        if self.kind == "input":
            return self.text or f"downstream of {self.path}"
        if self.kind == "stale":
            return f"stale: {self.path} was rebuilt with other bytes"
        if self.kind == "drift":
            return f"drift: code changed since it was made: {self.path}" if not self.text else self.text
        if self.kind == "leased":
            return f"at work elsewhere: {self.text}"
        if self.kind == "refused":
            return f"will not be started: {self.text}"
        if self.kind in ("missing object", "left out", "substitute"):
            return self.text
        return f"{self.kind}: {self.text}" if self.text else self.kind

    def tree(self) -> Tree:
        """As JSON values."""
        return {"kind": self.kind, "path": self.path, "old": self.old, "new": self.new, "text": str(self)}


MANY = 4
"""Changes within one argument that are told one by one; more are counted."""


ALIGNED = 2_000
"""Items of two lists that are aligned, which takes time with the square; longer ones are compared in their order."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = str(value) if not isinstance(value, (dict, list, str)) else repr(value)
    return _cut(text)


def shown(tree: Tree, names: Mapping[str, str] = {}) -> str:
    """A canonical tree for people, in a few words.

    Args:
        names: of steps, by key.
    """
    tag = tag_of(tree) if isinstance(tree, dict) else None
    if tag == "~artifact":
        key = tree["~artifact"]
        return names.get(key, f"artifact {key[:8]}") + (f"/{tree['path']}" if "path" in tree else "")
    if tag == "~file":
        return f"file {tree['~file'][:8]}"
    if tag == "~enum":
        return tree["name"]
    if tag == "~data":
        fields = ", ".join(f"{name}={shown(value, names)}" for name, value in tree["fields"].items())
        return _cut(f"{tree['~data'].rpartition(':')[2]}({fields})")
    if tag == "~float":  # NaN and the infinities
        return tree[tag]
    if tag is not None:
        return _shown(tree[tag])
    return _shown(tree)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Change:
    """One place at which two trees differ."""

    path: str
    old: Any
    new: Any


def changes(old: Tree, new: Tree, path: str = "") -> Iterator[Change]:
    """The places at which two canonical trees differ, in the order of the new one."""
    if isinstance(old, dict) and isinstance(new, dict) and tag_of(old) == tag_of(new):
        tag = tag_of(new)
        if tag in ("~artifact", "~file"):
            if any(old.get(name) != new.get(name) for name in ("~artifact", "~file", "path")):
                yield Change(path, old, new)
        elif tag == "~data" and old["~data"] == new["~data"]:
            yield from changes(old["fields"], new["fields"], path)
        elif tag is not None:
            if old != new:
                yield Change(path, old, new)
        else:
            for name in [*new, *(name for name in old if name not in new)]:
                inner = f"{path}.{name}" if path else name
                yield from changes(old.get(name, ABSENT), new.get(name, ABSENT), inner)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _changed_items(old, new, path)
    elif type(old) is not type(new) or old != new:
        yield Change(path, old, new)


def _changed_items(old: list[Tree], new: list[Tree], path: str) -> Iterator[Change]:
    """Item by item; of lists of two lengths what was put in, taken out and replaced. Items that both have are passed
    over; paths are those of the new list, of what was taken out those of the old one.
    """
    for (start, stop), (begin, end) in _blocks(old, new):
        left, right = old[start:stop], new[begin:end]
        for index, (before, after) in enumerate(itertools.zip_longest(left, right, fillvalue=ABSENT)):
            place = start + index if after is ABSENT else begin + index
            yield from changes(before, after, f"{path}[{place}]")


def _blocks(old: list[Tree], new: list[Tree]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of two lists that stand for each other and may differ."""
    if len(old) == len(new):
        yield (0, len(old)), (0, len(new))
        return
    shorter = min(len(old), len(new))
    start = end = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if not left or not right or len(left) + len(right) > ALIGNED:
        yield (start, start + len(left)), (start, start + len(right))
        return
    texts = [dumps(item) for item in left], [dumps(item) for item in right]
    for what, i, j, k, m in difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if what != "equal":
            yield (start + i, start + j), (start + k, start + m)


def tag_of(tree: Mapping[str, Tree]) -> str | None:
    """The tag that says what a canonical tree stands for; None for a plain dict."""
    return next((name for name in tree if name.startswith(TAG) and not name.startswith(TAG + TAG)), None)


def keyed_arguments(call: Mapping[str, Tree], annotations: Mapping[str, Any]) -> dict[str, Tree]:
    """The arguments of a call without those that are marked `Runtime`."""
    return {name: tree for name, tree in call.items() if not marks_of(annotations.get(name)).runtime}


def told(
    old: Mapping[str, Tree],
    new: Mapping[str, Tree],
    names: Mapping[str, str],
) -> list[Reason]:
    """Why a call is not the earlier one, in a few reasons.

    Args:
        names: names of the present graph's steps by key.

    Returns:
        The changed arguments; a changed input is named by the step that makes it.
    """
    found: list[Reason] = []
    told: set[str] = set()
    for argument in [*new, *(name for name in old if name not in new)]:
        values: list[Change] = []
        inputs: set[str] = set()
        for change in changes(old.get(argument, ABSENT), new.get(argument, ABSENT), argument):
            moved = _moved_input(change, names)
            if moved is None:
                values.append(change)
            else:
                inputs.add(moved)
        found.extend(Reason("input", name) for name in sorted(inputs - told))
        told |= inputs
        if len(values) > MANY:
            found.append(Reason("argument", argument, text=_counted(values)))
        else:
            found.extend(_reason(change, names) for change in values)
    return found


def _moved_input(change: Change, names: Mapping[str, str]) -> str | None:
    """Name of the step whose output takes the place of another one that it has made; None for any other change."""
    old, new = artifact_of(change.old), artifact_of(change.new)
    if old is None or new is None or new not in names or change.old.get("path") != change.new.get("path"):
        return None
    # Where the earlier one is a step of the present graph too, another one was chosen.
    return names[new] if names.get(old, names[new]) == names[new] else None


def artifact_of(tree: Any) -> str | None:
    """Key of the artifact that a canonical tree is, or is a file of."""
    return tree.get("~artifact") if isinstance(tree, dict) else None


def _reason(change: Change, names: Mapping[str, str]) -> Reason:
    old = None if change.old is ABSENT else change.old
    new = None if change.new is ABSENT else change.new
    contents = [_content(each) for each in (change.old, change.new)]
    if all(contents):
        return Reason("argument", change.path, old, new, f"content {contents[0]} → {contents[1]}")
    if any(contents):
        verb = "added" if change.old is ABSENT else "removed" if change.new is ABSENT else "now"
        return Reason("argument", change.path, old, new, f"{verb} {contents[1] or contents[0]}")
    return Reason("argument", change.path, old, new, f"{shown(change.old, names)} → {shown(change.new, names)}")


def _content(tree: Any) -> str:
    """First digits of a file's digest; empty for what is no file."""
    return tree["~file"][:8] if isinstance(tree, dict) and "~file" in tree else ""


def _counted(changed: list[Change]) -> str:
    """Many changes within one argument, in a few words."""
    added = sum(change.old is ABSENT for change in changed)
    removed = sum(change.new is ABSENT for change in changed)
    counts = {"added": added, "removed": removed, "changed": len(changed) - added - removed}
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)


@dataclass(frozen=True)
class PieceChange:
    """A piece of code that is not as it was."""

    name: str
    """`experiments/hello:count_words` for a function or class, `steps/dedupe` for a module."""
    change: Literal["changed", "added", "removed"]


def compare_code(old: Mapping[str, str], new: Mapping[str, str]) -> list[PieceChange]:
    """The pieces of code that differ, by their digests by name; those of the new one first."""
    found = [PieceChange(name, "changed" if name in old else "added") for name in new if old.get(name) != new[name]]
    return [*found, *(PieceChange(name, "removed") for name in old if name not in new)]


def code_text(moved: Sequence[PieceChange]) -> str:
    """The pieces of code that differ, for people, in a few words."""
    return few([piece.name for piece in moved]) or "its classes"
