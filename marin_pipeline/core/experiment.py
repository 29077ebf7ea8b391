"""An experiment: what is asked, what is expected, what is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.grid import Grid


@dataclass(frozen=True)
class Experiment:
    """What `main` runs: artifacts, with the question that they answer. Nothing but the artifacts is in a key."""

    title: str
    """One line."""
    targets: Sequence[Artifact[Any] | Grid[Any]]
    """What to make, with all that it needs; a grid stands for its cells."""
    hypothesis: str = ""
    """What the experiment is to find out, in a sentence or two."""
    predictions: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Expected ranges of figures by name, such as `{"held-out/bits per byte": (1.4, 1.8)}`."""
    report: Callable[[Mapping[str, Artifact[Any]]], None] | None = None
    """Prints the results when all is done; gets the artifacts by name, with their outputs. Must be quick: it also
    follows a run in which nothing had to be done."""
