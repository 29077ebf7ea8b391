"""States that are reached step by step: a longer run goes on from the nearest committed state of the same recipe.

Every committed state leaves an entry in its chain's folder, named by its absolute step and its key. A state is a start
for another run when its key is that run's own recipe restricted to as many steps, its inputs were the same bytes and
its code the same, or counts as the same.
"""

from __future__ import annotations

import re

from marin_pipeline.core.canonical import digest, encode
from marin_pipeline.core.key import key_of
from marin_pipeline.core.step import Declaration, code_of
from marin_pipeline.run.code_lock import vouched
from marin_pipeline.run.task import References, Task
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, is_accepted, look
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import CommittedOutput

_ENTRY = re.compile(r"(\d+)-([0-9a-f]+)")


def chain_of(declaration: Declaration) -> str | None:
    """Digest that names the chain of a state: its step's id and its initial state. None for a step without a chain."""
    if declaration.chain is None:
        return None
    return digest({"step": declaration.step.id, "initial": encode(declaration.chain.initial, "initial")})


def enter_chain(objects: ObjectStore, declaration: Declaration) -> None:
    """Make a committed state known to the runs that could go on from it."""
    initial = chain_of(declaration)
    if initial is not None and declaration.chain is not None:
        path = layout.chain_entry(initial, declaration.chain.step, declaration.key)
        objects.create(path, declaration.key.encode())


def nearest_state(objects: ObjectStore, declaration: Declaration, task: Task) -> tuple[int, CommittedOutput] | None:
    """The latest committed state that lies on the way to the declared one, with its absolute step."""
    initial = chain_of(declaration)
    if initial is None or declaration.chain is None:
        return None
    entries = [
        (int(found[1]), found[2]) for name in objects.names(layout.chain(initial)) if (found := _ENTRY.fullmatch(name))
    ]
    references = References(objects, task.inputs)
    for step, short in sorted(entries, reverse=True):
        if step >= declaration.chain.step:
            continue
        key = key_of(declaration.spec_at(step))
        if not key.startswith(short):
            continue
        commit = look(objects, task.id, key).commit
        if commit is None or not _is_of_its_code(objects, commit, declaration, key, task):
            continue
        same_inputs = all(
            record.key not in task.inputs or record.output == references.output(record.key).digest
            for record in commit.inputs.values()
        )
        if same_inputs:
            return step, CommittedOutput(objects, task.id, key, commit)
    return None


def _is_of_its_code(objects: ObjectStore, commit: Commit, declaration: Declaration, key: str, task: Task) -> bool:
    """Whether a committed state was made by the code that runs now, or by one that counts as equal."""
    if commit.code == task.code or is_accepted(objects, task.id, key, commit.number, task.code):
        return True
    present = code_of(declaration.step, declaration.arguments)
    pieces = {piece.name: piece.digest for piece in present.pieces}
    return present.digest == task.code and vouched(declaration.step, commit.pieces, pieces)
