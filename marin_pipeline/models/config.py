"""What a model is, as plain values: no jax is loaded to declare, plan or count one.

A configuration is part of a step's key. It holds only what changes the function that the model computes;
where its arrays lie belongs to the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

from marin_pipeline.core.errors import InputError


@dataclass(frozen=True)
class LlamaConfig:
    """A decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention and SwiGLU.

    Every field is in the key of the steps that take one.
    """

    vocabulary: int
    """Rows of the embedding; at least the tokenizer's vocabulary."""

    width: int
    """Size of the residual stream."""

    layers: int
    """Number of blocks."""

    heads: int
    """Query heads; `width / heads` is the size of a head and must be even."""

    feed_forward: int
    """Inner size of the SwiGLU feed-forward."""

    key_value_heads: int = 0
    """Heads of keys and values, a divisor of `heads`; 0 means as many as query heads."""

    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths."""

    norm_epsilon: float = 1e-5
    """Added to the mean square before its root is taken."""

    tied_head: bool = False
    """True when the output head is the embedding itself."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise InputError(f"LlamaConfig.{name} is {getattr(self, name)}: give a number of at least 1")
        if self.width % self.heads or self.head_size % 2:
            raise InputError(
                f"LlamaConfig.width={self.width} with heads={self.heads} gives no even size of a head: "
                "choose a width that is an even multiple of heads"
            )
        if self.key_value_heads < 0 or self.heads % self.shared_heads:
            raise InputError(
                f"LlamaConfig.key_value_heads={self.key_value_heads} does not divide heads={self.heads}: "
                "choose a divisor, or 0 for one key-value head a query head"
            )

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.width // self.heads

    @property
    def shared_heads(self) -> int:
        """Number of key-value heads, with the default resolved."""
        return self.key_value_heads or self.heads

    @property
    def parameters(self) -> int:
        """Number of trained values, embedding and head included."""
        attention = 2 * self.width * self.head_size * (self.heads + self.shared_heads)
        block = attention + 3 * self.width * self.feed_forward + 2 * self.width
        tables = self.vocabulary * self.width * (1 if self.tied_head else 2)
        return self.layers * block + tables + self.width
