"""The gap between text that was read and text that was not, and whether a run may end with it.

A loader that reads the same text again and again makes training loss look wonderful; text that it has not read does not
get better. All of this is arithmetic on losses of single sequences, measured elsewhere under one set of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from marin_pipeline.core.errors import MarinError

ERRORS = 3.0
"""Standard errors of a difference that are forgiven: noise alone exceeds them in one of 700 comparisons."""

FEWEST = 8
"""Sequences on each side of a comparison: the spread of fewer says too little of how much is noise."""

UNSEEN, HELD_OUT = "unseen", "held_out"
_WORDS = {UNSEEN: "text that was not read yet", HELD_OUT: "held-out text"}

_NAMED = 5
"""Most sources that a sentence names."""


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
    """A token: the loss of `other` less that of `read`."""
    error: float
    """Standard error."""
    read: Score
    """Of what was read of the sources that are compared."""
    other: Score
    """Of the other text of these sources, each weighing what it does in `read`."""

    @property
    def least(self) -> float:
        """What is left of it when noise is allowed for."""
        return self.nats - ERRORS * self.error

    def __str__(self) -> str:
        return (
            f"{self.other} beside {self.read} of the same sources that were read: {self.nats:+.3f} ± {self.error:.3f}"
        )


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
    """Of the sources that `unseen` and `seen` share; None with fewer than 8 sequences of them on either side."""
    held_out_difference: Difference | None
    """Of `held_out` and `seen`, likewise."""
    epochs: float
    """Passes over the source that the order has read most often."""
    most_read: str
    """The name of that source."""
    by_source: Mapping[str, Mapping[str, Score]] = field(default_factory=dict[str, Mapping[str, Score]])
    """The scores of `seen`, `unseen` and `held_out` by source."""
    no_verdict: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why there is no difference: of `unseen` or `held_out`."""
    not_compared: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Sources that have no part in the difference of `unseen` or `held_out`, and why."""

    def plain(self, judged_by: float | None = None) -> dict[str, Any]:
        """As JSON values; what is not finite, which JSON does not know, as text.

        Args:
            judged_by: the bound, in nats a token, to be told with it.
        """
        bound = {} if judged_by is None else {"judged_by": judged_by}
        return _plain({**asdict(self), **bound})

    def __str__(self) -> str:
        return f"nats a token at step {self.step}: {self._told(UNSEEN)}; {self._told(HELD_OUT)}"

    def _told(self, kind: str) -> str:
        found, other = (
            (self.unseen_difference, self.unseen) if kind == UNSEEN else (self.held_out_difference, self.held_out)
        )
        if found is not None:
            told = f"{_WORDS[kind]} {found}"
        else:
            alone = "" if other is None else f" {other}, and all that was read {self.seen}"
            told = f"{_WORDS[kind]}{alone}, no verdict: {self.no_verdict.get(kind, 'there is too little of it')}"
        left = list(self.not_compared.get(kind, {}).items())
        if found is None or not left:
            return told
        named = [f"{name} ({why})" for name, why in left[:_NAMED]]
        more = [f"{len(left) - _NAMED} more"] if len(left) > _NAMED else []
        return f"{told} (not compared: {', '.join([*named, *more])})"


@dataclass(frozen=True)
class Losses:
    """Of the sequences of one kind that have a token to predict."""

    losses: np.ndarray
    """Nats a token: `(sequences,)`."""
    sources: np.ndarray
    """The place of each one's source: `(sequences,)`."""

    def __len__(self) -> int:
        return len(self.losses)

    def score(self) -> Score | None:
        """None without a sequence."""
        return score(self.losses) if len(self) else None

    def by_source(self, names: Sequence[str]) -> dict[str, Score]:
        """Of each source that has a sequence, by its name."""
        places: list[int] = np.unique(self.sources).tolist()
        return {names[place]: score(self.losses[self.sources == place]) for place in places}


def compared(seen: Losses, other: Losses) -> tuple[Difference | None, str]:
    """The difference of two kinds, or why there is none."""
    found = difference(seen.losses, seen.sources, other.losses, other.sources)
    if found is not None:
        return found, ""
    shared = np.intersect1d(seen.sources, other.sources)
    if not len(shared):
        return None, "no source has sequences of both" if len(other) else "there is none of it"
    counts = [int(np.count_nonzero(np.isin(each.sources, shared))) for each in (seen, other)]
    return None, (
        f"of the sources that have both, {counts[0]} sequences that were read and {counts[1]} others were scored, and "
        f"it takes {FEWEST} of each"
    )


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
    weights = [np.count_nonzero(seen_sources == source) / np.count_nonzero(mine) for source in shared]
    read = _weighted(seen[mine], seen_sources[mine], shared, weights)
    compared = _weighted(other[theirs], other_sources[theirs], shared, weights)
    return Difference(compared.loss - read.loss, math.hypot(read.error, compared.error), read, compared)


def _weighted(losses: np.ndarray, sources: np.ndarray, places: np.ndarray, weights: Sequence[float]) -> Score:
    """The mean over sources of their mean losses, each with its weight."""
    spread, loss, variance = _variance(losses, sources), 0.0, 0.0
    for source, weight in zip(places, weights, strict=True):
        chosen = losses[sources == source]
        loss += weight * float(chosen.mean())
        variance += weight**2 * spread / len(chosen)
    return Score(loss, math.sqrt(variance), len(losses))


def _variance(losses: np.ndarray, sources: np.ndarray) -> float:
    """Of a sequence within its source; over all sequences where no source has two, which is no less."""
    groups = [losses[sources == source] for source in np.unique(sources)]
    free = len(losses) - len(groups)
    if free == 0:
        return float(np.var(losses, ddof=1))
    return sum(float(np.sum((group - group.mean()) ** 2)) for group in groups) / free


def judge(gap: Gap, bound: float, audit: str) -> None:
    """Refuse a gap that is larger than `bound` by more than noise.

    Args:
        bound: nats a token.
        audit: the command that audits the loader over the tokens; the state that is refused is not there to be audited.

    Raises:
        MarinError: with all figures and what to do; also when a loss is not finite.
    """
    scores = (gap.seen, gap.unseen, gap.held_out)
    if not all(math.isfinite(each.loss) for each in scores if each is not None):
        raise MarinError(f"{gap}: a loss that is not finite says nothing; lower the learning rates")
    found = {_WORDS[UNSEEN]: gap.unseen_difference, _WORDS[HELD_OUT]: gap.held_out_difference}
    # Said so that what is no number is beyond every bound.
    beyond = [name for name, each in found.items() if each is not None and not each.least <= bound]
    if not beyond:
        return
    advice = (
        f"look with `{audit}` (and the --prefix of the run) at whether the loader reads text again, and at how often "
        f"the run itself repeats it (source {gap.most_read!r} {gap.epochs:.2f} times)"
    )
    if beyond == [_WORDS[HELD_OUT]] and gap.unseen_difference is not None:
        advice += ", and first at whether held-out text differs in kind, since unread training text is as good as read"
    raise MarinError(
        f"{gap}. {' and '.join(beyond).capitalize()}: more than {bound:g} above what was read, with {ERRORS:g} "
        f"standard errors allowed for noise; {advice}; where a larger gap is expected, raise maximum_gap, and say "
        "why: the state is kept as a checkpoint, which is then committed without training again, and `audit` and "
        "`inspect` look at it; until then they know an older state of this name, or none"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
