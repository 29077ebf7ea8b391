"""Divide documents into those for training and those held out.

Membership is a salted hash of the document's id and nothing else: the same text is on the same side in every present
and future source, whatever else is there. It comes before dedupe, which then keeps held-out text out of training.
"""

from __future__ import annotations

from typing import Literal

from marin_pipeline import Artifact, Context, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.funnel import FunnelReport
from marin_pipeline.data.schema import Documents

ROWS = "kept.parquet"
SALT = "marin-held-out-1"


def is_held_out(id: str, fraction: float, salt: str) -> bool:
    """Whether a document is held out: xxh3-64 of salt and id lies in the lowest `fraction` of the hash's range."""
    import xxhash

    return xxhash.xxh3_64_intdigest(f"{salt}\0{id}".encode()) < int(fraction * 2**64)


@step(version=1)
def split_held_out(
    ctx: Context,
    documents: Artifact[Documents],
    part: Literal["train", "held_out"],
    fraction: float = 0.03,
    salt: str = SALT,
) -> Documents:
    """One side of the division; the other is the same step with the other `part`.

    Args:
        documents: to divide.
        part: the side to keep.
        fraction: share of documents to hold out, by number, from 0 to 1.
        salt: another one draws another held-out set.
    """
    from marin_pipeline.data.funnel import merge, summary
    from marin_pipeline.data.writers import gather

    if not 0.0 <= fraction <= 1.0:
        raise InputError(f"split_held_out: fraction={fraction}: a share of documents lies between 0 and 1")
    items = [documents / name for name in documents.value.parts]
    results = ctx.map(split_part, items, part=part, fraction=fraction, salt=salt)
    kept = gather(ctx.out, [result / ROWS for result in results], merge(result.value for result in results))
    ctx.log(summary(kept))
    if kept.documents == 0 and documents.value.documents > 0 and 0.0 < fraction < 1.0:
        raise InputError(
            f"split_held_out: {fraction=} leaves the {part} side without any of the {documents.value.documents:,} "
            f"documents; choose a {'larger' if part == 'held_out' else 'smaller'} fraction, or give more documents"
        )
    return kept


def split_part(
    shard: ShardContext, documents: File, part: Literal["train", "held_out"], fraction: float, salt: str
) -> FunnelReport:
    """Write the kept documents of one part to `kept.parquet`; the others are counted under the name of their side."""
    from marin_pipeline.data.funnel import Funnel
    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.writers import PartWriter

    funnel = Funnel()
    with PartWriter(shard.out / ROWS) as writer:
        for document in read_part(documents):
            side = "held_out" if is_held_out(document.id, fraction, salt) else "train"
            if side == part:
                writer.add(document)
                funnel.keep(document)
            else:
                funnel.drop(document, side)
    return funnel.report()
