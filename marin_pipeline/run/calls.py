"""Calls to the store that the loop does not wait for, so that a store which answers slowly holds up only the step that
asks. Their results come back in the loop's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Calls:
    """Calls that are going on, and what follows each of them."""

    def __init__(self, parallel: int) -> None:
        """Args:
        parallel: calls at once; with one they are made at once, in the caller's thread.
        """
        self._pool = ThreadPoolExecutor(parallel) if parallel > 1 else None
        self._going_on: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []

    @property
    def slow(self) -> bool:
        """Whether calls go on while the loop does."""
        return self._pool is not None

    def __len__(self) -> int:
        """How many have not been followed up."""
        return len(self._going_on)

    def submit(self, call: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Make a call; `then` gets it when it has ended."""
        future = self._pool.submit(call) if self._pool else _ended(call)
        self._going_on.append((future, then))

    def follow_up(self) -> None:
        """Do what follows the calls that have ended."""
        ended = [each for each in self._going_on if each[0].done()]
        if ended:
            self._going_on = [each for each in self._going_on if each not in ended]
        for future, then in ended:
            then(future)

    def close(self) -> None:
        """Wait for the calls that are going on; nothing follows them."""
        if self._pool:
            self._pool.shutdown()
        self._going_on.clear()


def _ended(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
        future.set_exception(error)
    return future
