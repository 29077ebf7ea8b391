"""Turn documents into a token store: the tokens of each document and an end-of-document token after it.

Parts of documents become parts of tokens under the same names, in the same order, each written once by the shard that
made it; the step only adds the ledger.
"""

from __future__ import annotations

from dataclasses import replace

from marin_pipeline import Artifact, Context, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.schema import Documents, Tokenizer, Tokens
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger, TokenPart, token_dtype


@step(version=2)
def tokenize(
    ctx: Context,
    documents: Artifact[Documents],
    tokenizer: Artifact[Tokenizer],
    maximum_tokens: int | None = None,
) -> Tokens:
    """The tokens of `documents`, in their order.

    Args:
        documents: what is encoded, one after another.
        tokenizer: what encodes it.
        maximum_tokens: most tokens of a document, its last one included; what a longer one has beyond that is left
            out, and counted as truncated. None keeps all.

    Raises:
        InputError: when there are no documents, or `maximum_tokens` is below 2.
    """
    if not documents.value.documents:
        raise InputError(
            f"tokenize: {documents.name} has no documents; give more text, or loosen the rules of the step "
            "that dropped it all (its removed.jsonl says why)"
        )
    if maximum_tokens is not None and maximum_tokens < 2:
        raise InputError(f"tokenize: maximum_tokens={maximum_tokens}: at least 2, one of text and one that ends it")
    made = tokenizer.value
    results = ctx.map(
        tokenize_part,
        [documents / part for part in documents.value.parts],
        tokenizer=tokenizer / made.path,
        vocabulary=made.vocabulary,
        end_of_document=made.end_of_document,
        maximum_tokens=maximum_tokens,
    )
    parts = []
    for name, result in zip(documents.value.parts, results, strict=True):
        folder = name.removesuffix(".parquet")
        for path in result.files:
            ctx.adopt(result, path, f"{folder}/{path}")
        parts.append(replace(result.value, name=folder))
    ledger = Ledger(
        tuple(parts),
        token_dtype(made.vocabulary),
        made.vocabulary,
        made.end_of_document,
        tokenizer=(tokenizer / made.path).sha256,
    )
    (ctx.out / LEDGER_FILE).write_text(ledger.to_json(), encoding="utf-8", newline="\n")
    ctx.log(
        f"{ledger.tokens} tokens of {ledger.documents} documents, of which {ledger.truncated} are truncated "
        f"and {ledger.empty} empty"
    )
    return Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, made.vocabulary, made.end_of_document)


def tokenize_part(
    shard: ShardContext,
    documents: File,
    tokenizer: File,
    vocabulary: int,
    end_of_document: int,
    maximum_tokens: int | None,
) -> TokenPart:
    """Write the arrays of one part of documents, a batch at a time; what the ledger says of it, but for its name."""
    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.token_writer import TokenWriter
    from marin_pipeline.data.tokenizer import encode_batches, load_tokenizer

    writer = TokenWriter(shard.out, vocabulary)
    texts = (document.text for document in read_part(documents))
    size, truncated = 0, 0
    for batch in encode_batches(
        load_tokenizer(tokenizer), texts, end_of_document, token_dtype(vocabulary), maximum_tokens
    ):
        writer.append(batch.tokens, batch.ends)
        size += batch.bytes
        truncated += batch.truncated
    return replace(writer.finish(size, truncated), name="")
