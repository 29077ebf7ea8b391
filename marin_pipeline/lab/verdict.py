"""What is said of a reproduction: one of five words, and what stands behind it.

*cached* and *intact* are said of outputs that were there already: nothing ran. *reproduced bit-identical*, *reproduced
within tolerance* and *diverged* are said of steps that ran, all of them, in this reproduction. A cache hit is never
called reproduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from marin_pipeline.core.canonical import Tree
from marin_pipeline.lab.comparison import Comparison, Difference
from marin_pipeline.run.explain import Change, changes, shown
from marin_pipeline.run.output_difference import change_tree
from marin_pipeline.run.words import bytes_text, counted, listed

Word = Literal["cached", "intact", "reproduced bit-identical", "reproduced within tolerance", "diverged"]

_ORDER: Mapping[Word, int] = {
    "cached": 0,
    "intact": 0,
    "reproduced bit-identical": 0,
    "reproduced within tolerance": 1,
    "diverged": 2,
}
"""How far from the record each is."""

EXIT_DIVERGED = 4
LISTED = 20
"""Files or notes of one step that are listed one by one for people; more are counted."""


@dataclass(frozen=True)
class StepVerdict:
    """What is said of one step."""

    id: str
    key: str
    name: str
    word: Word
    comparison: Comparison | None = None
    """None where no files were compared."""
    notes: tuple[str, ...] = ()
    ran: bool = True
    """Whether it ran in this reproduction; else its output was there already."""

    @property
    def first(self) -> Difference | None:
        """The first file that is not as recorded."""
        return self.comparison.first if self.comparison else None

    def tree(self) -> dict[str, Tree]:
        """As JSON values."""
        compared = self.comparison
        return {
            "id": self.id,
            "key": self.key,
            "name": self.name,
            "verdict": self.word,
            "exact": compared.exact if compared else None,
            "files": compared.files if compared else None,
            "bytes": compared.bytes if compared else None,
            "differences": [each.tree() for each in compared.differences] if compared else [],
            "notes": [*(compared.notes if compared else ()), *self.notes],
        }

    def lines(self) -> Iterator[str]:
        """What differs, for people."""
        if self.comparison is not None and self.comparison.differences:
            found = self.comparison.differences
            yield f"{self.name} ({self.id} {self.key[:8]}): {counted(len(found), 'file')} not as recorded"
            yield from listed([f"  {each}" for each in found], LISTED)
            yield from listed([f"  {each}" for each in self.comparison.notes], LISTED)
        yield from (f"{self.name}: {each}" for each in self.notes)


@dataclass(frozen=True)
class OtherFile:
    """A file that was read to run a step, and is not the recorded one."""

    path: str
    """As its step knows it."""
    step: str
    """Name of the step that made it or was given it."""
    id: str
    key: str


@dataclass
class Outcome:
    """How a reproduction came out."""

    id: str
    key: str
    name: str
    steps: list[StepVerdict] = field(default_factory=list[StepVerdict])
    """In topological order; the target is the last that is compared."""
    pulled: int = 0
    """Inputs that were fetched, and not made again."""
    adopted: list[str] = field(default_factory=list[str])
    """Names of those among them that were made elsewhere."""
    failed: list[Mapping[str, Tree]] = field(default_factory=list[Mapping[str, Tree]])
    """Steps that failed or were blocked, with their messages."""
    told: set[str] = field(default_factory=set[str])
    """Keys of those whose message people have read already."""
    logs: dict[str, str] = field(default_factory=dict[str, str])
    """Where what a failed step printed lies, by key."""
    hints: Mapping[str, str] = field(default_factory=dict[str, str])
    """What to do about a failed step, by key."""
    damage: str = ""
    """What could not be verified or had other bytes than were recorded, so that nothing ran, or nothing more."""
    damaged: str = ""
    """The object, file or store of the damage."""
    other_bytes: OtherFile | None = None
    """The file of the damage where it was read and is not the recorded one, so that this is a verdict."""
    notes: list[str] = field(default_factory=list[str])
    """What a reader should know beside the verdict."""
    machine: list[Change] = field(default_factory=list[Change])
    """What the machines, libraries and flags differ in."""
    prefix: str | None = None
    """Where the outputs lie that were made again; None where they were removed."""
    interrupted: bool = False

    @property
    def word(self) -> Word | None:
        """The verdict; None where the steps did not come to their end."""
        if self.damage:
            return "diverged" if self.other_bytes else None
        if self.failed or self.interrupted or not self.steps:
            return None
        worst = max(self.steps, key=lambda step: _ORDER[step.word])
        target = self.steps[-1]
        return worst.word if _ORDER[worst.word] > _ORDER[target.word] else target.word

    @property
    def began(self) -> StepVerdict | None:
        """The first step, in topological order, that is not as recorded."""
        return next((step for step in self.steps if step.first is not None), None)

    @property
    def diverged_at(self) -> StepVerdict | None:
        """The first step that diverged."""
        return next((step for step in self.steps if step.word == "diverged"), None)

    @property
    def exit_code(self) -> int:
        """0 as recorded, 1 a step failed, 4 diverged or not verified, 130 interrupted."""
        if self.damage:
            return EXIT_DIVERGED
        if self.word is not None:
            return EXIT_DIVERGED if self.word == "diverged" else 0
        return 130 if self.interrupted else 1

    @property
    def text(self) -> str:
        """The verdict in a line."""
        word = self.word
        if self.damage:
            how = "diverged at" if self.other_bytes else "could not be verified:"
            return f"{how} {self.damaged}: {self.damage}"
        if word is None:
            return "interrupted" if self.interrupted else self._failure()
        if word == "diverged":
            step = self.diverged_at
            assert step is not None
            at = f"{step.name}: {step.first}" if step.first else f"{step.name} ({step.id} {step.key[:8]})"
            return f"diverged at {at}"
        ran = [step for step in self.steps if step.ran]
        if not ran:
            return f"{word}: {self.name} was there already, and nothing ran; {self._counts(self.steps)}"
        return f"{word}: {self._counts(ran, counted(len(ran), 'step'))}"

    def _failure(self) -> str:
        first = next((each for each in self.failed if each["status"] == "failed"), None)
        count = counted(len(self.failed), "step")
        if first is None:
            return f"failed: {count} not done"
        key, message = str(first["key"]), str(first.get("message") or "").strip()
        reason = self.hints.get(key) or (message.splitlines() or ["it says nothing"])[-1]
        log = f"; log: {self.logs[key]}" if self.logs.get(key) else ""
        return f"failed: {first['name']} ({key[:8]}): {reason}; {count} not done{log}"

    @staticmethod
    def _counts(steps: Sequence[StepVerdict], *first: str) -> str:
        files = sum(step.comparison.files for step in steps if step.comparison)
        size = sum(step.comparison.bytes for step in steps if step.comparison)
        return ", ".join([*first, counted(files, "file"), bytes_text(size)])

    def lines(self) -> Iterator[str]:
        """All of it for people, the verdict last."""
        for step in self.steps:
            yield from step.lines()
        for each in self.failed:
            message = "" if each["key"] in self.told else each.get("message") or ""
            yield f"{each['status']:<9}{str(each['key'])[:8]}  {each['name']}  {message}".rstrip()
        began, at = self.began, self.diverged_at
        if began is not None and at is not None and began is not at:
            yield f"the difference began in {began.name}: {began.first}"
        there = [step.name for step in self.steps if not step.ran]
        if there and len(there) < len(self.steps):
            yield f"were there already, and did not run: {', '.join(there)}"
        if self.pulled:
            made = f", of which {', '.join(self.adopted)} cannot be made again (adopted)" if self.adopted else ""
            yield f"fetched and verified: {counted(self.pulled, 'input')}{made}"
        yield from self.notes
        yield from (f"machine  {each.path}  {shown(each.old)} → {shown(each.new)}" for each in self.machine)
        if self.prefix is not None:
            yield f"the outputs lie in {self.prefix}"
        yield self.text

    def tree(self) -> dict[str, Tree]:
        """The last line of `--json`."""
        compared = [step.comparison for step in self.steps if step.comparison]
        return {
            "event": "reproduced",
            "verdict": self.word,
            "text": self.text,
            "ok": self.exit_code == 0,
            "id": self.id,
            "key": self.key,
            "steps": sum(step.ran for step in self.steps),
            "cached": sum(not step.ran for step in self.steps),
            "pulled": self.pulled,
            "adopted": self.adopted,
            "files": sum(each.files for each in compared),
            "bytes": sum(each.bytes for each in compared),
            "first_difference": self._first(),
            "unverified": {"where": self.damaged, "what": self.damage} if self.damage and self.word is None else None,
            "verdicts": [step.tree() for step in self.steps],
            "failed": [dict(each) for each in self.failed],
            "notes": self.notes,
            "machine": [change_tree(each) for each in self.machine],
            "prefix": self.prefix,
        }

    def _first(self) -> dict[str, Tree] | None:
        if self.other_bytes:
            return {**vars(self.other_bytes), "change": "damaged", "message": f"{self.damaged}: {self.damage}"}
        if self.damage:
            return None
        step = self.diverged_at or self.began
        if step is None or step.first is None:
            return None
        return {"step": step.name, "id": step.id, "key": step.key, **step.first.tree()}


def _without_engine(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint without the version of the engine: the snapshot has its code, and an environment that was built
    does not say which it is.
    """
    versions = fingerprint.get("versions")
    if not isinstance(versions, dict):
        return dict(fingerprint)
    return {**fingerprint, "versions": {name: each for name, each in versions.items() if name != "marin_pipeline"}}


def machine_changes(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Change]:
    """In what the fingerprints differ, of the record and of the steps that ran again, each difference once."""
    found: dict[str, Change] = {}
    for old, new in pairs:
        for change in changes(_without_engine(old), _without_engine(new)):
            found.setdefault(f"{change.path} {change.old!r} {change.new!r}", change)
    return list(found.values())
