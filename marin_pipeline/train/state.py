"""What a training step hands on: a small value beside the checkpoint's files."""

from __future__ import annotations

from dataclasses import dataclass

from marin_pipeline.models.config import LlamaConfig


@dataclass(frozen=True)
class TrainState:
    """A trained state. Paths are relative to the output."""

    step: int
    """Updates made since the initial state."""
    parameters: int
    """Trained values, embedding and head included."""
    tokens_seen: int
    """Predicted tokens over all updates, repeats counted."""
    state_digest: str
    """sha256 over names, axes, dtypes and bytes of all arrays, optimizer included."""
    final_loss: float
    """Training loss of the last update, nats a token."""
    model: LlamaConfig
    sequence_length: int
    """Predicted tokens a sequence: the context that the model was trained on."""
    checkpoint: str = "checkpoint"
    """Folder of the checkpoint."""
    metrics: str = "metrics.jsonl"
    """One JSON object an update."""
