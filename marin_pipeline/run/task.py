"""What travels to the process that runs a step or a shard: where the function is found, and its call as a canonical
tree.

Never a pickled function: a task can be written down, read by a person, and run by any process that has the code.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from marin_pipeline.core import projects
from marin_pipeline.core.artifact import Artifact, LocalFile, Output, OutputFile
from marin_pipeline.core.canonical import Form, Reference, Tree, digest, encode
from marin_pipeline.core.errors import DeclarationError, InputError, StoreError
from marin_pipeline.core.graph import Node
from marin_pipeline.core.secrets import Secret, secret_names
from marin_pipeline.core.source import SourceStamp
from marin_pipeline.core.step import Step
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, InputRecord, read_commit
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import CommittedOutput


@dataclass(frozen=True)
class Target:
    """Where a function is found."""

    module: str
    """Name to import it by."""
    file: str
    """The file that defines it, for a module that was run as a program."""
    qualname: str
    main: bool
    """The module was run as a program: it is loaded from its file, under its name in the project."""


class InputAt(NamedTuple):
    """Where a dependency is read."""

    id: str
    """Of its step."""
    number: int
    """Of the commit."""
    name: str
    """On screen."""


@dataclass(frozen=True)
class Task:
    """One attempt at a step, or one shard of a `ctx.map`."""

    task: str
    """Unique within a run."""
    kind: str
    """`step` or `shard`."""
    target: Target
    prefix: str
    id: str
    """Of the step."""
    key: str
    """Of the step, or of the shard."""
    attempt: str
    call: Tree
    """Arguments as a canonical tree, `Runtime` ones too."""
    inputs: Mapping[str, InputAt]
    """What to read, by the key of the dependency."""
    code: str = ""
    """Digest of the code that the driver saw; the worker must see the same."""
    files: tuple[SourceStamp, ...] = ()
    """The source files that the code rests on, as the driver saw them."""
    number: int = 1
    """Of the commit that the attempt is for."""
    work: str = ""
    """Folder of the step's finished parts."""
    salt: str = ""
    """Set for a step that must read no earlier shards."""
    jax: bool = False
    """It gets a process of its own."""
    name: str = ""
    """Of the step on screen."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that it gets; a shard has those of its step."""
    single_writer: bool = False
    """What is there is looked at before each conditional write, as `--single-writer` asks where the store keeps none.
    """

    def tree(self) -> Tree:
        """The task as JSON values."""
        return {**vars(self), "target": vars(self.target)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Task:
        """Read a task back."""
        inputs = {key: InputAt(*each) for key, each in tree["inputs"].items()}
        files = tuple(SourceStamp(*each) for each in tree["files"])
        return cls(
            **{
                **tree,
                "target": Target(**tree["target"]),
                "inputs": inputs,
                "files": files,
                "secrets": tuple(tree["secrets"]),
            }
        )


def inputs_read(node: Node, commits: Mapping[str, Commit]) -> dict[str, InputRecord]:
    """What a step reads, by role.

    Args:
        commits: the current commit of each dependency, by key.
    """
    return {
        role: InputRecord(key, commits[key].output, commits[key].compared)
        for role, key in node.dependencies.items()
        if key in commits
    }


def task_of(
    node: Node,
    *,
    attempt: str,
    number: int,
    objects: ObjectStore,
    commits: Mapping[str, tuple[Node, Commit]],
    inputs: Mapping[str, InputRecord],
    salt: str,
) -> Task:
    """One attempt at a step.

    Args:
        number: of the commit that it is for.
        commits: each dependency and its current commit, by key.
        inputs: what it reads, by role.
        salt: set for a step that must read no earlier shards.
    """
    declaration = node.declaration
    read = digest({role: record.output for role, record in inputs.items()})
    call = write_call(declaration.arguments)
    return Task(
        task=attempt,
        kind="step",
        target=target_of(declaration.step.fn),
        prefix=objects.url,
        id=node.id,
        key=node.key,
        attempt=attempt,
        call=call,
        inputs={key: InputAt(each.id, commit.number, each.name) for key, (each, commit) in commits.items()},
        code=declaration.code.digest,
        files=declaration.code.files,
        number=number,
        work=layout.work(node.id, node.key, declaration.code.digest, number, read),
        salt=salt,
        jax=node.artifact.resources.jax,
        name=node.name,
        secrets=secret_names(call),
        single_writer=objects.single_writer,
    )


@functools.lru_cache(maxsize=4096)
def target_of(fn: Any) -> Target:
    """Where a module-level function is found again by another process.

    Raises:
        DeclarationError: for a function that no other process could find.
    """
    if "<locals>" in fn.__qualname__ or fn.__name__ == "<lambda>":
        raise DeclarationError(f"{fn.__qualname__} is defined inside a function; move it to the top level of its file")
    inner: Any = inspect.unwrap(fn)  # a decorator may come from another file
    file = str(Path(inner.__code__.co_filename).absolute())
    if fn.__module__ != "__main__" and fn.__module__ not in _programs:
        return Target(fn.__module__, file, fn.__qualname__, False)
    return Target(projects.module_id(Path(file)).replace("/", "."), file, fn.__qualname__, True)


def find_step(target: Target) -> Step[Any, Any]:
    """The step of a target, imported.

    Raises:
        InputError: when the module or the name is not there, or is no step.
    """
    found = _find(target)
    if not isinstance(found, Step):
        raise InputError(f"{target.file}: {target.qualname!r} is not a step any more; run the experiment again")
    return found


def find(target: Target) -> Any:
    """The function of a target, imported.

    Raises:
        InputError: when the module or the name is not there.
    """
    found = _find(target)
    return found.fn if isinstance(found, Step) else found


def _find(target: Target) -> Any:
    if target.main:
        module = _load_program(target)
    else:
        try:
            module = importlib.import_module(target.module)
        except ImportError as error:
            raise InputError(
                f"{target.module}: cannot be imported where the step runs ({error}); make it importable "
                "from the project's root, or run with --backend inline"
            ) from error
    found: Any = module
    for name in target.qualname.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise InputError(
            f"{target.file}: has no {target.qualname!r} at its top level any more; run the experiment again"
        )
    return found


_programs: set[str] = set()
"""Names under which this process has loaded programs from their files; no import would find them."""


def _load_program(target: Target) -> Any:
    """The module of a program, loaded from its file once a process, under its name in the project."""
    plain = target.module if re.fullmatch(r"\w+(\.\w+)*", target.module) else re.sub(r"\W", "_", target.module)
    # A program may bear the name of another module that is loaded, as a `tokenize.py` does.
    names = [plain, f"{plain}__program"]
    for known in ("__main__", *names):
        file = getattr(sys.modules.get(known), "__file__", None)
        if file and Path(file).absolute() == Path(target.file):
            return sys.modules[known]
    name = next(name for name in names if name not in sys.modules)
    spec = importlib.util.spec_from_file_location(name, target.file)
    if spec is None or spec.loader is None or not Path(target.file).is_file():
        raise InputError(
            f"{target.file}: cannot be imported where the step runs; move its steps to a .py file, "
            "or use --backend inline"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _programs.add(name)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def write_call(arguments: Mapping[str, Any]) -> Tree:
    """The arguments as a tree that another process can read back."""
    form = Form(reference=_write_reference, runtime=True)
    return {name: encode(value, name, form) for name, value in arguments.items()}


def _write_reference(reference: Reference, path: str) -> Tree:
    if isinstance(reference, LocalFile):
        return {"~file": reference.sha256, "local": str(reference.path), "stamp": list(reference.stamp)}
    return reference.canonical(path)


def recorded_call(tree: Tree) -> Tree:
    """A call as its commit keeps it: of a local file the digest and the name, and not where and since when it lies on
    this machine.
    """
    if isinstance(tree, list):
        return [recorded_call(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if isinstance(tree.get("~file"), str):
        return {"~file": tree["~file"], "local": PurePath(str(tree["local"])).name}
    return {name: recorded_call(each) for name, each in tree.items()}


class References:
    """Reads references back, with the outputs of the dependencies bound."""

    def __init__(self, objects: ObjectStore, inputs: Mapping[str, InputAt]) -> None:
        self._objects = objects
        self._inputs = inputs
        self._outputs: dict[str, Output] = {}

    def refuse_changed(self, where: str) -> None:
        """See that what was read of the outputs is as it was when it was read.

        Args:
            where: the step that has read it.

        Raises:
            InputError: when it wrote on its input.
        """
        for output in self._outputs.values():
            if (refuse := getattr(output, "refuse_changed", None)) is not None:
                refuse(where)

    def __call__(self, tree: Mapping[str, Tree], path: str) -> Any:
        if "~artifact" in tree:
            key = tree["~artifact"]
            name = self._inputs[key].name if key in self._inputs else None
            artifact: Artifact[Any] = Artifact(key, name=name, output=self.output(key))
            return OutputFile(artifact, tree["path"]) if "path" in tree else artifact
        if "~file" in tree:
            size, modified = tree["stamp"]
            return LocalFile(tree["local"], sha256=tree["~file"], stamp=(size, modified))
        if "~secret" in tree:
            secret = Secret(tree["~secret"])
            secret.refuse_short()
            return secret
        raise DeclarationError(f"{path}: the tag {next(iter(tree))} is not known to this version")

    def output(self, key: str) -> Output:
        """The output of a dependency, as it was when the task was made; or the files of a shard."""
        if key not in self._outputs:
            if key not in self._inputs:
                from marin_pipeline.run.shards import shard_output

                self._outputs[key] = shard_output(self._objects, key)
                return self._outputs[key]
            id, number, _ = self._inputs[key]
            commit = read_commit(self._objects, id, key, number)
            if commit is None:
                raise StoreError(f"{self._objects.url}: the commit {number} of {id} {key[:8]} has gone; run again")
            self._outputs[key] = CommittedOutput(self._objects, id, key, commit)
        return self._outputs[key]
