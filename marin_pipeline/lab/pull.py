"""`marin-pipeline pull`: takes an output, or all that it was made from, out of somebody's store into one's own.

Bundle and store may be anybody's. Nothing of them is run or imported. What is committed here was checked before: each
key against its spec, each commit against both bundle and store, each byte against the commit.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, MarinError, StoreError, UsageError
from marin_pipeline.core.visible import say, visible
from marin_pipeline.lab.agreement import agreed
from marin_pipeline.lab.bundle import LARGEST, Bundle, BundledStep, is_name
from marin_pipeline.lab.share import PULLED, bundle_of
from marin_pipeline.run.selection import find_step
from marin_pipeline.run.transfer import Part, Transfers
from marin_pipeline.run.words import bytes_text, counted, few
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Look, look_many
from marin_pipeline.store.conditions import writable
from marin_pipeline.store.copying import copy_output
from marin_pipeline.store.given import given_as, open_given
from marin_pipeline.store.kept_files import copy_file, file_digests
from marin_pipeline.store.manifest import VALUE
from marin_pipeline.store.names import enter_name, give_name, owner
from marin_pipeline.store.objects import ObjectStore, answered, command, explain_os_error
from marin_pipeline.store.pages import read_manifest

FAILED = 4
"""Exit code when something is not as the bundle says."""

AT_ONCE = 4
"""Outputs that are copied at the same time, each of them several objects at once."""

EVERY = 10.0
"""Seconds between two lines about what has come so far."""

Event = Mapping[str, Tree]


class NotTaken(MarinError):
    """Nothing is taken: what is there is not what the bundle says, or something else is here already."""

    exit_code = FAILED


@dataclass(frozen=True)
class Asked:
    """What is to be pulled."""

    given: str
    """A file, `-` for stdin, or a key of the store that it comes from."""
    source: str
    """Prefix of that store."""
    deep: bool
    """Take all that it was made from as well."""
    name: str | None
    """What it is called here; by default `pulled/` and what it is called there."""
    single_writer: bool = False
    """Take a store that does not keep conditional writes: nobody else writes there meanwhile."""
    limit: int | None = None
    """Bytes that may be fetched; None for no limit."""
    dry_run: bool = False
    """Only check, and say what would be fetched."""


def pull(objects: ObjectStore, asked: Asked, as_json: bool) -> int:
    """Take an output; the exit code. What is printed is a line, or an event, an output."""

    try:
        source = open_given(asked.source, "--from")
        with given_as({"--from": source.url, "--prefix": objects.url}), screen("pull") as (show, progress):

            def tell(event: Event) -> None:
                text = json.dumps(event) if as_json else _line(event)
                if text:
                    show(text)

            Pull(source, objects, asked, tell, progress).run()
    except MarinError as error:
        if as_json:
            say(json.dumps({"event": "summary", "ok": False, "error": str(error)}))
        if isinstance(error, CorruptOutput):  # a store that does not answer is another thing
            say(f"error: {error}", sys.stderr)
            return FAILED
        raise
    return 0


def read_bundle(given: str, source: ObjectStore, done: str, theirs: bool = True) -> Bundle:
    """The bundle in a file or on stdin; or that of a key of the store that it comes from.

    Args:
        done: what is asked for, as in `pulled`.
        theirs: the store is somebody else's to mend.

    Raises:
        UsageError: when there is no such file and no such key.
        BundleError: when it is not what it says.
        NotShared: when what the key was made from is not sound there.
    """
    if given == "-":
        return Bundle.loads(sys.stdin.buffer.read(LARGEST + 1), "stdin")
    try:
        is_file = Path(given).is_file()
    except (OSError, ValueError):  # too long for a path, or with what no path can have
        is_file = False
    if is_file:
        try:
            with open(given, "rb") as file:
                data = file.read(LARGEST + 1)
        except OSError as error:
            raise explain_os_error(error, given, "read") from error
        return Bundle.loads(data, given)
    if given.endswith(".json"):
        raise UsageError(f"{given}: there is no such file")
    return bundle_of(source, *find_step(source, given), done, theirs)


class Pull:
    """One output on its way from a store into another one."""

    def __init__(
        self,
        source: ObjectStore,
        objects: ObjectStore,
        asked: Asked,
        tell: Callable[[Event], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self._objects = objects
        self._asked = asked
        self._tell = tell
        self._progress = progress
        self._source = source
        if not self._source.is_there():
            raise UsageError(f"--from {asked.source}: no store is there")
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._done = 0
        self._total = 0
        self._files: set[str] = set()
        """Local files that are there already."""
        self._known: set[str] = set()
        """What several outputs name and is there, and was found to be right."""

    def run(self) -> None:
        """Check, fetch, commit.

        Raises:
            BundleError, NotTaken, CorruptOutput: when something is not as it must be; what was committed until then was
                sound.
        """
        bundle = read_bundle(self._asked.given, self._source, "pulled")
        name = self._asked.name or pulled_name(bundle)
        refuse_name(name)
        bundle = self._as_there(bundle)
        wanted = bundle.steps if self._asked.deep else (bundle.target,)
        here = look_many(self._objects, [(step.id, step.key) for step in bundle.steps])
        self._refuse_others(wanted, here)
        missing = [step for step in wanted if here[step.key].commit is None]
        self._total = bytes_of(bundle, missing)
        refuse_more(self._total, self._asked.limit, self._source, [step.label for step in missing])
        checked: dict[str, Tree] = {"event": "checked", "steps": len(bundle.steps), "fetch": len(missing)}
        self._tell({**checked, "bytes": self._total, "from": self._source.url})
        for step in wanted:
            if step not in missing or self._asked.dry_run:
                self._tell(self._told(step, "missing" if step in missing else "there"))
        if self._asked.dry_run:
            self._tell_end(bundle, wanted, here, missing, name)
            return
        self._objects = writable(self._objects, single_writer=self._asked.single_writer)
        self._fetch(bundle, missing)
        self._name_ancestors(wanted)
        given = str(give_name(self._objects, name, bundle.id, bundle.key))
        self._tell_end(bundle, wanted, here, missing, given)

    # Checking ---------------------------------------------------------------------------------------------------------

    def _as_there(self, bundle: Bundle) -> Bundle:
        """The bundle, held against the store, with the records that are there."""
        records, problem = agreed(self._source, bundle, bundle.steps)
        if problem:
            raise NotTaken(f"{problem}\nnothing was taken")
        return replace(bundle, steps=tuple(replace(step, commit=records[step.key]) for step in bundle.steps))

    def _refuse_others(self, wanted: Sequence[BundledStep], here: Mapping[str, Look]) -> None:
        """Outputs that are here stay; one that is damaged is no output."""
        for step in wanted:
            found = here[step.key]
            if found.damage:
                ending = command(f"invalidate {step.key[:8]} --reason damaged", self._objects)
                raise NotTaken(f"{found.damage.rpartition('; ')[0]}; {ending}, and pull again")
            if found.commit is not None:
                self._refuse_other(step, found.commit.output)

    def _refuse_other(self, step: BundledStep, output: str) -> None:
        if output != step.commit.output:
            ending = command(f"invalidate {step.key[:8]} --reason TEXT", self._objects)
            raise NotTaken(
                f"{step.label}: {self._objects.url} has the output {output[:8]} for this key, and the bundle says "
                f"{step.commit.output[:8]}; what is here was left as it is. {ending} ends it, or pull into another "
                "--prefix"
            )

    # Fetching ---------------------------------------------------------------------------------------------------------

    def _fetch(self, bundle: Bundle, steps: Sequence[BundledStep]) -> None:
        """Take the outputs, several at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(self._take, bundle, step) for step in steps]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
                errors = [error for each in running if each.done() and (error := each.exception()) is not None]
            finally:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
        if errors:
            raise next((error for error in errors if not isinstance(error, _Stopped)), errors[0])

    def _name_ancestors(self, wanted: Sequence[BundledStep]) -> None:
        """What the target was made from is called here as it was there, in the folder of what was pulled."""
        for step in wanted[:-1]:
            for name in step.names:
                if is_name(f"{PULLED}{name}"):
                    enter_name(self._objects, owner(), f"{PULLED}{name}", step.id, step.key)

    def _take(self, bundle: Bundle, step: BundledStep) -> None:
        if self._stopped.is_set():
            raise _Stopped
        self._check_manifest(step)
        for sha256 in sorted(file_digests(step.commit.arguments)) if step.commit.origin else ():
            if layout.kept_file(sha256) not in self._known:
                # no more than the bundle says
                copy_file(self._source, self._objects, sha256, bundle.files[sha256])
                self._known.add(layout.kept_file(sha256))
            with self._lock:
                is_new = sha256 not in self._files
                self._files.add(sha256)
            self._fetched(bundle.files[sha256] if is_new else 0)
        source, target = self._source, self._objects
        commit = copy_output(source, target, step.id, step.key, step.commit, report=self._fetched, known=self._known)
        self._refuse_other(step, commit.output)
        with self._lock:
            self._tell(self._told(step, "fetched"))

    def _check_manifest(self, step: BundledStep) -> None:
        manifest = answered(partial(read_manifest, self._source, step.id, step.key, step.commit))
        before, size, has_value = "", 0, False
        for entry in manifest.entries:
            if not _is_inside(entry.path) or entry.path <= before or entry.size < 0:
                name = f"{str(entry.path)[:200]!a}"
                raise CorruptOutput(f"{step.label}: its manifest names {name}, which is no file of an output")
            before, size, has_value = entry.path, size + entry.size, has_value or entry.path == VALUE
        if size != step.commit.bytes or not has_value or manifest.output_digest != step.commit.output:
            raise CorruptOutput(f"{step.label}: its manifest and its commit contradict each other")

    def _fetched(self, size: int) -> None:
        if self._stopped.is_set():
            raise _Stopped
        with self._lock:
            self._done += size
            self._progress(self._done, self._total)

    # Telling ----------------------------------------------------------------------------------------------------------

    def _told(self, step: BundledStep, status: str) -> Event:
        return {"event": "pull", "id": step.id, "key": step.key, "status": status, "bytes": step.commit.bytes}

    def _tell_end(
        self,
        bundle: Bundle,
        wanted: Sequence[BundledStep],
        here: Mapping[str, Look],
        missing: Sequence[BundledStep],
        name: str,
    ) -> None:
        left = [step for step in bundle.steps if step not in wanted]
        others = [
            step.label
            for step in left
            if (commit := here[step.key].commit) is not None and commit.compared != step.commit.compared
        ]
        absent = [step for step in left if here[step.key].commit is None]
        self._tell(
            {
                "event": "summary",
                "ok": True,
                "id": bundle.id,
                "key": bundle.key,
                "name": name,
                "dry_run": self._asked.dry_run,
                "fetched": 0 if self._asked.dry_run else len(missing),
                "there": len(wanted) - len(missing),
                "bytes": self._total,
                "left": len(absent),
                "left_bytes": sum(step.commit.bytes for step in absent),
                "others": others,
            }
        )


def bytes_of(bundle: Bundle, steps: Sequence[BundledStep]) -> int:
    """Bytes of the outputs of some steps, and of the local files that these were given."""
    files = {each for step in steps if step.commit.origin for each in file_digests(step.commit.arguments)}
    return sum(step.commit.bytes for step in steps) + sum(bundle.files[each] for each in files)


def refuse_more(size: int, limit: int | None, source: ObjectStore, what: list[str]) -> None:
    """Raise a `UsageError`, before anything is fetched, where that would be more than is allowed."""
    refusal = Transfers([Part("fetches", source.url, "", size, what)], limit=limit).refusal("or fetch less")
    if refusal:
        raise UsageError(refusal)


class _Stopped(StoreError):
    """Another output could not be taken."""


def pulled_name(bundle: Bundle) -> str:
    """What an output is called here by default: in a folder of its own, so that no name of one's own stands for it."""
    name = f"{PULLED}{bundle.name.removeprefix(PULLED)}"
    return name if is_name(name) else f"{PULLED}{bundle.key[:8]}"


def refuse_name(name: str) -> None:
    """Raise a `UsageError` for what can be no name, before anything is fetched."""
    if not is_name(name):
        raise UsageError(f"--as {name[:200]!a}: a name is made of a-z, 0-9, '_', '-' and '/', and is not too long")


def _is_inside(path: object) -> bool:
    """Whether a file's path stays inside its output."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _line(event: Event) -> str:
    """An event for people."""
    if event["event"] == "checked":
        size = f"; {bytes_text(event['bytes'])} to fetch" if event["fetch"] else ""
        return f"{counted(event['steps'], 'step')} checked against {event['from']}{size}"
    if event["event"] == "pull":
        return f"{event['status']:<9}{event['key'][:8]}  {bytes_text(event['bytes']):>9}  {event['id']}"
    lines = ["nothing was fetched" if event["dry_run"] else f"{event['name']}  {event['key']}"]
    if event["left"]:
        what = f"{counted(event['left'], 'step')} that it was made from, {bytes_text(event['left_bytes'])}"
        lines.append(f"left there: {what}; --deep takes them too, so that an experiment goes on from them")
    if event["others"]:
        lines.append(f"here {few(event['others'])} came out otherwise: an experiment that has them makes this again")
    return "\n".join(lines)


@contextmanager
def screen(verb: str) -> Generator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Prints a text; and takes the bytes that are there, and those that will be, for a bar on stderr; where that is
    no terminal, for a line every ten seconds.
    """
    if not sys.stderr.isatty():
        told_at = [time.monotonic()]

        def line(done: int, total: int) -> None:
            if time.monotonic() - told_at[0] >= EVERY:
                told_at[0] = time.monotonic()
                say(f"{verb:<9}{bytes_text(done)} of {bytes_text(total)}", sys.stderr)

        yield say, line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(verb), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(verb, total=None)

        def told(text: str) -> None:
            if sys.stdout.isatty():  # the same terminal: the bar makes room
                progress.console.print(visible(text), soft_wrap=True, highlight=False, markup=False)
            else:
                say(text)

        yield told, lambda done, total: progress.update(task, completed=done, total=total)
