"""How well a state predicts held-out text, by source.

Bits per byte compare models with different tokenizers; the loss per token does not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Loss over a set of documents."""

    source: str
    """Where the documents came from; `all` for every source."""
    documents: int
    bytes: int
    """UTF-8 bytes of their text."""
    tokens: int
    """Predicted tokens, one end of document each included."""
    nats: float
    """Sum of the losses of these tokens."""
    bits_per_byte: float
    """`nats / ln 2 / bytes`: the losses at the ends of documents count, as a compressor would have to pay them."""
    loss_per_token: float
    """`nats / tokens`."""


@dataclass(frozen=True)
class Scores:
    """What an evaluation found."""

    overall: Score
    """Over all documents together: each byte weighs the same (micro)."""
    macro_bits_per_byte: float
    """Mean of the sources' bits per byte: each source weighs the same."""
    by_source: tuple[Score, ...]
    """Ordered by source."""
