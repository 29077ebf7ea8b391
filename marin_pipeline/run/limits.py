"""Limits on what runs at once, besides the room that the machine has, and on how often something is tried."""

from __future__ import annotations

from collections.abc import Iterable

from marin_pipeline.core.resources import Resources

TAKEN_OVER = 5
"""How often a step is begun again whose lease another run has taken over."""

PATIENCE = (1, 2, 5, 15, 60, 60, 60)
"""Seconds between the tries to commit what was made, while the store does not answer."""


def is_held_back(wanted: Resources, running: Iterable[Resources]) -> bool:
    """Whether a step must wait because as many of its group as may are running. Others may start meanwhile."""
    if wanted.at_most is None:
        return False
    return sum(each.group == wanted.group for each in running) >= wanted.at_most
