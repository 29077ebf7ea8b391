"""A step on its way: ready to run, then one attempt at it, then the record that is to be published."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from marin_pipeline.core.errors import StoreError
from marin_pipeline.core.graph import Node
from marin_pipeline.run.attempt import Finished
from marin_pipeline.run.explain import Reason
from marin_pipeline.run.plan import pieces_of
from marin_pipeline.run.protocol import Claim, adopt, claim, end
from marin_pipeline.run.readiness import refuse_unready
from marin_pipeline.run.task import Task, inputs_read, recorded_call, task_of
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name, now
from marin_pipeline.store.commit import Commit, InputRecord, Look
from marin_pipeline.store.lease import Holder, Lease, Waiting
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.resolved import resolved_digest


@dataclass(eq=False)
class Ready:
    """A step that is to run as soon as there is room and its lease is free."""

    node: Node
    look: Look
    """What was seen of its key when it was decided."""
    waiting: Waiting
    reasons: tuple[Reason, ...]
    commits: Mapping[str, tuple[Node, Commit]]
    """What it will read: the dependencies with the commits that were current when it was decided, by key."""
    forced: bool = False
    """It reads nothing that earlier attempts left: no parts, no shards, no equal result."""
    why: str = ""
    """What the person who asked for the run said."""
    ended: bool = False
    """The output that it had counts no more."""
    asked: bool = False
    """Its `ready=` has found nothing wrong with its inputs."""
    cleared: bool = False
    """The parts that earlier attempts left are gone."""
    tries: Counter[str] = field(default_factory=Counter[str])
    """Attempts that failed, by class."""
    told: str = ""
    """Why the last try failed, as it was shown."""
    next_try: float = 0.0
    """On the monotonic clock."""
    announced: Holder | None = None
    """Who was told to be at work on it."""

    @functools.cached_property
    def inputs(self) -> Mapping[str, InputRecord]:
        """What it will read, by role."""
        return inputs_read(self.node, {key: commit for key, (_, commit) in self.commits.items()})

    def begin(self, objects: ObjectStore) -> tuple[Claim, Commit | None]:
        """End what it has, and ask for the right to run it; then the commit of an equal result, if that is taken
        instead.

        Raises:
            InputError: when its inputs do not fit, as its `ready=` says: what it has counts still, and its lease is
                free.
        """
        if self.look.commit is not None or self.look.damage or self.look.fallen:
            self._ask(objects)
            if not self.ended:
                end(objects, self.node, self.look, self.reasons, self.why)
                self.ended = True
        claimed = claim(objects, self.node, self.waiting, self.look, self.resolved())
        if claimed.lease is None:
            return claimed, None
        try:
            if not self.forced and not claimed.look.begins_anew:
                adopted = adopt(objects, self.node, claimed, attempt_name(), self.inputs, now())
                if adopted is not None:
                    return claimed, adopted
            self._ask(objects)  # not sooner: where another's result is taken nothing starts
        except BaseException:
            claimed.lease.release()
            raise
        return claimed, None

    def _ask(self, objects: ObjectStore) -> None:
        """See that its inputs fit; they are the same at each of its attempts."""
        if not self.asked:
            refuse_unready(objects, self.node, self.commits)
            self.asked = True

    def task(self, claimed: Claim, objects: ObjectStore, run: str) -> Task:
        """What is to be run now.

        Args:
            run: what no other run is called.
        """
        number = claimed.look.number
        salt = f"{self.node.key}/{number}" + (f"/{run}" if self.forced else "")
        return task_of(
            self.node,
            attempt=attempt_name(),
            number=number,
            objects=objects,
            commits=self.commits,
            inputs=self.inputs,
            salt=salt if self.forced or claimed.look.begins_anew else "",
        )

    def held_text(self) -> str:
        """Who is at work on it, when that is somebody else than was told before."""
        holder = self.waiting.holder
        if holder is None or holder == self.announced:
            return ""
        self.announced = holder
        return f"held by {holder.user}@{holder.host}, process {holder.pid}; its result will be used"

    def retry_text(self, why: str, kind: str) -> str:
        """What to say of the next try: which it is of how many, after a failure of which class; why, when that is new.

        Args:
            kind: class of the failure; empty where nothing failed.
        """
        is_new, self.told = why != self.told, why
        if not kind:
            return f"{why}; trying again"
        number = self.tries.total() + 1
        most = number - self.tries[kind] + self.node.artifact.resources.limit(kind)
        return f"attempt {number} of {most} ({kind}{f': {why}' if is_new else ' again'})"

    def resolved(self) -> str:
        """Digest of what it is made from, its inputs by what they hold."""
        read = {record.key: record.compared or record.output for record in self.inputs.values()}
        return resolved_digest(self.node.declaration.spec, read)


@dataclass(eq=False)
class Attempt:
    """One try that is going on."""

    ready: Ready
    claim: Claim
    lease: Lease
    task: Task
    started: str
    """UTC."""
    clock: float
    """When it started, on the monotonic clock."""
    commit: Commit | None = None
    """What is to be published, when it has run."""
    worked: bool = False
    """It kept finished parts."""
    silences: int = 0
    """How often the store did not answer when it was to be published."""

    @property
    def node(self) -> Node:
        return self.ready.node

    def clear(self, objects: ObjectStore) -> None:
        """Remove what it wrote on a disk that is full, so that it does not stay full; nobody reads it."""
        with suppress(StoreError):  # the full disk is what the reader needs to know of
            objects.delete(layout.attempt(self.node.id, self.node.key, self.task.attempt))

    def finish(self, finished: Finished) -> None:
        """Take what the attempt made as what is to be published."""
        declaration = self.node.declaration
        compared = {
            "bitwise": finished.output,
            "logical": finished.logical or finished.output,
            "tolerance": None,
        }
        self.worked = finished.worked
        self.commit = Commit(
            number=self.task.number,
            attempt=self.task.attempt,
            fence=self.lease.fence,
            manifest=finished.manifest,
            output=finished.output,
            compared=compared[declaration.exact],
            inputs=self.ready.inputs,
            resolved=self.claim.resolved,
            code=declaration.code.digest,
            pieces=pieces_of(self.node),
            arguments=recorded_call(self.task.call),
            fingerprint=finished.fingerprint,
            started=self.started,
            finished=now(),
            seconds=round(finished.seconds, 3),
            bytes=finished.bytes,
            key=self.node.key,
            unpinned=self.node.unpinned,
        )
