"""One attempt at a step, in the process that runs it: read the call back, run the function, describe what it wrote.

The attempt writes below its own folder only and commits nothing: that is the driver's, which holds the lease.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from marin_pipeline.core.arguments import check
from marin_pipeline.core.arguments import references as references_in
from marin_pipeline.core.artifact import LocalFile
from marin_pipeline.core.canonical import dumps, encode
from marin_pipeline.core.errors import DeclarationError, InputError, MarinError, Stopped, StoreError
from marin_pipeline.core.reading import decode
from marin_pipeline.core.secrets import guarding, redacted
from marin_pipeline.core.source import CodeDigest
from marin_pipeline.core.step import Declaration, Step
from marin_pipeline.run import surroundings
from marin_pipeline.run.context import RunContext
from marin_pipeline.run.fingerprint import fingerprint
from marin_pipeline.run.loaded import refuse_edited
from marin_pipeline.run.task import References, Task, find_step
from marin_pipeline.store import layout
from marin_pipeline.store.guard import refuse_secret_in, refuse_secrets, refuse_secrets_beside
from marin_pipeline.store.kept_files import keep_file
from marin_pipeline.store.manifest import VALUE, build_manifest, refuse_link
from marin_pipeline.store.objects import FULL, DiskFull, FileToPublish, NoAnswer, ObjectStore, explain_os_error
from marin_pipeline.store.own_folder import scratch_parent
from marin_pipeline.store.pages import write_manifest

ENGINE = ("marin_pipeline/run/", "marin_pipeline/core/", "marin_pipeline/store/")

FIRST, LAST = 4, 3
"""Errors of a chain that are shown: those nearest to the one that was raised, and those where it began."""


@dataclass(frozen=True)
class Finished:
    """What an attempt made."""

    manifest: str
    """sha256 of the manifest's bytes."""
    output: str
    """Output digest."""
    logical: str | None
    """Logical digest, when the value carries one."""
    bytes: int
    seconds: float
    worked: bool
    """The step kept finished parts, which nobody needs any more."""
    fingerprint: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """Why an attempt, or a shard, did not finish."""

    kind: str
    """`user`, `infrastructure`, `memory`, `preempted` or `stopped`."""
    message: str
    """One paragraph for the reader: what, where, what to do."""
    traceback: str
    """Of the step's own code; empty for an error whose message says it all."""
    again: bool = False
    """Whether another attempt may succeed."""
    silent: bool = False
    """The store did not answer, or the machine had no room: another attempt waits a while first."""
    full: bool = False
    """The disk was full: what the attempt wrote is only in the way."""

    def tree(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        """The traceback, where there is one, and the message, which may be its last line."""
        if self.traceback.endswith(self.message):
            return self.traceback
        return f"{self.traceback}\n{self.message}".strip()


class ShardFailed(MarinError):
    """A shard of a `ctx.map` failed; carries why."""

    def __init__(self, failed: Failed, name: str) -> None:
        super().__init__(f"{name}: {failed.message}")
        self.failed = failed


@contextmanager
def failure_told_in(log: Path, task: Task) -> Generator[None]:
    """Why a step failed is the last thing in its log, where whoever reads of the failure is sent."""
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        raise
    except BaseException as error:
        if task.kind == "step":  # a shard's failure is its step's
            with suppress(OSError):  # the error itself is what the reader needs
                _append(log, str(describe_failure(error, task)))
        raise


def _append(log: Path, text: str) -> None:
    """Add lines to a log; what the step may have put in its place is not followed."""
    with open(os.open(log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW), "r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        begin = "" if file.read(1) in (b"", b"\n") else "\n"
        file.write(f"{begin}{text}\n".encode("utf-8", "backslashreplace"))


def run_attempt(
    objects: ObjectStore,
    task: Task,
    *,
    step: Step[Any, Any] | None,
    map_runner: Callable[[Sequence[Task]], None],
    report: Callable[[dict[str, Any]], None],
    is_stopping: Callable[[], bool],
) -> Finished:
    """Run one attempt to its end; returns what it made, or raises what the step raised.

    Args:
        step: the step, where it is at hand; else it is imported as the task says.
    """
    try:
        with guarding(task.secrets):
            return _run(objects, task, step or find_step(task.target), map_runner, report, is_stopping)
    finally:
        for folder in ("out", "records"):
            objects.forget(f"{layout.attempt(task.id, task.key, task.attempt)}/{folder}")


def _run(
    objects: ObjectStore,
    task: Task,
    step: Step[Any, Any],
    map_runner: Callable[[Sequence[Task]], None],
    report: Callable[[dict[str, Any]], None],
    is_stopping: Callable[[], bool],
) -> Finished:
    references = References(objects, task.inputs)
    annotations = step.annotations
    arguments = {
        name: decode(tree, annotations.get(name, Any), name, references, importing=True)
        for name, tree in task.call.items()
    }
    declaration = Declaration(step, arguments, CodeDigest(task.code, (), task.files))
    if declaration.key != task.key:
        raise InputError(
            f"{step.where}: is declared otherwise where it runs than where the run began: {declaration.key[:8]}, not "
            f"{task.key[:8]}; it was edited while the run was going on, or its file gives another step each time it is "
            "loaded. Run the same command again"
        )
    context = RunContext(objects, task, declaration, map_runner=map_runner, report=report, is_stopping=is_stopping)
    refuse_edited(task.files, step.where)
    started = time.monotonic()
    try:
        with surroundings.kept():
            returned = step.fn(context, **arguments)
    except BaseException:
        with suppress(MarinError, OSError):  # the error itself is what the reader needs
            context.publish_records()
        raise
    refuse_edited(task.files, step.where)
    references.refuse_changed(step.where)
    context.refuse_changed(step.where)
    _keep_files(objects, arguments)
    if not context.out.is_dir():
        raise InputError(f"{step.where}: removed ctx.out, the folder of its output; leave it there")
    refuse_link(context.out)
    value = check(returned, step.returns, f"{step.where}: the returned value")
    if os.path.lexists(context.out / VALUE):  # a link to what is not there yet leads out of the store
        raise InputError(f"{step.where}: wrote {VALUE}, which is kept for the returned value; use another name")
    tree = dumps(encode(value, f"{step.where}: the returned value"))
    refuse_secret_in(tree, f"{step.where}: the returned value")
    try:
        (context.out / VALUE).write_bytes(tree)
    except OSError as error:
        raise explain_os_error(error, context.out / VALUE, "write the returned value") from error
    attempt = layout.attempt(task.id, task.key, task.attempt)
    manifest = build_manifest(
        objects, context.out, f"{attempt}/out", context.adopted, context.streamed(), context.committing
    )
    context.publish_records()
    if objects.in_place:  # elsewhere what lies there is removed with the disk that it was written to
        refuse_secrets_beside(objects.folder(attempt), ("out", "records", "log/log.txt"))
    logical = getattr(value, "logical_digest", None)
    return Finished(
        manifest=write_manifest(objects, task.id, task.key, task.attempt, manifest),
        output=manifest.output_digest,
        logical=logical if isinstance(logical, str) else None,
        bytes=manifest.size,
        seconds=time.monotonic() - started,
        worked=context.worked,
        fingerprint=json.loads(json.dumps(fingerprint())),
    )


def _keep_files(objects: ObjectStore, arguments: Mapping[str, Any]) -> None:
    """Check that the files of this machine that a step was given are as they were, and keep what is in them."""
    files = {
        reference.sha256: reference
        for _, reference in references_in(arguments, "arguments")
        if isinstance(reference, LocalFile)
    }
    for file in files.values():
        file.refuse_changed()
        refuse_secrets([FileToPublish(file.name, file.path, file.size)], "the local file")
        keep_file(objects, file.path, file.sha256, file.size)
        file.refuse_changed()


def describe_failure(error: BaseException, task: Task) -> Failed:
    """Why `error` ended a task, classed, with the step's own traceback; the secrets in it by name."""
    try:
        found = _described(error, task)
        return replace(found, message=redacted(found.message), traceback=redacted(found.traceback))
    except BaseException as second:  # noqa: BLE001 - an error may raise another when it is asked what it is
        return Failed("user", f"a {type(error).__qualname__}, which cannot be shown ({type(second).__qualname__})", "")


def _described(error: BaseException, task: Task) -> Failed:
    if isinstance(error, ShardFailed):
        return replace(error.failed, message=str(error))
    if isinstance(error, Stopped):
        return Failed("stopped", str(error), "")
    if isinstance(error, DiskFull):
        return Failed("infrastructure", str(error), "", full=True)
    if isinstance(error, StoreError):
        silent = isinstance(error, NoAnswer)
        return Failed("infrastructure", str(error), "", again=silent, silent=silent)
    if isinstance(error, DeclarationError):
        return Failed("user", str(error), _own_traceback(error))
    if isinstance(error, MarinError):
        return Failed("user", str(error), "")
    if isinstance(error, MemoryError):
        return Failed(
            "memory", "ran out of memory; give it less at once, or a machine with more", _own_traceback(error)
        )
    full = _disk_full(error)
    if full is not None:
        return Failed("infrastructure", _told_full(full, task), "", full=True)
    if isinstance(error, SystemExit):
        return Failed("user", f"the step called exit({error.code!r}); raise an error instead", _own_traceback(error))
    return Failed("user", _text(error).strip(), _own_traceback(error))


def _told_full(error: BaseException, task: Task) -> str:
    """Which disk is full: what is on its way to a bucket is written on that for temporary files."""
    attempt = f"{task.prefix}/{layout.attempt(task.id, task.key, task.attempt)}"
    scratch = scratch_parent()
    place = getattr(error, "filename", None) or (os.fspath(scratch) if "://" in task.prefix else attempt)
    is_scratch = isinstance(place, str) and Path(place).is_relative_to(scratch)
    other = "set TMPDIR to a folder on another disk" if is_scratch else "choose another prefix with --prefix"
    return f"{place}: the disk is full; free some space there, or {other}, and run again"


def _disk_full(error: BaseException) -> BaseException | None:
    """What says that there was no room, among an error and its causes; libraries in C say it in words only."""
    for found in _chain(error):
        if (isinstance(found, OSError) and found.errno in FULL) or "No space left on device" in _words(found):
            return found
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """An error, its cause, the cause of that, and so on; each once, since a chain may lead back into itself."""
    found: dict[int, BaseException] = {}
    each: BaseException | None = error
    while each is not None and id(each) not in found:
        found[id(each)] = each
        each = each.__cause__ or each.__context__
    return list(found.values())


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its text is only looked at for a hint here
        return ""


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def _own_traceback(error: BaseException) -> str:
    """The traceback from the first frame that is not the engine's."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and any(part in frame.tb_frame.f_code.co_filename.replace("\\", "/") for part in ENGINE):
        frame = frame.tb_next
    if frame is None and isinstance(error, MarinError):
        return ""
    begin = frame or error.__traceback__
    chain = _chain(error)
    if len(chain) <= FIRST + LAST:
        return _formatted(error, begin)
    kept = [(each, each.__cause__, each.__context__, each.__suppress_context__) for each in chain]
    try:
        # Each by itself: Python's formatter goes through all that hangs on an error, whatever it shows.
        for each in chain:
            each.__cause__ = each.__context__ = None
        oldest = [_formatted(each, each.__traceback__) for each in reversed(chain[-LAST:])]
        newest = [_formatted(each, begin if each is error else each.__traceback__) for each in reversed(chain[:FIRST])]
        return "\n\n".join([*oldest, f"({len(chain) - FIRST - LAST:,} more errors between these)", *newest])
    finally:
        for each, cause, context, suppressed in kept:
            each.__cause__, each.__context__, each.__suppress_context__ = cause, context, suppressed


def _formatted(error: BaseException, begin: TracebackType | None) -> str:
    return "".join(traceback.format_exception(type(error), error, begin)).strip()
