"""The steps of a record that read themselves what no key fixes, each with what rests on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marin_pipeline.lab.bundle import BundledStep


@dataclass(frozen=True)
class UnpinnedSource:
    """A step that reads what no key fixes."""

    step: BundledStep
    names: Sequence[str]
    """Of what it reads so."""
    rests: frozenset[str]
    """Keys of the other steps that are unpinned because of it."""


def unpinned_sources(steps: Sequence[BundledStep]) -> Iterator[UnpinnedSource]:
    """The sources among steps in topological order."""
    unpinned = {step.key: frozenset(step.commit.unpinned) for step in steps}
    above: dict[str, frozenset[str]] = {}
    """By key: the sources that a step rests on."""
    sources: dict[str, tuple[BundledStep, list[str]]] = {}
    for step in steps:
        needed = step.depends_on
        inherited = frozenset[str]().union(*(unpinned.get(key, frozenset()) for key in needed))
        own = [name for name in step.commit.unpinned if name not in inherited]
        above[step.key] = frozenset[str]().union(
            *(above.get(key, frozenset()) | ({key} & sources.keys()) for key in needed)
        )
        if own:
            sources[step.key] = step, own
    for key, (step, names) in sources.items():
        yield UnpinnedSource(step, names, frozenset(each for each, found in above.items() if key in found))
