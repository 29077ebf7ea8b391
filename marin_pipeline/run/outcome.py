"""How a step came out, and what a person or a program that watches is told on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marin_pipeline.core.graph import Node
from marin_pipeline.store.commit import Commit

Outcome = Literal["cached", "done", "failed", "blocked"]


@dataclass
class Settled:
    """How a step came out."""

    outcome: Outcome
    commit: Commit | None = None
    seconds: float = 0.0
    message: str = ""
    """Why it failed or is blocked."""
    drifted: bool = False
    """The output was made by other code; nothing new is built on it."""
    stopped: bool = False
    """It was at work when the run was stopped."""


@dataclass(frozen=True)
class Notice:
    """Something that a person or a program that watches should know."""

    verb: Literal["cached", "adopt", "wait", "run", "progress", "done", "retry", "fail", "blocked", "diverged", "drift"]
    node: Node
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
