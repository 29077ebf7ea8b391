"""`marin-pipeline reproduce`: runs a recorded step again, with all its ancestors when asked, and says whether the same
came out.

What is run is the code of the record. Who reproduces a bundle runs what its maker wrote: reading one is harmless, this
is not.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, OtherBytes, UsageError
from marin_pipeline.core.visible import say
from marin_pipeline.lab.agreement import agreed
from marin_pipeline.lab.bundle import Bundle
from marin_pipeline.lab.comparison import Comparison, compare
from marin_pipeline.lab.environment import How
from marin_pipeline.lab.pull import read_bundle, refuse_more, screen
from marin_pipeline.lab.reproduction import Recorded, Reproduction, Work
from marin_pipeline.lab.unpinned import unpinned_sources
from marin_pipeline.lab.verdict import OtherFile, Outcome, StepVerdict, Word, machine_changes
from marin_pipeline.run.words import counted, few
from marin_pipeline.store.commit import look
from marin_pipeline.store.given import given_as, open_given
from marin_pipeline.store.objects import LOCAL, ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.read_only import ReadOnlyObjects
from marin_pipeline.store.verify import Verifier

_WORDS: Mapping[str, Word] = {
    "bit-identical": "reproduced bit-identical",
    "within tolerance": "reproduced within tolerance",
    "diverged": "diverged",
}
_QUIET = frozenset({"plan", "summary", "progress", "cached", "declared", "transfer"})
"""Events that people are not shown."""

_REMOVALS = 20
"""Times that the removal of a folder is tried, a tenth of a second apart: what wrote there may just be ending."""


@dataclass(frozen=True)
class Asked:
    """How to reproduce."""

    to: str | None = None
    """Prefix of the store that is written; by default one that is removed when all came out as recorded."""
    deep: bool = False
    """Run all ancestors again as well."""
    environment: How = "auto"
    max_parallel: int | None = None
    limit: int | None = None
    """Bytes of inputs and local files that may be fetched; None for no limit."""


class Reporter:
    """Says what happens: JSON lines, or lines for people."""

    def __init__(self, line: Callable[[str], None], event: Callable[[Mapping[str, Tree]], None] | None) -> None:
        self._line = line
        self._event = event
        self._lock = threading.Lock()
        self.failures: set[str] = set()
        """Keys of the steps whose failure was told."""

    def tell(self, text: str) -> None:
        """A line for people; for programs an event of its own."""
        with self._lock:
            if self._event is not None:
                self._event({"event": "note", "text": text})
            else:
                self._line(text)

    def event(self, tree: Mapping[str, Tree]) -> None:
        """What a run tells."""
        with self._lock:
            if self._event is not None:
                self._event(tree)
            elif (text := _event_text(tree)) is not None:
                self._line(text)
                if tree.get("event") == "fail":
                    self.failures.add(str(tree.get("key")))

    def end(self, outcome: Outcome) -> None:
        """How it came out."""
        with self._lock:
            if self._event is not None:
                self._event(outcome.tree())
                return
            for line in outcome.lines():
                self._line(line)


def _event_text(tree: Mapping[str, Tree]) -> str | None:
    """The line of an event; None for those that people are not shown. Other versions of the engine may tell others."""
    verb, key, text = str(tree.get("event")), tree.get("key"), str(tree.get("text") or "")
    if verb in _QUIET:
        return None
    if key is None:
        return f"{verb:<9}{text}" if text else None
    seconds = tree.get("seconds")
    detail = f"{seconds:.1f} s" if isinstance(seconds, (int, float)) else text.removeprefix("forced")
    if verb == "fail":
        detail = f"{detail}\n{tree.get('traceback') or text}".strip()
    return f"{verb:<9}{str(key)[:8]}  {tree.get('name', '')}  {detail}".rstrip()


def command(own: ObjectStore, source: ObjectStore | None, what: str, asked: Asked, out: TextIO, as_json: bool) -> int:
    """The command: reproduce a key, or what a bundle says.

    Args:
        own: the store of a key when `source` is not given.
        what: a key, a name, or the file of a bundle.

    Raises:
        MarinError: when it cannot be tried.
    """
    to = None if asked.to is None else open_given(asked.to, "--to")
    stores = {"--to": to, "--from": source, "--prefix": own}
    given, source = source is not None, ReadOnlyObjects(source or own)
    with given_as({option: each.url for option, each in stores.items() if each is not None}):
        return _said(source, given, what, asked, out, as_json)


def _said(source: ObjectStore, given: bool, what: str, asked: Asked, out: TextIO, as_json: bool) -> int:
    if given and not source.is_there():
        raise UsageError(f"--from {source.url}: no store is there")
    bundle = read_bundle(what, source, "reproduced", theirs=given)
    if not given and (what == "-" or Path(what).is_file()):
        was = f"; it says that it was {bundle.source}" if bundle.source != LOCAL else ""
        raise UsageError(f"--from PREFIX: say where the store of {what} is{was}")

    def line(text: str) -> None:
        say(text, out)

    def event(tree: Mapping[str, Tree]) -> None:
        line(json.dumps(tree))

    return reproduce(source, bundle, asked, Reporter(line, event if as_json else None))


def reproduce(source: ObjectStore, bundle: Bundle, asked: Asked, reporter: Reporter) -> int:
    """Run a recorded step again and compare.

    Args:
        source: the store of the record; it is only read.
        bundle: the record, checked.

    Returns:
        0 as recorded, 1 a step failed, 4 diverged or not verified, 130 interrupted.

    Raises:
        MarinError: when it cannot be tried.
    """
    steps = Recorded.of(bundle)
    target = steps[-1]
    outcome = Outcome(target.id, target.key, target.name)
    with _places(asked.to, reporter) as (scratch, prefix):
        to = open_objects(prefix)
        if not to.shared:
            raise UsageError(f"--to {prefix}: a store in memory is seen by this process only; choose a folder")
        work = Work.of(steps, asked.deep, to)
        work.refuse_missing_secrets()
        try:
            work = _as_there(source, bundle, work, reporter)
            size, what = work.fetches(bundle.files)
            refuse_more(size, asked.limit, source, what)
            if not work.runs:
                outcome.steps += [_intact(source, to, step) for step in work.there]
            else:
                _run_again(
                    Reproduction(source, to, work, scratch, asked.environment, reporter.tell),
                    asked,
                    outcome,
                    reporter,
                )
        except CorruptOutput as error:
            where, _, what = str(error).partition(": ")
            outcome.damaged, outcome.damage = where, what or str(error)
            if isinstance(error, OtherBytes):
                named = {step.key: (step.name, step.id) for step in steps}
                outcome.other_bytes = OtherFile(error.path, *named.get(error.key, ("", "")), error.key)
        outcome.told = reporter.failures
        is_wrong = outcome.exit_code not in (0, 130) and bool(outcome.steps or outcome.failed)
        is_of_use = is_wrong or outcome.began is not None
        if asked.to is not None or is_of_use:
            outcome.prefix = to.url
        else:
            _remove(prefix, reporter)
        reporter.end(outcome)
    return outcome.exit_code


@contextmanager
def _places(to: str | None, reporter: Reporter) -> Iterator[tuple[Path, str]]:
    """A folder for code and files, which is removed, and the prefix that is written."""
    scratch = tempfile.mkdtemp(prefix="marin-reproduce-")
    try:
        prefix = to or tempfile.mkdtemp(prefix="marin-reproduced-")
        try:
            yield Path(scratch), prefix
        except BaseException:
            if to is None:
                _remove(prefix, reporter)
            raise
    finally:
        _remove(scratch, reporter)


def _remove(folder: str, reporter: Reporter) -> None:
    """Remove a temporary folder; one that stays is named."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.1)
    reporter.tell(f"{folder} could not be removed; delete it")


def _as_there(source: ObjectStore, bundle: Bundle, work: Work, reporter: Reporter) -> Work:
    """Hold the bundle against the store: what is taken from there, and what it is compared with, must be current there
    and the output that the bundle says; the work, with where its bytes lie there.

    Raises:
        CorruptOutput: naming the steps of which the store says otherwise.
    """
    records, problem = agreed(source, bundle, [step.step for step in work.covered])
    if problem:
        raise CorruptOutput(problem)
    reporter.tell(f"{counted(len(work.covered), 'step')} checked against {source.url}")
    return work.lying(records)


def _run_again(run: Reproduction, asked: Asked, outcome: Outcome, reporter: Reporter) -> None:
    with screen("pull") as (_, run.fetching):
        run.prepare()
    work = run.work
    outcome.pulled = len(work.pulled)
    outcome.adopted = [step.name for step in work.pulled if step.is_adopted]
    outcome.notes += [note for each in run.environments.values() for note in each.notes]
    runs = {step.key: step for step in work.runs}
    by_key = {**runs, **{step.key: step for step in work.there}}
    outcome.notes += [
        f"the input {step.name} ({step.label}) was there already with other bytes than are recorded"
        for step in [*work.pulled, *work.there]
        if step.key in run.moved
    ]
    outcome.notes += list(_reservations(run))
    found: dict[str, Future[tuple[StepVerdict, CommittedOutput]]] = {}
    others: set[str] = set()
    # In another thread: what the run tells has to be listened to.
    with ThreadPoolExecutor(1) as comparing:

        def event(tree: Mapping[str, Tree]) -> None:
            if tree.get("event") == "summary":
                done = ("done", "cached")
                outcome.failed += [
                    step for step in tree["steps"] if step["key"] in by_key and step["status"] not in done
                ]
                others.update(step["key"] for step in tree["steps"] if step["status"] == "cached")
                return
            if tree.get("event") != "plan":
                reporter.event(tree)
            key = tree.get("key")
            if tree.get("event") == "fail":
                outcome.logs[str(key)] = str(tree.get("log") or "")
            if tree.get("event") == "done" and key in runs:
                found[key] = comparing.submit(_compared, run, runs[key], reporter)

        code = run.run(event, asked.max_parallel)
        outcome.hints = run.hints({str(each["key"]): str(each.get("message") or "") for each in outcome.failed})
        outcome.interrupted = code == 130
        results = {key: each.result() for key, each in found.items()}
    pairs = [
        (dict(by_key[key].commit.fingerprint), dict(made.commit.fingerprint)) for key, (_, made) in results.items()
    ]
    outcome.machine = machine_changes(pairs)
    # Every step is forced, so what was not made here was made by somebody else while this waited for it.
    meanwhile = [step for step in work.runs if step.key in others - results.keys()]
    missing = [step for step in work.runs if step.key not in results and step.key not in others]
    if missing and not outcome.failed and not outcome.interrupted:
        outcome.failed = [{"key": step.key, "name": step.name, "status": "not run"} for step in missing]
    if meanwhile:
        named = ", ".join(step.name for step in meanwhile)
        outcome.notes.append(f"{named}: made by another run in {run.to.url} meanwhile, and not again here")
    nothing_ran = len(meanwhile) == len(work.runs) and not outcome.interrupted
    held = _intact if nothing_ran else _found_there
    there = {step.key: held(run.source, run.to, step) for step in [*work.there, *meanwhile]}
    order = {step.key: number for number, step in enumerate(work.covered)}
    verdicts = {**there, **{key: verdict for key, (verdict, _) in results.items()}}
    outcome.steps = [verdicts[key] for key in sorted(verdicts, key=order.__getitem__)]


def _reservations(run: Reproduction) -> Iterator[str]:
    """What a reader of the verdict should know of the steps that run."""
    runs = {step.key for step in run.work.runs}
    for source in unpinned_sources([step.step for step in run.work.covered]):
        if source.step.key in runs:
            name = next(step.name for step in run.work.runs if step.key == source.step.key)
            rests = len(source.rests & runs)
            on_it = f"; {counted(rests, 'step that runs rests', 'steps that run rest')} on it" if rests else ""
            yield f"{name} is unpinned: what no key fixes ({few(source.names)}) may be another now{on_it}"
    if run.started_with_states:
        yield f"{run.to.url} had trained states before, from which a step may have gone on instead of beginning anew"


def _compared(run: Reproduction, step: Recorded, reporter: Reporter) -> tuple[StepVerdict, CommittedOutput]:
    made = _output(run.to, step)
    comparison = compare(CommittedOutput(run.source, step.id, step.key, step.commit), made)
    verdict = StepVerdict(step.id, step.key, step.name, _WORDS[comparison.verdict], comparison)
    reporter.event({"event": "compared", "text": _text(comparison), **verdict.tree()})
    return verdict, made


def _text(comparison: Comparison) -> str:
    return comparison.verdict if comparison.first is None else f"{comparison.verdict}: {comparison.first}"


def _output(objects: ObjectStore, step: Recorded) -> CommittedOutput:
    found = look(objects, step.id, step.key)
    if found.commit is None:
        raise CorruptOutput(found.damage or f"{objects.url}: {step.label} has gone; say it again")
    return CommittedOutput(objects, step.id, step.key, found.commit)


def _found_there(source: ObjectStore, to: ObjectStore, step: Recorded) -> StepVerdict:
    """What was there already beside steps that run, held against the record; its bytes are not read."""
    made = _output(to, step)
    if made.commit.output == step.commit.output:
        return StepVerdict(step.id, step.key, step.name, "cached", ran=False)
    return _beside_record(source, step, made, "cached")


def _intact(source: ObjectStore, to: ObjectStore, step: Recorded) -> StepVerdict:
    """What was there already when nothing runs: its bytes, read and hashed, against the record.

    Raises:
        CorruptOutput: when the store has not got what it says.
    """
    made = _output(to, step)
    verified = Verifier(to, "full").verify(step.id, step.key)
    if verified is not None and verified.findings:
        raise CorruptOutput(str(verified.findings[0]))
    return _beside_record(source, step, made, "intact")


def _beside_record(source: ObjectStore, step: Recorded, made: CommittedOutput, equal: Word) -> StepVerdict:
    comparison = compare(CommittedOutput(source, step.id, step.key, step.commit), made)
    words: dict[str, Word] = {"bit-identical": equal, "within tolerance": "cached", "diverged": "diverged"}
    word = words[comparison.verdict]
    return StepVerdict(step.id, step.key, step.name, word, comparison, ran=False)
