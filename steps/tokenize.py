"""Turn documents into a token store: the tokens of each document and an end-of-document token after it.

Parts of documents become parts of tokens under the same names, in the same order, each written once by the shard that
made it; the step only adds the ledger.
"""

from __future__ import annotations

from marin_pipeline import Artifact, Context, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.schema import Documents, Tokenizer, Tokens

BATCH_BYTES = 2**20


@step(version=1)
def tokenize(ctx: Context, documents: Artifact[Documents], tokenizer: Artifact[Tokenizer]) -> Tokens:
    """The tokens of `documents`, in their order.

    Raises:
        InputError: when there are no documents.
    """
    from marin_pipeline.data.token_store import LEDGER_FILE, Ledger, TokenPart, token_dtype

    if not documents.value.documents:
        raise InputError(
            f"tokenize: {documents.name} has no documents; give more text, or loosen the rules of the step "
            "that dropped it all (its removed.jsonl says why)"
        )
    made = tokenizer.value
    results = ctx.map(
        tokenize_part,
        [documents / part for part in documents.value.parts],
        tokenizer=tokenizer / made.path,
        vocabulary=made.vocabulary,
        end_of_document=made.end_of_document,
    )
    parts = []
    for name, result in zip(documents.value.parts, results, strict=True):
        folder = name.removesuffix(".parquet")
        for path in result.files:
            ctx.adopt(result, path, f"{folder}/{path}")
        tokens, count, size = result.value
        parts.append(TokenPart(folder, tokens, count, size))
    ledger = Ledger(tuple(parts), token_dtype(made.vocabulary), made.vocabulary, made.end_of_document)
    (ctx.out / LEDGER_FILE).write_text(ledger.to_json(), encoding="utf-8", newline="\n")
    return Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, made.vocabulary, made.end_of_document)


def tokenize_part(
    shard: ShardContext, documents: File, tokenizer: File, vocabulary: int, end_of_document: int
) -> tuple[int, int, int]:
    """Write the arrays of one part of documents; returns its tokens, documents and UTF-8 bytes."""
    from marin_pipeline.data.parts import batches, read_part
    from marin_pipeline.data.token_store import write_token_part
    from marin_pipeline.data.tokenizer import encode, load_tokenizer

    loaded = load_tokenizer(tokenizer)
    encoded = []
    size = 0
    for batch in batches(read_part(documents), BATCH_BYTES):
        encoded += encode(loaded, [document.text for document in batch], end_of_document)
        size += sum(document.bytes for document in batch)
    tokens = write_token_part(shard.out, encoded, vocabulary)
    return tokens, len(encoded), size
