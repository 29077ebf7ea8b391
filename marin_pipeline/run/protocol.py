"""What one attempt says to the store: it claims a key before it runs, and publishes what it made.

Claim: lease, look again, spec. Publish: lease still ours, create-only commit, release. Each function is one
conversation and holds no state, so that several can go on at the same time; whatever ends the process in between, what
is in the store stays true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from marin_pipeline.core.errors import CorruptOutput, MarinError, StoreError
from marin_pipeline.core.graph import Node
from marin_pipeline.run.chains import enter_chain
from marin_pipeline.run.explain import Reason
from marin_pipeline.run.task import recorded_call, write_call
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now
from marin_pipeline.store.commit import (
    Commit,
    InputRecord,
    Invalidation,
    Look,
    invalidate,
    look_again,
    publish_commit,
    write_spec,
)
from marin_pipeline.store.lease import Lease, Waiting
from marin_pipeline.store.objects import ObjectStore, put, together
from marin_pipeline.store.pages import manifest_bytes
from marin_pipeline.store.resolved import Entry, adoptable, enter, read_entry


class LeaseLost(MarinError):
    """Somebody else has the right to try now; what was made under the lease cannot be committed."""


@dataclass(frozen=True)
class Claim:
    """What came of asking for the right to run a step."""

    look: Look
    """What the store says, now that nobody else can begin."""
    lease: Lease | None
    """None when somebody else is at work, or has made it in the meantime."""
    resolved: str = ""
    """Digest of what the step would be made from."""
    entry: Entry | None = None
    """What was made from the same before."""


def claim(objects: ObjectStore, node: Node, waiting: Waiting, before: Look, resolved: str) -> Claim:
    """Ask for the right to run a step whose inputs are done.

    Args:
        before: an earlier look; what it saw ended is not read again.
        resolved: digest of what the step would be made from.
    """
    lease = waiting.attempt()
    again = partial(look_again, objects, node.id, node.key, before)
    if lease is None:
        return Claim(again(), None)
    try:
        found, entry, _ = together(
            objects,
            again,
            partial(read_entry, objects, resolved),
            partial(write_spec, objects, node.id, node.key, node.declaration.spec),
        )
    except BaseException:
        lease.release()
        raise
    if found.commit is not None or found.damage or found.fallen:
        lease.release()
        return Claim(found, None)
    return Claim(found, lease, resolved, entry)


def adopt(
    objects: ObjectStore, node: Node, claimed: Claim, attempt: str, inputs: Mapping[str, InputRecord], at: str
) -> Commit | None:
    """Commit the result that another key has for the same step, code and input contents, instead of making it again.
    None when there is none that counts.

    Raises:
        LeaseLost: when somebody else has the right to try now.
    """
    lease, entry = claimed.lease, claimed.entry
    if lease is None or entry is None or entry.key == node.key:
        return None
    with suppress(StoreError):  # then it is made again
        found = adoptable(objects, entry, node.id, node.declaration.code.digest, claimed.resolved)
        if found is None:
            return None
        commit, source = found
        data = manifest_bytes(objects, entry.id, entry.key, commit)
        if put(objects, layout.manifest(node.id, node.key, attempt), data).data != data:
            return None
        taken = replace(
            commit,
            number=claimed.look.number,
            attempt=attempt,
            fence=lease.fence,
            inputs=inputs,
            arguments=recorded_call(write_call(node.declaration.arguments)),
            resolved=claimed.resolved,
            started=at,
            finished=at,
            key=node.key,
            adopted_from=source,
            unpinned=node.unpinned,
        )
        winner, _ = publish(objects, node, claimed, taken)
        return winner
    return None


def end(objects: ObjectStore, node: Node, found: Look, reasons: Sequence[Reason], text: str) -> None:
    """End what a key has, so that it is made again.

    Args:
        reasons: why it is made again.
        text: what the person who asked for it said.
    """
    kind = reasons[0].kind if reasons and reasons[0].kind in ("forced", "stale", "code") else "forced"
    ended = Invalidation(
        "invalidated" if found.fallen else kind, text or "; ".join(str(reason) for reason in reasons), now()
    )
    invalidate(objects, node.id, node.key, found.number, ended)


def publish(objects: ObjectStore, node: Node, claimed: Claim, commit: Commit) -> tuple[Commit, bool]:
    """Make an attempt the output of its key, and give the lease back.

    Returns:
        The commit that counts, and whether it is ours.

    Raises:
        LeaseLost: when somebody else has the right to try now.
    """
    lease = claimed.lease
    if lease is None or not lease.is_ours():
        if lease is not None and lease.gone:
            raise CorruptOutput(lease.gone)
        raise LeaseLost("its lease was taken over")
    # Before the commit, so that no committed state is unknown to its chain; without one the entry says nothing.
    enter_chain(objects, node.declaration)
    winner, ours = publish_commit(objects, node.id, node.key, commit)
    together(objects, lease.release, partial(_make_known, objects, node, claimed, winner))
    return winner, ours


def _make_known(objects: ObjectStore, node: Node, claimed: Claim, commit: Commit) -> None:
    if commit.falls_with is None:
        with suppress(StoreError):  # the step is done; that others find its result saves work only
            enter(objects, commit.resolved, node.id, node.key, commit.number, claimed.entry)
