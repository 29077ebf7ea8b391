"""Evaluation and generation of a state against what must hold for any model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from marin_pipeline import Artifact, Documents, Scores, Tokenizer, TrainState, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import make_document, sort_key
from marin_pipeline.data.tokenizer import TOKENIZER_FILE, encode, load_tokenizer, train_bpe
from marin_pipeline.data.writers import write_part
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train import checkpoint
from marin_pipeline.train.checkpoint import HostArray, Snapshot
from steps.evaluate import evaluate, generate

LENGTH = 16
MODEL = LlamaConfig(vocabulary=300, width=16, layers=1, heads=2, feed_forward=32)
TEXTS = {
    "a": ["short", "naïve café — ünïcödé", "x"],
    "b": ["a document that is longer than the context of the model, twice over or more " * 3],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    made = train_bpe([text for texts in TEXTS.values() for text in texts], 280)
    made.save(str(folder / TOKENIZER_FILE))
    return local_artifact(folder, Tokenizer(TOKENIZER_FILE, made.get_vocab_size(), 0))


def documents(folder: Path, texts: dict[str, list[str]]) -> Artifact[Documents]:
    rows = [make_document(text, source, str(i)) for source, each in texts.items() for i, text in enumerate(each)]
    folder.mkdir()
    write_part(folder / "part.parquet", sorted(rows, key=sort_key))
    size = sum(row.bytes for row in rows)
    return local_artifact(folder, Documents(("part.parquet",), len(rows), size, "", ()))


def state(folder: Path, scale: float = 1.0) -> Artifact[TrainState]:
    """A state with the arrays of an untrained model; with scale 0 it guesses uniformly."""
    import jax

    from marin_pipeline.models import llama

    arrays = checkpoint.take(jax.jit(lambda: llama.initial(MODEL, seed=0))())
    scaled = {f"parameters/{name}": HostArray(a.axes, a.values * np.float32(scale)) for name, a in arrays.items()}
    digest = checkpoint.save(folder / "checkpoint", Snapshot(1, scaled, b"", {}))
    return local_artifact(folder, TrainState(1, MODEL.parameters, 0, digest, 0.0, MODEL, LENGTH))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Artifact[TrainState]:
    return state(tmp_path_factory.mktemp("state"), scale=3.0)


@pytest.fixture(scope="module")
def scored(
    trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Scores, Path]:
    folder = tmp_path_factory.mktemp("scored")
    ctx = test_context(folder / "ctx")
    held_out = documents(folder / "documents", TEXTS)
    return evaluate.fn(ctx, state=trained, documents=held_out, tokenizer=tokenizer), ctx.out


def test_a_model_that_guesses_pays_the_logarithm_of_its_vocabulary(tokenizer: Artifact[Tokenizer], tmp_path: Path):
    ctx = test_context(tmp_path / "ctx")
    held_out = documents(tmp_path / "documents", TEXTS)
    scores = evaluate.fn(ctx, state=state(tmp_path / "state", 0.0), documents=held_out, tokenizer=tokenizer)
    texts = [text for each in TEXTS.values() for text in each]
    tokens = sum(len(ids) for ids in encode(load_tokenizer(tokenizer / TOKENIZER_FILE), texts, 0))
    size = sum(len(text.encode()) for text in texts)
    assert (scores.overall.tokens, scores.overall.bytes, scores.overall.documents) == (tokens, size, 4)
    assert scores.overall.loss_per_token == pytest.approx(math.log(300), rel=1e-6)
    assert scores.overall.bits_per_byte == pytest.approx(tokens * math.log2(300) / size, rel=1e-6)


def test_micro_weighs_bytes_and_macro_weighs_sources(scored: tuple[Scores, Path]):
    scores, _ = scored
    assert [part.source for part in scores.by_source] == ["a", "b"]
    assert scores.overall.nats == pytest.approx(sum(part.nats for part in scores.by_source))
    assert scores.overall.bytes == sum(part.bytes for part in scores.by_source)
    assert scores.macro_bits_per_byte == pytest.approx(sum(part.bits_per_byte for part in scores.by_source) / 2)
    assert scores.macro_bits_per_byte != pytest.approx(scores.overall.bits_per_byte)


def test_the_score_of_each_document_is_kept(scored: tuple[Scores, Path]):
    import pyarrow.parquet as pq

    rows = pq.read_table(scored[1] / "documents.parquet").to_pylist()
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert len(rows) == 4
    assert math.fsum(row["nats"] for row in rows) == pytest.approx(scored[0].overall.nats)


def test_a_document_is_scored_the_same_in_any_company(
    scored: tuple[Scores, Path], trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer], tmp_path: Path
):
    alone = documents(tmp_path / "documents", {"b": TEXTS["b"]})
    scores = evaluate.fn(test_context(tmp_path / "ctx"), state=trained, documents=alone, tokenizer=tokenizer)
    assert scores.overall.nats == pytest.approx(scored[0].by_source[1].nats, rel=1e-6)


def test_scored_again_the_files_are_equal(
    scored: tuple[Scores, Path], trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer], tmp_path: Path
):
    ctx = test_context(tmp_path / "ctx")
    held_out = documents(tmp_path / "documents", TEXTS)
    assert evaluate.fn(ctx, state=trained, documents=held_out, tokenizer=tokenizer) == scored[0]
    assert (ctx.out / "documents.parquet").read_bytes() == (scored[1] / "documents.parquet").read_bytes()


def test_nothing_to_score_is_an_error(trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer], tmp_path: Path):
    empty = documents(tmp_path / "documents", {})
    with pytest.raises(InputError, match="no held-out document"):
        evaluate.fn(test_context(tmp_path / "ctx"), state=trained, documents=empty, tokenizer=tokenizer)


def test_a_tokenizer_that_does_not_fit_is_refused(
    trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer], tmp_path: Path
):
    large = local_artifact((tokenizer / TOKENIZER_FILE).path.parent, Tokenizer(TOKENIZER_FILE, 301, 0))
    held_out = documents(tmp_path / "documents", TEXTS)
    with pytest.raises(InputError, match="301 ids and the model 300"):
        evaluate.fn(test_context(tmp_path / "ctx"), state=trained, documents=held_out, tokenizer=large)


def test_generation_is_decided_by_prompt_place_and_seed(
    trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer], tmp_path: Path
):
    ctx = test_context(tmp_path)

    def made(*prompts: str, temperature: float = 0.0, seed: int = 0) -> tuple[str, ...]:
        return generate.fn(
            ctx, state=trained, tokenizer=tokenizer, prompts=prompts, tokens=24, temperature=temperature, seed=seed
        )

    greedy = made("a document", "")
    assert greedy == made("a document", "")
    assert len(greedy) == 2
    assert made("a document")[0] == greedy[0]
    sampled = made("a document", "", temperature=1.0)
    assert sampled == made("a document", "", temperature=1.0)
    assert sampled != made("a document", "", temperature=1.0, seed=1)
    assert sampled[0] == made("a document", temperature=1.0)[0]
    with pytest.raises(InputError, match="prompts"):
        made()


def test_greedy_generation_takes_the_token_of_least_loss(trained: Artifact[TrainState], tokenizer: Artifact[Tokenizer]):
    """Generation and scoring go through different programs; they must be the same model."""
    from marin_pipeline.evaluate.generation import generate_tokens
    from marin_pipeline.evaluate.predictor import Predictor

    predictor = Predictor((trained / "checkpoint").path, MODEL, 300)
    (made,) = generate_tokens(
        predictor,
        [[7, 8]],
        end_of_document=0,
        vocabulary=300,
        tokens=1,
        length=LENGTH,
        temperature=0,
        seed=0,
        progress=lambda done, total: None,
    )
    context = np.tile(np.array([[0, 7, 8]], np.int32), (300, 1))
    targets = np.concatenate([np.zeros((300, 2), np.int32), np.arange(300, dtype=np.int32)[:, None]], axis=1)
    best = int(np.asarray(predictor.losses(context, targets))[:, 2].argmin())
    assert made == ([] if best == 0 else [best])
