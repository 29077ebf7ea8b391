"""Drop documents whose text is there already, or too much of it in the held-out documents.

Equal texts have equal ids and so lie next to each other; the one with the smallest (source, source_id) survives.
Content alone decides: neither the number of workers nor the order of the input does. What was dropped is listed in
`drop_list.parquet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marin_pipeline import Artifact, Context, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.funnel import FunnelReport
from marin_pipeline.data.schema import Documents

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "kept.parquet"
DROP_LIST = "drop_list.parquet"
SHINGLES = "shingles.npy"
IDS = "ids.npy"


@step(version=1)
def dedupe(
    ctx: Context,
    documents: Artifact[Documents],
    against: Artifact[Documents] | None = None,
    threshold: float = 0.5,
    shingle_words: int = 8,
) -> Documents:
    """Documents without duplicates, and without near copies of `against`.

    Args:
        documents: to clean.
        against: held-out documents; a document goes when it is one of them (`held_out_exact`), or when more than
            `threshold` of its distinct shingles occur in them (`held_out_overlap`). One with fewer words than a
            shingle is compared whole.
        threshold: share of shingles, from 0 to 1.
        shingle_words: consecutive words a shingle, without regard to case.
    """
    from marin_pipeline.data.funnel import merge, summary
    from marin_pipeline.data.writers import concatenate, gather

    if not 0.0 <= threshold <= 1.0 or shingle_words < 1:
        raise InputError(
            f"dedupe: threshold={threshold} must lie between 0 and 1, shingle_words={shingle_words} must be at least 1"
        )
    parts = [] if against is None else [against / part for part in against.value.parts]
    held_out = ctx.map(shingle_part, parts, shingle_words=shingle_words)
    results = ctx.map(
        dedupe_part,
        [documents / part for part in documents.value.parts],
        ids=[result / IDS for result in held_out],
        shingles=[result / SHINGLES for result in held_out],
        threshold=threshold,
        shingle_words=shingle_words,
    )
    kept = gather(ctx.out, [result / ROWS for result in results], merge(result.value for result in results))
    concatenate(ctx.out / DROP_LIST, drop_list_schema(), [result / DROP_LIST for result in results])
    ctx.log(summary(kept))
    return kept


def drop_list_schema() -> pa.Schema:
    """Columns of `drop_list.parquet`: id, source, source_id, reason, share of shingles found (null if not compared)."""
    import pyarrow as pa

    names = ("id", "source", "source_id", "reason")
    return pa.schema(
        [*(pa.field(name, pa.string(), nullable=False) for name in names), pa.field("share", pa.float64())]
    )


def shingle_part(shard: ShardContext, documents: File, shingle_words: int) -> int:
    """Write the shingles and the ids of one held-out part as sorted arrays; returns the number of shingles."""
    import numpy as np

    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.shingles import shingles, union

    rows = list(read_part(documents))
    found = union([shingles(document.text, shingle_words) for document in rows])
    np.save(shard.out / SHINGLES, found)
    np.save(shard.out / IDS, np.array([document.id for document in rows], "S32"))
    return len(found)


def dedupe_part(
    shard: ShardContext, documents: File, ids: list[File], shingles: list[File], threshold: float, shingle_words: int
) -> FunnelReport:
    """Write the survivors of one part to `kept.parquet`, and the others to `drop_list.parquet`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from marin_pipeline.data.funnel import Funnel
    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.shingles import share_in, union
    from marin_pipeline.data.shingles import shingles as shingles_of
    from marin_pipeline.data.writers import PartWriter

    known_ids = {id.decode() for file in ids for id in np.load(file).tolist()}
    known = union([np.load(file) for file in shingles])
    funnel = Funnel()
    dropped = []
    previous = ""
    with PartWriter(shard.out / ROWS) as writer:
        for document in read_part(documents):
            share = None
            if document.id == previous:
                reason = "exact_duplicate"
            elif document.id in known_ids:
                reason = "held_out_exact"
            else:
                share = share_in(shingles_of(document.text, shingle_words), known) if len(known) else 0.0
                reason = "held_out_overlap" if share > threshold else None
            previous = document.id
            if reason is None:
                writer.add(document)
                funnel.keep(document)
            else:
                funnel.drop(document, reason)
                dropped.append((document.id, document.source, document.source_id, reason, share))
    schema = drop_list_schema()
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in dropped], schema)
    pq.write_table(table, shard.out / DROP_LIST, compression="zstd", store_schema=False)
    return funnel.report()
