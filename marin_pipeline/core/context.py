"""What a running step gets: where to write, how to spread work, how to say how far it is.

These are the interfaces that step functions are written against; `run/context.py` implements them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, Protocol, TextIO, TypeVar, overload, runtime_checkable

from marin_pipeline.core.artifact import File, Output
from marin_pipeline.core.errors import Stopped

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ShardContext(Protocol):
    """What a function that `ctx.map` runs gets first."""

    out: Path
    """Folder for the shard's files."""

    @overload
    def stream(self, name: str, mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...
    @overload
    def stream(self, name: str, mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...
    def stream(self, name: str, mode: Literal["wb", "w"] = "wb") -> AbstractContextManager[BinaryIO | TextIO]:
        """Write a large file straight to the store, as `ctx.stream` does."""
        ...

    def log(self, message: str) -> None:
        """Write a line to the log of the step."""
        ...


class ShardResult(Protocol, Generic[R_co]):
    """What one call under `ctx.map` made."""

    @property
    def value(self) -> R_co:
        """What the function returned."""
        ...

    @property
    def files(self) -> list[str]:
        """Relative paths of the files that it wrote, sorted."""
        ...

    def __truediv__(self, path: str) -> File:
        """One of its files."""
        ...


class Work(Protocol):
    """Finished parts of a resumable step. They outlive a killed attempt and are no part of the output."""

    def items(self) -> list[str]:
        """Names of the finished parts, sorted."""
        ...

    def writing(self, item: str) -> AbstractContextManager[Path]:
        """A folder to write a part in; it is finished when the block ends without an error, and never changes after."""
        ...

    def open(self, item: str) -> Path:
        """The folder of a finished part, verified against its digests.

        Raises:
            CorruptOutput: when a file is missing or its bytes are not those that were written.
        """
        ...

    def discard(self, item: str) -> None:
        """Forget a part and free its space."""
        ...


@runtime_checkable
class Context(Protocol):
    """What a step function gets as its first argument."""

    out: Path
    """Folder for the output. Every file below it is hashed and kept; `value.json` is for the returned value."""

    @property
    def records(self) -> Path:
        """Folder for what may differ from run to run (timings, logs): kept with the attempt, not in the output's
        digest.
        """
        ...

    @overload
    def stream(self, name: str, mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...
    @overload
    def stream(self, name: str, mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...
    def stream(self, name: str, mode: Literal["wb", "w"] = "wb") -> AbstractContextManager[BinaryIO | TextIO]:
        """Write a large file straight to the store: `with ctx.stream("tokens.bin") as file: ...`. It is hashed on the
        way and needs no room on this machine's disk. It can only be written from beginning to end, and is a file of
        the output, like one of `ctx.out`, once the block has ended without an error. The step itself cannot read it
        back: in a bucket it does not lie in `ctx.out`. A block that is entered and never left fails the attempt.
        """
        ...

    @property
    def work(self) -> Work:
        """Finished parts of a resumable step."""
        ...

    def map(self, fn: Callable[..., R], items: Iterable[Any], **common: Any) -> Sequence[ShardResult[R]]:
        """Run `fn(shard, item, **common)` for each item, in parallel; the results are in the items' order.

        `fn` is defined at module level and annotated. A result is kept under the digest of `fn`'s code, the item and
        the common arguments (files by their content), so one added item computes one result.
        """
        ...

    def adopt(self, result: ShardResult[Any], path: str, as_path: str | None = None) -> None:
        """Make a file of a shard a file of the output, under `as_path`, without copying it."""
        ...

    def earlier_state(self) -> tuple[int, Output] | None:
        """The nearest committed earlier state of the same chain: its absolute step and its output."""
        ...

    def progress(self, done: int, total: int, unit: str = "items", **figures: float) -> None:
        """Say how far the step is. Cheap: may be called often."""
        ...

    def doing(self, text: str) -> None:
        """Say in a line what the step is at, such as what it waits for: it is shown beside the progress until that goes
        on.
        """
        ...

    def log(self, message: str) -> None:
        """Write a line to the step's log."""
        ...

    @property
    def stopping(self) -> bool:
        """True when the run was asked to stop: save what can be saved, then `raise ctx.stop()`."""
        ...

    def stop(self) -> Stopped:
        """The error to raise when the step has stopped as asked."""
        ...
