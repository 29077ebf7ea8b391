"""What a run reads: sources, their mixture, and the order of their sequences, lowered from the arguments of a step.

No library is loaded, so that a run which a source is too small for is refused when it is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream

MAXIMUM_GAP = 0.5
"""Nats a token by which the loss on text that was read may lie below that on text that was not; the default."""

ONLY_SOURCE = "tokens"
"""The name of the source of a run that was given one, without a mixture."""

TOGETHER = "held-out text"
"""The name of held-out tokens of all sources together."""


@dataclass(frozen=True)
class Reading:
    """What a run reads, in an order that no machine has a part in."""

    sources: Mapping[str, Any]
    """What names the tokens of each source: artifacts at declaration, digests in a checkpoint."""
    packing: Mapping[str, Any] | None
    """Likewise the packing plan of each source; None where tokens are cut at a fixed length."""
    mixture: Mixture
    sequence_length: int
    """Predicted tokens a sequence."""
    seed: int
    """Of the order."""
    shuffle: Shuffle
    separate: bool
    """Whether attention stays within a document."""

    @cached_property
    def stream(self) -> Stream:
        """Whose turn it is at each position."""
        return Stream(self.mixture, self.sequence_length)

    def restricted(self, sequences: int) -> dict[str, Any]:
        """What of this the first sequences depend on, as plain values for a key."""
        phases = self.stream.restricted(sequences)
        names = sorted({name for phase in phases for name, _ in phase["weights"]})
        plain: dict[str, Any] = {
            "mixture": phases,
            "tokens": {name: self.sources[name] for name in names},
            "seed": self.seed,
            "shuffle": self.shuffle.plain(),
            "separate": self.separate,
        }
        if self.packing is not None:
            plain["packing"] = {name: self.packing[name] for name in names}
        return plain


def lower_reading(
    *,
    tokens: Any,
    packing: Any,
    mixture: Mixture | None,
    max_epochs: int | None,
    sequence_length: int,
    data_seed: int,
    shuffle: Shuffle,
    separate_documents: bool,
) -> Reading:
    """What these arguments of the `train` step mean.

    Raises:
        InputError: naming the argument that cannot be used, and what to give instead.
    """
    sources = by_source(tokens)
    if mixture is None:
        if len(sources) != 1:
            raise InputError(
                f"tokens names {len(sources)} sources and there is no mixture: give mixture=Mixture(...), which says "
                "the share of each"
            )
        name = next(iter(sources))
        mixture = Mixture((Source(name, max_epochs),), (Phase(0, {name: 1}),))
    elif max_epochs != 1:
        raise InputError("max_epochs is for a run without a mixture: give it to each source of the mixture")
    for name in mixture.names:
        if name not in sources:
            raise InputError(
                f"source {name!r} of the mixture is missing: there are no tokens of that name; give them, or leave it "
                "out"
            )
    for name in sources:
        if name not in mixture.names:
            raise InputError(
                f"the tokens {name!r} are given, and no source of the mixture has that name; name them there, or leave "
                "them out"
            )
    plans = None if packing is None else by_source(packing)
    if plans is not None and set(plans) != set(sources):
        raise InputError(
            f"packing is given for {', '.join(sorted(plans))}, and tokens for {', '.join(sorted(sources))}: give a "
            "plan for each source, or none"
        )
    reading = Reading(
        sources,
        plans,
        mixture,
        sequence_length,
        data_seed,
        shuffle,
        separate_documents or plans is not None,
    )
    _ = reading.stream  # refuses phases that no whole sequence lies between
    return reading


def by_source(given: Any) -> Mapping[str, Any]:
    """One artifact a source, by name; one alone is the source `tokens`."""
    return given if isinstance(given, Mapping) else {ONLY_SOURCE: given}


def held_out_by_source(given: Any) -> Mapping[str, Any]:
    """Held-out tokens by source; those of all sources under the name `TOGETHER`; none without."""
    if given is None:
        return {}
    return given if isinstance(given, Mapping) else {TOGETHER: given}
