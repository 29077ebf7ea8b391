"""Limits on what runs at once, besides the room that the machine has."""

from __future__ import annotations

from collections.abc import Iterable

from marin_pipeline.core.resources import Resources


def is_held_back(wanted: Resources, running: Iterable[Resources]) -> bool:
    """Whether a step must wait because as many of its group as may are running. Others may start meanwhile."""
    if wanted.at_most is None:
        return False
    return sum(each.group == wanted.group for each in running) >= wanted.at_most
