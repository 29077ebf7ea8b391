"""The gap between text that was read and text that was not, and whether a run may end with it.

A loader that reads the same text again and again makes training loss look wonderful; text that it has not read does not
get better. All of this is arithmetic on losses of single sequences, measured elsewhere under one set of parameters.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from marin_pipeline.core.errors import MarinError

ERRORS = 3.0
"""Standard errors of a difference that are forgiven: noise alone exceeds them in one of 700 comparisons."""

FEWEST = 8
"""Sequences on each side of a comparison: the spread of fewer says too little of how much is noise."""


@dataclass(frozen=True)
class Score:
    """The loss on some sequences."""

    loss: float
    """Mean over sequences of the mean loss of their tokens, in nats."""
    error: float
    """Standard error of that mean; 0 for a single sequence."""
    sequences: int

    def __str__(self) -> str:
        return f"{self.loss:.3f} ± {self.error:.3f} ({self.sequences} sequences)"


@dataclass(frozen=True)
class Difference:
    """How much worse text that was not read is predicted than text of the same sources that was."""

    nats: float
    """A token; weighted by source as the text that was read is."""
    error: float
    """Standard error."""

    @property
    def least(self) -> float:
        """What is left of it when noise is allowed for."""
        return self.nats - ERRORS * self.error

    def __str__(self) -> str:
        return f"{self.nats:+.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class Gap:
    """One state, scored on text that the run has read, on text that it has not, and on held-out text."""

    step: int
    """Updates made."""
    seen: Score
    """As the loader delivered it, spread over all that was read."""
    unseen: Score | None
    """What comes next of each source; None when each is read for a second time, or nothing of it is left."""
    held_out: Score | None
    """None without held-out text."""
    unseen_difference: Difference | None
    """Of `unseen` and `seen`; None with fewer than 8 sequences of shared sources on either side."""
    held_out_difference: Difference | None
    """Of `held_out` and `seen`, likewise."""
    epochs: float
    """Passes over the source that the order has read most often."""
    most_read: str
    """The name of that source."""

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        shown = [f"read {self.seen}"]
        for name, score, difference in (
            ("not read yet", self.unseen, self.unseen_difference),
            ("held out", self.held_out, self.held_out_difference),
        ):
            if score is not None:
                above = "" if difference is None else f", {difference} above what was read"
                shown.append(f"{name} {score}{above}")
        return f"nats a token at step {self.step}: {'; '.join(shown)}"


def score(losses: np.ndarray) -> Score:
    """Of the losses of at least one sequence."""
    count = len(losses)
    error = float(np.std(losses, ddof=1)) / math.sqrt(count) if count > 1 else 0.0
    return Score(float(np.mean(losses)), error, count)


def difference(
    seen: np.ndarray, seen_sources: np.ndarray, other: np.ndarray, other_sources: np.ndarray
) -> Difference | None:
    """How far `other` lies above `seen`, source by source; None when there is too little of either to say.

    Sources differ in loss by more than any gap, so each is compared with itself, and weighs what it does among `seen`.
    The deviation of a sequence within its source is taken as equal for all of a side.

    Args:
        seen: losses by sequence; `seen_sources` says of which source each is. Likewise `other`.
    """
    shared = np.intersect1d(seen_sources, other_sources)
    mine, theirs = np.isin(seen_sources, shared), np.isin(other_sources, shared)
    if min(np.count_nonzero(mine), np.count_nonzero(theirs)) < FEWEST:
        return None
    nats, variance = 0.0, 0.0
    sides = [(seen[mine], seen_sources[mine]), (other[theirs], other_sources[theirs])]
    spread = [_variance(*side) for side in sides]
    for source in shared:
        chosen = [losses[sources == source] for losses, sources in sides]
        weight = len(chosen[0]) / len(sides[0][0])
        nats += weight * float(chosen[1].mean() - chosen[0].mean())
        variance += weight**2 * sum(each / len(losses) for each, losses in zip(spread, chosen, strict=True))
    return Difference(nats, math.sqrt(variance))


def _variance(losses: np.ndarray, sources: np.ndarray) -> float:
    """Of a sequence within its source; over all sequences where no source has two, which is no less."""
    groups = [losses[sources == source] for source in np.unique(sources)]
    free = len(losses) - len(groups)
    if free == 0:
        return float(np.var(losses, ddof=1))
    return sum(float(np.sum((group - group.mean()) ** 2)) for group in groups) / free


def judge(gap: Gap, bound: float) -> None:
    """Refuse a gap that is larger than `bound` by more than noise.

    Args:
        bound: nats a token.

    Raises:
        MarinError: with all figures and what to do; also when a loss is not finite.
    """
    scores = [each for each in (gap.seen, gap.unseen, gap.held_out) if each is not None]
    if not all(math.isfinite(each.loss) for each in scores):
        raise MarinError(f"{gap}: a loss that is not finite says nothing; lower the learning rates")
    found = {"text that was not read yet": gap.unseen_difference, "held-out text": gap.held_out_difference}
    beyond = [name for name, each in found.items() if each is not None and each.least > bound]
    if not beyond:
        return
    advice = (
        "look with `python -m marin_pipeline.data audit` at whether the loader reads text again, and at how often the "
        f"run itself repeats it (source {gap.most_read!r} {gap.epochs:.2f} times)"
    )
    if beyond == ["held-out text"] and gap.unseen_difference is not None:
        advice += ", and first at whether held-out text differs in kind, since unread training text is as good as read"
    raise MarinError(
        f"{gap}. {' and '.join(beyond).capitalize()}: more than {bound:g} above what was read, with {ERRORS:g} "
        f"standard errors allowed for noise; {advice}; where a larger gap is expected, raise maximum_gap, and say why"
    )
