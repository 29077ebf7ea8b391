"""The chunked cross-entropy against the plain one, value and gradients."""

from __future__ import annotations

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import ArrayLike

from marin_pipeline.models import loss


def plain_losses(hidden: ArrayLike, table: ArrayLike, targets: ArrayLike) -> jax.Array:
    logits = jnp.asarray(hidden) @ jnp.asarray(table).T
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, jnp.asarray(targets)[..., None], -1)[..., 0]


@pytest.mark.parametrize(("batch", "positions"), [(2, 7), (16, 96)])
def test_losses_and_gradients_equal_the_plain_form(batch: int, positions: int):
    random = np.random.default_rng(0)
    hidden = random.normal(size=(batch, positions, 8)).astype("f")
    table = random.normal(size=(33, 8)).astype("f")
    targets = random.integers(0, 33, (batch, positions)).astype(np.int32)
    axes = ("batch", "position", "embed")
    named = hax.named(targets, ("batch", "position"))

    def chunked(hidden: jax.Array, table: jax.Array) -> jax.Array:
        return loss.mean_cross_entropy(hax.named(hidden, axes), hax.named(table, ("vocabulary", "embed")), named)

    value, gradients = jax.jit(jax.value_and_grad(chunked, (0, 1)))(hidden, table)
    plain = jax.value_and_grad(lambda hidden, table: plain_losses(hidden, table, targets).mean(), (0, 1))
    expected, expected_gradients = plain(hidden, table)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    each = loss.token_losses(hax.named(hidden, axes), hax.named(table, ("vocabulary", "embed")), named)
    np.testing.assert_allclose(each.array, plain_losses(hidden, table, targets), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("batch", "positions", "chunks"), [(8, 128, 4), (1, 100, 1), (8, 97, 1), (512, 4096, 64)])
def test_chunks_divide_the_positions_and_follow_from_the_shape(batch: int, positions: int, chunks: int):
    assert loss._chunks(batch, positions) == chunks
