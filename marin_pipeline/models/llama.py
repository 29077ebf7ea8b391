"""The Llama decoder as a Haliax module: every array carries the names of its axes.

Names decide where arrays lie (`train/mesh.py` maps them to mesh axes) and how checkpoints call them.
The blocks are unrolled, which is faster than a scan at the depths that fit on one machine; their arrays are stored
stacked along `layers`, so that neither the optimizer nor a checkpoint depends on that choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray

from marin_pipeline.models.config import LlamaConfig

LAYERS = "layers"
POSITION = "position"
KEY_POSITION = "key_position"

MATRIX_INPUTS: Mapping[str, tuple[str, ...]] = {
    "blocks.attention.query": ("embed",),
    "blocks.attention.key": ("embed",),
    "blocks.attention.value": ("embed",),
    "blocks.attention.output": ("key_value_heads", "query_group", "head_size"),
    "blocks.feed_forward.gate": ("embed",),
    "blocks.feed_forward.up": ("embed",),
    "blocks.feed_forward.down": ("feed_forward",),
}
"""The matrices of the blocks, stacked along `layers`, and the axes that each sums over; the rest are its outputs."""


class Attention(eqx.Module):
    """Causal grouped-query attention with rotary positions; a key-value head serves a group of query heads."""

    query: NamedArray
    """`(key_value_heads, query_group, head_size, embed)`"""
    key: NamedArray
    """`(key_value_heads, head_size, embed)`"""
    value: NamedArray
    """`(key_value_heads, head_size, embed)`"""
    output: NamedArray
    """`(embed, key_value_heads, query_group, head_size)`"""

    def __call__(self, x: NamedArray, rotation: tuple[NamedArray, NamedArray], mask: NamedArray) -> NamedArray:
        """`x` is `(batch, position, embed)`, and so is the result; `mask` is True where a key may be seen."""
        scale = 1 / math.sqrt(self.key.axis_size("head_size"))
        query = rotate(hax.dot(x, self.query, axis="embed"), rotation) * scale
        key = rotate(hax.dot(x, self.key, axis="embed"), rotation).rename({POSITION: KEY_POSITION})
        value = hax.dot(x, self.value, axis="embed").rename({POSITION: KEY_POSITION})
        scores = hax.where(mask, hax.dot(query, key, axis="head_size").astype(jnp.float32), -1e30)
        weights = hax.nn.softmax(scores, axis=KEY_POSITION).astype(x.dtype)
        mixed = hax.dot(weights, value, axis=KEY_POSITION)
        return hax.dot(mixed, self.output, axis=("key_value_heads", "query_group", "head_size"))


class FeedForward(eqx.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202)."""

    gate: NamedArray
    """`(feed_forward, embed)`"""
    up: NamedArray
    """`(feed_forward, embed)`"""
    down: NamedArray
    """`(embed, feed_forward)`"""

    def __call__(self, x: NamedArray) -> NamedArray:
        gate = hax.nn.silu(hax.dot(x, self.gate, axis="embed"))
        return hax.dot(gate * hax.dot(x, self.up, axis="embed"), self.down, axis="feed_forward")


class Block(eqx.Module):
    """One layer: attention and feed-forward, each behind a norm and added to the residual stream."""

    attention: Attention
    attention_norm: NamedArray
    feed_forward: FeedForward
    feed_forward_norm: NamedArray

    def __call__(
        self, x: NamedArray, rotation: tuple[NamedArray, NamedArray], mask: NamedArray, epsilon: float
    ) -> NamedArray:
        x = hax.auto_sharded(x + self.attention(rms_norm(x, self.attention_norm, epsilon), rotation, mask))
        return hax.auto_sharded(x + self.feed_forward(rms_norm(x, self.feed_forward_norm, epsilon)))


class Llama(eqx.Module):
    """The decoder. Its arrays are float32; its configuration is static."""

    embedding: NamedArray
    """`(vocabulary, embed)`"""
    blocks: tuple[Block, ...]
    norm: NamedArray
    """`(embed,)`"""
    head: NamedArray | None
    """`(vocabulary, embed)`; None when tied to the embedding."""
    config: LlamaConfig = eqx.field(static=True)

    @property
    def output_table(self) -> NamedArray:
        """The matrix `(vocabulary, embed)` that turns hidden vectors into logits."""
        return self.embedding if self.head is None else self.head

    def hidden(self, tokens: NamedArray, documents: NamedArray | None = None) -> NamedArray:
        """The normalised vectors before the head, `(batch, position, embed)`, for int32 tokens `(batch, position)`.

        Args:
            documents: the document of each token, int32 `(batch, position)`: attention stays within. None: a sequence
                is one text.
        """
        position = tokens.resolve_axis(POSITION)
        rotation = rotation_tables(position, self.config)
        mask = hax.arange(position) >= hax.arange(position.alias(KEY_POSITION)).broadcast_axis(position)
        if documents is not None:
            keys = documents.rename({POSITION: KEY_POSITION})
            mask = mask & (documents.broadcast_axis(position.alias(KEY_POSITION)) == keys)
        x = hax.auto_sharded(self.embedding.take("vocabulary", tokens))
        for block in self.blocks:
            x = block(x, rotation, mask, self.config.norm_epsilon)
        return rms_norm(x, self.norm, self.config.norm_epsilon)

    def logits(self, tokens: NamedArray, documents: NamedArray | None = None) -> NamedArray:
        """Scores of the next token, `(batch, position, vocabulary)`; `documents` as in `hidden`."""
        return hax.dot(self.hidden(tokens, documents), self.output_table, axis="embed")


def rms_norm(x: NamedArray, gain: NamedArray, epsilon: float) -> NamedArray:
    """`x` divided by its root mean square along `embed`, times `gain` (Zhang and Sennrich 2019), in float32."""
    wide = x.astype(jnp.float32)
    return (wide * hax.rsqrt(hax.mean(wide * wide, axis="embed") + epsilon) * gain.astype(jnp.float32)).astype(x.dtype)


def rotation_tables(position: Axis, config: LlamaConfig) -> tuple[NamedArray, NamedArray]:
    """Cosines and sines `(position, half)` of the rotary embedding (Su et al. 2021), computed in float64."""
    half = Axis("half", config.head_size // 2)
    angles = np.outer(np.arange(position.size), config.rope_theta ** (-np.arange(half.size) / half.size))
    axes = (position, half)
    return hax.named(jnp.asarray(np.cos(angles), jnp.float32), axes), hax.named(
        jnp.asarray(np.sin(angles), jnp.float32), axes
    )


def rotate(x: NamedArray, rotation: tuple[NamedArray, NamedArray]) -> NamedArray:
    """Turn each pair (i, i + half) of `head_size` by its position's angle: the pairing of the public Llama weights."""
    cosine, sine = (table.astype(x.dtype) for table in rotation)
    size = x.axis_size("head_size")
    first = x["head_size", : size // 2].rename({"head_size": "half"})
    second = x["head_size", size // 2 :].rename({"head_size": "half"})
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return hax.concatenate("head_size", [part.rename({"half": "head_size"}) for part in turned])


def initial(config: LlamaConfig, seed: int) -> dict[str, NamedArray]:
    """The arrays of an untrained model, by name, from one seed: the same on every machine and mesh.

    Matrices are normal, cut at three deviations: 0.02 for the embedding and the head, so that the first loss is near
    ln(vocabulary); 1 / sqrt(inputs) inside blocks, divided by sqrt(2 layers) where a block writes to the residual
    stream. Gains are 1. Call it inside `jax.jit`.
    """
    layers, embed = Axis(LAYERS, config.layers), Axis("embed", config.width)
    vocabulary, feed_forward = Axis("vocabulary", config.vocabulary), Axis("feed_forward", config.feed_forward)
    shared, size = Axis("key_value_heads", config.shared_heads), Axis("head_size", config.head_size)
    group = Axis("query_group", config.heads // config.shared_heads)
    inner = 1 / math.sqrt(config.width)
    residual = 1 / math.sqrt(2 * config.layers)
    shapes: dict[str, tuple[tuple[Axis, ...], float]] = {
        "embedding": ((vocabulary, embed), 0.02),
        "blocks.attention.query": ((layers, shared, group, size, embed), inner),
        "blocks.attention.key": ((layers, shared, size, embed), inner),
        "blocks.attention.value": ((layers, shared, size, embed), inner),
        "blocks.attention.output": ((layers, embed, shared, group, size), inner * residual),
        "blocks.feed_forward.gate": ((layers, feed_forward, embed), inner),
        "blocks.feed_forward.up": ((layers, feed_forward, embed), inner),
        "blocks.feed_forward.down": ((layers, embed, feed_forward), residual / math.sqrt(config.feed_forward)),
    }
    if not config.tied_head:
        shapes["head"] = ((vocabulary, embed), 0.02)
    root = jax.random.key(seed)
    arrays = {
        name: _draw(jax.random.fold_in(root, index), axes, deviation)
        for index, (name, (axes, deviation)) in enumerate(shapes.items())
    }
    arrays["norm"] = hax.ones(embed)
    arrays["blocks.attention_norm"] = hax.ones((layers, embed))
    arrays["blocks.feed_forward_norm"] = hax.ones((layers, embed))
    return arrays


def _draw(key: jax.Array, axes: tuple[Axis, ...], deviation: float) -> NamedArray:
    """Drawn flat, then reshaped: draws of many dimensions take the compiler four times as long (2.0 s, not 0.5 s)."""
    shape = [axis.size for axis in axes]
    return hax.named(jax.random.truncated_normal(key, -3, 3, (math.prod(shape),)).reshape(shape) * deviation, axes)


def assemble(config: LlamaConfig, arrays: Mapping[str, NamedArray]) -> Llama:
    """The model over arrays named as `initial` names them; blocks are cut out of their stacks."""

    def block(layer: int) -> Block:
        def cut(name: str) -> NamedArray:
            return arrays[f"blocks.{name}"][LAYERS, layer]

        return Block(
            Attention(*(cut(f"attention.{name}") for name in ("query", "key", "value", "output"))),
            cut("attention_norm"),
            FeedForward(*(cut(f"feed_forward.{name}") for name in ("gate", "up", "down"))),
            cut("feed_forward_norm"),
        )

    blocks = tuple(block(layer) for layer in range(config.layers))
    return Llama(arrays["embedding"], blocks, arrays["norm"], arrays.get("head"), config)


def disassemble(model: Llama) -> dict[str, NamedArray]:
    """The inverse of `assemble`: arrays by name, blocks stacked. It takes gradients apart as well as parameters."""
    layers = Axis(LAYERS, len(model.blocks))

    def stack(read) -> NamedArray:
        return hax.stack(layers, [read(block) for block in model.blocks])

    arrays = {"embedding": model.embedding, "norm": model.norm}
    if model.head is not None:
        arrays["head"] = model.head
    for name in ("query", "key", "value", "output"):
        arrays[f"blocks.attention.{name}"] = stack(lambda block, name=name: getattr(block.attention, name))
    for name in ("gate", "up", "down"):
        arrays[f"blocks.feed_forward.{name}"] = stack(lambda block, name=name: getattr(block.feed_forward, name))
    for name in ("attention_norm", "feed_forward_norm"):
        arrays[f"blocks.{name}"] = stack(lambda block, name=name: getattr(block, name))
    return arrays
