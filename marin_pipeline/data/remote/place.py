"""What all places that files are read from have in common.

A place is opened at an offset, and says by a *state* which bytes it gives. It goes on with earlier bytes only where it
knows that they are of the same state; else it begins anew at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

BLOCK = 2**20
"""Most bytes of a block."""


LEAST = 1000.0
"""Bytes a second over a minute, below which a connection counts as broken."""


class Broken(Exception):
    """A try that failed and may go better the next time."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait
        """Seconds after which the server asks to be asked again."""


class Mistaken(Broken):
    """The place gave something else than was asked: what is there already is not gone on with."""


@dataclass(frozen=True)
class State:
    """Which bytes a place holds at a time."""

    validator: str
    """Equal for equal bytes only: a strong ETag, a generation, a commit. Empty: nothing tells whether they changed."""
    size: int | None
    """Bytes of the whole, where the place says so."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """For the records."""

    def is_same(self, other: State) -> bool:
        """Whether two states have the same bytes; one of them may not know how many."""
        return self.validator == other.validator and (None in (self.size, other.size) or self.size == other.size)


class Reply(Protocol):
    """An answer that is being read."""

    state: State
    start: int
    """Where its bytes begin: at the offset that was asked for, or at 0."""

    def blocks(self) -> Iterator[bytes]:
        """The bytes to the end.

        Raises:
            Broken: when they end too early.
        """
        ...

    def interrupt(self) -> None:
        """End what another thread reads, where that is possible; else its stall ends it."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Place(Protocol):
    """One file elsewhere."""

    shown: str
    """Its address for people, without credentials: two places may be shown alike."""
    identity: str
    """What tells which bytes are meant: whole address, server, name of the token. It is hashed, and never shown."""
    digests: Mapping[str, str]
    """What the place itself says of the bytes: hex by `sha256`, `md5`, `crc32c` or `git` (the sha1 of a git blob)."""
    size: int | None
    """Bytes, where they are known before it is opened."""
    fixed: str
    """Set where the address alone fixes the bytes: then every state is the same."""

    def open(self, start: int, state: State | None) -> Reply:
        """Read from `start`, if the place still has the bytes of `state`; else from 0.

        Raises:
            Broken: when the next try may go better.
            InputError: when it will not; says what to do.
        """
        ...
