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


def logits(config: LlamaConfig, arrays: dict[str, Any], tokens: np.ndarray) -> np.ndarray:
    def compute(arrays: dict[str, Any]) -> jax.Array:
        named = hax.named(tokens, ("batch", "position"))
        out = llama.assemble(config, arrays).logits(named)
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
