"""Loss and bits per byte of documents: from tokens to one number a document, and from these to scores by source.

Sums are made in float64 in the documents' order, so they do not depend on how rows were batched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.evaluate.predictor import Predictor
from marin_pipeline.evaluate.scores import Score, Scores
from marin_pipeline.evaluate.windows import batches, windows

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class DocumentScore:
    """Loss of one document."""

    id: str
    source: str
    source_id: str
    bytes: int
    tokens: int
    """Predicted tokens, the end of the document included."""
    nats: float


def document_nats(
    predictor: Predictor,
    documents: Sequence[np.ndarray],
    end_of_document: int,
    length: int,
    progress: Callable[[int, int], None],
) -> list[float]:
    """Sum of the losses of each document's tokens and of its end, in nats.

    Args:
        documents: token ids of each, the end-of-document token included.
        length: most tokens of context.
        progress: told how many rows of how many are done.
    """
    rows = list(windows(documents, end_of_document, length))
    nats = np.zeros(len(documents))
    done = 0
    for batch in batches(rows, length, BATCH_TOKENS, predictor.rows):
        losses = np.asarray(predictor.losses(batch.inputs, batch.targets), np.float64)
        sums = np.where(batch.scored, losses, 0.0).sum(axis=1)
        filled = batch.documents >= 0
        np.add.at(nats, batch.documents[filled], sums[filled])
        done += int(filled.sum())
        progress(done, len(rows))
    return nats.tolist()


def summarize(documents: Iterable[DocumentScore]) -> Scores:
    """Scores over all documents and by source.

    Raises:
        InputError: when there is nothing to score, or a loss is not finite.
    """
    by_source: dict[str, list[DocumentScore]] = {}
    for document in documents:
        if not math.isfinite(document.nats):
            raise InputError(
                f"document {document.id} of {document.source}: its loss is {document.nats}; the state is not usable"
            )
        by_source.setdefault(document.source, []).append(document)
    if not by_source:
        raise InputError("there is no held-out document to score: hold out a larger share, or give other documents")
    parts = tuple(_score(source, by_source[source]) for source in sorted(by_source))
    everything = [document for source in sorted(by_source) for document in by_source[source]]
    macro = math.fsum(part.bits_per_byte for part in parts) / len(parts)
    return Scores(_score("all", everything), macro, parts)


def _score(source: str, documents: Sequence[DocumentScore]) -> Score:
    size = sum(document.bytes for document in documents)
    tokens = sum(document.tokens for document in documents)
    nats = math.fsum(document.nats for document in documents)
    if size == 0:
        raise InputError(f"the held-out documents of {source} have no text: drop empty documents before the split")
    return Score(source, len(documents), size, tokens, nats, nats / math.log(2) / size, nats / tokens)
