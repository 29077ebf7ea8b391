"""Whether an output that was made again is the recorded one: file by file, and by what its step says counts.

`bit-identical` is said of equal bytes only. Where a step is compared by its rows or by its figures (`exact`), other
bytes are `within tolerance` when those agree, and it is told what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import InputError
from marin_pipeline.core.step import Exactness
from marin_pipeline.lab.first_difference import Side, first_difference
from marin_pipeline.run.code_lock import RELATIVE_TOLERANCE, Golden, differences, figures
from marin_pipeline.run.words import bytes_text, counted
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.manifest import VALUE, Entry
from marin_pipeline.store.output import CommittedOutput

Verdict = Literal["bit-identical", "within tolerance", "diverged"]


@dataclass(frozen=True)
class Difference:
    """One file that is not as it was recorded."""

    path: str
    change: Literal["missing", "extra", "different"]
    sizes: tuple[int | None, int | None]
    """Bytes, as recorded and as made again; None where it is not there."""
    sha256: tuple[str | None, str | None]
    place: str = ""
    """Where the two begin to differ, where that was looked for."""

    def __str__(self) -> str:
        if self.change != "different":
            size = self.sizes[0] if self.change == "missing" else self.sizes[1]
            return f"{self.path} is {self.change} ({bytes_text(size or 0)})"
        texts = [bytes_text(size or 0) for size in self.sizes]
        exact = [f"{size or 0:,} B" for size in self.sizes]
        sizes = " → ".join(texts if texts[0] != texts[1] else exact)
        told = sizes if self.sizes[0] != self.sizes[1] else f"{bytes_text(self.sizes[0] or 0)}, other bytes"
        return f"{self.path} ({told}){f': {self.place}' if self.place else ''}"

    def tree(self) -> dict[str, Tree]:
        """As JSON values."""
        return {**vars(self), "sizes": list(self.sizes), "sha256": list(self.sha256)}


@dataclass(frozen=True)
class Comparison:
    """An output made again, beside its record."""

    verdict: Verdict
    exact: Exactness
    """By what the step is compared."""
    files: int
    """That were compared, the value's among them."""
    bytes: int
    differences: tuple[Difference, ...] = ()
    """Files that are not as recorded: data by path, then JSON, then the value. Of the first one it is known where it
    begins to differ."""
    notes: tuple[str, ...] = field(default=())
    """What decided where the bytes differ."""

    @property
    def first(self) -> Difference | None:
        """The first file that is not as recorded."""
        return self.differences[0] if self.differences else None


def compare(record: CommittedOutput, made: CommittedOutput) -> Comparison:
    """Compare an output with its record.

    Raises:
        CorruptOutput: when the manifest of either, or a value that has to be read, is not what was committed.
    """
    old, new = record.manifest.files, made.manifest.files
    found = _differences(old, new)
    exact = exactness(record.commit)
    files, size = len(new), made.manifest.size
    if not found:
        return Comparison("bit-identical", exact, files, size)
    first = found[0]
    if first.change == "different":
        place = first_difference(
            Side(record.objects, old[first.path]),
            Side(made.objects, new[first.path]),
        )
        found[0] = Difference(first.path, first.change, first.sizes, first.sha256, place)
    verdict, notes = _judged(record, made, exact, found)
    return Comparison(verdict, exact, files, size, tuple(found), notes)


def exactness(commit: Commit) -> Exactness:
    """By what a recorded output is compared, as its commit says."""
    if commit.compared is None:
        return "tolerance"
    return "bitwise" if commit.compared == commit.output else "logical"


def _differences(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> list[Difference]:
    found: list[Difference] = []
    for path in sorted({*old, *new}, key=_rank):
        left, right = old.get(path), new.get(path)
        if left and right and (left.size, left.sha256) == (right.size, right.sha256):
            continue
        change = "extra" if left is None else "missing" if right is None else "different"
        sizes = left.size if left else None, right.size if right else None
        found.append(Difference(path, change, sizes, (left.sha256 if left else None, right.sha256 if right else None)))
    return found


def _rank(path: str) -> tuple[int, str]:
    """In which order files are named: what holds data before what sums it up, as JSON does, and what the step returned
    last, since a difference in data is the cause of one in its summary.
    """
    return (2 if path == VALUE else 1 if path.endswith(".json") else 0), path


def _judged(
    record: CommittedOutput, made: CommittedOutput, exact: Exactness, found: list[Difference]
) -> tuple[Verdict, tuple[str, ...]]:
    """What outputs with other bytes come to, and why."""
    if exact == "bitwise":
        return "diverged", ()
    if exact == "logical":
        same = record.commit.compared == made.commit.compared
        digests = f"{(record.commit.compared or '')[:8]} → {(made.commit.compared or '')[:8]}"
        note = "the logical digest is equal, the bytes are not" if same else f"logical digest {digests}"
        return "within tolerance" if same else "diverged", (note,)
    absent = [each for each in found if each.change != "different"]
    if absent:
        return "diverged", tuple(f"{each}" for each in absent)
    try:
        old, new = (dict(figures(output.value_tree)) for output in (record, made))
    except InputError as error:
        return "diverged", (f"its figures cannot be compared: {error}",)
    if not old:
        return "diverged", ("its value has no figures to be compared by",)
    beyond = differences(Golden(record.key, figures=old), Golden(made.key, figures=new))
    if beyond:
        return "diverged", tuple(f"{each}, more than {RELATIVE_TOLERANCE:g} apart" for each in beyond)
    moved = sum(old[path] != new[path] for path in old)
    agree = counted(len(old), "figure of the value agrees", "figures of the value agree")
    return "within tolerance", (f"{agree} to {RELATIVE_TOLERANCE:g} (relative), {moved:,} of them not to the bit",)
