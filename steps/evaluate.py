"""Evaluation: how well a state predicts held-out documents, and what it writes.

Every byte of every document is counted exactly once, from a fresh context a document.
"""

from __future__ import annotations

from marin_pipeline import Artifact, Context, Documents, Resources, Scores, Tokenizer, TrainState, step
from marin_pipeline.core.errors import InputError


@step(version=2, exact="tolerance", resources=Resources(cpus=2, jax=True))
def evaluate(
    ctx: Context,
    state: Artifact[TrainState],
    documents: Artifact[Documents],
    tokenizer: Artifact[Tokenizer],
) -> Scores:
    """Loss and bits per byte of documents that were held out of training.

    The score of each document is kept in `documents.parquet`.

    Args:
        state: the trained model.
        documents: what it is tried on.
        tokenizer: the one that made the training tokens.

    Raises:
        InputError: when there is nothing to score, or the tokenizer does not fit the model.
    """
    from dataclasses import fields

    import pyarrow as pa
    import pyarrow.parquet as pq

    from marin_pipeline.data.parts import read_documents
    from marin_pipeline.data.tokenizer import encode, load_tokenizer
    from marin_pipeline.evaluate.bits_per_byte import DocumentScore, document_nats, summarize
    from marin_pipeline.evaluate.predictor import Predictor

    if documents.value.documents == 0:
        raise InputError("there is no held-out document to score: hold out a larger share, or give other documents")
    trained, kind = state.value, tokenizer.value
    predictor = Predictor((state / trained.checkpoint).path, trained.model, kind.vocabulary)
    rows = list(read_documents(documents))
    ids = encode(load_tokenizer(tokenizer / kind.path), [row.text for row in rows], kind.end_of_document)
    nats = document_nats(
        predictor,
        ids,
        kind.end_of_document,
        trained.sequence_length,
        lambda done, total: ctx.progress(done, total, "windows"),
    )
    scored = [
        DocumentScore(row.id, row.source, row.source_id, row.bytes, len(tokens), loss)
        for row, tokens, loss in zip(rows, ids, nats, strict=True)
    ]
    table = pa.table({field.name: [getattr(score, field.name) for score in scored] for field in fields(DocumentScore)})
    pq.write_table(table, ctx.out / "documents.parquet", compression="zstd")
    return summarize(scored)


@step(version=2, resources=Resources(cpus=2, jax=True))
def generate(
    ctx: Context,
    state: Artifact[TrainState],
    tokenizer: Artifact[Tokenizer],
    prompts: tuple[str, ...],
    tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
) -> tuple[str, ...]:
    """Continuations of prompts, without the prompts.

    Args:
        state: the trained model.
        tokenizer: the one that made the training tokens.
        prompts: what is continued; an empty one begins a document.
        tokens: most new tokens a prompt; an end of document ends it earlier.
        temperature: 0 takes the likeliest token each time, 1 samples from the model.
        seed: of the sampling.

    Raises:
        InputError: without prompts, or when the tokenizer does not fit the model.
    """
    from marin_pipeline.data.tokenizer import encode, load_tokenizer
    from marin_pipeline.evaluate.generation import generate_tokens
    from marin_pipeline.evaluate.predictor import Predictor

    if not prompts:
        raise InputError("prompts is empty: give at least one text to continue")
    trained, kind = state.value, tokenizer.value
    predictor = Predictor((state / trained.checkpoint).path, trained.model, kind.vocabulary)
    encoder = load_tokenizer(tokenizer / kind.path)
    made = generate_tokens(
        predictor,
        [ids[:-1].tolist() for ids in encode(encoder, list(prompts), kind.end_of_document)],
        end_of_document=kind.end_of_document,
        vocabulary=kind.vocabulary,
        tokens=tokens,
        length=trained.sequence_length,
        temperature=temperature,
        seed=seed,
        progress=lambda done, total: ctx.progress(done, total, "tokens"),
    )
    return tuple(encoder.decode(ids) for ids in made)
