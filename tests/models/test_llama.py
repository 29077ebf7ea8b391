"""The Llama decoder against a plain numpy reference, and the promises of its initial state."""

from __future__ import annotations

import dataclasses
from typing import Any

import haliax as hax
import jax
import numpy as np
import pytest

from marin_pipeline.models import llama
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.models.loss import mean_cross_entropy

CONFIG = LlamaConfig(vocabulary=96, width=32, layers=2, heads=4, key_value_heads=2, feed_forward=48, rope_theta=100.0)


@pytest.fixture(scope="module")
def arrays() -> dict[str, hax.NamedArray]:
    return jax.jit(lambda: llama.initial(CONFIG, seed=3))()


def reference_logits(config: LlamaConfig, arrays: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """The same decoder, written with loops over heads and no names, in float64."""

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_epsilon) * gain

    size = config.head_size
    positions = tokens.shape[1]

    def turn(x: np.ndarray) -> np.ndarray:
        turned = np.empty_like(x)
        for position in range(positions):
            for i in range(size // 2):
                angle = position * config.rope_theta ** (-2 * i / size)
                a, b = x[:, position, i], x[:, position, i + size // 2]
                turned[:, position, i] = a * np.cos(angle) - b * np.sin(angle)
                turned[:, position, i + size // 2] = b * np.cos(angle) + a * np.sin(angle)
        return turned

    x = arrays["embedding"][tokens]
    for layer in range(config.layers):
        block = {name.removeprefix("blocks."): a[layer] for name, a in arrays.items() if name.startswith("blocks.")}
        h = norm(x, block["attention_norm"])
        mixed = np.zeros_like(x)
        for shared in range(config.shared_heads):
            key = turn(h @ block["attention.key"][shared].T)
            value = h @ block["attention.value"][shared].T
            for group in range(config.heads // config.shared_heads):
                query = turn(h @ block["attention.query"][shared, group].T)
                scores = query @ key.transpose(0, 2, 1) / np.sqrt(size)
                scores[:, ~np.tri(positions, dtype=bool)] = -np.inf
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                mixed += weights @ value @ block["attention.output"][:, shared, group].T
        x = x + mixed
        h = norm(x, block["feed_forward_norm"])
        gate = h @ block["feed_forward.gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ block["feed_forward.up"].T)) @ block["feed_forward.down"].T
    return norm(x, arrays["norm"]) @ arrays.get("head", arrays["embedding"]).T


def named(values: np.ndarray) -> hax.NamedArray:
    return hax.named(values, ("batch", "position"))


def logits(
    config: LlamaConfig, arrays: dict[str, Any], tokens: np.ndarray, documents: np.ndarray | None = None
) -> np.ndarray:
    def compute(arrays: dict[str, Any]) -> jax.Array:
        out = llama.assemble(config, arrays).logits(named(tokens), None if documents is None else named(documents))
        return out.rearrange(("batch", "position", "vocabulary")).array

    return np.asarray(jax.jit(compute)(arrays))


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_the_numpy_reference(arrays: dict[str, hax.NamedArray], tied: bool):
    config = dataclasses.replace(CONFIG, tied_head=tied)
    random = np.random.default_rng(0)
    # Gains off 1 and larger weights, so that no part can be left out unnoticed.
    busy = {name: a + hax.named(random.normal(0, 0.2, a.array.shape).astype("f"), a.axes) for name, a in arrays.items()}
    if tied:
        del busy["head"]
    tokens = random.integers(0, config.vocabulary, (2, 9))
    expected = reference_logits(config, {name: np.asarray(a.array, np.float64) for name, a in busy.items()}, tokens)
    np.testing.assert_allclose(logits(config, busy, tokens), expected, rtol=2e-4, atol=2e-4)


def test_a_later_token_changes_nothing_before_it(arrays: dict[str, hax.NamedArray]):
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocabulary, (1, 12))
    changed = tokens.copy()
    changed[0, 7] = (changed[0, 7] + 1) % CONFIG.vocabulary
    before, after = logits(CONFIG, arrays, tokens), logits(CONFIG, arrays, changed)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.abs(before[:, 7] - after[:, 7]).max() > 1e-4


def packed(random: np.random.Generator, lengths: list[int], positions: int) -> tuple[np.ndarray, np.ndarray]:
    """A row of documents of random tokens with padding behind, and the number of the document of each."""
    tokens = random.integers(0, CONFIG.vocabulary, (1, positions))
    return tokens, np.array([[*np.repeat(np.arange(len(lengths)) + 1, lengths), *[0] * (positions - sum(lengths))]])


def test_a_packed_document_has_the_logits_that_it_has_alone(arrays: dict[str, hax.NamedArray]):
    lengths = [7, 1, 11, 4]
    tokens, documents = packed(np.random.default_rng(3), lengths, 27)
    found = logits(CONFIG, arrays, tokens, documents)
    start = 0
    for length in lengths:
        alone = logits(CONFIG, arrays, tokens[:, start : start + length])
        np.testing.assert_allclose(found[:, start : start + length], alone, rtol=1e-5, atol=1e-5)
        start += length
    assert np.isfinite(found).all()
    # And without the mask they are others, so that the comparison can fail.
    mixed = logits(CONFIG, arrays, tokens)
    np.testing.assert_array_equal(mixed[:, :7], found[:, :7])
    assert np.abs(mixed[:, 7:23] - found[:, 7:23]).max() > 1e-2


def test_one_document_is_read_as_without_documents(arrays: dict[str, hax.NamedArray]):
    tokens = np.random.default_rng(4).integers(0, CONFIG.vocabulary, (2, 12))
    np.testing.assert_array_equal(logits(CONFIG, arrays, tokens, np.ones_like(tokens)), logits(CONFIG, arrays, tokens))


def test_no_gradient_reaches_the_embeddings_of_another_document(arrays: dict[str, hax.NamedArray]):
    # No token is in two documents, so that a row of the embedding is one document's alone.
    tokens = np.arange(20)[None]
    documents = np.repeat([1, 2, 3], [6, 9, 5])[None]
    targets = np.random.default_rng(5).integers(20, CONFIG.vocabulary, (1, 20)).astype(np.int32)

    def gradient(documents: np.ndarray | None, predicted: int) -> np.ndarray:
        def loss_of(embedding: jax.Array) -> jax.Array:
            model = llama.assemble(CONFIG, {**arrays, "embedding": hax.named(embedding, ("vocabulary", "embed"))})
            hidden = model.hidden(named(tokens), None if documents is None else named(documents))
            one = named(np.where(np.arange(20) == predicted, targets, -1))
            return mean_cross_entropy(hidden, model.output_table, one, padded=True)

        return np.asarray(jax.jit(jax.grad(loss_of))(arrays["embedding"].array))

    for predicted, own in ((5, range(6)), (10, range(6, 11)), (15, range(15, 16))):
        moved = np.flatnonzero(np.abs(gradient(documents, predicted)).max(axis=1))
        assert moved.tolist() == list(own)
    assert np.flatnonzero(np.abs(gradient(None, 10)).max(axis=1)).tolist() == list(range(11))


def test_the_first_loss_is_near_that_of_guessing(arrays: dict[str, hax.NamedArray]):
    tokens = np.random.default_rng(2).integers(0, CONFIG.vocabulary, (4, 33))
    scores = logits(CONFIG, arrays, tokens[:, :-1]).astype(np.float64)
    chosen = np.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
    loss = (np.log(np.exp(scores).sum(-1)) - chosen).mean()
    assert abs(loss - np.log(CONFIG.vocabulary)) < 0.05


def test_the_seed_alone_decides_the_initial_state(arrays: dict[str, hax.NamedArray]):
    again = jax.jit(lambda: llama.initial(CONFIG, seed=3))()
    other = jax.jit(lambda: llama.initial(CONFIG, seed=4))()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array.array, again[name].array)
        if not name.endswith("norm"):
            assert not np.array_equal(array.array, other[name].array)


def test_the_arrays_are_counted_and_survive_being_assembled(arrays: dict[str, hax.NamedArray]):
    assert sum(array.size for array in arrays.values()) == CONFIG.parameters
    back = llama.disassemble(llama.assemble(CONFIG, arrays))
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert back[name].axes == array.axes
        np.testing.assert_array_equal(back[name].array, array.array)
    assert set(llama.MATRIX_INPUTS) < set(arrays)
