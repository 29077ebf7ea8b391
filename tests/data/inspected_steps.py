"""Steps that make what a training run leaves behind, without the training."""

from __future__ import annotations

import json

from marin_pipeline import Artifact, Context, Documents, Tokenizer, Tokens, step
from marin_pipeline.data.document import make_document, sort_key
from marin_pipeline.data.funnel import Funnel
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order_record import RECORD_FILE, OrderRecord, SourceRecord
from marin_pipeline.data.packed_sequences import PackedSequences
from marin_pipeline.data.schema import Packing
from marin_pipeline.data.sequences import DocumentSource, Sequences
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger, token_dtype
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.token_writer import write_token_part
from marin_pipeline.data.writers import write_documents

LENGTH, BATCH, STEPS = 16, 4, 20


@step
def site(ctx: Context, name: str, pages: dict[str, str]) -> Documents:
    """The pages of a site."""
    rows = sorted((make_document(text, name, page) for page, text in pages.items()), key=sort_key)
    funnel = Funnel()
    for row in rows:
        funnel.keep(row)
    return write_documents(ctx.out, rows, funnel.report())


@step
def imported(ctx: Context, ids: list[list[int]], tokenizer: Artifact[Tokenizer] | None = None) -> Tokens:
    """Tokens that no documents of a store were made into."""
    part = write_token_part(ctx.out / "part-0", ids, 300, sum(map(len, ids)))
    made_by = "ab" * 32 if tokenizer is None else (tokenizer / tokenizer.value.path).sha256
    ledger = Ledger((part,), token_dtype(300), 300, 0, made_by)
    (ctx.out / LEDGER_FILE).write_text(ledger.to_json())
    return Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, 300, 0)


@step
def trained(
    ctx: Context, tokens: dict[str, Artifact[Tokens]], packing: dict[str, Artifact[Packing]], wrong: str = ""
) -> int:
    """What a run on several sources says of its data.

    Args:
        wrong: a digest that the metrics have of the last step's batch in place of the right one.
    """
    sources: dict[str, DocumentSource] = {}
    for name, each in tokens.items():
        store = TokenStore(each)
        sources[name] = PackedSequences(store, packing[name]) if name in packing else Sequences(store, LENGTH)
    names = sorted(sources)
    mixture = Mixture(
        tuple(Source(name, max_epochs=None) for name in names),
        (
            Phase(0, {name: f"1/{len(names)}" for name in names}),
            Phase(10 * BATCH * LENGTH, {names[0]: 1}),
        ),
    )
    record = OrderRecord(
        {name: SourceRecord(each.store.tokens, len(each), name in packing) for name, each in sources.items()},
        mixture,
        BATCH,
        LENGTH,
        7,
        Shuffle(),
        False,
        STEPS,
    )
    (ctx.out / RECORD_FILE).write_text(record.to_json())
    order = record.order()
    digests = [order.digest(order.batch(each)) for each in range(STEPS)]
    digests[-1] = wrong or digests[-1]
    lines = [json.dumps({"step": place, "batch": digest}) for place, digest in enumerate(digests, 1)]
    (ctx.out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return STEPS
