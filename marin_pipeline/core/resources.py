"""What a step needs from the machine that runs it. Never in the key: it says where and how fast, not what."""

from __future__ import annotations

from dataclasses import dataclass

from marin_pipeline.core.errors import DeclarationError


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
    """How often an attempt is made again that the machine lost: a killed worker, a store that does not answer."""

    preemptions: int = 100
    """How often an attempt is made again that ended because its machine was taken away. Counted apart."""

    user_retries: int = 0
    """How often an attempt is made again that ended with an error of the step's own, or for want of memory."""

    group: str = ""
    """Steps that share the limit `at_most`; empty for none. A grid names its own."""

    at_most: int | None = None
    """How many steps of the group run at once within a run, or None for as many as there is room for."""

    def __post_init__(self) -> None:
        if self.at_most is not None and (type(self.at_most) is not int or self.at_most < 1 or not self.group):
            raise DeclarationError(
                f"Resources(group={self.group!r}, at_most={self.at_most!r}): a limit is an int from 1 on, for the "
                "steps of a group; name both"
            )

    def limit(self, kind: str) -> int:
        """How often an attempt that failed with this class of failure is made again."""
        limits = {"infrastructure": self.retries, "preempted": self.preemptions}
        return limits.get(kind, self.user_retries)
