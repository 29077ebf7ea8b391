"""What sets two outputs apart: files, figures, and the machines that made them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.run.explain import ABSENT, Change, changes, shown
from marin_pipeline.run.figures import figure_text, figures
from marin_pipeline.run.words import bytes_text, listed
from marin_pipeline.store import layout
from marin_pipeline.store.commit import read_commit
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import CommittedOutput


@dataclass(frozen=True)
class FileDifference:
    """One file of two outputs."""

    path: str
    change: str
    """`same`, `different`, `added` or `removed`."""
    sizes: tuple[int | None, int | None]
    """Bytes; None on the side that does not have it."""

    def __str__(self) -> str:
        old, new = (None if size is None else bytes_text(size) for size in self.sizes)
        sizes = f"{old} → {new}" if old is not None and new is not None else old or new
        return f"{self.change:<10}{self.path}  {sizes}"


@dataclass
class OutputDifference:
    """What sets two outputs apart."""

    files: list[FileDifference] = field(default_factory=list[FileDifference])
    machine: list[Change] = field(default_factory=list[Change])
    """Of two outputs that differ: what the machines had that made them."""
    figures: dict[str, tuple[float | None, float | None]] = field(
        default_factory=dict[str, tuple[float | None, float | None]]
    )
    """Numbers in the returned values, where they differ."""
    gone: str = ""
    """Why nothing can be told but that they differ."""

    @classmethod
    def of(cls, a: CommittedOutput, b: CommittedOutput) -> OutputDifference:
        """Compare two outputs."""
        found = cls(list(_files(a, b)))
        if a.digest != b.digest:
            found.machine = list(changes(dict(a.commit.fingerprint), dict(b.commit.fingerprint)))
        old, new = figures(a.value_tree), figures(b.value_tree)
        for path in [*old, *(path for path in new if path not in old)]:
            pair = old.get(path), new.get(path)
            if repr(pair[0]) != repr(pair[1]):
                found.figures[path] = pair
        return found

    @classmethod
    def between(cls, objects: ObjectStore, a: tuple[str, str, str], b: tuple[str, str, str]) -> OutputDifference:
        """Compare two outputs that were committed once, each given as step's id, key and output digest."""
        outputs = [_committed(objects, *each) for each in (a, b)]
        with suppress(StoreError, OSError):
            if outputs[0] is not None and outputs[1] is not None:
                return cls.of(outputs[0], outputs[1])
        return cls(gone="its files cannot be compared: the bytes of one of the two have gone")

    def tree(self) -> dict[str, Tree]:
        """The difference as JSON values."""
        return {
            "files": [{"path": file.path, "change": file.change, "sizes": file.sizes} for file in self.files],
            "machine": [change_tree(change) for change in self.machine],
            "figures": {path: [_json(value) for value in pair] for path, pair in self.figures.items()},
            "gone": self.gone,
        }

    def lines(self) -> Iterator[str]:
        """The difference for people."""
        if self.gone:
            yield self.gone
            return
        counts = {change: sum(file.change == change for file in self.files) for change in _FILE_CHANGES}
        told = ", ".join(f"{count:,} {change}" for change, count in counts.items() if count)
        yield f"files  {told or 'none'}"
        yield from listed([f"  {file}" for file in self.files if file.change != "same"])
        yield from listed([f"machine  {each.path}  {shown(each.old)} → {shown(each.new)}" for each in self.machine])
        yield from listed(list(self.figure_lines()))

    def figure_lines(self) -> Iterator[str]:
        """The figures that differ, for people."""
        return (f"value  {path}  {_pair_text(*pair)}" for path, pair in self.figures.items())


def _committed(objects: ObjectStore, id: str, key: str, output: str) -> CommittedOutput | None:
    """The output of a key with a digest, whether its commit still counts or not."""
    names = objects.names(f"{layout.step(id, key)}/commits")
    for number in sorted((int(name[:-5]) for name in names if name[:-5].isdigit()), reverse=True):
        with suppress(CorruptOutput):
            commit = read_commit(objects, id, key, number)
            if commit is not None and commit.output == output:
                return CommittedOutput(objects, id, key, commit)
    return None


def change_tree(change: Change) -> dict[str, Tree]:
    """A change as JSON values."""
    return {
        "path": change.path,
        "old": None if change.old is ABSENT else change.old,
        "new": None if change.new is ABSENT else change.new,
    }


_FILE_CHANGES = ("same", "different", "added", "removed")


def _files(a: CommittedOutput, b: CommittedOutput) -> Iterator[FileDifference]:
    old, new = a.manifest.files, b.manifest.files
    for path in sorted({*old, *new}):
        left, right = old.get(path), new.get(path)
        if left is None or right is None:
            change = "added" if left is None else "removed"
        else:
            change = "same" if (left.size, left.sha256) == (right.size, right.sha256) else "different"
        yield FileDifference(path, change, (left.size if left else None, right.size if right else None))


def _json(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or abs(value) < float("inf") else repr(value)


def _pair_text(old: float | None, new: float | None) -> str:
    text = f"{figure_text(old) or 'absent'} → {figure_text(new) or 'absent'}"
    return text if old is None or new is None else f"{text}  ({new - old:+.4g})"
