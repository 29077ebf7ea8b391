"""The lowered form of a training run: what decides the state after each step, and nothing else.

`Recipe.pieces(n)` holds exactly what the steps `[0, n)` depend on; with `Recipe.initial()` it names the state at n. So
raising `steps` under a constant schedule, or saving at other times, leaves the names of earlier states as they are.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_seeds
from marin_pipeline.data.mixture import Mixture
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.supply import check_expected
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train.reading import Reading, lower_reading
from marin_pipeline.train.schedule import Schedule, Shape

Optimizer = Literal["muon", "adamw"]
Numerics = Literal["fast", "invariant"]
Compute = Literal["float32", "bfloat16"]
INVARIANT = 1
"""The version of invariant arithmetic: another one gives other bits."""
LOGICAL_SHARDS = 8
"""Slices of a batch, where nothing else is said."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019), or Muon (Jordan 2024) on the block matrices and AdamW on the rest."""

    kind: Optimizer
    learning_rate: float
    """Peak of AdamW."""
    muon_learning_rate: float | None
    """Peak of Muon; None under AdamW alone."""
    weight_decay: float
    """Times the learning rate; on every matrix, not on the gains of norms."""
    clip: float
    """Largest global norm of the gradient."""
    first_beta: float = 0.9
    second_beta: float = 0.95
    epsilon: float = 1e-8
    momentum: float = 0.95
    """Of Muon (Nesterov)."""

    def plain(self) -> dict[str, Any]:
        """The fields that this kind uses."""
        unused = ("muon_learning_rate", "momentum") if self.kind == "adamw" else ()
        return {name: value for name, value in asdict(self).items() if name not in unused}


@dataclass(frozen=True)
class Recipe:
    """A training run, lowered from the arguments of the `train` step."""

    reading: Reading
    model: LlamaConfig
    optimizer: OptimizerConfig
    schedule: Schedule
    steps: int
    batch_size: int
    """Sequences a step."""
    seed: int
    """Of the initial parameters."""
    numerics: Numerics
    logical_shards: int = LOGICAL_SHARDS
    """Slices of a batch, the unit of invariant arithmetic; it is no part of a fast run."""
    compute: Compute = "float32"
    """What matrix products are computed in. Parameters and optimizer are float32."""

    @property
    def sequence_length(self) -> int:
        """Predicted tokens a sequence."""
        return self.reading.sequence_length

    def initial(self) -> dict[str, Any]:
        """What decides the state at step 0."""
        return {"model": self.model, "seed": self.seed}

    def pieces(self, steps: int) -> list[dict[str, Any]]:
        """What decides the way from step 0 to `steps`: pieces over absolute steps, as plain values."""
        if steps == 0:
            return []
        fast = self.numerics == "fast"
        piece = {
            "from": 0,
            "to": steps,
            "start": "keep",
            "model": self.model,
            "optimizer": self.optimizer.plain(),
            "schedule": self.schedule.restricted(steps),
            "data": self.reading.restricted(steps * self.batch_size),
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "numerics": "fast" if fast else {"invariant": INVARIANT, "logical_shards": self.logical_shards},
        }
        if self.compute != "float32":
            piece["compute"] = self.compute
        return [piece]

    def described(self, steps: int) -> dict[str, Any]:
        """`initial` and `pieces` as JSON values, for a checkpoint to be compared with the run that opens it."""
        pieces = [{**piece, "model": asdict(self.model)} for piece in self.pieces(steps)]
        return {"initial": {**self.initial(), "model": asdict(self.model)}, "pieces": pieces}


def lower(
    *,
    tokens: Any,
    packing: Any = None,
    mixture: Mixture | None = None,
    max_epochs: int | None = 1,
    model: LlamaConfig,
    steps: int,
    learning_rate: float,
    muon_learning_rate: float,
    optimizer: Optimizer,
    schedule: Shape,
    warmup: int,
    final_fraction: float,
    weight_decay: float,
    clip: float,
    batch_size: int,
    sequence_length: int,
    seed: int,
    data_seed: int,
    shuffle: Shuffle = Shuffle(),
    separate_documents: bool = False,
    numerics: Numerics,
    logical_shards: int = LOGICAL_SHARDS,
    compute: Compute = "float32",
) -> Recipe:
    """The recipe that these arguments of the `train` step mean.

    Raises:
        InputError: naming the argument that cannot be used, and what to give instead.
    """
    whole = {"steps": steps, "batch_size": batch_size, "sequence_length": sequence_length}
    for name, value in whole.items():
        if value < 1:
            raise InputError(f"{name} is {value}: give a number of at least 1")
    positive = {"learning_rate": learning_rate, "muon_learning_rate": muon_learning_rate, "clip": clip}
    for name, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name} is {value}: give a finite number above 0")
    if not (weight_decay >= 0 and math.isfinite(weight_decay)):
        raise InputError(f"weight_decay is {weight_decay}: give a finite number of at least 0")
    check_seeds(seed=seed, data_seed=data_seed)
    _check_numerics(numerics, logical_shards, batch_size, model)
    reading = lower_reading(
        tokens=tokens,
        packing=packing,
        mixture=mixture,
        max_epochs=max_epochs,
        sequence_length=sequence_length,
        data_seed=data_seed,
        shuffle=shuffle,
        separate_documents=separate_documents,
    )
    packed = reading.packing or ()
    check_expected(reading.stream, steps=steps, batch_size=batch_size, packed=packed)
    return Recipe(
        reading=reading,
        model=model,
        optimizer=OptimizerConfig(
            optimizer, learning_rate, muon_learning_rate if optimizer == "muon" else None, weight_decay, clip
        ),
        schedule=Schedule.make(schedule, steps=steps, warmup=warmup, final_fraction=final_fraction),
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        numerics=numerics,
        logical_shards=logical_shards,
        compute=compute,
    )


def _check_numerics(numerics: Numerics, shards: int, batch_size: int, model: LlamaConfig) -> None:
    if numerics == "fast":
        if shards != LOGICAL_SHARDS:
            raise InputError(
                f"logical_shards is {shards}, and numerics='fast' has none: leave it out, or use numerics='invariant'"
            )
        return
    if shards < 1 or shards & (shards - 1):
        raise InputError(f"logical_shards is {shards}: sums are a tree over them, so give a power of two, such as 8")
    for name, value in (("batch_size", batch_size), ("model.width", model.width)):
        if value % shards:
            raise InputError(
                f"{name}={value} is not divided by logical_shards={shards}, which numerics='invariant' cuts it in: "
                "choose a multiple, or fewer logical shards"
            )
