"""Results of `ctx.map`, kept by content: the same function on the same input is computed once, whoever asks.

A shard's key is the digest of its function's code, its item and its common arguments, files by their content. Results
come back in the order of the items, whoever ran them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TextIO, TypeVar, overload

from marin_pipeline.core.arguments import check, classes_in, references
from marin_pipeline.core.artifact import Artifact, File, LocalFile, Output, OutputFile
from marin_pipeline.core.canonical import Form, Reference, Tree, digest, dumps, encode
from marin_pipeline.core.errors import CorruptOutput, DeclarationError, StoreError
from marin_pipeline.core.marks import annotations_of, marks_of
from marin_pipeline.core.reading import decode
from marin_pipeline.core.secrets import guarding
from marin_pipeline.core.source import CodeDigest
from marin_pipeline.core.step import file_of, function_digest
from marin_pipeline.run import surroundings
from marin_pipeline.run.loaded import refuse_edited
from marin_pipeline.run.task import References, Task, find, target_of, write_call
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name
from marin_pipeline.store.guard import refuse_secret_in
from marin_pipeline.store.manifest import Entry, Manifest, build_manifest, entries_of
from marin_pipeline.store.objects import NoAnswer, ObjectStore, put
from marin_pipeline.store.output import FileSet
from marin_pipeline.store.sealed import seal, unseal
from marin_pipeline.store.streams import Streams

R = TypeVar("R")


class StoredShard(Generic[R]):
    """The result of one shard: `.value`, `.files`, and `/ "name"` for a file."""

    def __init__(self, objects: ObjectStore, key: str, manifest: Manifest, tree: Tree, annotation: Any) -> None:
        self.key = key
        self.digest = manifest.output_digest
        self.entries: Mapping[str, Entry] = manifest.files
        """What the shard wrote, by path."""
        self._file_set = FileSet(objects, manifest, f"the shard {key[:8]}")
        self._tree = tree
        self._annotation = annotation

    @property
    def value(self) -> R:
        """What the function returned."""
        return decode(self._tree, self._annotation, f"shard {self.key[:8]} value")

    @property
    def files(self) -> list[str]:
        """Relative paths of the files that it wrote, sorted."""
        return sorted(self.entries)

    def local(self, path: str) -> Path:
        """The local file that holds `path`, verified."""
        return self._file_set.local(path)

    def refuse_changed(self, where: str) -> None:
        """See that what was read of it is as it was when it was read.

        Raises:
            InputError: when a file of it was written meanwhile.
        """
        self._file_set.refuse_changed(where)

    def open(self, path: str) -> BinaryIO:
        """A file, opened for reading."""
        return self._file_set.open(path)

    def url(self, path: str) -> str:
        """Where `path` lies in the store."""
        return f"{self._file_set.objects.url}/{self.entries[path].object}"

    def __truediv__(self, path: str) -> File:
        return OutputFile(Artifact(self.key, output=_ShardOutput(self)), path)


@dataclass(frozen=True)
class _ShardOutput:
    """A shard's files behind the interface that `File` reads through."""

    shard: StoredShard[Any]

    @property
    def id(self) -> str:
        return "shard"

    @property
    def key(self) -> str:
        return self.shard.key

    @property
    def digest(self) -> str:
        return self.shard.digest

    @property
    def unpinned(self) -> Sequence[str]:
        return ()

    @property
    def inputs(self) -> Mapping[str, Output]:
        return {}

    @property
    def files(self) -> Mapping[str, Entry]:
        return self.shard.entries

    def value(self, annotation: Any) -> Any:
        return self.shard.value

    def local(self, path: str) -> Path:
        return self.shard.local(path)

    def refuse_changed(self, where: str) -> None:
        self.shard.refuse_changed(where)

    def open(self, path: str) -> BinaryIO:
        return self.shard.open(path)

    def url(self, path: str) -> str:
        return self.shard.url(path)


@dataclass
class ShardScope:
    """What a function that `ctx.map` runs gets first."""

    out: Path
    """Folder for the shard's files."""
    streams: Streams

    @overload
    def stream(self, name: str, mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...
    @overload
    def stream(self, name: str, mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...
    def stream(self, name: str, mode: Literal["wb", "w"] = "wb") -> AbstractContextManager[BinaryIO | TextIO]:
        """Write a large file straight to the store."""
        return self.streams.writing(name, mode)

    def log(self, message: str) -> None:
        """Write a line to the log of the step."""
        print(message, flush=True)  # noqa: T201 - to the log


def plan_shards(step: Task, fn: Callable[..., Any], items: Iterable[Any], common: Mapping[str, Any]) -> list[Task]:
    """One task an item, with the key of its result.

    Raises:
        DeclarationError: for a function that no other process could find, or an argument that does not fit or cannot be
        keyed.
    """
    target = target_of(fn)
    hints = annotations_of(fn)
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount]
    if len(names) < 2:
        raise DeclarationError(
            f"ctx.map: {fn.__qualname__} must take a shard and an item; write `def {fn.__name__}(shard, item, ...)`"
        )
    unknown = sorted(set(common) - set(names[2:]))
    if unknown:
        raise DeclarationError(f"ctx.map: {fn.__qualname__} does not take {', '.join(unknown)}")
    shared = {name: check(value, hints.get(name, Any), f"{fn.__qualname__}: {name}") for name, value in common.items()}
    kept = {name: value for name, value in shared.items() if not marks_of(hints.get(name)).runtime}
    item_hint = hints.get(names[1], Any)
    codes: dict[frozenset[type], CodeDigest] = {}
    tasks: list[Task] = []
    for index, item in enumerate(items):
        item = check(item, item_hint, f"{fn.__qualname__}: item {index}")
        classes = frozenset(classes_in([item, shared]))
        if classes not in codes:
            found = sorted((file, kind.__qualname__) for kind in classes if (file := file_of(kind.__module__)))
            codes[classes] = _code_at_start(step, function_digest(fn, found, []), fn)
        identity = {
            "schema": 1,
            "code": codes[classes].digest,
            "salt": step.salt,
            "call": encode({names[1]: item, **kept}, fn.__qualname__, Form(reference=_by_content)),
        }
        call = write_call({names[1]: item, **shared})
        if step.secrets:
            refuse_secret_in(dumps(call), f"ctx.map: an argument of {fn.__qualname__}, for item {index},")
        attempt = attempt_name()
        tasks.append(
            Task(
                task=f"{step.task}/{index}-{attempt}",
                kind="shard",
                target=target,
                prefix=step.prefix,
                id=step.id,
                key=digest(identity),
                attempt=attempt,
                call=call,
                inputs=step.inputs,
                files=codes[classes].files,
                salt=step.salt,
                name=f"{step.name}[{index}]",
                secrets=step.secrets,
                single_writer=step.single_writer,
            )
        )
    return tasks


def _code_at_start(step: Task, now: CodeDigest, fn: Callable[..., Any]) -> CodeDigest:
    """The code that the step runs with. After an edit of what is loaded already the files do not tell it any more: then
    it is known as the step's, and its results are kept for this step alone.
    """
    begun = {file.path: file for file in step.files}
    files = tuple(begun.get(file.path, file) for file in now.files)
    if all(then.digest == file.digest for then, file in zip(files, now.files, strict=True)):
        return CodeDigest(now.digest, (), files)
    return CodeDigest(digest({"step": step.code, "function": fn.__qualname__}), (), step.files)


def _by_content(reference: Reference, path: str) -> Tree:
    """Files by what they hold; a whole artifact by its output."""
    if isinstance(reference, File):
        return {"~content": reference.sha256}
    if isinstance(reference, Artifact):
        return {"~output": reference.output.digest}
    return reference.canonical(path)


def read_shard(objects: ObjectStore, key: str, annotation: Any, *, taken: bool = False) -> StoredShard[Any] | None:
    """The result with this key, or None.

    Args:
        taken: this step has it already: it is read although it may have been ended since.

    Raises:
        CorruptOutput: when its record cannot be read.
    """
    path = layout.shard_record(key)
    found = objects.read(path)
    if found is None and taken:
        path = layout.shard_ended(key)
        found = objects.read(path)
    if found is None:
        return None
    try:
        tree = unseal(found.data)
        if tree.get("key", key) != key:
            raise ValueError(f"it is that of the shard {tree['key'][:8]}")
        manifest = Manifest(entries_of(tree["files"]))
        return StoredShard(objects, key, manifest, tree["value"], annotation)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptOutput(
            f"{objects.url}/{path}: not a record of a shard ({error}); run the step again with --force"
        ) from error


def shard_output(objects: ObjectStore, key: str) -> Output:
    """The files of a shard that is known to be done."""
    shard = read_shard(objects, key, Any, taken=True)
    if shard is None:
        raise StoreError(f"{objects.url}/{layout.shard(key)}: the shard has gone; run again")
    return _ShardOutput(shard)


def run_shard(
    objects: ObjectStore, task: Task, call: tuple[Callable[..., Any], Any, Mapping[str, Any]] | None = None
) -> None:
    """Compute one shard and make its result known, unless it is known already.

    Args:
        call: the function, the item and the common arguments, where they are at hand; else they are read from the task.
    """
    record = layout.shard_record(task.key)
    if objects.read(record) is not None:
        return
    try:
        with guarding(task.secrets):
            _compute(objects, task, record, call)
    finally:
        objects.forget(f"{layout.shard(task.key)}/{task.attempt}")


def _compute(
    objects: ObjectStore, task: Task, record: str, call: tuple[Callable[..., Any], Any, Mapping[str, Any]] | None
) -> None:
    bound = References(objects, task.inputs)
    function, item, arguments = call or _read_call(bound, task)
    hints = annotations_of(function)
    path = f"{layout.shard(task.key)}/{task.attempt}"
    if objects.in_place:
        objects.delete(path)  # what a try wrote whose process was killed, where scratch is in the store
    folder = objects.folder(path)
    what = f"{function.__qualname__} returned"
    refuse_edited(task.files, function.__qualname__)
    try:
        with surroundings.kept():
            streams = Streams(objects, path, folder)
            returned = function(ShardScope(folder, streams), item, **arguments)
        refuse_edited(task.files, function.__qualname__)
        bound.refuse_changed(f"the function {function.__qualname__} of ctx.map")
        for _, reference in references([item, *arguments.values()], "arguments"):
            if isinstance(reference, LocalFile):
                reference.refuse_changed()
        value = check(returned, hints.get("return", Any), what)
        manifest = build_manifest(objects, folder, path, {}, streams.finished())
        record_of = {"key": task.key, "attempt": task.attempt}
        tree = encode(value, what)
        refuse_secret_in(dumps(tree), what.removesuffix(" returned") + ": the returned value")
        data = seal({**record_of, "value": tree, "files": manifest.tree()["files"]})
        ours = put(objects, record, data).data == data
    except NoAnswer:
        raise  # the record may be there, or come yet: then the files are what it speaks of
    except BaseException:
        with suppress(StoreError):  # the error itself is what the reader needs
            objects.delete(path)
        raise
    if not ours:
        objects.delete(path)


def _read_call(references: References, task: Task) -> tuple[Callable[..., Any], Any, Mapping[str, Any]]:
    function = find(task.target)
    hints = annotations_of(function)
    arguments = {
        name: decode(tree, hints.get(name, Any), name, references, importing=True) for name, tree in task.call.items()
    }
    item = arguments.pop(function.__code__.co_varnames[1])
    return function, item, arguments
