"""Drop documents by the rules of Gopher and C4 that need no model.

Measuring and judging are apart: the measures of every document are columns of `attributes.parquet`, and a changed
threshold judges again without measuring again. The reason for a drop is the name of the rule, which is the name of
its field here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marin_pipeline import Artifact, Context, File, ShardContext, step
from marin_pipeline.data.funnel import FunnelReport
from marin_pipeline.data.schema import Documents

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "kept.parquet"
ATTRIBUTES = "attributes.parquet"
MEASURED = "measures.parquet"
BATCH_BYTES = 8 * 2**20


@dataclass(frozen=True)
class QualityRules:
    """Bounds on measures of a document, the bound itself allowed; None switches a rule off.

    The first broken rule, in the order of the fields, is the reason for a drop.

    Gopher: Rae et al. 2021 (arXiv 2112.11446), appendix A.1.1 and Table A1. C4: Raffel et al. 2020 (arXiv
    1910.10683), section 2.2. C4 removes lines where these rules, which never change a text, bound their share.
    """

    min_words: int | None = 50
    """Words, separated by white space. Gopher, A.1.1."""
    max_words: int | None = 100_000
    """Gopher, A.1.1."""
    min_mean_word_length: float | None = 3.0
    """Characters a word. Gopher, A.1.1."""
    max_mean_word_length: float | None = 10.0
    """Gopher, A.1.1."""
    max_hashes_per_word: float | None = 0.1
    """`#` signs a word. Gopher, A.1.1."""
    max_ellipses_per_word: float | None = 0.1
    """`...` and `…` a word. Gopher, A.1.1."""
    max_bullet_lines: float | None = 0.9
    """Share of lines that begin with a bullet. Gopher, A.1.1."""
    max_ellipsis_lines: float | None = 0.3
    """Share of lines that end with an ellipsis. Gopher, A.1.1."""
    min_alphabetic_words: float | None = 0.8
    """Share of words with at least one letter. Gopher, A.1.1."""
    min_stop_words: int | None = 2
    """Different ones of the, be, to, of, and, that, have, with. Gopher, A.1.1."""
    max_duplicate_lines: float | None = 0.30
    """Share of lines that occurred before. Gopher, Table A1."""
    max_duplicate_paragraphs: float | None = 0.30
    """Share of paragraphs that occurred before. Gopher, Table A1."""
    max_duplicate_line_characters: float | None = 0.20
    """Share of characters in lines that occurred before. Gopher, Table A1."""
    max_duplicate_paragraph_characters: float | None = 0.20
    """Share of characters in paragraphs that occurred before. Gopher, Table A1."""
    max_top_2_gram: float | None = 0.20
    """Share of characters in the most frequent run of two words, if it occurs twice. Gopher, Table A1."""
    max_top_3_gram: float | None = 0.18
    """The same for three words. Gopher, Table A1."""
    max_top_4_gram: float | None = 0.16
    """The same for four words. Gopher, Table A1."""
    max_duplicate_5_grams: float | None = 0.15
    """Share of characters in runs of five words that occurred before. Gopher, Table A1."""
    max_duplicate_6_grams: float | None = 0.14
    """The same for six words. Gopher, Table A1."""
    max_duplicate_7_grams: float | None = 0.13
    """The same for seven words. Gopher, Table A1."""
    max_duplicate_8_grams: float | None = 0.12
    """The same for eight words. Gopher, Table A1."""
    max_duplicate_9_grams: float | None = 0.11
    """The same for nine words. Gopher, Table A1."""
    max_duplicate_10_grams: float | None = 0.10
    """The same for ten words. Gopher, Table A1."""
    max_lorem_ipsum: int | None = 0
    """Occurrences of `lorem ipsum`. C4."""
    max_curly_brackets: int | None = 0
    """Curly brackets, the sign of program code. C4; switch it off where code is wanted."""
    max_javascript_lines: float | None = 0.5
    """Share of lines with `javascript`. C4 removes such lines; the share is ours."""
    max_policy_lines: float | None = 0.5
    """Share of lines with a notice on terms, privacy or cookies. C4 removes such lines; the share is ours."""
    min_sentences: int | None = 3
    """Ends of sentences. C4."""


@step(version=1)
def quality_filter(ctx: Context, documents: Artifact[Documents], rules: QualityRules = QualityRules()) -> Documents:
    """Documents that keep all rules; `attributes.parquet` has all, with the broken rule (or null) and every measure."""
    from marin_pipeline.data.funnel import merge, summary
    from marin_pipeline.data.writers import concatenate, gather

    parts = [documents / part for part in documents.value.parts]
    measured = ctx.map(measure_part, parts)
    items = [MeasuredPart(part, result / MEASURED) for part, result in zip(parts, measured, strict=True)]
    results = ctx.map(judge_part, items, rules=rules)
    kept = gather(ctx.out, [result / ROWS for result in results], merge(result.value for result in results))
    concatenate(ctx.out / ATTRIBUTES, attributes_schema(), [result / ATTRIBUTES for result in results])
    ctx.log(summary(kept))
    return kept


@dataclass(frozen=True)
class MeasuredPart:
    """A part of documents with its measures, row for row."""

    documents: File
    measures: File


def attributes_schema() -> pa.Schema:
    """Columns of `attributes.parquet`: id, source, source_id, reason (null for a kept document), and each measure."""
    import pyarrow as pa

    from marin_pipeline.data.measures import MEASURES

    names = [pa.field(name, pa.string(), nullable=False) for name in ("id", "source", "source_id")]
    return pa.schema(
        [*names, pa.field("reason", pa.string()), *(pa.field(name, pa.float64(), nullable=False) for name in MEASURES)]
    )


def measure_part(shard: ShardContext, documents: File) -> int:
    """Write the measures of one part to `measures.parquet`, a row a document; returns the number of rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from marin_pipeline.data.measures import MEASURES, measure
    from marin_pipeline.data.parts import batches, read_part

    found = [measure([document.text for document in batch]) for batch in batches(read_part(documents), BATCH_BYTES)]
    columns = {name: np.concatenate([np.empty(0), *(batch[name] for batch in found)]) for name in MEASURES}
    table = pa.table(columns)
    pq.write_table(table, shard.out / MEASURED, compression="zstd", use_dictionary=False, store_schema=False)
    return table.num_rows


def judge_part(shard: ShardContext, item: MeasuredPart, rules: QualityRules) -> FunnelReport:
    """Write the documents of one part that keep the rules to `kept.parquet`, all attributes to `attributes.parquet`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from marin_pipeline.data.funnel import Funnel
    from marin_pipeline.data.measures import MEASURES
    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.writers import PartWriter

    with pq.ParquetFile(item.measures) as file:
        table = file.read()
    reasons = np.full(table.num_rows, None, object)
    for field in reversed(dataclasses.fields(rules)):
        bound = getattr(rules, field.name)
        if bound is not None:
            side, measure = field.name.split("_", 1)
            values = table[measure].to_numpy()
            reasons[values < bound if side == "min" else values > bound] = field.name
    funnel = Funnel()
    names = []
    with PartWriter(shard.out / ROWS) as writer:
        for document, reason in zip(read_part(item.documents), reasons.tolist(), strict=True):
            names.append((document.id, document.source, document.source_id, reason))
            if reason is None:
                writer.add(document)
                funnel.keep(document)
            else:
                funnel.drop(document, reason)
    columns = [pa.array([row[place] for row in names], pa.string()) for place in range(4)]
    attributes = pa.Table.from_arrays([*columns, *(table[name] for name in MEASURES)], schema=attributes_schema())
    pq.write_table(attributes, shard.out / ATTRIBUTES, compression="zstd", store_schema=False)
    return funnel.report()
