"""Steps declared again from their records: what a commit says of a step's arguments and of where its function is found
is enough to declare it anew, and the key of what comes out must be the recorded one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from marin_pipeline.core.artifact import Artifact, LocalFile, OutputFile
from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import DeclarationError, InputError, MarinError
from marin_pipeline.core.reading import decode
from marin_pipeline.core.secrets import Secret
from marin_pipeline.core.step import Declaration
from marin_pipeline.run.explain import changes, code_text, compare_code, shown
from marin_pipeline.run.task import Target, find_step

NAMED = 3
"""Changes that an error names one by one."""


@dataclass(frozen=True)
class RecordedStep:
    """A step as its commit and its spec have it."""

    id: str
    key: str
    spec: str
    """The exact text that the key hashes."""
    code: str
    """Digest of the code that made the recorded output."""
    pieces: Mapping[str, str]
    """Digest of each piece of that code by name."""
    arguments: Mapping[str, Tree]
    """All arguments as they were given, artifacts by key."""
    target: Target
    """Where the function is found here; its file is absolute."""

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.id} {self.key[:8]}"


class Rebuilder:
    """Declares recorded steps again, dependencies first.

    Args:
        given: artifacts that have an output already and are not declared again, by key.
        files: folder in which the file with a sha256 lies as `<sha256>/<name>`.
        names: what to call steps, by key; else they are called after their functions.
    """

    def __init__(self, given: Mapping[str, Artifact[Any]], files: Path, names: Mapping[str, str] | None = None) -> None:
        self._files = files
        self._names = names or {}
        self.artifacts: dict[str, Artifact[Any]] = dict(given)
        """What is there so far, by key."""

    def declare(self, steps: Sequence[RecordedStep]) -> list[Artifact[Any]]:
        """The artifacts of steps that stand in topological order.

        Raises:
            InputError: naming the step that cannot be declared again, or comes out as another one, and why.
        """
        return [self._declared(step) for step in steps]

    def _declared(self, recorded: RecordedStep) -> Artifact[Any]:
        try:
            step = find_step(recorded.target)
            annotations = step.annotations
            arguments = {
                # Who runs a record again runs its code: modules that it names are imported, as a task's are.
                name: decode(tree, annotations.get(name, Any), name, self._reference, importing=True)
                for name, tree in recorded.arguments.items()
            }
            missing = [name for name in step.signature.parameters if name not in arguments]
            if missing or arguments.keys() - step.signature.parameters.keys():
                raise InputError(f"it takes ({', '.join(step.signature.parameters)})")
            artifact = step.declare(arguments)
        except MarinError as error:
            raise InputError(f"{recorded.label}: cannot be declared again from its record: {error}") from error
        _refuse_other(recorded, artifact)
        if recorded.key in self._names:
            artifact = artifact.named(self._names[recorded.key])
        self.artifacts[recorded.key] = artifact
        return artifact

    def _reference(self, tree: Mapping[str, Tree], path: str) -> Any:
        if "~artifact" in tree:
            artifact = self.artifacts.get(tree["~artifact"])
            if artifact is None:
                raise InputError(f"{path}: the input {tree['~artifact'][:8]} is neither declared nor in the store")
            return OutputFile(artifact, tree["path"]) if "path" in tree else artifact
        if "~file" in tree:
            return LocalFile(self._files / tree["~file"] / file_name(tree), sha256=tree["~file"])
        if "~secret" in tree:
            return Secret(tree["~secret"])
        raise DeclarationError(f"{path}: the tag {next(iter(tree))} is not known to this version")


def file_name(tree: Mapping[str, Tree]) -> str:
    """The name that a `LocalFile` had where it was declared: steps tell the format by it."""
    name = PurePosixPath(str(tree.get("local", "")).replace("\\", "/")).name
    return name if name not in ("", ".", "..") and "\0" not in name else "file"


def _refuse_other(recorded: RecordedStep, artifact: Artifact[Any]) -> None:
    """Raise an `InputError` that says why, unless the artifact is the recorded one and made by the recorded code."""
    declaration = artifact.declaration
    assert declaration is not None
    if declaration.key == recorded.key and declaration.code.digest == recorded.code:
        return
    why = _why(recorded, declaration)
    raise InputError(f"{recorded.label}: is not what was recorded when it is declared again: {why}")


def _why(recorded: RecordedStep, declaration: Declaration) -> str:
    if declaration.step.id != recorded.id:
        return f"its id is {declaration.step.id} here, since its file lies elsewhere in its project"
    old, new = json.loads(recorded.spec), json.loads(declaration.spec)
    if declaration.code.digest != recorded.code:
        pieces = {piece.name: piece.digest for piece in declaration.code.pieces}
        return f"its code is not the recorded one ({code_text(compare_code(recorded.pieces, pieces))})"
    found = list(changes(old, new))
    told = "; ".join(f"{each.path} {shown(each.old)} → {shown(each.new)}" for each in found[:NAMED])
    return told or "its spec is written otherwise by this version of marin_pipeline"
