"""Learning-rate schedules as segments over absolute steps, evaluated without jax.

A segment names a horizon only if its shape needs one, so a run that is extended under a constant schedule keeps the
recipe of every step that it has made. The factor is computed once, here, and handed to the compiled step as a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from marin_pipeline.core.errors import InputError

Shape = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True)
class Segment:
    """One piece of a schedule: the factor on the peak learning rate for steps in `[begin, end)`."""

    kind: Literal["warmup", "cosine", "linear", "constant"]
    begin: int
    """First step, counted from the start of the run; the first step of a run is 0."""
    end: int | None
    """One past the last step of the whole shape; None for one that never ends."""
    final: float = 1.0
    """Factor that cosine and linear reach at `end`."""

    def factor(self, step: int) -> float:
        """Factor for the update that takes the state from `step` to `step + 1`.

        Warm-up is `(step + 1) / end`, so that the last warm-up step has the peak; cosine and linear start at the peak.
        """
        if self.kind == "constant" or self.end is None:
            return 1.0
        if self.kind == "warmup":
            return (step + 1) / self.end
        progress = (step - self.begin) / (self.end - self.begin)
        remaining = 0.5 * (1 + math.cos(math.pi * progress)) if self.kind == "cosine" else 1 - progress
        return self.final + (1 - self.final) * remaining

    def restricted(self, steps: int) -> dict[str, Any] | None:
        """What of this segment the steps `[0, steps)` depend on, as plain values; None when they never reach it."""
        if steps <= self.begin:
            return None
        plain: dict[str, Any] = {"kind": self.kind, "from": self.begin}
        plain["to"] = steps if self.end is None else min(steps, self.end)
        if self.kind != "constant":
            plain["horizon"] = self.end
        if self.kind in ("cosine", "linear"):
            plain["final"] = self.final
        return plain


@dataclass(frozen=True)
class Schedule:
    """Consecutive segments from step 0."""

    segments: tuple[Segment, ...]

    @staticmethod
    def make(shape: Shape, *, steps: int, warmup: int, final_fraction: float) -> Schedule:
        """Linear warm-up over `warmup` steps, then `shape`; cosine and linear end at `final_fraction` of the peak.

        Raises:
            InputError: for a negative warm-up or a fraction outside [0, 1].
        """
        if warmup < 0:
            raise InputError(f"warmup is {warmup}: give a number of steps of at least 0")
        if not 0 <= final_fraction <= 1:
            raise InputError(f"final_fraction is {final_fraction}: give a share of the peak between 0 and 1")
        segments = [Segment("warmup", 0, warmup)] if warmup else []
        if shape == "constant":
            segments.append(Segment("constant", warmup, None))
        elif steps > warmup:
            segments.append(Segment(shape, warmup, steps, final_fraction))
        return Schedule(tuple(segments))

    def factor(self, step: int) -> float:
        """Factor on the peak learning rates for the update that `step` makes.

        Raises:
            InputError: for a step that no segment covers.
        """
        for segment in self.segments:
            if segment.begin <= step and (segment.end is None or step < segment.end):
                return segment.factor(step)
        raise InputError(f"the schedule has no segment for step {step}: raise its horizon, or use schedule='constant'")

    def restricted(self, steps: int) -> list[dict[str, Any]]:
        """What of the schedule the steps `[0, steps)` depend on."""
        return [plain for segment in self.segments if (plain := segment.restricted(steps)) is not None]
