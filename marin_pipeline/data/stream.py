"""What a mixture means: which source each training sequence comes from, as a pure function of its position.

Positions are counted in sequences from the start of training. Counts by source never fall, sum to the position, and
stay within two sequences a phase of what the weights say (`marin_pipeline.data.split`). No seed is in it: which of its
sequences a source gives when it is its turn is the order's business.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_kind, check_whole
from marin_pipeline.data.mixture import Mixture, Phase, Source, scale
from marin_pipeline.data.split import Split

if TYPE_CHECKING:
    import numpy as np


class Stream:
    """The sources of all training sequences of one length; it never changes."""

    def __init__(self, mixture: Mixture, sequence_length: int) -> None:
        """Lay out the phases.

        Args:
            sequence_length: tokens that a sequence predicts. A phase begins with the first whole sequence that starts
                at or after the tokens that it is declared at.

        Raises:
            InputError: for a length below 1, or when two phases begin with the same sequence.
        """
        check_kind("a stream", Mixture, "a Mixture", mixture=mixture)
        check_whole("a stream", sequence_length=sequence_length)
        if sequence_length < 1:
            raise InputError(f"sequence length {sequence_length}: it must be at least 1")
        self.mixture = mixture
        sequence_length = int(sequence_length)  # of numpy's, products would overflow
        self.sequence_length = sequence_length
        self.starts = tuple(-(-phase.start // sequence_length) for phase in mixture.phases)
        """The sequence that each phase begins with."""
        for phase, (before, after) in zip(mixture.phases[1:], pairwise(self.starts), strict=True):
            if before == after:
                raise InputError(
                    f"{phase.where} begins with sequence {after:,} of {sequence_length:,} tokens, as the phase before "
                    "it does: put a whole sequence between them"
                )
        places = {name: place for place, name in enumerate(mixture.names)}
        self._places: list[list[int]] = []
        """By phase: the places, in the mixture, of the sources that have a weight, ascending."""
        self._splits: list[Split] = []
        self._before: list[list[int]] = [[0] * len(places)]
        """By phase: sequences of each source before the phase."""
        for index, phase in enumerate(mixture.phases):
            weights = scale(phase.fractions())
            self._places.append(sorted(places[name] for name in weights))
            self._splits.append(Split([weights[mixture.names[place]] for place in self._places[-1]]))
            if index + 1 < len(self.starts):
                self._before.append(self._counts(index, self.starts[index + 1]))

    def _phase(self, position: int) -> int:
        """The phase that the sequence at `position` belongs to."""
        if position < 0:
            raise InputError(f"sequence {position} of the mixture was asked for: positions start at 0")
        return bisect_right(self.starts, position) - 1

    def _counts(self, phase: int, position: int) -> list[int]:
        counts = list(self._before[phase])
        for place, count in zip(
            self._places[phase], self._splits[phase].counts(position - self.starts[phase]), strict=True
        ):
            counts[place] += count
        return counts

    def counts(self, position: int) -> dict[str, int]:
        """Sequences of each source before `position`, in the order of the mixture's sources.

        Raises:
            InputError: for a position below 0, or no whole number.
        """
        check_whole("a stream", position=position)
        return dict(zip(self.mixture.names, self._counts(self._phase(position), position), strict=True))

    def slots(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The sequences at positions `[start, stop)`.

        Returns two int64 arrays of shape `(stop - start,)`: the source of each, by its place in `mixture.sources`, and
        its number within that source, counted from the start of training over all phases and epochs.

        Raises:
            InputError: for a position below 0 or no whole number, or a stop before the start.
        """
        import numpy as np

        check_whole("a stream", start=start, stop=stop)
        if stop < start:
            raise InputError(f"sequences {start} to {stop} of the mixture were asked for: the end is before the start")
        sources, numbers = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64)
        position = start
        while position < stop:
            phase = self._phase(position)
            end = min(stop, self.starts[phase + 1]) if phase + 1 < len(self.starts) else stop
            turns, earlier = self._splits[phase].turns(position - self.starts[phase], end - position)
            places = np.array(self._places[phase])[turns]
            sources[position - start : end - start] = places
            numbers[position - start : end - start] = np.array(self._before[phase], np.int64)[places] + earlier
            position = end
        return sources, numbers

    def find(self, source: int, number: int) -> int:
        """The position at which a source has its turn `number`: the inverse of `slots`.

        Args:
            source: by its place in `mixture.sources`.
            number: within the source, counted from the start of training.

        Raises:
            InputError: for a turn that never comes, since no later phase gives the source a weight.
        """
        check_whole("a stream", source=source, number=number)
        if number < 0:
            raise InputError(f"sequence {number} of a source was asked for: numbers start at 0")
        for phase, start in enumerate(self.starts):
            last = phase + 1 == len(self.starts)
            if not last and self._before[phase + 1][source] <= number:
                continue
            if source not in self._places[phase]:
                break
            weight = Fraction(self.mixture.phases[phase].weights[self.mixture.names[source]])
            more = number - self._before[phase][source]
            stop = start + int((more + 4) / weight) + 4 if last else self.starts[phase + 1]
            # The first position by which the source has had one turn more is the one after the turn.
            while start < stop:
                middle = (start + stop) // 2
                if self._counts(phase, middle)[source] > number:
                    stop = middle
                else:
                    start = middle + 1
            return start - 1
        raise InputError(
            f"source {self.mixture.names[source]!r} has no turn {number:,}: the phases that name it end before"
        )

    def reached(self, position: int) -> Mixture:
        """The mixture as far as the sequences before `position` go, in a form that is the same for all that give them.

        Phases and sources that come later are left out, phases start where their first sequence does, and sources stand
        in the first order, by name, that keeps them as they are within each phase. What is refused (`max_epochs`,
        `expected_tokens`) is not said.
        """
        reached = [phase for phase, start in enumerate(self.starts) if start < max(1, position)]
        names = self.mixture.names
        orders = [[names[place] for place in self._places[phase]] for phase in reached]
        phases = [
            Phase(self.starts[phase] * self.sequence_length, self.mixture.phases[phase].weights) for phase in reached
        ]
        return Mixture(tuple(Source(name, max_epochs=None) for name in _merged(orders)), tuple(phases))

    def restricted(self, position: int) -> list[dict[str, Any]]:
        """What of the mixture the sequences before `position` depend on, as plain values for a key.

        By phase that is reached: its sequences, the weights in the order that decides between equal ones, and the name
        of the way they are split.
        """
        plain: list[dict[str, Any]] = []
        for start, end, phase, places in zip(
            self.starts, (*self.starts[1:], position), self.mixture.phases, self._places, strict=True
        ):
            if start < position:
                names = [self.mixture.names[place] for place in places]
                weights = [[name, phase.weights[name]] for name in names]
                plain.append({"from": start, "to": min(end, position), "weights": weights, "split": Split.NAME})
        return plain


def _merged(orders: Sequence[Sequence[str]]) -> list[str]:
    """The first order by name in which each of `orders` keeps its own."""
    sorter = TopologicalSorter({name: set[str]() for order in orders for name in order})
    for order in orders:
        for before, after in pairwise(order):
            sorter.add(after, before)
    sorter.prepare()
    ready, found = list(sorter.get_ready()), list[str]()
    heapq.heapify(ready)
    while ready:
        name = heapq.heappop(ready)
        found.append(name)
        sorter.done(name)
        for each in sorter.get_ready():
            heapq.heappush(ready, each)
    return found
