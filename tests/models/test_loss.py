"""The chunked cross-entropy against the plain one, value and gradients."""

from __future__ import annotations

import re

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import ArrayLike

from marin_pipeline.data.sequences import NO_TARGET
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


@pytest.mark.parametrize("present", [0.0, 0.4, 1.0])
def test_the_loss_of_a_padded_batch_is_the_mean_over_the_targets_that_are_there(present: float):
    random = np.random.default_rng(1)
    hidden = random.normal(size=(16, 96, 8)).astype("f")
    table = random.normal(size=(33, 8)).astype("f")
    there = random.random((16, 96)) < present
    targets = np.where(there, random.integers(0, 33, (16, 96)), NO_TARGET).astype(np.int32)

    def mean(hidden: jax.Array, table: jax.Array) -> jax.Array:
        return loss.mean_cross_entropy(*named(hidden, table, targets), padded=True)

    def plain(hidden: jax.Array, table: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(there, plain_losses(hidden, table, targets), 0)) / max(1, there.sum())

    value, gradients = jax.jit(jax.value_and_grad(mean, (0, 1)))(hidden, table)
    expected, expected_gradients = jax.value_and_grad(plain, (0, 1))(hidden, table)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert not np.asarray(gradients[0])[~there].any()
    # What stands where nothing is predicted does not count.
    changed = np.where(there[..., None], hidden, 100 * hidden)
    np.testing.assert_array_equal(jax.jit(mean)(changed, table), value)


def test_whole_batches_are_computed_without_a_look_for_padding():
    random = np.random.default_rng(2)
    hidden, table = random.normal(size=(4, 64, 8)).astype("f"), random.normal(size=(33, 8)).astype("f")
    targets = random.integers(0, 33, (4, 64)).astype(np.int32)

    def mean(padded: bool | None) -> jax.stages.Lowered:
        def loss_of(hidden: jax.Array, table: jax.Array) -> jax.Array:
            options = {} if padded is None else {"padded": padded}
            return loss.mean_cross_entropy(*named(hidden, table, targets), **options)

        return jax.jit(loss_of).lower(hidden, table)

    assert mean(None).as_text() == mean(False).as_text() != mean(True).as_text()
    # What clips a target that is not there to one that can be looked up.
    clip = re.compile(r"stablehlo\.maximum .*xi32>")
    assert not clip.search(mean(False).as_text())
    assert clip.search(mean(True).as_text())
    whole, looked_for = (mean(padded).compile()(hidden, table) for padded in (False, True))
    np.testing.assert_allclose(whole, looked_for, rtol=1e-6)


def named(hidden: ArrayLike, table: ArrayLike, targets: ArrayLike) -> list[hax.NamedArray]:
    axes = (("batch", "position", "embed"), ("vocabulary", "embed"), ("batch", "position"))
    return [hax.named(jnp.asarray(array), names) for array, names in zip((hidden, table, targets), axes, strict=True)]


@pytest.mark.parametrize(("batch", "positions", "chunks"), [(8, 128, 4), (1, 100, 1), (8, 97, 1), (512, 4096, 64)])
def test_chunks_divide_the_positions_and_follow_from_the_shape(batch: int, positions: int, chunks: int):
    assert loss._chunks(batch, positions) == chunks
