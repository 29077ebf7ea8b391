"""Takes outputs from other stores into a run's own: under the lease of the key, checked, committed, several at once.

What goes wrong with one is told, and the step is decided on anew without it: the next store is asked, or it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from marin_pipeline.core.errors import MarinError, Stopped, StoreError
from marin_pipeline.core.graph import Node
from marin_pipeline.run.calls import Calls
from marin_pipeline.run.chains import enter_chain
from marin_pipeline.run.keeper import LeaseKeeper
from marin_pipeline.run.outcome import Notice, Settled
from marin_pipeline.run.plan import is_drifted
from marin_pipeline.run.substitutes import tell
from marin_pipeline.run.words import bytes_text
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now
from marin_pipeline.store.commit import Commit, Elsewhere, Look, accept, look_again
from marin_pipeline.store.copying import copy_output
from marin_pipeline.store.lease import Holder, Waiting
from marin_pipeline.store.objects import WAITS, ObjectStore
from marin_pipeline.store.read_only import Unreachable
from marin_pipeline.store.resolved import enter, read_entry

AT_ONCE = 4
"""Outputs that are taken at the same time; each has several objects on their way."""

TOLD = 0.5
"""Seconds between two notices of how far an output is."""

MEGABYTE = 1_000_000


@dataclass(eq=False)
class Fetch:
    """One output on its way."""

    node: Node
    look: Look
    taken: Elsewhere
    waiting: Waiting
    next_try: float = 0.0
    """By the scheduler's clock."""
    announced: Holder | None = None
    began: float = 0.0
    """By the scheduler's clock; 0 before the lease is there."""
    done: int = 0
    """Bytes that are here."""
    told: int = -1
    """Of these, as they were shown; -1 before it was told that they come."""


class Fetching:
    """The outputs that one run takes from other stores."""

    def __init__(
        self,
        objects: ObjectStore,
        keeper: LeaseKeeper,
        *,
        lease_life: float,
        reason: str,
        notify: Callable[[Notice], None],
        clock: Callable[[], float],
        settle: Callable[[Node, Settled], None],
        decide: Callable[[Node, Look], None],
    ) -> None:
        """Args:
        reason: recorded with an output whose other code is accepted.
        settle: how a step came out.
        decide: called where it came out otherwise, with what is known of the key now.
        """
        self._objects = objects
        self._keeper = keeper
        self._life = lease_life
        self._reason = reason
        self._notify = notify
        self._clock = clock
        self._settle = settle
        self._decide = decide
        self._calls: Calls | None = None
        self._keys: set[str] = set()
        self._due: list[Fetch] = []
        self._going: list[Fetch] = []
        self._unreachable: set[str] = set()
        self._known: set[str] = set()
        self._stopped = threading.Event()
        self._last_told = 0.0

    def __len__(self) -> int:
        """How many outputs are to be taken, or on their way."""
        return len(self._due) + len(self._going)

    @property
    def going_on(self) -> bool:
        """Whether any is on its way."""
        return bool(self._going)

    def has(self, key: str) -> bool:
        """Whether a step's output is to be taken, or on its way."""
        return key in self._keys

    def add(self, node: Node, look: Look, taken: Elsewhere) -> None:
        """Take an output as soon as its lease is free."""
        waiting = Waiting(self._objects, layout.lease(node.id, node.key), self._life, self._clock)
        fetch = Fetch(node, look, taken, waiting)
        self._keys.add(node.key)
        if taken.objects.url in self._unreachable:
            self._without(fetch)
        else:
            self._due.append(fetch)

    def step(self) -> None:
        """Begin what is due, and follow up what has ended."""
        if not len(self):
            return
        if self._calls is None:
            self._calls = Calls(AT_ONCE)
        for fetch in list(self._due):
            if self._stopped.is_set() or len(self._going) >= AT_ONCE:
                break
            if self._clock() >= fetch.next_try:
                self._due.remove(fetch)
                self._going.append(fetch)
                self._calls.submit(partial(self._fetch, fetch), partial(self._ended, fetch))
        self._tell()
        self._calls.follow_up()

    def stop(self) -> None:
        """End what is on its way; what is here of it is used by the next run."""
        self._stopped.set()
        self._due.clear()

    def close(self) -> None:
        """Wait for what is on its way, which ends soon."""
        self.stop()
        if self._calls is not None:
            self._calls.close()

    # In a thread of its own -------------------------------------------------------------------------------------------

    def _fetch(self, fetch: Fetch) -> tuple[Look, Commit | None]:
        """What the store says of the key under its lease, and what was committed; None where somebody else was."""
        node, lease = fetch.node, fetch.waiting.attempt()
        try:
            found = look_again(self._objects, node.id, node.key, fetch.look)
            if lease is None or found.commit is not None or found.damage or found.fallen:
                return found, None
            self._keeper.keep(lease)
            fetch.began = self._clock()
            return found, self._copied(fetch, found)
        finally:
            if lease is not None:
                self._keeper.forget(lease)
                lease.release()

    def _copied(self, fetch: Fetch, found: Look) -> Commit:
        node, taken = fetch.node, fetch.taken

        def report(size: int) -> None:
            if self._stopped.is_set():
                raise Stopped("the run was asked to stop")
            fetch.done += size

        if not node.loaded:
            enter_chain(self._objects, node.declaration)
            code = node.declaration.code.digest
            if code[:16] in taken.look.accepted or is_drifted(node, taken.look):
                why = self._reason or f"accepted in {taken}"
                accept(self._objects, node.id, node.key, found.number, code, why, now())
        waits = iter(WAITS)
        while True:
            fetch.done = 0
            try:
                source, target = taken.objects, self._objects
                commit = copy_output(source, target, node.id, node.key, taken.commit, report=report, known=self._known)
                break
            except Unreachable:
                wait = next(waits, None)
                if wait is None or self._stopped.wait(wait):
                    raise
        if not node.loaded:
            with suppress(StoreError):  # the step is done; that others find its result saves work only
                entry = read_entry(self._objects, commit.resolved)
                enter(self._objects, commit.resolved, node.id, node.key, commit.number, entry)
        return commit

    # In the loop's thread ---------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self._clock() < self._last_told + TOLD:
            return
        self._last_told = self._clock()
        for fetch in self._going:
            if fetch.began and fetch.told < 0:
                fetch.told = 0
                self._notify(Notice("fetch", fetch.node, f"from {fetch.taken}, {bytes_text(fetch.taken.commit.bytes)}"))
            if fetch.done != fetch.told and fetch.told >= 0:
                fetch.told = fetch.done
                total = max(fetch.taken.commit.bytes // MEGABYTE, 1)
                data = {"done": fetch.done // MEGABYTE, "total": total, "unit": "MB", "figures": {}}
                self._notify(Notice("progress", fetch.node, data=data))

    def _ended(self, fetch: Fetch, ended: Future[tuple[Look, Commit | None]]) -> None:
        self._going.remove(fetch)
        self._keys.discard(fetch.node.key)
        node, taken = fetch.node, fetch.taken
        try:
            found, commit = ended.result()
        except Stopped:
            return
        except MarinError as error:
            self._failed(fetch, error)
            return
        if commit is not None:
            seconds = self._clock() - fetch.began
            data = {"seconds": seconds, "bytes": commit.bytes, "copied_from": commit.copied_from}
            self._notify(Notice("fetched", node, f"from {taken}, {bytes_text(commit.bytes)}", data))
            self._settle(node, Settled("cached", commit, fetched=True))
        elif found.commit is not None or found.damage or found.fallen:
            self._decide(node, found)
        else:
            self._wait(fetch)

    def _wait(self, fetch: Fetch) -> None:
        """Somebody else is at work on it: what comes of that is used."""
        fetch.next_try = self._clock() + min(1.0, self._life / 4)
        holder = fetch.waiting.holder
        if holder is not None and holder != fetch.announced:
            fetch.announced = holder
            text = f"held by {holder.user}@{holder.host}, process {holder.pid}; its result will be used"
            self._notify(Notice("wait", fetch.node, text))
        self._keys.add(fetch.node.key)
        self._due.append(fetch)

    def _failed(self, fetch: Fetch, error: MarinError) -> None:
        """The step goes on without this store."""
        url = fetch.taken.objects.url
        if isinstance(error, Unreachable):
            if url not in self._unreachable:
                tell(f"{error}; nothing more is taken from there in this run")
            self._unreachable.add(url)
        else:
            self._notify(Notice("retry", fetch.node, f"not taken from {url}: {error}"))
        self._without(fetch)

    def _without(self, fetch: Fetch) -> None:
        """Decide on a step without the store that it was to come from."""
        self._keys.discard(fetch.node.key)
        url = fetch.taken.objects.url
        rest = tuple(each for each in fetch.look.elsewhere if each.objects.url not in {url, *self._unreachable})
        self._decide(fetch.node, replace(fetch.look, elsewhere=rest))
