"""Whether a store has what a bundle says: a bundle may be old, or edited and sealed anew.

Whoever takes something from a store by a bundle asks this first. The store may have the record of the bundle, or one of
its own of the same output: a copy, or one that was made again there. What is taken then is what its own record names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.lab.bundle import Bundle, BundledStep
from marin_pipeline.lab.share import in_lines
from marin_pipeline.store.commit import Commit, Look, look
from marin_pipeline.store.copying import checked_spec
from marin_pipeline.store.inventory import in_parallel
from marin_pipeline.store.kept_files import file_digests
from marin_pipeline.store.objects import LOCAL, ObjectStore, answered

_SAME = ("output", "compared", "inputs", "resolved", "unpinned", "bytes")
"""What two records of the same output have in common, whoever made or copied it."""


def agreed(source: ObjectStore, bundle: Bundle, steps: Sequence[BundledStep]) -> tuple[Mapping[str, Commit], str]:
    """The records that the store has of these steps of a bundle, by key, and what it says otherwise: each must be
    current there, with the same spec and a record of the same output. A line a step; empty when they agree.
    """
    looks = in_parallel(source, lambda step: answered(partial(look, source, step.id, step.key)), steps)
    was = "" if bundle.source in (source.url, LOCAL) else bundle.source
    if all(found.commit is None and not _ending(found) and not found.damage for found in looks):
        told = f"the bundle says that it was {was}, which --from can name" if was else "ask where it was shared from"
        return {}, f"{source.url}: nothing of the bundle is there; {told}"
    found = in_parallel(source, lambda each: _record(source, *each), list(zip(steps, looks, strict=True)))
    records = {step.key: each for step, each in zip(steps, found, strict=True) if isinstance(each, Commit)}
    problems = [each for each in found if isinstance(each, str)]
    if not problems:
        return records, ""
    shared = f"; the bundle says that it was {was}, which --from can name" if was else ""
    return records, f"{source.url}: is not as the bundle says{shared}\n{in_lines(problems)}"


def _ending(found: Look) -> str:
    ended = found.invalidation
    return found.fallen or ("" if ended is None else ended.text or ended.reason)


def _kept(commit: Commit) -> tuple[bool, set[str]]:
    """Whether it is known what made it, and the local files that it was given."""
    return bool(commit.origin), set(file_digests(commit.arguments))


def _record(source: ObjectStore, step: BundledStep, found: Look) -> Commit | str:
    if found.damage:
        return f"{found.damage.rpartition('; ')[0] or found.damage}; its owner should make it anew with --force"
    if found.commit is None:
        why = _ending(found)
        return f"{step.label}: {f'has ended ({why})' if why else 'has no current output there'}; ask for a new bundle"
    there, said = found.commit, step.commit
    if there.output != said.output:
        return (
            f"{step.label}: has the output {there.output[:8]} there, and the bundle says {said.output[:8]}; ask for a "
            "new bundle"
        )
    is_same = all(getattr(there, name) == getattr(said, name) for name in _SAME)
    if not is_same or _kept(there) != _kept(said):
        return f"{step.label}: the record of its output says something else there; ask for a new bundle"
    try:
        if checked_spec(source, step.id, step.key) != step.spec.encode():
            return f"{step.label}: its spec is another one there"
    except CorruptOutput as error:
        return str(error)
    return there
