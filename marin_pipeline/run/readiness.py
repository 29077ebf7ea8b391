"""Whether a step may be started, by the values of its inputs: what its `ready=` says of them once they are committed.

It sees the arguments as the step's own process will, but for the files, of which none is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

from marin_pipeline.core.arguments import references
from marin_pipeline.core.artifact import Artifact, Output
from marin_pipeline.core.errors import DeclarationError, MarinError
from marin_pipeline.core.graph import Node
from marin_pipeline.core.hooks import ask_ready
from marin_pipeline.core.reading import decode
from marin_pipeline.core.secrets import redacted
from marin_pipeline.run.explain import Reason
from marin_pipeline.run.plan import Plan, PlannedNode
from marin_pipeline.run.task import InputAt, References, write_call
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.manifest import VALUE
from marin_pipeline.store.objects import NoAnswer, ObjectStore, together
from marin_pipeline.store.output import CommittedOutput


class _Values(References):
    """Reads references back, the artifacts with outputs of which the values can be read."""

    def __init__(self, objects: ObjectStore, where: str, inputs: Mapping[str, tuple[Node, Commit]]) -> None:
        super().__init__(
            objects, {key: InputAt(node.id, commit.number, node.name) for key, (node, commit) in inputs.items()}
        )
        self.outputs = {key: _ValueOnly(objects, where, node, commit) for key, (node, commit) in inputs.items()}

    def output(self, key: str) -> Output:
        return self.outputs[key]


class _ValueOnly(CommittedOutput):
    """A committed output without the contents of its files."""

    def __init__(self, objects: ObjectStore, where: str, node: Node, commit: Commit) -> None:
        super().__init__(objects, node.id, node.key, commit)
        self._where = where
        self._name = node.name

    def read_value(self) -> None:
        """Read the value, where there is one: a folder that was adopted may have none."""
        if VALUE in self.manifest.files:
            self.value_tree  # noqa: B018 - it is kept

    def local(self, path: str) -> Path:
        self._refuse(path)

    def open(self, path: str) -> BinaryIO:
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise DeclarationError(
            f"{self._where}: ready= reads the file {path!r} of {self._name}; it is asked before the step starts, and "
            "fetches no files: let the step that makes it return what is asked, and read that as `.value`"
        )


def refuse_unready(objects: ObjectStore, node: Node, inputs: Mapping[str, tuple[Node, Commit]]) -> None:
    """Ask a step that says when its inputs do not fit; nothing is read for one that does not.

    Args:
        inputs: its dependencies with the commits that it will read, by key.

    Raises:
        InputError: what the step refuses them with.
        StoreError: when a value cannot be read.
        DeclarationError: naming the step, when what it asks with fails.
    """
    declaration = node.declaration
    step = declaration.step
    if step.ready is None:
        return
    values = _Values(objects, step.where, inputs)
    arguments = {
        name: decode(tree, step.annotations[name], name, values, importing=True)
        for name, tree in write_call(declaration.arguments).items()
    }
    # All at once: one after another they would take long where there are many, and the store is far.
    given = {each.key for _, each in references(arguments, step.where) if isinstance(each, Artifact)}
    together(objects, *(values.outputs[key].read_value for key in sorted(given)))
    ask_ready(step.where, step.ready, arguments)


def with_refusals(plan: Plan, objects: ObjectStore) -> Plan:
    """The plan with what keeps a step from being started among its reasons, where all that it will read is there.

    Raises:
        NoAnswer: when the store does not answer: then nothing is known of the step.
    """
    asked = {planned.node.key: inputs for planned in plan.running if (inputs := _inputs(plan, planned)) is not None}
    answers = together(objects, *(partial(_refusal, objects, plan.nodes[key].node, asked[key]) for key in asked))
    refused = {
        key: replace(plan.nodes[key], reasons=(*plan.nodes[key].reasons, Reason("refused", text=text)))
        for key, text in zip(asked, answers, strict=True)
        if text
    }
    return replace(plan, nodes={**plan.nodes, **refused}) if refused else plan


def _inputs(plan: Plan, planned: PlannedNode) -> dict[str, tuple[Node, Commit]] | None:
    """What a step will read, by key; None for one that is not asked, or of which something may be made before."""
    if planned.node.declaration.step.ready is None:
        return None
    reads = [plan.nodes[key] for key in planned.node.depends_on]
    if any(each.status != "cached" or each.unless for each in reads):
        return None
    found = {each.node.key: (each.node, each.look.commit) for each in reads if each.look.commit is not None}
    return found if len(found) == len(reads) else None


def _refusal(objects: ObjectStore, node: Node, inputs: Mapping[str, tuple[Node, Commit]]) -> str:
    """Why a step would not be started now, in a line; empty when it would."""
    try:
        refuse_unready(objects, node, inputs)
    except NoAnswer:
        raise
    except MarinError as error:
        return redacted(str(error)).partition("\n")[0]
    return ""
