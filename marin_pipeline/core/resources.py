"""What a step needs from the machine that runs it. Never in the key: it says where and how fast, not what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What a step asks for. None of it is in the key."""

    cpus: float = 1.0
    """Cores that the step keeps busy by itself; what it spreads with `ctx.map` is counted by task."""

    memory: int | None = None
    """Bytes of memory at the peak, or None when nobody has measured it."""

    jax: bool = False
    """The step uses jax: it gets a process of its own, which ends with it."""

    retries: int = 2
    """How often an attempt that the machine lost (a killed worker, a preemption) is made again. The step's own errors
    are not retried."""
