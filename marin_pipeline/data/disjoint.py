"""Whether training and held-out documents share anything: a merge of two sorted lists of ids.

Both are read once, one row at a time, so that memory does not grow with them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from marin_pipeline.core.errors import InputError

SHOWN = 5
"""Documents that a problem names; of more it gives the number."""


class Named(NamedTuple):
    """A document without its text."""

    id: str
    source: str
    source_id: str

    def __str__(self) -> str:
        return f"{self.id} ({self.source}: {self.source_id})"


@dataclass(frozen=True)
class Disjoint:
    """Training and held-out documents that were found to share nothing."""

    training: int
    """Training documents."""
    held_out: int
    """Held-out documents."""
    training_ids: int
    """Different ids among the training documents."""
    held_out_ids: int
    """Different ids among the held-out documents."""
    shared_ids: int
    """Ids on both sides: 0."""
    training_digest: str
    """sha256 over the different ids of the training documents, ascending: 64 hex."""
    held_out_digest: str
    """Likewise of the held-out documents."""
    most_overlap: float
    """The largest share of a training document's word shingles that occur in held-out documents, from 0 to 1."""
    most_of_training: float
    """The largest share of a training document's letters that occur in held-out documents, of those not short."""
    most_of_held_out: float
    """The largest share of a held-out document's letters that occur in one training document, of those not short."""
    short_copied: int
    """Short held-out documents that a training document contains."""
    short_copied_share: float
    """Share of the letters of all held-out documents that are theirs."""
    training_without_letters: int
    """Training documents without any letter or digit, of which only the id was compared."""
    held_out_without_letters: int
    """Likewise of the held-out documents."""


@dataclass
class Finding:
    """Documents with one thing wrong: their number, and the first few."""

    documents: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, told: str) -> None:
        """Note a document; documents come in order."""
        self.documents += 1
        if len(self.first) < SHOWN:
            self.first.append(told)

    def __str__(self) -> str:
        more = f" and {self.documents - len(self.first):,} more" if self.documents > len(self.first) else ""
        return ", ".join(self.first) + more


class _Side:
    """The documents of one side as they pass: their order is checked; ids are counted and digested."""

    def __init__(self, name: str, documents: Iterable[Named]) -> None:
        self.name = name
        self.documents = self.ids = 0
        self.sha256 = hashlib.sha256()
        self._groups = self._grouped(documents)

    def next(self) -> list[Named] | None:
        """The documents of the next id."""
        return next(self._groups, None)

    def _grouped(self, documents: Iterable[Named]) -> Iterator[list[Named]]:
        group: list[Named] = []
        for row in documents:
            if group and row.id < group[0].id:
                raise InputError(
                    f"the {self.name} documents are not in the order of their ids: {row} follows {group[-1]}; make "
                    "them again"
                )
            if group and row.id != group[0].id:
                yield self._passed(group)
                group = []
            group.append(row)
        if group:
            yield self._passed(group)

    def _passed(self, group: list[Named]) -> list[Named]:
        self.documents += len(group)
        self.ids += 1
        self.sha256.update(group[0].id.encode())
        return group


@dataclass(frozen=True)
class Comparison:
    """What a merge of both sides found."""

    training: int
    held_out: int
    training_ids: int
    held_out_ids: int
    training_digest: str
    held_out_digest: str
    shared: Finding
    """Training documents whose id is a held-out document's, each with the first such document."""
    kept: Finding
    """Training documents that the rule holds out."""
    strange: Finding
    """Held-out documents that the rule does not hold out."""


def compare(training: Iterable[Named], held_out: Iterable[Named], is_held_out: Callable[[str], bool]) -> Comparison:
    """Merge the documents of both sides, each in the order of ids.

    Args:
        is_held_out: the rule of membership, of an id.

    Raises:
        InputError: when a side is out of order.
    """
    shared, kept, strange = Finding(), Finding(), Finding()
    mine, theirs = _Side("training", training), _Side("held-out", held_out)
    left, right = mine.next(), theirs.next()
    while left is not None or right is not None:
        # Of both sides the smaller id, or the same.
        taken_left = left if left and (not right or left[0].id <= right[0].id) else None
        taken_right = right if right and (not left or right[0].id <= left[0].id) else None
        if taken_left:
            held = is_held_out(taken_left[0].id)
            for row in taken_left:
                if taken_right:
                    shared.add(f"{row}, held out as {taken_right[0].source}: {taken_right[0].source_id}")
                if held:
                    kept.add(str(row))
            left = mine.next()
        if taken_right:
            if not is_held_out(taken_right[0].id):
                for row in taken_right:
                    strange.add(str(row))
            right = theirs.next()
    return Comparison(
        mine.documents,
        theirs.documents,
        mine.ids,
        theirs.ids,
        mine.sha256.hexdigest(),
        theirs.sha256.hexdigest(),
        shared,
        kept,
        strange,
    )


def read_names(path: str | os.PathLike[str]) -> Iterator[Named]:
    """The documents of a part without their texts, in order."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(os.fspath(path)) as file:
        for batch in file.iter_batches(4096, columns=list(Named._fields), use_threads=False):
            yield from map(Named, *(batch.column(name).to_pylist() for name in Named._fields))
