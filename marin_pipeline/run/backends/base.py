"""What the scheduler asks of a backend: take a task, say what happened, stop.

A backend runs tasks and knows nothing of graphs, leases or commits. `inline` runs them in this process, `local` in
worker processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from marin_pipeline.core.step import Step
from marin_pipeline.run.attempt import Failed, Finished
from marin_pipeline.run.task import Task


@dataclass(frozen=True)
class Event:
    """Something that happened to a task."""

    task: str
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    """done, total, unit, figures; empty when it is another kind of event."""
    finished: Finished | None = None
    failed: Failed | None = None


def stopped(task: Task) -> Event:
    """The end of a task that did not save anything before it was stopped."""
    message = "stopped; run the same command again to go on"
    return Event(task.task, failed=Failed("stopped", message, ""))


class Backend(Protocol):
    """Where tasks run."""

    name: str

    def room(self) -> int:
        """How many more tasks would start at once."""
        ...

    def submit(self, task: Task, step: Step[Any, Any]) -> None:
        """Take a task. Its end comes as an event with `finished` or `failed`."""
        ...

    def events(self, timeout: float) -> list[Event]:
        """What has happened, at the latest after `timeout` seconds."""
        ...

    def interrupt(self) -> None:
        """The run was asked to stop. Called inside a signal handler, at any point of the main thread: it may raise
        `KeyboardInterrupt` into a step that runs there, and else only takes note; `stop` follows from the loop.
        """
        ...

    def stop(self) -> None:
        """Ask the running tasks to save what they can and end; end those that do not listen."""
        ...

    def cancel(self, task: str) -> None:
        """End one task at once; it gives no more events."""
        ...

    def close(self) -> None:
        """End everything that is still going on, and wait until it is gone."""
        ...
