"""A mixture of sources: which share of the training sequences each source gives, phase by phase.

A declaration of plain values that can be part of a step's key. Weights are exact rationals, and those of a phase sum to
exactly 1: nothing is normalised, completed or dropped in silence. What a mixture means, sequence by sequence, is in
`marin_pipeline.data.stream`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_kind, check_whole

Weight = int | float | str
"""A whole number, text such as `"1/3"` or `"1e-5"`, or a float, which stands for its shortest decimal: 0.1 is 1/10."""

_TEXT = re.compile(r"-?[0-9]+(/[0-9]+|(\.[0-9]+)?(e[-+]?[0-9]{1,3})?)", re.IGNORECASE | re.ASCII)
_ROUNDED = Fraction(1, 10**9)
"""Weights whose sum misses 1 by less are meant to sum to 1: they are fractions that were rounded to decimals."""
_LONGEST = 500
"""Characters of a weight's text: enough for any float, and no number that takes a second to read."""


def exact(weight: Weight, where: str) -> Fraction:
    """The rational that a weight stands for.

    Args:
        where: what the weight is of; it opens every error message.

    Raises:
        InputError: for what is no finite number, and for a weight that is not above 0.
    """
    if isinstance(weight, bool) or not isinstance(weight, (int, float, str)):
        raise InputError(f'{where}: the weight {weight!r} is no number; give 0.25 or "1/4"')
    text = weight if isinstance(weight, str) else float.__repr__(weight) if isinstance(weight, float) else str(weight)
    if len(text) > _LONGEST or not _TEXT.fullmatch(text) or re.search("/0+$", text):
        raise InputError(f'{where}: the weight {text[:40]!r} is no finite number; give one such as 0.25, "1/4" or 1e-5')
    value = Fraction(text)
    if value <= 0:
        raise InputError(
            f"{where}: the weight {text} is not above 0; leave the source out of a phase that does not use it"
        )
    return value


def shares(relative: Mapping[str, Weight]) -> dict[str, Weight]:
    """Weights of a phase from relative ones, such as tokens by source: each divided by their sum, exactly.

    `shares({"web": 2, "code": 1})` is `{"web": "2/3", "code": "1/3"}`.

    Raises:
        InputError: for a weight that is no number above 0, and for fractions that have no short common denominator.
    """
    values = {name: exact(weight, f"source {name!r}") for name, weight in relative.items()}
    total = sum(values.values())
    found = {name: value / total for name, value in values.items()}
    longest = max((share.denominator for share in found.values()), default=1)
    # Two numbers of at most this many bits, each bit less than a third of a digit.
    if longest.bit_length() * 2 // 3 > _LONGEST:
        raise InputError(
            f"the relative weights of {len(values)} sources have a common denominator of {longest.bit_length()} bits: "
            "give whole numbers or decimals in place of fractions"
        )
    return {name: str(share) for name, share in found.items()}


@dataclass(frozen=True)
class Source:
    """One source of a mixture."""

    name: str
    max_epochs: int | None = 1
    """Most passes over the source in a whole run: 1 repeats nothing, None repeats as often as the run needs. It changes
    no sequence: it only says which run is refused.
    """
    expected_tokens: int | None = None
    """Tokens that the source is expected to hold, so that a run that is too long for it is refused before it is
    tokenized. It changes no sequence, and is not used for a source with a packing plan, whose rows are only known when
    it is packed.
    """

    def __post_init__(self) -> None:
        check_kind("a source of the mixture", str, "text", name=self.name)
        if not self.name:
            raise InputError("a source of the mixture has an empty name: give each source a name")
        where = f"source {self.name!r}"
        check_whole(where, or_none=True, max_epochs=self.max_epochs, expected_tokens=self.expected_tokens)
        for field, value in (("max_epochs", self.max_epochs), ("expected_tokens", self.expected_tokens)):
            if value is not None and value < 1:
                raise InputError(f"{where}: {field} is {value}; give at least 1, or leave the source out")


@dataclass(frozen=True)
class Phase:
    """The shares of the sources from one point of training on."""

    start: int
    """Tokens of training before the phase; rounded up to a whole sequence, at which the phase begins exactly, inside a
    batch too. With packing they count the positions of rows, padding included.
    """
    weights: Mapping[str, Weight]
    """Share of the sequences by source, summing to exactly 1; kept as the text of a fraction, however it was given. A
    source that is not named gives nothing in this phase.
    """

    def __post_init__(self) -> None:
        check_whole("a phase of the mixture", start=self.start)
        if self.start < 0:
            raise InputError(f"a phase of the mixture starts at {self.start} tokens: give at least 0")
        check_kind(self.where, Mapping, "a dict of weights by source", weights=self.weights)
        for name in self.weights:
            check_kind(f"{self.where}, weights", str, "its name", source=name)
        if not self.weights:
            raise InputError(f"{self.where}: it has no weights; name at least one source")
        values = {name: exact(weight, f"{self.where}, source {name!r}") for name, weight in self.weights.items()}
        total = sum(values.values(), Fraction(0))
        if total != 1:
            more = "more" if total > 1 else "less"
            cure = 'write fractions as text, "1/3" for 1/3' if abs(total - 1) < _ROUNDED else "correct them"
            raise InputError(
                f"{self.where}: the weights of its {len(values)} sources sum to {_shown(total)}, "
                f"{_rough(abs(total - 1))} {more} than 1; {cure}, or give weights=shares({{...}}), which "
                "divides relative weights by their sum"
            )
        object.__setattr__(self, "weights", {name: str(value) for name, value in values.items()})

    @property
    def where(self) -> str:
        """What this is, for errors."""
        return f"the phase of the mixture at {self.start:,} tokens"

    def fractions(self) -> dict[str, Fraction]:
        """The weights as numbers."""
        return {name: Fraction(weight) for name, weight in self.weights.items()}


def _shown(total: Fraction) -> str:
    return str(total) if total.denominator < 10**20 and total < 10**20 else _rough(total, 15)


def _rough(value: Fraction, digits: int = 3) -> str:
    return f"{float(value):.{digits}g}" if value < 10**300 else "more than 1e300"


@dataclass(frozen=True)
class Mixture:
    """Sources and their shares by phase.

    Raises:
        InputError: when there is no source or no phase, a name stands twice, a phase names what is no source, a source
            has a weight in no phase, or the phases do not start at 0 and follow each other.
    """

    sources: tuple[Source, ...]
    """In the order that decides between sources of equal weight, and by which they are numbered."""
    phases: tuple[Phase, ...]
    """In the order of training; the first starts at 0, the last never ends."""

    def __post_init__(self) -> None:
        for name, given, kind in (("sources", self.sources, Source), ("phases", self.phases, Phase)):
            what = f"a tuple of {kind.__name__}s"
            check_kind("a mixture", (tuple, list), what, **{name: given})
            for place, each in enumerate(given):
                check_kind("a mixture", kind, f"a {kind.__name__}", **{f"{name}[{place}]": each})
        if not self.sources or not self.phases:
            raise InputError(
                f"a mixture of {len(self.sources)} sources and {len(self.phases)} phases: it needs at least one of each"
            )
        twice = [name for name, times in Counter(self.names).items() if times > 1]
        if twice:
            raise InputError(
                f"the mixture has {listed(twice)} among its sources more than once: give each source a name of its own"
            )
        starts = [phase.start for phase in self.phases]
        if starts[0] != 0:
            raise InputError(f"the first phase of the mixture starts at {starts[0]:,} tokens: it must start at 0")
        for before, after in pairwise(starts):
            if after <= before:
                raise InputError(
                    f"a phase of the mixture that starts at {after:,} tokens follows one that starts at {before:,}: "
                    "give the phases in the order of training, each with a start of its own"
                )
        for phase in self.phases:
            unknown = sorted(phase.weights.keys() - set(self.names))
            if unknown:
                raise InputError(
                    f"{phase.where} names {listed(unknown)}, which is none of the mixture's sources: "
                    f"these are {listed(self.names)}"
                )
        unused = [name for name in self.names if all(name not in phase.weights for phase in self.phases)]
        if unused:
            raise InputError(
                f"the mixture has the source {listed(unused)}, to which no phase gives a weight: "
                "give it one, or leave it out"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names in their order."""
        return tuple(source.name for source in self.sources)


def listed(names: Sequence[str]) -> str:
    """Names for an error; of many the first five and how many more."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def scale(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """The smallest whole numbers in the proportion of the weights."""
    denominator = math.lcm(*(weight.denominator for weight in weights.values()))
    whole = {name: int(weight * denominator) for name, weight in weights.items()}
    divisor = math.gcd(*whole.values())
    return {name: value // divisor for name, value in whole.items()}
