"""What is to be run again of a recorded graph, what is needed for that, and running it: no word is said here of how it
came out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from marin_pipeline.core.adopted import PREFIX as ADOPTED
from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.canonical import Tree, digest
from marin_pipeline.core.errors import CorruptOutput, InputError, MarinError, OtherBytes, StoreError, UsageError
from marin_pipeline.core.key import artifact_keys
from marin_pipeline.lab.bundle import Bundle, BundledStep, is_name
from marin_pipeline.lab.environment import Environment, How, choose
from marin_pipeline.lab.recorded_code import RecordedCode, run_with
from marin_pipeline.run.rebuilt import RecordedStep, file_name
from marin_pipeline.run.rerun import Request, step_name
from marin_pipeline.run.words import bytes_text
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look_many
from marin_pipeline.store.copying import copy_output
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.origins import Origin
from marin_pipeline.store.snapshots import Snapshot, read_snapshot

Event = Callable[[Mapping[str, Tree]], None]


@dataclass(frozen=True)
class Recorded:
    """One step of a bundle, and what it needs to be run again."""

    step: BundledStep
    origin: Origin | None
    """Where its output comes from; None where nobody wrote it down."""
    environment: str = ""
    """Digest of Python and packages of the origin."""
    name: str = ""
    """What it was called where it was recorded, else after its function; no two of a bundle are called the same."""

    @classmethod
    def of(cls, bundle: Bundle) -> list[Recorded]:
        """The steps of a bundle, in topological order."""
        environments = {digest: _environment(origin) for digest, origin in bundle.origins.items()}
        names = [step.names[0] if step.names else _name(step.id) for step in bundle.steps]
        if not bundle.target.names and is_name(bundle.name):
            names[-1] = bundle.name
        many = Counter(names)
        found: list[Recorded] = []
        for step, name in zip(bundle.steps, names, strict=True):
            made, shown = step.commit.origin, name if many[name] == 1 else f"{name[:150]}-{step.key[:8]}"
            found.append(cls(step, bundle.origins.get(made), environments.get(made, ""), shown))
        return found

    @property
    def id(self) -> str:
        """Of the step."""
        return self.step.id

    @property
    def key(self) -> str:
        """Of the step."""
        return self.step.key

    @property
    def commit(self) -> Commit:
        """The record of its output."""
        return self.step.commit

    @property
    def label(self) -> str:
        """For errors."""
        return self.step.label

    @property
    def is_adopted(self) -> bool:
        """Whether it was made elsewhere: there is no step that makes it."""
        return self.id.startswith(ADOPTED)

    @cached_property
    def inputs(self) -> list[str]:
        """Keys of what it reads directly, each once."""
        return list(dict.fromkeys([*self.step.depends_on, *sorted(artifact_keys(self.commit.arguments))]))

    @cached_property
    def files(self) -> dict[tuple[str, str], None]:
        """Digest and name of each local file that it was given."""
        return {(tree["~file"], file_name(tree)): None for tree in tagged(self.commit.arguments, "~file")}

    @cached_property
    def secrets(self) -> set[str]:
        """Names of the secrets that it is given."""
        return {tree["~secret"] for tree in tagged(self.commit.arguments, "~secret")}

    def refuse_unknown(self) -> None:
        """Raise an `InputError` where its record does not say with which code it was made."""
        if self.origin is None or self.commit.target is None:
            raise InputError(
                f"{self.label}: its record does not say with which code it was made (it is of an earlier version of "
                "marin_pipeline), so it cannot be run again; `marin-pipeline pull` fetches and verifies it"
            )


def _name(id: str) -> str:
    return id.removeprefix(ADOPTED) if id.startswith(ADOPTED) else step_name(id)


def tagged(tree: Tree, tag: str) -> Iterator[Mapping[str, Tree]]:
    """The parts of a canonical tree that have a tag."""
    todo = [tree]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            if isinstance(each.get(tag), str):
                yield each
            else:
                todo += each.values()
        elif isinstance(each, list):
            todo += each


@dataclass(frozen=True)
class Work:
    """What is to be done so that a target is made again."""

    runs: tuple[Recorded, ...]
    """Steps to run, in topological order."""
    there: tuple[Recorded, ...]
    """What the request covers and the store that is written has already."""
    pulled: tuple[Recorded, ...]
    """What they need and does not run again."""
    covered: tuple[Recorded, ...]
    """All of them, in topological order, the target last: the target and what it reads; all ancestors when these were
    asked for."""

    @classmethod
    def of(cls, steps: Sequence[Recorded], deep: bool, to: ObjectStore) -> Work:
        """Decide what runs.

        Args:
            steps: the graph, in topological order; the last one is the target.
            deep: run all ancestors again as well.
            to: the store that is written.

        Raises:
            UsageError: when the target was made elsewhere.
            InputError: when it is not known with which code a step was made.
        """
        by_key, key = {step.key: step for step in steps}, steps[-1].key
        if by_key[key].is_adopted:
            raise UsageError(
                f"{by_key[key].name} was made elsewhere and taken in, so that no step could make it again; "
                f"`marin-pipeline pull` fetches and verifies it"
            )
        has = {key for key, each in look_many(to, [(step.id, step.key) for step in steps]).items() if each.commit}
        runs, there, pulled = set[str](), set[str](), set[str]()
        todo, seen = [key], set[str]()
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            again = each == key or (deep and not by_key[each].is_adopted)
            if each in has:
                there.add(each)
            elif not again:
                pulled.add(each)
            else:
                by_key[each].refuse_unknown()
                runs.add(each)
            # What is there already may stem from an earlier reproduction that came out otherwise further up.
            todo += by_key[each].inputs if again else ()
        if not runs:
            pulled.clear()
        keys = (runs, there, pulled, runs | there | pulled)
        return cls(*(tuple(step for step in steps if step.key in each) for each in keys))

    def fetches(self, files: Mapping[str, int]) -> tuple[int, list[str]]:
        """Bytes that are fetched, inputs and local files, and what they are.

        Args:
            files: bytes of each local file.
        """
        given = {sha256: name for step in self.runs for sha256, name in step.files}
        size = sum(step.commit.bytes for step in self.pulled) + sum(files.get(sha256, 0) for sha256 in given)
        return size, [*(step.name for step in self.pulled), *given.values()]

    def lying(self, there: Mapping[str, Commit]) -> Work:
        """The same work, on the bytes that records of the same outputs name; what is made is as the bundle says."""

        def moved(step: Recorded) -> Recorded:
            attempt, manifest = there[step.key].attempt, there[step.key].manifest
            commit = replace(step.commit, attempt=attempt, manifest=manifest)
            return replace(step, step=replace(step.step, commit=commit))

        return Work(*(tuple(map(moved, steps)) for steps in (self.runs, self.there, self.pulled, self.covered)))

    def refuse_missing_secrets(self) -> None:
        """Raise a `UsageError` that names the secrets which the steps are given and the environment does not have."""
        missing = sorted({name for step in self.runs for name in step.secrets if not os.environ.get(name)})
        if missing:
            raise UsageError(
                f"the steps are given the secrets {', '.join(missing)}, whose values are in no record; "
                f"export {missing[0]}=... and say it again"
            )


@dataclass
class Reproduction:
    """Steps that are run again: from their records in one store, into another one."""

    source: ObjectStore
    to: ObjectStore
    work: Work
    scratch: Path
    """A folder for code and files, which somebody else removes."""
    how: How
    tell: Callable[[str], None]
    """Told, in a line, what takes a while."""
    environments: dict[str, Environment] = field(default_factory=dict[str, Environment])
    """By digest of Python and packages."""
    codes: dict[str, RecordedCode] = field(default_factory=dict[str, RecordedCode])
    """By digest of the snapshot."""
    moved: list[str] = field(default_factory=list[str])
    """Inputs that the store had already, with other bytes than are recorded: what reads them is no reproduction."""

    fetching: Callable[[int, int], None] = lambda done, total: None
    """Told of the bytes of inputs that are there, and of all that will be."""

    started_with_states: bool = False
    """The store had states of training before, from which a step goes on."""

    def prepare(self) -> None:
        """Fetch the code, the files and the inputs, all verified, and have the environments ready.

        Raises:
            CorruptOutput: when bytes are not those that were recorded, naming the object.
            InputError: when something is not there.
        """
        for step in self.work.runs:
            assert step.origin is not None
            if step.origin.snapshot not in self.codes:
                folder = self.scratch / "code" / step.origin.snapshot[:16]
                self.codes[step.origin.snapshot] = RecordedCode(self._snapshot(step), folder)
        for step in self.work.runs:
            with _of(step):
                for sha256, name in step.files:
                    _fetch_file(self.source, sha256, self.scratch / "files" / sha256 / name)
        for step in self.work.runs:
            assert step.origin is not None
            if step.environment not in self.environments:
                own = self.codes[step.origin.snapshot].distributions
                self.environments[step.environment] = choose(step.origin, self.how, own, self.tell)
        self.started_with_states = bool(self.to.names("chains"))
        done, total = 0, sum(step.commit.bytes for step in self.work.pulled)

        def report(size: int) -> None:
            nonlocal done
            done += size
            self.fetching(done, total)

        known: set[str] = set()
        for step in self.work.pulled:
            self.tell(f"pull     {step.key[:8]}  {step.name}  {bytes_text(step.commit.bytes)}")
            with _of(step):
                copy_output(self.source, self.to, step.id, step.key, step.commit, report=report, known=known)
        given = [*self.work.pulled, *self.work.there]
        looks = look_many(self.to, [(step.id, step.key) for step in given])
        for step in given:
            commit = looks[step.key].commit
            if commit is None:
                raise CorruptOutput(looks[step.key].damage or f"{self.to.url}: {step.label} has gone; say it again")
            if commit.output != step.commit.output:
                self.moved.append(step.key)

    def _snapshot(self, step: Recorded) -> Snapshot:
        assert step.origin is not None
        try:
            return read_snapshot(self.source, step.origin.snapshot)
        except CorruptOutput as error:
            raise CorruptOutput(
                f"{error}; so {step.name} cannot be run again from this store: say another one that has it with "
                "--from, or have the step made again with --force and shared anew"
            ) from error

    def run(self, event: Event, max_parallel: int | None = None) -> int:
        """Run the steps, those of one code and environment together.

        Returns:
            0 when all are done, 1 when one failed, 130 when it was interrupted.

        Raises:
            MarinError: when a step cannot be declared as it was recorded.
        """
        for batch in batches(self.work.runs):
            code = self._run(batch, event, max_parallel)
            if code:
                return code
        return 0

    def hints(self, messages: Mapping[str, str]) -> dict[str, str]:
        """What to do about failures that come of it that the snapshot has not all that lay beside the code, by key.

        Args:
            messages: of the failures, by key.
        """
        found: dict[str, str] = {}
        for key, message in messages.items():
            path = next((lost for code in self.codes.values() if (lost := code.lost_file(message))), "")
            if path:
                found[key] = (
                    f"it reads the file {path!r}, which is not here: the snapshot of a run has only code; who made it "
                    f'gives the file to the step as LocalFile("{path}"), makes it again, and shares it anew'
                )
        return found

    def _run(self, batch: Sequence[Recorded], event: Event, max_parallel: int | None) -> int:
        origin = batch[0].origin
        assert origin is not None
        code = self.codes[origin.snapshot]
        keys = {step.key for step in batch}
        read = {key for step in batch for key in step.inputs if key not in keys}
        ids = {step.key: step.id for step in [*self.work.runs, *self.work.pulled, *self.work.there]}
        request = Request(
            prefix=self.to.url,
            files=str(self.scratch / "files"),
            steps=tuple(_declared(step, code) for step in batch),
            inputs=tuple((ids[key], key) for key in sorted(read)),
            max_parallel=max_parallel,
            parent=os.getpid(),
            names={
                step.key: step.name
                for step in self.work.covered
                if step.key in keys | read and step.name != step_name(step.id) and is_name(step.name)
            },
        )
        refused: list[str] = []
        heard: list[str] = []

        def hear(tree: Mapping[str, Tree]) -> None:
            heard.append(str(tree.get("event")))
            if tree.get("event") == "refused":
                refused.append(str(tree.get("message")))
            else:
                event(tree)

        ended = run_with(code, self.environments[batch[0].environment].python, request, hear)
        if refused:
            raise InputError(refused[0])
        if "summary" not in heard and ended != 130:
            raise MarinError(
                f"the process that runs the steps ended with code {ended} before it was done; what it printed stands "
                "above"
            )
        return ended


def _declared(step: Recorded, code: RecordedCode) -> RecordedStep:
    commit = step.commit
    assert commit.target is not None
    target = code.target(commit.target, step.id)
    return RecordedStep(step.id, step.key, step.step.spec, commit.code, commit.pieces, commit.arguments, target)


def batches(steps: Iterable[Recorded]) -> Iterator[list[Recorded]]:
    """The steps by what runs them: each batch is of one code and environment, and needs nothing of a later one.

    Args:
        steps: in topological order.
    """
    left = list(steps)
    while left:
        batch: list[Recorded] = []
        later: set[str] = set()
        for step in left:
            if _group(step) == _group(left[0]) and later.isdisjoint(step.inputs):
                batch.append(step)
            else:
                later.add(step.key)
        left = [step for step in left if step.key in later]
        yield batch


def _group(step: Recorded) -> tuple[str, str]:
    assert step.origin is not None
    return step.origin.snapshot, step.environment


def _environment(origin: Origin) -> str:
    """What tells two environments apart: Python, and the packages with their versions and files."""
    return digest({"python": origin.python, "packages": {name: vars(each) for name, each in origin.packages.items()}})


@contextmanager
def _of(step: Recorded) -> Generator[None]:
    """Files that are not the recorded ones are those of a step."""
    try:
        yield
    except OtherBytes as error:
        error.key = step.key
        raise


def _fetch_file(source: ObjectStore, sha256: str, target: Path) -> None:
    """Fetch what a step was given as a file of somebody's machine.

    Raises:
        InputError: when nobody kept it.
        OtherBytes: when it has other bytes.
    """
    path = layout.kept_file(sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    content = ContentHash()
    try:
        with target.open("wb") as file:
            for block in source.blocks(path):
                content.update(block)
                file.write(block)
    except FileNotFoundError as error:
        raise InputError(
            f"{source.url}/{path}: the file {target.name!r}, which a step was given, is not kept there, so that it "
            "cannot be run again"
        ) from error
    except OSError as error:
        raise StoreError(f"{source.url}/{path}: cannot be fetched ({error.strerror or error})") from error
    if content.hexdigest() != sha256:
        told = f"{source.url}/{path}: its bytes are not those of the file {target.name!r} that was recorded"
        raise OtherBytes(told, target.name)
