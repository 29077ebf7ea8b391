"""Whether a store still says what a bundle says of it: a bundle may be old, or edited and sealed anew.

Whoever takes something from a store by a bundle asks this first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.lab.bundle import BundledStep
from marin_pipeline.store.commit import Look, look
from marin_pipeline.store.copying import checked_spec
from marin_pipeline.store.inventory import in_parallel
from marin_pipeline.store.objects import ObjectStore, answered


def contradictions(source: ObjectStore, steps: Sequence[BundledStep]) -> list[str]:
    """What the store says otherwise of these steps than the bundle: each must be current there, with the same spec and
    the same record. A line a step; none when they agree.
    """
    return [problem for problem in in_parallel(source, partial(_contradiction, source), steps) if problem]


def _state(found: Look) -> str:
    ended = found.invalidation
    why = found.fallen or ("" if ended is None else ended.text or ended.reason)
    return f"has ended ({why})" if why else "has no current output there"


def _contradiction(source: ObjectStore, step: BundledStep) -> str:
    found = answered(partial(look, source, step.id, step.key))
    if found.commit is None:
        return found.damage or f"{step.label}: {_state(found)}; ask for a new bundle"
    if found.commit.dumps() != step.commit.dumps():
        return f"{step.label}: the record of its output is another one there; ask for a new bundle"
    try:
        if checked_spec(source, step.id, step.key) != step.spec.encode():
            return f"{step.label}: its spec is another one there"
    except CorruptOutput as error:
        return str(error)
    return ""
