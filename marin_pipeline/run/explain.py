"""Why a step would run, as data: what is new, what changed from what to what, what it hangs on.

Pure functions of two records; drawing them is the screen's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marin_pipeline.core.canonical import TAG, Tree, marks_of
from marin_pipeline.core.key import artifact_keys

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
    "drift",
    "leased",
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

    def __str__(self) -> str:
        if self.kind == "argument":
            return f"{self.path} {self.text or f'{_shown(self.old)} → {_shown(self.new)}'}"
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
        if self.kind == "missing object":
            return self.text
        return f"{self.kind}: {self.text}" if self.text else self.kind

    def tree(self) -> Tree:
        """As JSON values."""
        return {"kind": self.kind, "path": self.path, "old": self.old, "new": self.new, "text": str(self)}


MANY = 4
"""Changes within one argument that are told one by one; more are counted."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = str(value) if not isinstance(value, (dict, list, str)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Change:
    """One place at which two trees differ."""

    path: str
    old: Any
    new: Any


def changes(old: Tree, new: Tree, path: str = "") -> Iterator[Change]:
    """The places at which two canonical trees differ, in the order of the new one."""
    if isinstance(old, dict) and isinstance(new, dict) and _tag(old) == _tag(new):
        if _tag(new) in ("~artifact", "~file"):
            same = all(old.get(name) == new.get(name) for name in ("~artifact", "~file", "path"))
            if not same:
                yield Change(path, old, new)
            return
        if "~data" in new and old["~data"] == new["~data"]:
            yield from changes(old["fields"], new["fields"], path)
            return
        for name in [*new, *(name for name in old if name not in new)]:
            inner = f"{path}.{name}" if path else name
            yield from changes(old.get(name, ABSENT), new.get(name, ABSENT), inner)
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from changes(left, right, f"{path}[{index}]")
        return
    if type(old) is not type(new) or old != new:
        yield Change(path, old, new)


def _tag(tree: Mapping[str, Tree]) -> str | None:
    return next((name for name in tree if name.startswith(TAG) and not name.startswith(TAG + TAG)), None)


def keyed_arguments(call: Mapping[str, Tree], annotations: Mapping[str, Any]) -> dict[str, Tree]:
    """The arguments of a call without those that are marked `Runtime`."""
    return {name: tree for name, tree in call.items() if not marks_of(annotations.get(name)).runtime}


def compare(
    old: Mapping[str, Tree],
    new: Mapping[str, Tree],
    names: Mapping[str, str],
) -> list[Reason]:
    """Why a call is not the earlier one.

    Args:
        names: names of the present graph's steps by key.

    Returns:
        The changed arguments; a changed input is named by the step that makes it.
    """
    found: list[Reason] = []
    for argument in [*new, *(name for name in old if name not in new)]:
        changed = list(changes(old.get(argument, ABSENT), new.get(argument, ABSENT), argument))
        inputs = {names[key] for change in changed for key in artifact_keys(change.new) if key in names}
        found.extend(Reason("input", name) for name in sorted(inputs) if name not in [each.path for each in found])
        values = [change for change in changed if not any(key in names for key in artifact_keys(change.new))]
        if len(values) > MANY:
            found.append(Reason("argument", argument, text=_counted(values)))
        else:
            found.extend(_reason(change) for change in values)
    return found


def _reason(change: Change) -> Reason:
    old = None if change.old is ABSENT else change.old
    new = None if change.new is ABSENT else change.new
    texts = [_content(each) for each in (change.old, change.new)]
    if all(texts):
        return Reason("argument", change.path, old, new, f"content {texts[0]} → {texts[1]}")
    if any(texts):
        verb = "added" if change.old is ABSENT else "removed" if change.new is ABSENT else "now"
        return Reason("argument", change.path, old, new, f"{verb} {texts[1] or texts[0]}")
    return Reason("argument", change.path, old, new)


def _content(tree: Any) -> str:
    """First digits of a file's digest; empty for what is no file."""
    return tree["~file"][:8] if isinstance(tree, dict) and "~file" in tree else ""


def _counted(changed: list[Change]) -> str:
    """Many changes within one argument, in a few words."""
    added = sum(change.old is ABSENT for change in changed)
    removed = sum(change.new is ABSENT for change in changed)
    counts = {"added": added, "removed": removed, "changed": len(changed) - added - removed}
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)


def compare_code(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """The pieces of code that differ, for people."""
    moved = [name for name in new if old.get(name) != new[name]] + [name for name in old if name not in new]
    shown = ", ".join(moved[:3]) or "its classes"
    return shown if len(moved) <= 3 else f"{shown} and {len(moved) - 3} more"
