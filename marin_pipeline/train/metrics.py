"""The record of a run, one JSON line an update: only what is the same whoever runs it.

Timings differ from run to run and are written apart. The lines travel in the checkpoint, so that a resumed run ends
with the file of an undisturbed one.
"""

from __future__ import annotations

import json
import math

import numpy as np

from marin_pipeline.data.read_ledger import Entry


def line(
    step: int, loss: np.float32, learning_rate: float, gradient_norm: np.float32, tokens: int, epoch: float, read: Entry
) -> str:
    """One line of the metrics file.

    Args:
        step: updates made, this one included.
        loss: nats a token, before the update.
        learning_rate: of AdamW, for this update.
        gradient_norm: before clipping.
        tokens: predicted tokens so far, this update included.
        epoch: passes over the source that was passed over most, this update included.
        read: what was read so far, this update included.
    """
    values = {
        "step": step,
        "loss": short(loss),
        "learning_rate": float(f"{learning_rate:.9g}"),
        "gradient_norm": short(gradient_norm),
        "tokens": tokens,
        "epoch": float(f"{epoch:.9g}"),
        "batch": read.batch,
        "sequences": read.sequences,
        "sum": read.sum,
    }
    return json.dumps(values, separators=(", ", ": "), allow_nan=False) + "\n"


def short(value: np.float32) -> float:
    """The float whose shortest text is that of the float32: `0.1`, not `0.10000000149011612`."""
    return float(str(np.float32(value)))


def last_read(lines: bytes) -> Entry | None:
    """What the run had read by the last line; None when there is none."""
    text = lines.decode().rstrip("\n")
    if not text:
        return None
    values = json.loads(text.rpartition("\n")[2])
    return Entry(values["step"], values["batch"], values["sequences"], values["sum"])


def last_loss(lines: bytes) -> float:
    """Loss of the last line; not a number when there is none."""
    text = lines.decode().rstrip("\n")
    return json.loads(text.rpartition("\n")[2])["loss"] if text else math.nan
