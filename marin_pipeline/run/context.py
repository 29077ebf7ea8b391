"""What a running step gets, over a store; and the same over two plain folders, for a step function's own unit test."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, TypeVar, overload

from marin_pipeline.core.artifact import Artifact, Output, content_digest
from marin_pipeline.core.context import ShardResult
from marin_pipeline.core.errors import DeclarationError, InputError, Stopped, StoreError
from marin_pipeline.core.marks import annotations_of
from marin_pipeline.core.paths import relative_path
from marin_pipeline.core.secrets import redacted
from marin_pipeline.core.step import Declaration
from marin_pipeline.run.chains import nearest_state
from marin_pipeline.run.shards import StoredShard, plan_shards, read_shard, run_shard
from marin_pipeline.run.task import Target, Task
from marin_pipeline.run.words import counted
from marin_pipeline.run.work import StoredWork
from marin_pipeline.store import layout
from marin_pipeline.store.manifest import VALUE, Entry, files_below, publish_all
from marin_pipeline.store.objects import ObjectStore, Written, open_objects, together
from marin_pipeline.store.streams import Streams

T = TypeVar("T")
R = TypeVar("R")

PROGRESS_INTERVAL = 0.1
"""Seconds between two messages about progress, at least."""

MapRunner = Callable[[Sequence[Task]], None]
"""Runs shards somewhere; returns when all have their results in the store, or raises the first error."""


class RunContext:
    """The context of one attempt."""

    def __init__(
        self,
        objects: ObjectStore,
        task: Task,
        declaration: Declaration | None,
        *,
        map_runner: MapRunner,
        report: Callable[[dict[str, Any]], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._objects = objects
        self._task = task
        self._declaration = declaration
        self._map_runner = map_runner
        self._report = report
        self._is_stopping = is_stopping
        self._last_report = 0.0
        self._last_told: dict[str, Any] = {"event": "progress", "done": 0, "total": 0, "unit": "", "figures": {}}
        self._attempt = layout.attempt(task.id, task.key, task.attempt)
        self.out: Path = objects.folder(f"{self._attempt}/out")
        """Folder for the output."""
        self._streams = Streams(objects, f"{self._attempt}/out", self.out)
        self._recorded = False
        self._work = StoredWork(objects, task.work)
        self.worked = False
        """Whether finished parts were asked for."""
        self._shards: list[StoredShard[Any]] = []
        self.adopted: dict[str, Entry] = {}
        """Files of shards that are files of the output, by path."""

    @overload
    def stream(self, name: str, mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...
    @overload
    def stream(self, name: str, mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...
    def stream(self, name: str, mode: Literal["wb", "w"] = "wb") -> AbstractContextManager[BinaryIO | TextIO]:
        """Write a large file straight to the store."""
        return self._streams.writing(name, mode)

    def streamed(self) -> dict[str, Written]:
        """What was written with `stream`, by name.

        Raises:
            InputError: when a stream was begun and not ended, or a file was also written under its name.
        """
        return self._streams.finished()

    @property
    def records(self) -> Path:
        """Folder for what may differ from run to run."""
        self._recorded = True
        return self._objects.folder(f"{self._attempt}/records")

    @property
    def work(self) -> StoredWork:
        """Finished parts of a resumable step."""
        self.worked = True
        return self._work

    def refuse_changed(self, where: str) -> None:
        """See that what was read of its shards is as it was when it was read.

        Raises:
            InputError: when the step wrote on it.
        """
        for shard in self._shards:
            shard.refuse_changed(where)

    def publish_records(self) -> None:
        """Keep what was written below `records`."""
        if self._recorded:
            publish_all(self._objects, f"{self._attempt}/records")

    def map(self, fn: Callable[..., R], items: Iterable[Any], **common: Any) -> list[StoredShard[R]]:
        """Run `fn(shard, item, **common)` for each item, in parallel; results in the items' order, kept by content."""
        tasks = plan_shards(self._task, fn, items, common)
        annotation = annotations_of(fn).get("return", Any)
        distinct = {task.key: task for task in tasks}
        found = self._read(distinct, annotation)
        missing = [task for key, task in distinct.items() if found[key] is None]
        if missing:
            self._note(missing)
            self._map_runner(missing)
            self._tell(missing)
            found |= self._read([task.key for task in missing], annotation)
        results: list[StoredShard[R]] = []
        for task in tasks:
            result = found[task.key]
            if result is None:
                raise StoreError(f"{task.name}: ran, but its result is not in {self._objects.url}; run again")
            results.append(result)
        self._shards += results
        return results

    def _read(self, keys: Collection[str], annotation: Any) -> dict[str, StoredShard[Any] | None]:
        calls = (partial(read_shard, self._objects, key, annotation) for key in keys)
        return dict(zip(keys, together(self._objects, *calls), strict=True))

    def _note(self, tasks: Sequence[Task]) -> None:
        """Say which shards are asked for, so that their logs are found while they run, and when one has failed."""
        if not self._objects.shared:
            return  # then everything runs in this process, and prints to the step's own log
        folder, _, name = layout.attempt_shards(self._task.id, self._task.key, self._task.attempt).rpartition("/")
        with (self._objects.folder(folder) / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps([task.name, task.key, task.attempt]) + "\n" for task in tasks)

    def _tell(self, tasks: Sequence[Task]) -> None:
        """Copy what shards printed in other processes to the step's own log, in their order."""
        for begin in range(0, len(tasks), self._objects.parallel):
            some = tasks[begin : begin + self._objects.parallel]
            paths = [layout.shard_log(task.key, task.attempt) for task in some]
            logs = together(self._objects, *(partial(self._log, path) for path in paths))
            for task, log in zip(some, logs, strict=True):
                for line in log.decode("utf-8", "replace").splitlines():
                    print(f"{task.name} {line}")  # noqa: T201 - to the log

    def _log(self, path: str) -> bytes:
        """A log has no bound; nothing where none is."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return b"".join(self._objects.blocks(path))
        return b""

    def adopt(self, result: ShardResult[Any], path: str, as_path: str | None = None) -> None:
        """Make a file of a shard a file of the output, under `as_path`, without copying it."""
        target = relative_path(as_path or path)
        if not isinstance(result, StoredShard):
            raise InputError(f"ctx.adopt: {result!r} is not what ctx.map returned")
        if path not in result.entries:
            raise InputError(f"ctx.adopt: the shard has no file {path!r}; it has {', '.join(result.files) or 'none'}")
        if target in self.adopted or target == VALUE:
            raise InputError(f"ctx.adopt: the output {target!r} is taken already; use another name")
        result.local(path)  # what is adopted is committed: its bytes are checked here
        entry = result.entries[path]
        self.adopted[target] = Entry(target, entry.object, entry.size, entry.sha256, entry.checksum)

    def earlier_state(self) -> tuple[int, Output] | None:
        """The nearest committed earlier state of the same chain: its absolute step and its output."""
        return None if self._declaration is None else nearest_state(self._objects, self._declaration, self._task)

    def progress(self, done: int, total: int, unit: str = "items", **figures: float) -> None:
        """Say how far the step is."""
        self._progress(done, total, unit, figures, "")

    def _progress(self, done: int, total: int, unit: str, figures: Mapping[str, float], doing: str) -> None:
        now = time.monotonic()
        if done < total and now - self._last_report < PROGRESS_INTERVAL:
            return
        self._last_report = now
        # Numbers of numpy and jax are made plain here, where the step's own line is in the traceback of what is no
        # number.
        plain = {redacted(name): float(value) for name, value in figures.items()}
        told = {"done": int(done), "total": int(total), "unit": redacted(unit), "figures": plain}
        if not doing and (told["done"], told["total"]) == (self._last_told["done"], self._last_told["total"]):
            doing = self._last_told.get("doing", "")  # it is at that still
        self._last_told = {"event": "progress", **told, **({"doing": doing} if doing else {})}
        self._report(self._last_told)

    def doing(self, text: str) -> None:
        """Say what the step is at, such as what it waits for."""
        self._last_told = {**self._last_told, "doing": redacted(text)}
        self._report(self._last_told)

    def committing(self, files: int, all_files: int, size: int, all_bytes: int) -> None:
        """Say how far the files of the output are on their way into the store."""
        self._progress(size, all_bytes, "bytes", {"files": files}, f"committing {counted(all_files, 'file')}")

    def log(self, message: str) -> None:
        """Write a line to the step's log."""
        print(message, flush=True)  # noqa: T201 - to the log

    @property
    def stopping(self) -> bool:
        """True when the run was asked to stop."""
        return self._is_stopping()

    def stop(self) -> Stopped:
        """The error to raise when the step has stopped as asked."""
        return Stopped("stopped as asked; run the same command again to go on")


def test_context(folder: Path | str) -> RunContext:
    """A context over a folder, for a step function's own unit test: `count_words.fn(test_context(tmp_path), text="a
    b")`.

    What the function writes lies in the context's `.out`. `ctx.map` runs in this process.
    """
    objects = open_objects(str(folder))
    task = Task(
        "test", "step", Target("", "", "", False), str(folder), "test/step", "0" * 64, "test", {}, {}, work="work"
    )

    def run_here(tasks: Sequence[Task]) -> None:
        for each in tasks:
            run_shard(objects, each)

    return _TestContext(objects, task, None, map_runner=run_here, report=lambda event: None, is_stopping=lambda: False)


test_context.__test__ = False  # pyright: ignore[reportFunctionMemberAccess] - pytest must not take it for a test


class _TestContext(RunContext):
    """Runs shards with the objects that the test passed in, bound to plain folders."""

    def map(self, fn: Callable[..., R], items: Iterable[Any], **common: Any) -> list[StoredShard[R]]:
        tasks = plan_shards(self._task, fn, items := list(items), common)
        annotation = annotations_of(fn).get("return", Any)
        results: list[StoredShard[R]] = []
        for task, item in zip(tasks, items, strict=True):
            run_shard(self._objects, task, (fn, item, common))
            result = read_shard(self._objects, task.key, annotation)
            if result is None:
                raise StoreError(f"{task.name}: ran, but its result is not in {self._objects.url}")
            results.append(result)
        return results

    def adopt(self, result: ShardResult[Any], path: str, as_path: str | None = None) -> None:
        super().adopt(result, path, as_path)
        target = self.out / relative_path(as_path or path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((result / path).read_bytes())


class _FolderOutput:
    """A folder on disk behind the interface of a committed output."""

    id = "folder"
    unpinned = ()

    def __init__(self, folder: Path, value: Any) -> None:
        self._folder = folder
        self._value = value
        self.inputs: Mapping[str, Output] = {}
        self.files: Mapping[str, Entry] = {
            path: Entry(path, path, size, content_digest(file))
            for path, file, size in files_below(folder)
            if path != VALUE
        }
        self.digest = hashlib.sha256(
            repr(sorted((entry.path, entry.sha256) for entry in self.files.values())).encode()
        ).hexdigest()
        self.key = hashlib.sha256(f"{folder}{self.digest}".encode()).hexdigest()

    def value(self, annotation: Any) -> Any:
        return self._value

    def local(self, path: str) -> Path:
        found = self._folder / path
        if not found.exists():
            raise InputError(
                f"{self._folder} has no file {path!r}; it has {', '.join(sorted(self.files)[:10]) or 'none'}"
            )
        return found

    def open(self, path: str) -> BinaryIO:
        return self.local(path).open("rb")

    def url(self, path: str) -> str:
        return str(self._folder / path)


def local_artifact(folder: Path | str, value: T) -> Artifact[T]:
    """An artifact whose files are those of a folder and whose value is `value`, for a step function's own unit test."""
    path = Path(folder).absolute()
    if not path.is_dir():
        raise DeclarationError(f"local_artifact({str(folder)!r}): not a folder")
    output = _FolderOutput(path, value)
    return Artifact(output.key, kind=type(value), name=path.name.lower() or "folder", output=output)
