"""Which documents a step reads, and which steps read a document: one order, asked from both sides.

A document is in a row when the row predicts at least one of its tokens. Both answers come from the order and the stores
as they are, by bisection; nothing is logged for them, and no step is passed over to reach another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.sequences import DocumentSource, Piece

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Row:
    """One row of a batch, and what it predicts."""

    row: int
    """Its place in the batch, from 0 on."""
    source: str
    sequence: int
    """Its number in the source."""
    epoch: int
    """Passes over the source before this one."""
    pieces: tuple[Piece, ...]
    """What it predicts, one piece after another from its first position on."""


@dataclass(frozen=True)
class Visit:
    """One row that a piece of a document is in."""

    step: int
    """Of the order: updates before the one that reads it."""
    row: int
    """Its place in the batch, from 0 on."""
    sequence: int
    """Its number in the source."""
    epoch: int
    """Passes over the source before this one."""
    piece: Piece


def documents_in(order: TrainingOrder, sources: Mapping[str, DocumentSource], step: int) -> list[Row]:
    """What a step of an order reads, row by row.

    Args:
        sources: by name.

    Raises:
        InputError: for a step before the first of the order.
    """
    batch = order.batch(step)
    found: list[Row] = []
    for row, (place, sequence, epoch) in enumerate(
        zip(batch.sources.tolist(), batch.sequences.tolist(), batch.epochs.tolist(), strict=True)
    ):
        name = order.names[place]
        found.append(Row(row, name, sequence, epoch, tuple(sources[name].pieces(sequence))))
    return found


def steps_of(
    order: TrainingOrder, sources: Mapping[str, DocumentSource], source: str, document: int, stop: int
) -> list[Visit]:
    """Where an order reads a document before the step `stop`, in the order of training.

    Args:
        sources: by name.
        source: the one that holds the document.
        document: its number in the store of the source.
        stop: the first step that is not looked at.

    Raises:
        InputError: for a source or a document that is not there.
    """
    if source not in order.names:
        raise InputError(f"source {source!r} is none of the run's: these are {', '.join(map(repr, order.names))}")
    place, held = order.names.index(source), sources[source]
    pieces = [
        (sequence, piece)
        for sequence in held.sequences_of(document)
        for piece in held.pieces(sequence)
        if piece.document == document
    ]
    end = order.index(max(stop, order.first_step))
    turns = order.stream.counts(end)[source]
    length = order.sequences[place]
    first = order.index(order.first_step)
    found: list[Visit] = []
    for epoch in range(-(-turns // length)):
        within = order.permutation(place, epoch).inverse(np.array([sequence for sequence, _ in pieces], np.int64))
        for (sequence, piece), turn in zip(pieces, (epoch * length + within).tolist(), strict=True):
            if turn < turns and (position := order.stream.find(place, turn)) >= first:
                steps, row = divmod(position - first, order.batch_size)
                found.append(Visit(order.first_step + steps, row, sequence, epoch, piece))
    return sorted(found, key=lambda visit: (visit.step, visit.row, visit.piece.start))


def text_of(source: DocumentSource, pieces: Sequence[Piece], tokenizer: tokenizers.Tokenizer) -> list[str]:
    """The text of each piece, without the token that ends a document.

    A piece may begin or end within a character, whose bytes then decode to U+FFFD.

    Raises:
        InputError: when the store was changed or lost.
    """
    store, texts = source.store, list[str]()
    for piece in pieces:
        start, end = store.document_range(piece.document)
        ids = store.read(start + piece.start, min(start + piece.stop, end)).tolist()
        if start + piece.stop == end and ids and ids[-1] == store.ledger.end_of_document:
            ids.pop()
        texts.append(tokenizer.decode(ids, skip_special_tokens=False))
    return texts


def whole(source: DocumentSource, document: int) -> Piece:
    """All of a document.

    Raises:
        InputError: for a document that the store does not have.
    """
    start, stop = source.store.document_range(document)
    return Piece(document, 0, stop - start)
