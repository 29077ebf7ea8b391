"""Train a tokenizer on documents: byte-level BPE with an end-of-document token.

Equal documents give an equal `tokenizer.json`, byte for byte, whatever the number of threads.
"""

from __future__ import annotations

from marin_pipeline import Artifact, Context, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.schema import Documents, Tokenizer


@step(version=1)
def train_tokenizer(ctx: Context, documents: Artifact[Documents], vocabulary: int = 2048) -> Tokenizer:
    """A tokenizer with up to `vocabulary` ids; with little text there may be fewer.

    Args:
        documents: training text. Leave held-out documents out of it.
        vocabulary: ids, the 256 bytes and the end-of-document token included; at least 257.

    Raises:
        InputError: when there are no documents, or the vocabulary is too small.
    """
    from marin_pipeline.data.parts import read_documents
    from marin_pipeline.data.tokenizer import END_OF_DOCUMENT_ID, TOKENIZER_FILE, train_bpe

    if not documents.value.documents:
        raise InputError(
            f"train_tokenizer: {documents.name} has no documents; give more text, or loosen the rules of the step "
            "that dropped it all (its removed.jsonl says why)"
        )
    tokenizer = train_bpe((document.text for document in read_documents(documents)), vocabulary)
    tokenizer.save(str(ctx.out / TOKENIZER_FILE), pretty=True)
    size = tokenizer.get_vocab_size()
    if size < vocabulary:
        ctx.log(f"the text gives only {size} of {vocabulary} ids; the vocabulary is {size}")
    return Tokenizer(TOKENIZER_FILE, size, END_OF_DOCUMENT_ID)
