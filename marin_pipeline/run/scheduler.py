"""Runs a graph: decides what is next from what has happened, holds the leases, commits what was made.

One loop in one thread. A step is looked at when all of its dependencies are settled; it is leased, looked at again, run
by the backend, and committed by a record that only one attempt can create. Whatever ends this process, what is in the
store stays true.
"""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from marin_pipeline.core.canonical import digest
from marin_pipeline.core.errors import CorruptOutput, MarinError, StoreError
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.run.attempt import Failed, Finished, describe_failure
from marin_pipeline.run.backends.base import Backend, Event
from marin_pipeline.run.chains import enter_chain
from marin_pipeline.run.explain import Reason
from marin_pipeline.run.keeper import LeaseKeeper
from marin_pipeline.run.outcome import Notice, Settled
from marin_pipeline.run.plan import Policy, assess, is_drifted, pieces_of
from marin_pipeline.run.task import InputAt, Task, target_of, write_call
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name, now
from marin_pipeline.store.commit import (
    Commit,
    Failure,
    InputRecord,
    Invalidation,
    Look,
    accept,
    invalidate,
    is_accepted,
    look,
    publish_commit,
    record_failure,
    write_spec,
)
from marin_pipeline.store.lease import Holder, Lease, Waiting
from marin_pipeline.store.objects import ObjectStore

LEASE_LIFE = 30.0
"""Seconds without a beat after which a lease may be taken over."""

STOP_PATIENCE = 120.0
"""Seconds that a step gets to save what it can when the run is asked to stop."""

POLL = 0.2
"""Seconds that the loop waits for something to happen, at most."""


@dataclass
class _Attempt:
    """One try that is going on."""

    node: Node
    task: Task
    lease: Lease
    inputs: Mapping[str, InputRecord]
    started: str
    clock: float
    forced: bool
    tries: int


@dataclass
class _Ready:
    """A step that is to run as soon as there is room and its lease is free."""

    node: Node
    waiting: Waiting
    reasons: tuple[Reason, ...]
    forced: bool = False
    """It reads nothing that earlier attempts left: no parts, no shards."""
    tries: int = 0
    next_try: float = 0.0
    announced: Holder | None = None


class Scheduler:
    """Runs one graph once."""

    def __init__(
        self,
        graph: Graph,
        objects: ObjectStore,
        backend: Backend,
        *,
        looks: Mapping[str, Look],
        policy: Policy,
        reason: str = "",
        fail_fast: bool = False,
        max_parallel: int | None = None,
        lease_life: float = LEASE_LIFE,
        notify: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self._graph = graph
        self._objects = objects
        self._backend = backend
        self._looks = dict(looks)
        self._policy = policy
        self._reason = reason
        self._fail_fast = fail_fast
        self._max_parallel = max_parallel
        self._lease_life = lease_life
        self._notify = notify
        self._dependents = graph.dependents()
        self._unsettled = {key: len(node.depends_on) for key, node in graph.nodes.items()}
        self._to_consider: deque[Node] = deque()
        self._settled: dict[str, Settled] = {}
        self._ready: list[_Ready] = []
        self._attempts: dict[str, _Attempt] = {}
        self._run = uuid.uuid4().hex[:8]
        self._stop_asked = 0
        self._stop_sent = False
        self._stop_until = math.inf
        self.failures: list[tuple[Node, Failed]] = []
        """Failed steps in the order of their failure."""

    @property
    def interrupted(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop_asked > 0

    def interrupt(self) -> None:
        """Ask the run to stop: once, steps save what they can; twice, everything ends at once."""
        self._stop_asked += 1
        self._backend.interrupt()

    def run(self) -> Mapping[str, Settled]:
        """Run everything that is to be run; how each step came out, by key."""
        keeper = LeaseKeeper(self._lease_life)
        try:
            self._to_consider.extend(node for node in self._graph.nodes.values() if not node.depends_on)
            while len(self._settled) < len(self._graph.nodes):
                self._consider_all()
                self._start_ready(keeper)
                if self._stop_asked:
                    self._stop()
                    if not self._attempts or self._stop_asked > 1 or time.monotonic() > self._stop_until:
                        break
                for event in self._backend.events(self._patience()):
                    self._handle(event, keeper)
                for task in [task for task, attempt in self._attempts.items() if attempt.lease.lost]:
                    self._give_up(task, keeper)
        finally:
            self._backend.close()
            for attempt in self._attempts.values():
                attempt.lease.release()
            keeper.close()
        for node in self._graph.nodes.values():
            if node.key not in self._settled:
                self._settled[node.key] = Settled("blocked", message="the run was stopped")
        return {key: self._settled[key] for key in self._graph.nodes}

    def _patience(self) -> float:
        """Seconds to wait for events; none where a step can be started at once."""
        waits = self._attempts or any(ready.next_try > time.monotonic() for ready in self._ready)
        return POLL if waits and not self._to_consider else 0.0

    # Deciding --------------------------------------------------------------------------------------------------------

    def _consider(self, node: Node) -> None:
        """Look at a step whose dependencies are all settled."""
        try:
            self._decide(node, self._looks[node.key], self._policy)
        except MarinError as error:
            self._failed_before(node, error)

    def _decide(self, node: Node, found: Look, policy: Policy) -> None:
        """Settle a step, or see that it runs."""
        if is_drifted(node, found):
            code = node.declaration.code.digest
            if is_accepted(self._objects, node.id, node.key, code):
                found = replace(found, accepted=frozenset({code[:16]}))
        compared = {
            each: commit.compared for each in node.depends_on if (commit := self._settled[each].commit) is not None
        }
        status, reasons = assess(node, found, compared, policy)
        if found.damage and status == "blocked":
            raise CorruptOutput(found.damage)
        if status == "blocked":
            self._block(node, "; ".join(str(reason) for reason in reasons))
        elif status == "drift" or (status == "cached" and is_drifted(node, found)):
            self._settle_drifted(node, found, reasons)
        elif status == "cached":
            self._settle(node, Settled("cached", found.commit))
        else:
            self._wants_to_run(node, found, reasons, policy)

    def _settle_drifted(self, node: Node, found: Look, reasons: tuple[Reason, ...]) -> None:
        if self._policy.code == "accept":
            accept(self._objects, node.id, node.key, node.declaration.code.digest, self._reason, now())
            self._notify(Notice("drift", node, f"accepted: {self._reason or 'no reason given'}"))
            self._settle(node, Settled("cached", found.commit))
            return
        self._notify(Notice("drift", node, "; ".join(str(reason) for reason in reasons)))
        self._settle(node, Settled("cached", found.commit, drifted=True))

    def _wants_to_run(self, node: Node, found: Look, reasons: tuple[Reason, ...], policy: Policy) -> None:
        blocked = self._why_blocked(node)
        if blocked is not None:
            self._block(node, blocked)
            return
        if found.commit is not None or found.damage:
            kind = reasons[0].kind if reasons and reasons[0].kind in ("forced", "stale", "code") else "forced"
            text = self._reason or "; ".join(str(reason) for reason in reasons)
            invalidate(self._objects, node.id, node.key, found.number, Invalidation(kind, text, now()))
        path = layout.lease(node.id, node.key)
        forced = node.key in policy.force
        self._ready.append(_Ready(node, Waiting(self._objects, path, self._lease_life), reasons, forced=forced))

    def _why_blocked(self, node: Node) -> str | None:
        for key in node.depends_on:
            settled = self._settled[key]
            name = self._graph.nodes[key].name
            if settled.outcome in ("failed", "blocked"):
                return f"blocked by {name}"
            if settled.drifted:
                return (
                    f"drift: {name} was made by other code than the present one; "
                    "say --code accept (the change does not matter) or --code rerun"
                )
        if self._policy.selected is not None and node.key not in self._policy.selected:
            return "was left out by --only, and has no output yet; run without --only, or run it first"
        if self._fail_fast and self.failures:
            return f"blocked by --fail-fast after {self.failures[0][0].name}"
        return None

    def _block(self, node: Node, why: str) -> None:
        self._notify(Notice("blocked", node, why))
        self._settle(node, Settled("blocked", message=why))

    def _settle(self, node: Node, settled: Settled) -> None:
        """Fix how a step came out; what waits for it is looked at from the loop, since a chain may be long."""
        self._settled[node.key] = settled
        if settled.outcome == "cached":
            self._notify(Notice("cached", node))
        for key in self._dependents[node.key]:
            self._unsettled[key] -= 1
            if not self._unsettled[key]:
                self._to_consider.append(self._graph.nodes[key])

    def _consider_all(self) -> None:
        while self._to_consider:
            self._consider(self._to_consider.popleft())

    # Running ---------------------------------------------------------------------------------------------------------

    def _start_ready(self, keeper: LeaseKeeper) -> None:
        if self._stop_asked:
            return
        for ready in list(self._ready):
            room = self._backend.room()
            if self._max_parallel is not None:
                room = min(room, self._max_parallel - len(self._attempts))
            if room <= 0:
                return
            if time.monotonic() < ready.next_try:
                continue
            if self._fail_fast and self.failures:
                self._ready.remove(ready)
                self._block(ready.node, f"blocked by --fail-fast after {self.failures[0][0].name}")
                continue
            self._try_start(ready, keeper)

    def _try_start(self, ready: _Ready, keeper: LeaseKeeper) -> None:
        node = ready.node
        try:
            lease = ready.waiting.attempt()
        except MarinError as error:
            self._ready.remove(ready)
            self._failed_before(node, error)
            return
        try:
            self._start(ready, lease, keeper)
        except MarinError as error:
            if lease is not None:
                lease.release()
            if ready in self._ready:
                self._ready.remove(ready)
            self._failed_before(node, error)

    def _start(self, ready: _Ready, lease: Lease | None, keeper: LeaseKeeper) -> None:
        """Look again, now that nobody else can begin; then run the step, or use what somebody else has made."""
        node = ready.node
        found = look(self._objects, node.id, node.key)
        if found.commit is not None or found.damage:
            if lease is not None:
                lease.release()
            self._ready.remove(ready)
            # Somebody made it in the meantime: that is what was asked for, if it is of the same code and inputs.
            self._decide(node, found, replace(self._policy, force=frozenset()))
            return
        if lease is None:
            ready.next_try = time.monotonic() + min(1.0, self._lease_life / 4)
            holder = ready.waiting.holder
            if holder is not None and holder != ready.announced:
                ready.announced = holder
                text = f"held by {holder.user}@{holder.host}, process {holder.pid}; its result will be used"
                self._notify(Notice("wait", node, text))
            return
        self._ready.remove(ready)
        task, inputs = self._task(node, found, ready.forced)
        if ready.forced and not ready.tries:
            self._objects.delete(task.work)
        write_spec(self._objects, node.id, node.key, node.declaration.spec)
        keeper.keep(lease)
        self._attempts[task.task] = _Attempt(
            node, task, lease, inputs, now(), time.monotonic(), ready.forced, ready.tries
        )
        self._notify(Notice("run", node, "; ".join(str(reason) for reason in ready.reasons)))
        self._backend.submit(task, node.declaration.step)

    def _task(self, node: Node, found: Look, forced: bool) -> tuple[Task, Mapping[str, InputRecord]]:
        declaration = node.declaration
        commits = {key: self._settled[key].commit for key in node.depends_on}
        inputs = {
            role: InputRecord(key, commit.output, commit.compared)
            for role, key in node.dependencies.items()
            if (commit := commits[key]) is not None
        }
        read = digest({role: record.output for role, record in inputs.items()})
        attempt = attempt_name()
        fresh = found.invalidation is not None and found.invalidation.reason not in ("stale", "collected")
        task = Task(
            task=attempt,
            kind="step",
            target=target_of(declaration.step.fn),
            prefix=self._objects.url,
            id=node.id,
            key=node.key,
            attempt=attempt,
            call=write_call(declaration.arguments),
            inputs={
                key: InputAt(self._graph.nodes[key].id, commit.number, self._graph.nodes[key].name)
                for key, commit in commits.items()
                if commit is not None
            },
            code=declaration.code.digest,
            files=declaration.code.files,
            number=found.number,
            work=layout.work(node.id, node.key, declaration.code.digest, found.number, read),
            salt=f"{node.key}/{found.number}" + (f"/{self._run}" if forced else "") if fresh or forced else "",
            jax=node.artifact.resources.jax,
            name=node.name,
        )
        return task, inputs

    def _handle(self, event: Event, keeper: LeaseKeeper) -> None:
        attempt = self._attempts.get(event.task)
        if attempt is None:
            return
        if event.finished is not None:
            del self._attempts[event.task]
            keeper.forget(attempt.lease)
            try:
                self._commit(attempt, event.finished)
            except MarinError as error:
                attempt.lease.release()
                self._failed(attempt, describe_failure(error, attempt.task))
        elif event.failed is not None:
            del self._attempts[event.task]
            keeper.forget(attempt.lease)
            attempt.lease.release()
            self._failed(attempt, event.failed)
        else:
            self._notify(Notice("progress", attempt.node, data=event.progress))

    def _commit(self, attempt: _Attempt, finished: Finished) -> None:
        node, declaration = attempt.node, attempt.node.declaration
        if not attempt.lease.renew():
            self._again(attempt, "its lease was taken over")
            return
        exact = declaration.exact
        resolved = hashlib.sha256(declaration.spec)
        resolved.update(
            digest({role: record.compared or record.output for role, record in attempt.inputs.items()}).encode()
        )
        commit = Commit(
            number=attempt.task.number,
            attempt=attempt.task.attempt,
            fence=attempt.lease.fence,
            manifest=finished.manifest,
            output=finished.output,
            compared={"bitwise": finished.output, "logical": finished.logical or finished.output, "tolerance": None}[
                exact
            ],
            inputs=attempt.inputs,
            resolved=resolved.hexdigest(),
            code=declaration.code.digest,
            pieces=pieces_of(node),
            arguments=attempt.task.call,
            fingerprint=finished.fingerprint,
            started=attempt.started,
            finished=now(),
            seconds=round(finished.seconds, 3),
            bytes=finished.bytes,
        )
        # Before the commit, so that no committed state is unknown to its chain; without one the entry says nothing.
        enter_chain(self._objects, declaration)
        winner, ours = publish_commit(self._objects, node.id, node.key, commit)
        attempt.lease.release()
        with suppress(StoreError):  # the step is done; what is left of its parts costs space only
            self._objects.delete(attempt.task.work)
        if not ours and winner.output != commit.output:
            self._notify(Notice("diverged", node, "another run committed other bytes for this key; its output is used"))
        seconds = time.monotonic() - attempt.clock
        self._notify(
            Notice("done", node, data={"seconds": seconds, "bytes": winner.bytes, "attempts": attempt.tries + 1})
        )
        self._settle(node, Settled("done" if ours else "cached", winner, seconds))

    def _failed(self, attempt: _Attempt, failed: Failed) -> None:
        node = attempt.node
        if failed.full:
            self._clear(attempt)
        if failed.kind == "stopped" or (self._stop_asked and failed.again):
            self._settle(node, Settled("blocked", message=failed.message))
            return
        if failed.again and attempt.tries < node.artifact.resources.retries:
            self._again(attempt, failed.message)
            return
        tries = f" (attempt {attempt.tries + 1})" if attempt.tries else ""
        shown = replace(failed, message=failed.message + tries)
        failure = Failure(attempt.task.attempt, failed.kind, shown.message, failed.traceback, now())
        try:
            record_failure(self._objects, node.id, node.key, failure)
        except MarinError as error:
            # The failure itself is what the reader needs; a store that cannot take the record says so beside it.
            shown = replace(shown, message=f"{shown.message} (and the failure could not be recorded: {error})")
        log = f"{self._objects.url}/{layout.attempt_log(node.id, node.key, attempt.task.attempt)}"
        self._fail(node, shown, time.monotonic() - attempt.clock, log)

    def _failed_before(self, node: Node, error: MarinError) -> None:
        """The store did not let a step begin; the others go on."""
        kind = "infrastructure" if isinstance(error, StoreError) else "user"
        self._fail(node, Failed(kind, str(error), ""), 0.0, None)

    def _fail(self, node: Node, failed: Failed, seconds: float, log: str | None) -> None:
        self.failures.append((node, failed))
        data = {"seconds": seconds, "kind": failed.kind, "traceback": failed.traceback, "log": log}
        self._notify(Notice("fail", node, failed.message, data=data))
        self._settle(node, Settled("failed", seconds=seconds, message=failed.message))

    def _clear(self, attempt: _Attempt) -> None:
        """Remove what an attempt wrote on a disk that is full, so that it does not stay full; nobody reads it."""
        with suppress(StoreError):  # the full disk is what the reader needs to know of
            self._objects.delete(layout.attempt(attempt.node.id, attempt.node.key, attempt.task.attempt))

    def _again(self, attempt: _Attempt, why: str) -> None:
        """Put a step back that the machine lost, not the step's own fault."""
        tries = attempt.tries + 1
        self._notify(Notice("retry", attempt.node, f"{why}; trying again"))
        path = layout.lease(attempt.node.id, attempt.node.key)
        self._ready.append(
            _Ready(attempt.node, Waiting(self._objects, path, self._lease_life), (), attempt.forced, tries)
        )

    def _give_up(self, task: str, keeper: LeaseKeeper) -> None:
        """End an attempt whose lease somebody else has taken; it cannot commit."""
        attempt = self._attempts.pop(task)
        self._backend.cancel(task)
        keeper.forget(attempt.lease)
        self._again(attempt, "its lease was taken over")

    def _stop(self) -> None:
        if not self._stop_sent:
            self._stop_sent = True
            self._stop_until = time.monotonic() + STOP_PATIENCE
            self._ready.clear()
            self._backend.stop()
