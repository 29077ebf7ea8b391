"""A bundle: what a stranger needs to know of one output and all that it was made from, in one small JSON file.

A bundle is data from somebody else. Reading one runs no code, imports no step, touches no store and writes nothing;
what it says of itself is checked before anybody uses it: the seal, and independently of it each key against its spec,
each dependency, each digest that can be computed from another. What only a store can tell is checked by `pull`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marin_pipeline.core.artifact import LONGEST_NAME, NAME
from marin_pipeline.core.canonical import Tree, dumps
from marin_pipeline.core.errors import MarinError
from marin_pipeline.core.key import SCHEMA as SPEC_SCHEMA
from marin_pipeline.core.key import artifact_keys, key_of
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.kept_files import file_digests
from marin_pipeline.store.origins import Origin
from marin_pipeline.store.records import parsed, typed
from marin_pipeline.store.sealed import UnknownSchema, seal, unseal
from marin_pipeline.store.soundness import CHAIN, is_digest, is_id, problem_with

FORMAT = 1

LARGEST = 64 * 2**20
"""Bytes; a step takes some 10 KB."""

_SPEC = {"schema", "step", "code", "arguments"}


class BundleError(MarinError):
    """A bundle is not what it says."""

    exit_code = 4


@dataclass(frozen=True)
class BundledStep:
    """One step of a bundle."""

    id: str
    key: str
    """64 hex; sha256 of the spec."""
    spec: str
    """The exact text that the key hashes."""
    commit: Commit
    """The record of the output, as the store has it."""
    names: tuple[str, ...] = ()
    """What it is called where it comes from, sorted; none where no name stands for it."""

    @property
    def exact(self) -> str:
        """What a second run must equal."""
        if self.commit.compared is None:
            return "tolerance"
        return "bitwise" if self.commit.compared == self.commit.output else "logical"

    @functools.cached_property
    def spec_tree(self) -> Mapping[str, Tree]:
        """The spec, read."""
        return parsed(self.spec)

    @functools.cached_property
    def depends_on(self) -> list[str]:
        """Keys of what it was made from, each once."""
        read = [record.key for record in self.commit.inputs.values()]
        return list(dict.fromkeys([*read, *sorted(artifact_keys(self.spec_tree["arguments"]))]))

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.id} {self.key[:8]}"

    def tree(self) -> Tree:
        """As JSON values."""
        commit = self.commit
        tree = {"id": self.id, "key": self.key, "spec": self.spec, "commit": commit.tree(), "exact": self.exact}
        tree |= {"manifest_sha256": commit.manifest, "output": commit.output}
        return {**tree, "names": list(self.names)} if self.names else tree


@dataclass(frozen=True)
class Bundle:
    """One output with all that it was made from."""

    id: str
    """Of the step that was shared."""
    key: str
    name: str
    """What it is called where it comes from."""
    source: str
    """URL of the store, without user and password; where it was, for people."""
    steps: tuple[BundledStep, ...]
    """In topological order; the one that was shared is the last."""
    origins: Mapping[str, Origin]
    """By digest."""
    files: Mapping[str, int]
    """Bytes of each local file that a step was given, by sha256."""

    @property
    def target(self) -> BundledStep:
        """The step that was shared."""
        return self.steps[-1]

    @functools.cached_property
    def by_key(self) -> Mapping[str, BundledStep]:
        """The steps by key."""
        return {step.key: step for step in self.steps}

    def dumps(self) -> bytes:
        """The bytes of the file, without a newline at the end."""
        return seal(
            {
                "bundle": FORMAT,
                "id": self.id,
                "key": self.key,
                "name": self.name,
                "from": self.source,
                "steps": [step.tree() for step in self.steps],
                "origins": {digest: origin.tree() for digest, origin in self.origins.items()},
                "files": dict(self.files),
            }
        )

    @classmethod
    def loads(cls, data: bytes, where: str) -> Bundle:
        """Read a bundle, and check all that can be checked without a store.

        Args:
            where: what it was read from, for errors.

        Raises:
            BundleError: naming what is wrong.
        """
        try:
            bundle = _read(data)
            bundle.check()
        except UnknownSchema as error:
            raise BundleError(
                f"{where}: a bundle of another version of marin_pipeline ({error}); use that one, or ask for it again"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"{where}: not a bundle as `share` writes it ({error}); ask for it again") from error
        return bundle

    def check(self) -> None:
        """Hold everything in the bundle against everything else.

        Raises:
            ValueError: naming what is wrong.
        """
        seen: dict[str, BundledStep] = {}
        places: set[str] = set()
        for step in self.steps:
            _check_step(step, seen)
            if step.key in seen or layout.step(step.id, step.key) in places:
                raise ValueError(f"{step.label}: is there twice")
            seen[step.key] = step
            places.add(layout.step(step.id, step.key))
        if not self.steps or (self.id, self.key) != (self.target.id, self.target.key):
            raise ValueError("its last step is not the one that was shared")
        if not (self.name.isprintable() and self.source.isprintable()):
            raise ValueError("its name or source has characters that cannot be shown")
        self._check_reached()
        _check_same("origins", set(self.origins), {step.commit.origin for step in self.steps} - {""})
        for digest, origin in self.origins.items():
            if origin.digest != digest:
                raise ValueError(f"the origin {digest[:8]} has other content than its digest says")
            _check_digest("the snapshot of an origin", origin.snapshot)
        named = {sha256 for step in self.steps if step.commit.origin for sha256 in file_digests(step.commit.arguments)}
        _check_same("files", set(self.files), named)
        if any(size < 0 for size in self.files.values()):
            raise ValueError("a file has less than 0 bytes")

    def _check_reached(self) -> None:
        todo, reached = [self.key], set[str]()
        while todo:
            key = todo.pop()
            if key not in reached:
                reached.add(key)
                todo += self.by_key[key].depends_on
        for step in self.steps:
            if step.key not in reached:
                raise ValueError(f"{step.label}: nothing in it was made from this step")


def _read(data: bytes) -> Bundle:
    if len(data) > LARGEST:
        raise ValueError(f"more than {LARGEST >> 20} MiB")
    data = data.strip()
    tree = parsed(data)
    if not isinstance(tree, dict) or "bundle" not in tree:
        raise ValueError("no bundle at all")
    if tree["bundle"] != FORMAT or type(tree["bundle"]) is not int:
        raise UnknownSchema(f"format {str(tree['bundle'])[:20]!a}, and {FORMAT} is known here")
    tree = unseal(data)
    # One way to write it: no field twice, no number in another form, nothing that a reader could take otherwise.
    if seal(tree) != data:
        raise ValueError("it is not in the canonical form")
    del tree["bundle"]
    steps = tuple(_step(each, f"steps[{index}]") for index, each in enumerate(typed(tree.pop("steps"), list[Any])))
    origins = {digest: Origin.of_tree(each) for digest, each in typed(tree.pop("origins"), Mapping[str, Any]).items()}
    source = typed(tree.pop("from"), str, "from")
    plain = typed(tree, _Fields)
    return Bundle(plain.id, plain.key, plain.name, source, steps, origins, plain.files)


@dataclass(frozen=True)
class _Fields:
    """What is left of a bundle when steps, origins and source are read."""

    id: str
    key: str
    name: str
    files: Mapping[str, int]


def _step(tree: Any, what: str) -> BundledStep:
    fields = typed(tree, _StepFields, what)
    commit = typed(fields.commit, Commit, f"{what}.commit")
    step = BundledStep(fields.id, fields.key, fields.spec, commit, fields.names)
    if dumps(step.tree()) != dumps(tree):
        raise ValueError(f"{what}: its fields contradict its commit")
    return step


@dataclass(frozen=True)
class _StepFields:
    """A step as it is written."""

    id: str
    key: str
    spec: str
    commit: Any
    exact: str
    manifest_sha256: str
    output: str
    names: tuple[str, ...] = ()


def _check_step(step: BundledStep, before: Mapping[str, BundledStep]) -> None:
    """Hold one step against its spec and the steps before it.

    Raises:
        ValueError: naming the step and what is wrong.
    """
    if not is_id(step.id):
        raise ValueError(f"{step.id[:100]!a} is no id of a step")
    _check_digest("a key", step.key)
    try:
        for problem in _problems(step, before):
            raise ValueError(problem)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{step.label}: {error}") from error


def _problems(step: BundledStep, before: Mapping[str, BundledStep]) -> Iterator[str]:
    spec, commit = step.spec.encode("ascii"), step.commit
    if key_of(spec) != step.key:
        yield "its spec does not hash to its key"
    tree = step.spec_tree
    if not isinstance(tree, dict) or tree.keys() != _SPEC or not isinstance(tree["arguments"], dict):
        yield "its spec is none"
    if tree["schema"] != SPEC_SCHEMA or dumps(tree) != spec:
        yield "its spec is of another schema, or not in the canonical form"
    if tree["step"] != step.id:
        yield f"its spec is that of {str(tree['step'])[:100]!a}"
    if not all(is_name(name) for name in step.names) or list(step.names) != sorted(set(step.names)):
        yield "what it is called can be no names"
    for key in step.depends_on:
        if key not in before:
            yield f"it was made from {key[:8]!a}, which does not stand before it"
    needed, read = artifact_keys(tree["arguments"]), {record.key for record in commit.inputs.values()}
    if not needed <= read and tree["arguments"].keys() != CHAIN:
        yield "its commit does not say what was read of all that its spec names"
    for role, record in commit.inputs.items():
        made = before[record.key].commit
        if record.output != made.output and record.compared is not None and record.compared != made.compared:
            yield f"its input {role[:100]!a} had other bytes when it was read than the step that made it says"
    if problem := problem_with(step.id, step.key, spec, commit):
        yield problem


def is_name(text: str) -> bool:
    """Whether an artifact can be called so."""
    return NAME.fullmatch(text) is not None and len(text) <= LONGEST_NAME


def _check_digest(what: str, text: str) -> None:
    if not is_digest(text):
        raise ValueError(f"{what} is {text[:80]!a}, not 64 hex digits")


def _check_same(what: str, given: set[str], named: set[str]) -> None:
    for each in sorted(given | named):
        _check_digest(f"one of the {what}", each)
    if given != named:
        lost = sorted(named - given)
        raise ValueError(f"{what}: {lost[0][:8]} is not there" if lost else f"{what}: no step names what is there")
