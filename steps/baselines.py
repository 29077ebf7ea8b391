"""What simple models and a compressor make of held-out text: bits per byte that a trained model has to beat.

The n-gram models are fitted on the same training text and pay for the end of each document, as an evaluation does, so
the numbers can be compared. The compressor sees the held-out text alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from marin_pipeline import Artifact, Context, Documents, Resources, Scores, step
from marin_pipeline.core.errors import InputError


@dataclass(frozen=True)
class NgramScores:
    """How well a byte n-gram model predicts the held-out text."""

    order: int
    """Symbols an n-gram: the context is one shorter."""
    scores: Scores
    """Its tokens are bytes, and one end a document."""


@dataclass(frozen=True)
class Compression:
    """How small a compressor makes the held-out text."""

    level: int
    bytes: int
    """Bytes of the text, all documents in order without anything between them."""
    compressed_bytes: int
    bits_per_byte: float
    """`8 * compressed_bytes / bytes`."""


@dataclass(frozen=True)
class Baselines:
    """What to compare a trained model with."""

    ngrams: tuple[NgramScores, ...]
    """One for each order, in the order asked for."""
    zstd: Compression
    training_documents: int
    """Documents that the n-gram models were fitted on."""
    training_bytes: int
    """UTF-8 bytes of their text."""


@step(version=1, resources=Resources(cpus=1))
def baselines(
    ctx: Context,
    documents: Artifact[Documents],
    held_out: Artifact[Documents],
    orders: tuple[int, ...] = (1, 3, 5),
    zstd_level: int = 19,
) -> Baselines:
    """Bits per byte of held-out documents by byte n-gram models and by zstd.

    Args:
        documents: training text, which the n-gram models are fitted on.
        held_out: what is predicted and compressed.
        orders: orders of the n-gram models, from 1 (each byte alone) to 7 (six bytes of context).
        zstd_level: from 1 to 22.

    Raises:
        InputError: when there is no text on one side, or an order or the level is out of range.
    """
    import zstandard

    from marin_pipeline.data.parts import batches, read_documents
    from marin_pipeline.evaluate.bits_per_byte import DocumentScore, summarize
    from marin_pipeline.evaluate.ngrams import BATCH_BYTES, MAXIMUM_ORDER, NgramModel

    if not orders or not all(1 <= order <= MAXIMUM_ORDER for order in orders):
        raise InputError(f"baselines: orders={orders}: give at least one, each between 1 and {MAXIMUM_ORDER}")
    if not 1 <= zstd_level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise InputError(f"baselines: zstd_level={zstd_level} must lie between 1 and {zstandard.MAX_COMPRESSION_LEVEL}")
    for name, value in (("documents", documents.value), ("held_out", held_out.value)):
        if not value.bytes:
            raise InputError(
                f"baselines: there is no text in {name}; give documents, and hold out a larger share of them"
            )
    size = held_out.value.bytes
    total = documents.value.bytes + size
    training = batches(read_documents(documents), BATCH_BYTES)
    model = NgramModel(([row.text.encode() for row in batch] for batch in training), max(orders))
    ctx.progress(documents.value.bytes, total, "bytes")

    scored: dict[int, list[DocumentScore]] = {order: [] for order in orders}
    compressor = zstandard.ZstdCompressor(level=zstd_level).compressobj(size=size)
    compressed = 0
    for batch in batches(read_documents(held_out), BATCH_BYTES):
        texts = [row.text.encode() for row in batch]
        nats = model.nats(texts)
        for order, rows in scored.items():
            rows += (
                DocumentScore(row.id, row.source, row.source_id, len(text), len(text) + 1, loss)
                for row, text, loss in zip(batch, texts, nats[order - 1].tolist(), strict=True)
            )
        compressed += len(compressor.compress(b"".join(texts)))
    compressed += len(compressor.flush())
    ctx.progress(total, total, "bytes")

    return Baselines(
        ngrams=tuple(NgramScores(order, summarize(scored[order])) for order in orders),
        zstd=Compression(zstd_level, size, compressed, 8 * compressed / size),
        training_documents=documents.value.documents,
        training_bytes=documents.value.bytes,
    )
