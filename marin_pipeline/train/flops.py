"""Floating-point operations of a model, counted from its shape: without jax, exact for causal attention.

One function serves utilisation, budgets and ladders, so that they never disagree. A change of what is counted is a new
version.
"""

from __future__ import annotations

from marin_pipeline.models.config import LlamaConfig

VERSION = 1


def forward_flops(config: LlamaConfig, sequence_length: int) -> int:
    """Operations of one forward pass over one sequence; a multiplication and an addition are two.

    Matrix products only, as is usual: projections, scores and mixtures of attention over the positions that a causal
    mask lets through (`S (S + 1) / 2` pairs), feed-forward, and the head over the whole vocabulary. The embedding is a
    look-up.
    """
    matrices = 2 * config.width * config.head_size * (config.heads + config.shared_heads)
    matrices += 3 * config.width * config.feed_forward
    pairs = sequence_length * (sequence_length + 1) // 2
    attention = 2 * 2 * config.heads * config.head_size * pairs
    head = 2 * sequence_length * config.width * config.vocabulary
    return config.layers * (2 * sequence_length * matrices + attention) + head


def training_flops(config: LlamaConfig, sequence_length: int, sequences: int) -> int:
    """Operations of forward and backward passes over `sequences`; a backward pass costs two forward ones."""
    return 3 * forward_flops(config, sequence_length) * sequences
