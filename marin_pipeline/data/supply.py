"""Whether the sources of a mixture hold what a run reads of them.

Asked of the tokens that sources are expected to hold, when a run is planned; of those that they do hold, before it
starts; and of the order that a loader is made for. All that is wrong is told at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Source
from marin_pipeline.data.stream import Stream

if TYPE_CHECKING:
    from marin_pipeline.data.order import TrainingOrder

_SHOWN = 10
"""Problems that an error tells of; of more it gives the number."""


@dataclass(frozen=True)
class Held:
    """What a source holds: of a packing plan its `tokens` and `rows`, of tokens that are cut `Held.cut`."""

    tokens: int
    """End-of-document tokens included."""
    sequences: int
    """Training sequences that they make."""

    @classmethod
    def cut(cls, tokens: int, sequence_length: int) -> Held:
        """Of tokens that are read one document after another and cut every `sequence_length` of them."""
        return cls(tokens, max(0, tokens - 1) // sequence_length)  # the last token is a target only


def check_expected(stream: Stream, *, steps: int, batch_size: int, packed: Collection[str] = ()) -> None:
    """Refuse a run for which a source is too small by its own `expected_tokens`; sources without are not judged.

    Args:
        steps: updates in the whole run.
        batch_size: sequences an update.
        packed: names of the sources whose documents are packed. They are not judged either: padding makes more rows of
            the same tokens, and how many is known from the plan alone.

    Raises:
        InputError: naming each source, what it is expected to hold, what the run reads, and what to change.
    """
    expected = {source.name: source.expected_tokens for source in stream.mixture.sources if source.name not in packed}
    held = {name: Held.cut(count, stream.sequence_length) for name, count in expected.items() if count is not None}
    _refuse(_too_small(stream, held, steps, batch_size, "is expected to hold"))


def check_held(stream: Stream, held: Mapping[str, Held], *, steps: int, batch_size: int) -> None:
    """Refuse a run for which a source is missing, empty or too small.

    Args:
        held: what each source holds, by its name.
        steps: updates in the whole run.
        batch_size: sequences an update.

    Raises:
        InputError: naming each source, what it holds, what the run reads, and what to change.
    """
    names = stream.mixture.names
    problems = [
        f"source {name!r} of the mixture is missing: there are no tokens of that name; give them, or leave it out"
        for name in names
        if name not in held
    ]
    problems += [
        f"the tokens {name!r} are given, and no source of the mixture has that name; name them there, or leave them out"
        for name in held
        if name not in names
    ]
    _refuse(problems + _too_small(stream, held, steps, batch_size, "holds"))


def check_passes(order: TrainingOrder, stop: int) -> None:
    """Refuse to read an order further than the `max_epochs` of its sources allow.

    Args:
        stop: the step after the last.

    Raises:
        InputError: naming each source, what it holds, what the steps read, and what to change.
    """
    problems: list[str] = []
    reads = order.stream.counts(order.index(stop))
    for source, sequences in zip(order.stream.mixture.sources, order.sequences, strict=True):
        if _is_read_too_often(source, sequences, reads[source.name]):
            steps = range(order.first_step, stop)
            longest = _longest(order.stream, source, sequences, steps, order.index)
            problems.append(
                f"source {source.name!r} of the mixture holds "
                + _too_often(order.stream, source, sequences, reads[source.name], f"steps before {stop:,}", longest)
            )
    _refuse(problems)


def _refuse(problems: list[str]) -> None:
    if problems:
        more = [f"and {len(problems) - _SHOWN} more like these"] if len(problems) > _SHOWN else []
        raise InputError("\n".join(problems[:_SHOWN] + more))


def _too_small(stream: Stream, held: Mapping[str, Held], steps: int, batch_size: int, holds: str) -> list[str]:
    reads = stream.counts(steps * batch_size)
    problems: list[str] = []
    for source in stream.mixture.sources:
        if source.name not in held:
            continue
        tokens, sequences = held[source.name].tokens, held[source.name].sequences
        read = reads[source.name]
        of = " of the mixture" if len(stream.mixture.sources) > 1 else ""
        told = f"source {source.name!r}{of} {holds} {tokens:,} tokens"
        if sequences == 0:
            leave = "leave it out" if len(stream.mixture.sources) > 1 else "give more text"
            remedy = f"use a shorter sequence length, or {leave}" if tokens else leave
            problems.append(f"{told}, less than one sequence of {stream.sequence_length:,} and a target; {remedy}")
        elif _is_read_too_often(source, sequences, read):
            longest = _longest(stream, source, sequences, range(steps), lambda step: step * batch_size)
            what = f"{steps:,} steps of {batch_size:,} sequences"
            problems.append(f"{told}, {_too_often(stream, source, sequences, read, what, longest)}")
    return problems


def _is_read_too_often(source: Source, sequences: int, read: int) -> bool:
    return source.max_epochs is not None and read > sequences * source.max_epochs


def _too_often(stream: Stream, source: Source, sequences: int, read: int, what: str, longest: int) -> str:
    """What is wrong with a source of which `what` reads too many sequences, and what to change.

    Args:
        sequences: that it holds.
        longest: most steps that do not.
    """
    shorter = f"train for at most {longest:,} steps" if longest else "use a smaller batch size"
    weight = "lower its weight, " if len(stream.mixture.sources) > 1 else ""
    return (
        f"{sequences:,} sequences of {stream.sequence_length:,}; {what} read {read:,} from it, "
        f"{read / sequences:.4g} epochs, and its max_epochs is {source.max_epochs}; {weight}raise "
        f"max_epochs to {-(-read // sequences)}, or {shorter}"
    )


def _longest(stream: Stream, source: Source, sequences: int, steps: range, position: Callable[[int], int]) -> int:
    """The last of `steps` before which a source of so many sequences is not read too often.

    Args:
        position: sequences before a step.
    """
    most = sequences * (source.max_epochs or 0)
    found = bisect_right(steps, most, key=lambda step: stream.counts(position(step))[source.name])
    return max(0, steps.start + found - 1)
