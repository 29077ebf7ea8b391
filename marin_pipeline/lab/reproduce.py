"""`marin-pipeline reproduce`: runs a recorded step again, with all its ancestors when asked, and says whether the same
came out.

What is run is the code of the record. Who reproduces a bundle runs what its maker wrote: reading one is harmless, this
is not.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.core.visible import say
from marin_pipeline.lab.bundle import Bundle
from marin_pipeline.lab.comparison import Comparison, compare
from marin_pipeline.lab.environment import How
from marin_pipeline.lab.pull import read_bundle
from marin_pipeline.lab.reproduction import Recorded, Reproduction, Work
from marin_pipeline.lab.verdict import Outcome, StepVerdict, Word, machine_changes
from marin_pipeline.store.commit import look
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.read_only import ReadOnlyObjects
from marin_pipeline.store.verify import Verifier

_WORDS: Mapping[str, Word] = {
    "bit-identical": "reproduced bit-identical",
    "within tolerance": "reproduced within tolerance",
    "diverged": "diverged",
}
_WORDS_OF_WHAT_IS_THERE: Mapping[str, Word] = {
    "bit-identical": "intact",
    "within tolerance": "cached",
    "diverged": "diverged",
}


@dataclass(frozen=True)
class Asked:
    """How to reproduce."""

    to: str | None = None
    """Prefix of the store that is written; by default one that is removed when all came out as recorded."""
    deep: bool = False
    """Run all ancestors again as well."""
    environment: How = "auto"
    max_parallel: int | None = None


class Reporter:
    """Says what happens: JSON lines, or lines for people."""

    def __init__(self, line: Callable[[str], None], event: Callable[[Mapping[str, Tree]], None] | None) -> None:
        self._line = line
        self._event = event
        self._lock = threading.Lock()

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

    def end(self, outcome: Outcome) -> None:
        """How it came out."""
        with self._lock:
            if self._event is not None:
                self._event(outcome.tree())
                return
            for line in outcome.lines():
                self._line(line)


def _event_text(tree: Mapping[str, Tree]) -> str | None:
    """The line of an event; None for those that people are not shown."""
    verb = tree["event"]
    if verb in ("plan", "summary", "progress", "cached", "declared"):
        return None
    detail = f"{tree['seconds']:.1f} s" if verb in ("done", "fail") else tree.get("text", "").removeprefix("forced")
    if verb == "fail":
        detail = f"{detail}  {tree.get('text', '')}\n{tree.get('traceback', '')}".rstrip()
    return f"{verb:<9}{tree['key'][:8]}  {tree['name']}  {detail}".rstrip()


def command(own: ObjectStore, source: ObjectStore | None, what: str, asked: Asked, out: TextIO, as_json: bool) -> int:
    """The command: reproduce a key, or what a bundle says.

    Args:
        own: the store of a key when `source` is not given.
        what: a key, a name, or the file of a bundle.

    Raises:
        MarinError: when it cannot be tried.
    """
    given, source = source is not None, ReadOnlyObjects(source or own)
    if given and not source.is_there():
        raise UsageError(f"--from {source.url}: no store is there")
    bundle = read_bundle(what, source)
    if not given and (what == "-" or Path(what).is_file()):
        raise UsageError(f"--from PREFIX: say where the store of {what} is; it says that it was {bundle.source}")

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
    with _places(asked.to) as (scratch, prefix):
        to = open_objects(prefix)
        if not to.shared:
            raise UsageError(f"--to {prefix}: a store in memory is seen by this process only; choose a folder")
        work = Work.of(steps, asked.deep, to)
        work.refuse_missing_secrets()
        try:
            if not work.runs:
                outcome.steps.append(_already_there(source, to, target))
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
        is_of_use = outcome.exit_code not in (0, 130) and bool(outcome.steps or outcome.failed)
        if asked.to is not None or is_of_use:
            outcome.prefix = to.url
        if asked.to is None and outcome.prefix is None:
            shutil.rmtree(prefix, ignore_errors=True)
        reporter.end(outcome)
    return outcome.exit_code


@contextmanager
def _places(to: str | None) -> Iterator[tuple[Path, str]]:
    """A folder for code and files, which is removed, and the prefix that is written."""
    with tempfile.TemporaryDirectory(prefix="marin-reproduce-") as scratch:
        prefix = to or tempfile.mkdtemp(prefix="marin-reproduced-")
        try:
            yield Path(scratch), prefix
        except BaseException:
            if to is None:
                shutil.rmtree(prefix, ignore_errors=True)
            raise


def _run_again(run: Reproduction, asked: Asked, outcome: Outcome, reporter: Reporter) -> None:
    run.prepare()
    work = run.work
    outcome.pulled = len(work.pulled)
    outcome.adopted = [step.name for step in work.pulled if step.is_adopted]
    outcome.notes += [note for each in run.environments.values() for note in each.notes]
    by_key = {step.key: step for step in [*work.runs, *work.there]}
    outcome.notes += [
        f"the input {step.name} ({step.label}) was there already with other bytes than are recorded"
        for step in [*work.pulled, *work.there]
        if step.key in run.moved
    ]
    outcome.notes += list(_reservations(run))
    found: dict[str, Future[tuple[StepVerdict, CommittedOutput]]] = {}
    # In another thread: what the run tells has to be listened to.
    with ThreadPoolExecutor(1) as comparing:

        def event(tree: Mapping[str, Tree]) -> None:
            if tree["event"] == "summary":
                done = ("done", "cached")
                outcome.failed += [
                    step for step in tree["steps"] if step["key"] in by_key and step["status"] not in done
                ]
                return
            if tree["event"] != "plan":
                reporter.event(tree)
            if tree["event"] == "done":
                found[tree["key"]] = comparing.submit(_compared, run, by_key[tree["key"]], reporter)

        code = run.run(event, asked.max_parallel)
        outcome.interrupted = code == 130
        results = {key: each.result() for key, each in found.items()}
    pairs = [
        (dict(by_key[key].commit.fingerprint), dict(made.commit.fingerprint)) for key, (_, made) in results.items()
    ]
    outcome.machine = machine_changes(pairs)
    missing = [step for step in work.runs if step.key not in results]
    if missing and not outcome.failed and not outcome.interrupted:
        outcome.failed = [{"key": step.key, "name": step.name, "status": "not run"} for step in missing]
    there = {step.key: _found_there(run.to, step) for step in work.there}
    order = {step.key: number for number, step in enumerate([*work.there, *work.runs])}
    verdicts = {**there, **{key: verdict for key, (verdict, _) in results.items()}}
    outcome.steps = [verdicts[key] for key in sorted(verdicts, key=order.__getitem__)]


def _reservations(run: Reproduction) -> Iterator[str]:
    """What a reader of the verdict should know of the steps that run."""
    for step in run.work.runs:
        if step.commit.unpinned:
            named = ", ".join(step.commit.unpinned)
            yield f"{step.name} is unpinned: what no key fixes ({named}) may be another now"
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


def _found_there(to: ObjectStore, step: Recorded) -> StepVerdict:
    """An input that was there already: by its record only."""
    made = _output(to, step)
    same = made.commit.output == step.commit.output
    return StepVerdict(step.id, step.key, step.name, "cached", None, () if same else ("has other bytes than recorded",))


def _already_there(source: ObjectStore, to: ObjectStore, target: Recorded) -> StepVerdict:
    """The target, which the store that was to be written has already: its bytes, read and hashed, against the record.

    Raises:
        CorruptOutput: when the store has not got what it says.
    """
    made = _output(to, target)
    verified = Verifier(to, "full").verify(target.id, target.key)
    if verified is not None and verified.findings:
        first = verified.findings[0]
        raise CorruptOutput(f"{first.where}: {first.what}")
    comparison = compare(CommittedOutput(source, target.id, target.key, target.commit), made)
    return StepVerdict(target.id, target.key, target.name, _WORDS_OF_WHAT_IS_THERE[comparison.verdict], comparison)
