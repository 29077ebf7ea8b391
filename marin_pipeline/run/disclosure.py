"""What would make a secret known: refused before a run begins, removed of an attempt that did not come to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import InputError, StoreError, UsageError
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.core.redaction import Redactor
from marin_pipeline.core.secrets import redactor
from marin_pipeline.run.task import Task, write_call
from marin_pipeline.store import layout
from marin_pipeline.store.guard import remove_disclosed
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.records import parsed, typed


def refuse_disclosed(graph: Graph) -> None:
    """See that no value of a secret stands where it would be written: in a name, in an argument, or in what a step says
    of itself.

    Raises:
        UsageError: naming the step, the argument and the secret.
    """
    known = redactor()
    if known is None:
        return
    for node in graph.nodes.values():
        for name in node.names:
            if found := known.find(name.encode("utf-8", "surrogatepass")):
                raise UsageError(f"a name of {node.id} holds the value of the secret {found}; give it another name")
        _refuse_said(known, node, "unpinned", "\0".join(node.artifact.unpinned))
        if node.loaded:
            continue
        for argument, value in node.declaration.arguments.items():
            if found := known.find(dumps(write_call({argument: value}))):
                shown = node.names[0]
                raise UsageError(
                    f"{shown}.{argument} holds the value of the secret {found}, and arguments are written into specs "
                    f'and records; declare the argument as a Secret, and pass Secret("{found}")'
                )
        _refuse_said(known, node, "chain", node.declaration.spec.decode("utf-8", "surrogatepass"))
        _refuse_said(known, node, "pinning", node.declaration.step.pinning)


def _refuse_said(known: Redactor, node: Node, where: str, text: str) -> None:
    if found := known.find(text.encode("utf-8", "surrogatepass")):
        raise UsageError(
            f"{node.names[0]}: what its step says by {where}= holds the value of the secret {found}, and that is shown "
            "and written into records; leave the value out there"
        )


def refuse_typed(argv: Sequence[str]) -> None:
    """See that a command line holds no secret: it stands in the shell's history, and in the record of the run.

    Raises:
        UsageError: naming the secret.
    """
    known = redactor()
    found = known and known.find("\0".join(argv).encode("utf-8", "surrogateescape"))
    if found:
        raise UsageError(
            f"the command line holds the value of the secret {found}, and it is kept in histories and records; leave "
            f'it out, and pass Secret("{found}") in the experiment to the step that needs it'
        )


def refuse_in_code(path: str, data: bytes) -> None:
    """See that a file of code, which is kept with what it makes, holds no value of a secret.

    Raises:
        InputError: naming the file and the secret.
    """
    known = redactor()
    found = known and known.find(data)
    if found:
        raise InputError(
            f"{path}: holds the value of the secret {found}, and the code of a run is kept with its outputs; take it "
            f'out, and read it where it is needed: Secret("{found}").value'
        )


def remove_leftovers(objects: ObjectStore, task: Task) -> None:
    """Delete the files that hold a secret among those of an attempt that has ended without a result: in a store that
    is written in place they lie there, though nobody looked through them.
    """
    known = redactor(task.secrets) if task.secrets and objects.in_place else None
    if known is not None:
        with suppress(StoreError):  # why the attempt ended is what the reader needs
            _remove(objects, task, known)


def _remove(objects: ObjectStore, task: Task, known: Redactor) -> None:
    for path in _folders(objects, task):
        if objects.names(path):
            remove_disclosed(known, [objects.folder(path)])


def _folders(objects: ObjectStore, task: Task) -> Iterator[str]:
    yield layout.attempt(task.id, task.key, task.attempt)
    yield task.work
    found = objects.read(layout.attempt_shards(task.id, task.key, task.attempt))
    for line in found.data.splitlines() if found else ():
        with suppress(ValueError):  # its process was killed while it wrote the line
            _, key, attempt = typed(parsed(line), tuple[str, str, str])
            yield f"{layout.shard(key)}/{attempt}"
