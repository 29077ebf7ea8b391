"""Runs a graph: decides what is next from what has happened, holds the leases, commits what was made.

One loop in one thread. A step is looked at when all of its dependencies are settled; it is claimed, run by the backend,
and published (see `protocol`). The loop does not wait for the store where that answers slowly.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

from marin_pipeline.core.errors import CorruptOutput, MarinError, StoreError
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.core.secrets import redacted
from marin_pipeline.run.attempt import Failed, describe_failure
from marin_pipeline.run.backends.base import Backend, Event
from marin_pipeline.run.calls import Calls
from marin_pipeline.run.code_lock import with_accepted
from marin_pipeline.run.disclosure import remove_leftovers
from marin_pipeline.run.explain import Reason
from marin_pipeline.run.fetching import Fetching
from marin_pipeline.run.frontier import Frontier
from marin_pipeline.run.keeper import LeaseKeeper
from marin_pipeline.run.limits import PATIENCE, TAKEN_OVER, is_held_back
from marin_pipeline.run.origin import RunOrigin
from marin_pipeline.run.outcome import Notice, Settled, why_blocked
from marin_pipeline.run.pending import Attempt, Ready
from marin_pipeline.run.plan import Policy, assess, is_drifted, takeable
from marin_pipeline.run.protocol import Claim, LeaseLost, publish
from marin_pipeline.run.transfer import Budget, Transfers
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now
from marin_pipeline.store.commit import Commit, Failure, Look, accept, record_failure
from marin_pipeline.store.lease import LIFE, Lease, Waiting
from marin_pipeline.store.objects import NoAnswer, ObjectStore

STOP_PATIENCE = 120.0
"""Seconds that a step gets to save what it can when the run is asked to stop."""

POLL = 0.2
"""Seconds that the loop waits for something to happen, at most."""

POLL_CALLS = 0.01
"""The same while calls to a slow store are going on."""

WAIT = 1.0
"""Seconds between two looks at a lease that somebody else holds, at most."""


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
        lease_life: float = LIFE,
        notify: Callable[[Notice], None] = lambda notice: None,
        clock: Callable[[], float] = time.monotonic,
        keeper: LeaseKeeper | None = None,
        origin: RunOrigin | None = None,
        left: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        """Args:
        clock: seconds by which it waits, and by which other runs' leases run out.
        keeper: renews its leases; by default in a thread of its own.
        origin: what the commits name as where they come from; without one they name none.
        budget: what steps may read from afar; without one all they ask for.
        left: keys whose outputs stay in other stores as long as nothing here needs them.
        """
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
        self._clock = clock
        self._ready: list[Ready] = []
        self._claiming: list[Ready] = []
        self._attempts: dict[str, Attempt] = {}
        self._publishing: list[tuple[float, Attempt]] = []
        self._calls = Calls(objects.parallel)
        self._keeper = keeper or LeaseKeeper(objects, lease_life)
        self._origin = origin
        self._left = set(left)
        self._budget = budget or Budget(Transfers())
        self._fetching = Fetching(
            objects,
            self._keeper,
            lease_life=lease_life,
            reason=reason,
            notify=notify,
            clock=clock,
            settle=partial(self._settle, told=True),
            decide=self._decide_anew,
        )
        self._frontier = Frontier(graph, self._fetching.has)
        self._settled: Mapping[str, Settled] = self._frontier.settled
        self._run = os.urandom(4).hex()
        self._stop_asked = 0
        self._stop_sent = False
        self._stop_until = math.inf
        self.failures: list[tuple[Node, Failed]] = []
        """Failed steps in the order of their failure."""

    @property
    def interrupted(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop_asked > 0

    @property
    def at_work(self) -> list[str]:
        """Names of the steps that are running now."""
        return [attempt.node.name for attempt in list(self._attempts.values())]

    def interrupt(self) -> None:
        """Ask the run to stop: once, steps save what they can; twice, everything ends at once."""
        self._stop_asked += 1
        self._backend.interrupt()

    def run(self) -> Mapping[str, Settled]:
        """Run everything that is to be run; how each step came out, by key."""
        try:
            while not self._frontier.complete:
                for node in self._frontier.take():
                    self._consider(node)
                self._start_ready()
                self._fetching.step()
                self._calls.follow_up()
                self._publish_due()
                self._calls.follow_up()
                if self._stop_asked:
                    self._stop()
                    waits = self._attempts or len(self._calls) or self._fetching.going_on
                    if not waits or self._stop_asked > 1 or self._clock() > self._stop_until:
                        break
                for event in self._backend.events(self._patience()):
                    self._handle(event)
                for attempt in [each for each in self._attempts.values() if each.lease.lost and not each.commit]:
                    self._give_up(attempt)
        finally:
            self._backend.close()
            self._fetching.close()
            self._calls.close()
            given = [ready.waiting.lease for ready in self._claiming if ready.waiting.lease is not None]
            for lease in [*given, *(attempt.lease for attempt in self._attempts.values())]:
                lease.release()
            for attempt in self._attempts.values():
                remove_leftovers(self._objects, attempt.task)
            self._keeper.close()
        return self._frontier.ended({attempt.node.key for attempt in self._attempts.values()})

    def _patience(self) -> float:
        """Seconds to wait for events; none where a step can be started at once."""
        if self._frontier.waits:
            return 0.0
        if len(self._calls):
            return POLL_CALLS if self._calls.slow else 0.0
        if self._fetching.going_on:
            return POLL_CALLS
        waits = self._attempts or len(self._fetching) or any(ready.next_try > self._clock() for ready in self._ready)
        return POLL if waits else 0.0

    # Deciding --------------------------------------------------------------------------------------------------------

    def _consider(self, node: Node) -> None:
        """Look at a step whose dependencies are all settled."""
        try:
            self._decide(node, self._looks[node.key], self._policy)
        except MarinError as error:
            self._failed_before(node, error)

    def _decide(self, node: Node, found: Look, policy: Policy) -> None:
        """Settle a step, or see that it runs."""
        found = with_accepted(self._objects, node, found)
        compared = {
            each: commit.compared for each in node.depends_on if (commit := self._settled[each].known) is not None
        }
        taken = takeable(node, found, compared, policy) if found.elsewhere else None
        if taken is not None and node.key in self._left:
            self._settle(node, Settled("cached", message=f"in {taken}, not needed here", left=taken))
            return
        if taken is not None:
            self._fetching.add(node, found, taken)
            return
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

    def _decide_anew(self, node: Node, found: Look) -> None:
        """Look at a step again that was not taken from where it should have been."""
        self._looks[node.key] = found
        self._frontier.again(node)

    def _settle_drifted(self, node: Node, found: Look, reasons: tuple[Reason, ...]) -> None:
        if self._policy.code == "accept":
            accept(self._objects, node.id, node.key, found.number, node.declaration.code.digest, self._reason, now())
            self._notify(Notice("drift", node, f"accepted: {self._reason or 'no reason given'}"))
            self._settle(node, Settled("cached", found.commit))
            return
        self._notify(Notice("drift", node, "; ".join(str(reason) for reason in reasons)))
        self._settle(node, Settled("cached", found.commit, drifted=True))

    def _wants_to_run(self, node: Node, found: Look, reasons: tuple[Reason, ...], policy: Policy) -> None:
        blocked = why_blocked(node, self._graph, self._settled, self._policy.selected) or self._held()
        left = [] if blocked else [key for key in node.depends_on if self._settled[key].left is not None]
        if left:  # it is needed after all
            self._left.difference_update(left)
            self._frontier.recall(left)
            return
        commits = {
            key: (self._graph.nodes[key], commit)
            for key in node.depends_on
            if (commit := self._settled[key].commit) is not None
        }
        sizes = {each.name: commit.bytes for each, commit in commits.values()}
        if blocked := blocked or self._budget.refusal(sizes):
            self._block(node, blocked)
            return
        waiting = Waiting(self._objects, layout.lease(node.id, node.key), self._lease_life, self._clock)
        forced = node.key in policy.force
        self._ready.append(Ready(node, found, waiting, reasons, commits, forced, self._reason))

    def _held(self) -> str:
        """Why nothing new is started; empty when it is."""
        held = self._fail_fast and self.failures
        return f"blocked by --fail-fast after {self.failures[0][0].name}" if held else ""

    def _block(self, node: Node, why: str) -> None:
        self._notify(Notice("blocked", node, why))
        self._settle(node, Settled("blocked", message=why))

    def _settle(self, node: Node, settled: Settled, told: bool = False) -> None:
        """Fix how a step came out."""
        self._frontier.settle(node, settled)
        if settled.outcome == "cached" and not told:
            self._notify(Notice("cached", node))

    # Running ---------------------------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        if self._stop_asked or self._backend.room() <= len(self._claiming):
            return
        for ready in list(self._ready):
            room = self._backend.room() - len(self._claiming)
            if self._max_parallel is not None:
                room = min(room, self._max_parallel - len(self._attempts) - len(self._claiming))
            if room <= 0:
                return
            if self._clock() < ready.next_try:
                continue
            busy = [each.ready for each in self._attempts.values()] + self._claiming
            running = (each.node.artifact.resources for each in busy)
            if is_held_back(ready.node.artifact.resources, running):
                continue
            self._ready.remove(ready)
            if self._held():
                self._block(ready.node, self._held())
                continue
            self._claiming.append(ready)
            self._calls.submit(partial(ready.begin, self._objects), partial(self._begun, ready))

    def _begun(self, ready: Ready, begun: Future[tuple[Claim, Commit | None]]) -> None:
        """Run the step; or use what somebody else has made, or what is equal to it."""
        self._claiming.remove(ready)
        node = ready.node
        try:
            claimed, adopted = begun.result()
            if adopted is not None:
                self._settle_adopted(node, adopted)
            elif claimed.look.commit is not None or claimed.look.damage or claimed.look.fallen:
                # Somebody made it in the meantime: that is what was asked for, if it is of the same code and inputs.
                self._decide(node, claimed.look, replace(self._policy, force=frozenset()))
            elif claimed.lease is None:
                self._wait(ready)
            else:
                self._start(ready, claimed, claimed.lease)
        except LeaseLost as error:
            self._taken_over(ready, error)
        except MarinError as error:
            if isinstance(error, NoAnswer) and not self._stop_asked and self._may_again(ready, "infrastructure"):
                self._again(ready, str(error), "infrastructure", silent=True)
            else:
                self._failed_before(node, error)

    def _settle_adopted(self, node: Node, commit: Commit) -> None:
        source = commit.adopted_from  # None when somebody else made it in the meantime
        if source is not None:
            data = {"adopted_from": source.named()}
            self._notify(Notice("adopt", node, f"from {source.id} {source.key[:8]}: equal inputs and code", data))
        self._settle(node, Settled("cached", commit), told=source is not None)

    def _wait(self, ready: Ready) -> None:
        ready.next_try = self._clock() + min(WAIT, self._lease_life / 4)
        told = ready.held_text()
        if told:
            self._notify(Notice("wait", ready.node, told))
        self._ready.append(ready)

    def _start(self, ready: Ready, claimed: Claim, lease: Lease) -> None:
        node = ready.node
        if self._stop_asked:
            lease.release()
            return
        try:
            task = ready.task(claimed, self._objects, self._run)
            if ready.forced and not ready.cleared:
                self._objects.delete(task.work)
                ready.cleared = True
        except MarinError:
            lease.release()
            raise
        self._keeper.keep(lease)
        if self._origin is not None:
            self._origin.begin()
        self._attempts[task.attempt] = Attempt(ready, claimed, lease, task, now(), self._clock())
        self._notify(Notice("run", node, "; ".join(str(reason) for reason in ready.reasons)))
        self._backend.submit(task, node.declaration.step)

    def _handle(self, event: Event) -> None:
        attempt = self._attempts.get(event.task)
        if attempt is None or attempt.commit is not None:
            return
        if event.finished is not None:
            attempt.finish(event.finished)
            self._publishing.append((0.0, attempt))
        elif event.failed is not None:
            self._end(attempt)
            attempt.lease.release()
            if attempt.lease.gone:
                self._failed(attempt, replace(event.failed, message=f"{event.failed.message} ({attempt.lease.gone})"))
            elif attempt.lease.lost and event.failed.kind != "stopped":
                # Somebody else has it, and may have removed what this one worked on: how that comes out is what counts.
                self._taken_over(attempt.ready, LeaseLost("its lease was taken over"))
            else:
                self._failed(attempt, event.failed)
        else:
            self._notify(Notice("progress", attempt.node, data=event.progress))

    def _end(self, attempt: Attempt) -> None:
        del self._attempts[attempt.task.attempt]
        self._keeper.forget(attempt.lease)
        if attempt.commit is None:
            remove_leftovers(self._objects, attempt.task)

    # Publishing ------------------------------------------------------------------------------------------------------

    def _publish_due(self) -> None:
        due = [attempt for when, attempt in self._publishing if when <= self._clock()]
        self._publishing = [each for each in self._publishing if each[1] not in due]
        for attempt in due:
            self._calls.submit(partial(self._publish, attempt), partial(self._published, attempt))

    def _publish(self, attempt: Attempt) -> tuple[Commit, bool]:
        assert attempt.commit is not None
        commit = attempt.commit if self._origin is None else self._origin.completed(attempt.commit, attempt.task.target)
        winner, ours = publish(self._objects, attempt.node, attempt.claim, commit)
        if attempt.worked and not attempt.lease.lost:  # whoever took it over is at work on them now
            with suppress(StoreError):  # the step is done; what is left of its parts costs space only
                self._objects.delete(attempt.task.work)
        return winner, ours

    def _published(self, attempt: Attempt, published: Future[tuple[Commit, bool]]) -> None:
        node = attempt.node
        try:
            winner, ours = published.result()
        except LeaseLost as error:
            self._end(attempt)
            self._taken_over(attempt.ready, error)
            return
        except MarinError as error:
            attempt.silences += isinstance(error, NoAnswer)
            if isinstance(error, NoAnswer) and attempt.silences <= len(PATIENCE) and not self._stop_asked:
                # What was made is not thrown away because the store does not answer now.
                self._publishing.append((self._clock() + PATIENCE[attempt.silences - 1], attempt))
                return
            self._end(attempt)
            attempt.lease.release()
            self._failed(attempt, describe_failure(error, attempt.task))
            return
        self._end(attempt)
        if not ours and attempt.commit is not None and winner.output != attempt.commit.output:
            self._notify(Notice("diverged", node, "another run committed other bytes for this key; its output is used"))
        seconds = self._clock() - attempt.clock
        data = {"seconds": seconds, "bytes": winner.bytes, "attempts": attempt.ready.tries.total() + 1}
        self._notify(Notice("done", node, data=data))
        self._settle(node, Settled("done" if ours else "cached", winner, seconds))

    # Failing ---------------------------------------------------------------------------------------------------------

    def _failed(self, attempt: Attempt, failed: Failed) -> None:
        node, ready = attempt.node, attempt.ready
        if failed.full and not attempt.silences:  # else it may be committed
            attempt.clear(self._objects)
        if failed.kind == "stopped" or (self._stop_asked and failed.again):
            message = failed.message if failed.kind == "stopped" else f"stopped: {failed.message}"
            self._settle(node, Settled("blocked", message=message, stopped=True))
            return
        failure = Failure(attempt.task.attempt, failed.kind, failed.message, failed.traceback, now())
        try:
            record_failure(self._objects, node.id, node.key, failure)
        except MarinError as error:
            # The failure itself is what the reader needs; a store that cannot take the record says so beside it.
            failed = replace(failed, message=f"{failed.message} (and the failure could not be recorded: {error})")
        if (failed.again or failed.kind in ("user", "memory")) and self._may_again(ready, failed.kind):
            self._again(ready, failed.message, failed.kind, failed.silent)
            return
        if ready.tries:
            failed = replace(failed, message=f"{failed.message} (attempt {ready.tries.total() + 1})")
        log = f"{self._objects.url}/{layout.attempt_log(node.id, node.key, attempt.task.attempt)}"
        self._fail(node, failed, self._clock() - attempt.clock, log)

    def _failed_before(self, node: Node, error: MarinError) -> None:
        """The store did not let a step begin; the others go on."""
        kind = "infrastructure" if isinstance(error, StoreError) else "user"
        self._fail(node, Failed(kind, redacted(str(error)), ""), 0.0, None)

    def _fail(self, node: Node, failed: Failed, seconds: float, log: str | None) -> None:
        self.failures.append((node, failed))
        data = {"seconds": seconds, "kind": failed.kind, "traceback": failed.traceback, "log": log}
        self._notify(Notice("fail", node, failed.message, data=data))
        self._settle(node, Settled("failed", seconds=seconds, message=failed.message))

    def _may_again(self, ready: Ready, kind: str) -> bool:
        """Whether an attempt that failed so is made again; counts it."""
        allowed = ready.tries[kind] < ready.node.artifact.resources.limit(kind) and not self._held()
        ready.tries[kind] += allowed
        return allowed

    def _again(self, ready: Ready, why: str, kind: str = "", silent: bool = False, wait: float = 0.0) -> None:
        """Put a step back; after a while where it was the store that did not answer. `kind`: see `retry_text`."""
        if self._held():
            self._block(ready.node, self._held())
            return
        self._notify(Notice("retry", ready.node, ready.retry_text(why.partition("\n")[0], kind)))
        tries = min(ready.tries["infrastructure"], len(PATIENCE))
        ready.next_try = self._clock() + (PATIENCE[tries - 1] if silent else wait)
        self._ready.append(ready)

    def _give_up(self, attempt: Attempt) -> None:
        """End an attempt whose lease is lost; it cannot commit."""
        self._backend.cancel(attempt.task.attempt)
        self._end(attempt)
        if attempt.lease.gone:
            self._failed(attempt, Failed("infrastructure", attempt.lease.gone, ""))
        else:
            self._taken_over(attempt.ready, LeaseLost("its lease was taken over"))

    def _taken_over(self, ready: Ready, error: LeaseLost) -> None:
        """Wait for what another run makes; one that is taken over again and again does not get to renew its leases."""
        ready.tries["taken over"] += 1
        if ready.tries["taken over"] <= TAKEN_OVER:
            self._again(ready, str(error), wait=min(WAIT, self._lease_life / 4))
        else:
            remedy = "see that the machine is not suspended or overloaded, and run again"
            self._failed_before(ready.node, StoreError(f"{error}, as {TAKEN_OVER} times before; {remedy}"))

    def _stop(self) -> None:
        if not self._stop_sent:
            self._stop_sent = True
            self._stop_until = self._clock() + STOP_PATIENCE
            self._ready.clear()
            self._fetching.stop()
            self._backend.stop()
