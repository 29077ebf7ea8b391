"""`marin-pipeline share KEY`: writes the bundle of an output, when all that it was made from is there and is sound."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from marin_pipeline.core.adopted import PREFIX as ADOPTED
from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, MarinError, UsageError
from marin_pipeline.core.key import key_of
from marin_pipeline.core.visible import say, say_plainly
from marin_pipeline.core.whole_file import write_whole
from marin_pipeline.lab.bundle import LARGEST, Bundle, BundledStep, is_name
from marin_pipeline.lab.unpinned import unpinned_sources
from marin_pipeline.run.options import given_substitutes
from marin_pipeline.run.selection import find_step
from marin_pipeline.run.words import counted, few, listed
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.copying import checked_spec
from marin_pipeline.store.inventory import in_parallel
from marin_pipeline.store.kept_files import file_digests
from marin_pipeline.store.names import current_names, key_folders
from marin_pipeline.store.objects import LOCAL, ObjectStore, answered, command, explain_os_error, shown_url, told_url
from marin_pipeline.store.origins import read_origin
from marin_pipeline.store.records import typed
from marin_pipeline.store.verify import Verifier

PULLED = "pulled/"
"""Folder of the names of what was pulled."""

SHOWN = 10
"""Problems that are told one by one."""


class NotShared(MarinError):
    """What an output was made from is not as it must be."""

    exit_code = 4


def share(objects: ObjectStore, selector: str, out: str | None, as_json: bool) -> Iterator[str]:
    """Write the bundle of an output to a file; without one it is the line to print. Warnings go to stderr."""
    id, key = find_step(objects, selector)
    bundle = bundle_of(objects, id, key)
    told = list(warnings(bundle))
    data = bundle.dumps()
    if len(data) > LARGEST:
        raise NotShared(
            f"{bundle.target.label}: the bundle has {counted(len(bundle.steps), 'step')} and {len(data):,} bytes, and "
            f"`pull` reads {LARGEST:,} at most; share the steps that it was made from in parts"
        )
    for warning in told if out is None or not as_json else ():
        say(f"warning: {warning}", sys.stderr)
    if out is None:
        say_plainly(data.decode("ascii"))  # the seal is over these bytes, and JSON steers no terminal
        return
    _write(Path(out), data + b"\n")
    if as_json:
        tree: dict[str, Tree] = {"event": "shared", "id": id, "key": key, "out": out, "bytes": len(data) + 1}
        yield json.dumps({**tree, "steps": len(bundle.steps), "warnings": told})
        return
    yield f"{out}  {bundle.target.label}, {counted(len(bundle.steps), 'step')}"
    yield f"`marin-pipeline pull {out} --from {shown_url(objects.url)}` fetches and verifies it"


def _write(path: Path, data: bytes) -> None:
    """Write what `--out` names.

    Raises:
        UsageError: when there is no folder for it.
        StoreError: when it cannot be written.
    """
    try:
        write_whole(path, data)
    except FileNotFoundError as error:
        raise UsageError(f"--out {path}: there is no folder {path.parent}; make it, or write elsewhere") from error
    except OSError as error:
        found = explain_os_error(error, path, "write")
        raise type(found)(str(found).replace("choose another prefix with --prefix", "choose another file")) from error


def bundle_of(objects: ObjectStore, id: str, key: str, done: str = "shared", theirs: bool = False) -> Bundle:
    """The bundle of a current output.

    Args:
        done: what is asked for, as in `shared`.
        theirs: the store is somebody else's to mend.

    Raises:
        UsageError: when it has none.
        NotShared: when what it was made from is missing, stale or damaged; names each.
    """
    gathered = _Gathered(objects)
    gathered.gather(id, key)
    steps = gathered.ordered(key)
    problems = [*gathered.problems, *_stale(steps)] or _damage(objects, steps)
    if problems:
        what = f"{id} {key[:8]} cannot be {done}, since not all is sound that it was made from"
        whose = f"; what follows is for the owner of {shown_url(objects.url)} to do" if theirs else ""
        raise NotShared(f"{what}{whose}:\n{in_lines(problems)}")
    origins = {digest: read_origin(objects, digest) for digest in sorted({step.commit.origin for step in steps} - {""})}
    files = _sizes(
        objects, {each for step in steps if step.commit.origin for each in file_digests(step.commit.arguments)}
    )
    names = current_names(objects)
    steps = [_told(step, names.get(step.key, ())) for step in steps]
    name = steps[-1].names[0] if steps[-1].names else id.rpartition("/")[2].rpartition(".")[2].lower()
    bundle = Bundle(id, key, name, told_url(objects.url), tuple(steps), origins, files)
    try:
        bundle.check()
    except ValueError as error:
        raise NotShared(f"{id} {key[:8]} cannot be {done}, since its records contradict each other: {error}") from error
    return bundle


def _told(step: BundledStep, known: Iterable[str]) -> BundledStep:
    """A step as strangers may read it: under the names that it had where it was made, and without a folder of here."""
    names = {name.removeprefix(PULLED) for name in known if is_name(name)}
    copied = step.commit.copied_from
    commit = replace(step.commit, copied_from=told_url(copied) if copied else "")
    return replace(step, commit=commit, names=tuple(sorted(names)))


def in_lines(problems: Sequence[str]) -> str:
    """Problems a line each, the first of them where they are many."""
    return "\n".join(listed([f"  {each}" for each in problems], SHOWN, ""))


class _Gathered:
    """The records of an output and all that it was made from, read level by level."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._steps: dict[str, BundledStep] = {}
        self._ids: dict[str, list[str]] | None = None
        self.problems: list[str] = []
        """What is missing or damaged, with the remedy."""

    def gather(self, id: str, key: str) -> None:
        """Read the records of a key, and of all that it needs."""
        found = look(self._objects, id, key)
        if found.commit is None and not found.damage:
            why = f" (it has ended: {found.fallen})" if found.fallen else ""
            raise UsageError(f"{id} {key[:8]} has no current output in {self._objects.url}{why}; run it first")
        todo: list[tuple[str, str, BundledStep | None]] = [(id, key, None)]
        while todo:
            read = in_parallel(self._objects, lambda each: self._read(*each), todo)
            needed = {each: step for step in read if step is not None for each in step.depends_on}
            todo = [(self._id_of(each), each, step) for each, step in needed.items() if each not in self._steps]

    def _read(self, id: str, key: str, after: BundledStep | None) -> BundledStep | None:
        """The records of a step, `after` was made from it; None when something is wrong with them, which is told."""
        try:
            found = answered(partial(look, self._objects, id, key)) if id else None
            if found is None or (found.commit is None and not found.damage):
                fallen = f"{id} {key[:8]}: has ended ({found.fallen})" if found and found.fallen else ""
                state = fallen or f"{f'{id} ' if id else ''}{key[:8]}: has no current output in {self._objects.url}"
                raise CorruptOutput(f"{state}; {self._remedy(after)}")
            if found.commit is None:
                raise CorruptOutput(found.damage)
            made = BundledStep(id, key, checked_spec(self._objects, id, key).decode("ascii"), found.commit)
            typed(found.commit.tree(), Commit, "its commit")
            made.depends_on  # noqa: B018 - read here, where what is wrong with the spec is told
        except CorruptOutput as error:
            self.problems.append(str(error))
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.problems.append(f"{id} {key[:8]}: its records are damaged ({error}); run it again with --force")
            return None
        self._steps[key] = made
        return made

    def _remedy(self, after: BundledStep | None) -> str:
        """How to get what a step was made from: what was taken from a substitute left it there."""
        copied = after.commit.copied_from if after is not None else ""
        if after is None or not copied:
            return "run the experiment again"
        place = copied if copied != LOCAL else ",".join(given_substitutes()) or "PREFIX"
        taking = command(f"pull {after.key[:8]} --from {quote(place)} --deep", self._objects)
        return f"{after.label} was taken from {copied}, where what it was made from has stayed: say {taking}"

    def _id_of(self, key: str) -> str:
        """Id of the step with a key; empty when the store does not know it."""
        if self._ids is None:
            self._ids = {}
            for id, short in key_folders(self._objects):
                self._ids.setdefault(short, []).append(id)
        fits = self._ids.get(key[: layout.SHORT], [])
        for id in fits if len(fits) > 1 else ():
            found = self._objects.read(layout.spec(id, key))
            if found is not None and key_of(found.data) == key:
                return id
        return fits[0] if fits else ""

    def ordered(self, key: str) -> list[BundledStep]:
        """What was read, in topological order, the key last."""
        order: list[BundledStep] = []
        seen: set[str] = set()
        stack = [(key, False)]
        while stack:
            each, leaving = stack.pop()
            step = self._steps.get(each)
            if step is None:
                continue
            if leaving:
                order.append(step)
            elif each not in seen:
                seen.add(each)
                stack.append((each, True))
                stack += [(needed, False) for needed in reversed(step.depends_on)]
        return order


def _stale(steps: Sequence[BundledStep]) -> Iterator[str]:
    """The steps whose inputs were made again since they were read, with other bytes."""
    by_key = {step.key: step for step in steps}
    for step in steps:
        for role, record in step.commit.inputs.items():
            made = by_key.get(record.key)
            if made is not None and record.compared is not None and record.compared != made.commit.compared:
                yield f"{step.label}: is stale, since its input {role} was made again with other bytes; run it again"


def _damage(objects: ObjectStore, steps: Sequence[BundledStep]) -> list[str]:
    """What is missing of the outputs, or is not of the size that was committed."""
    verifier = Verifier(objects, "intact")
    found = in_parallel(objects, lambda step: verifier.verify(step.id, step.key), steps)
    return [str(finding) for verified in found if verified is not None for finding in verified.findings]


def _sizes(objects: ObjectStore, files: Iterable[str]) -> dict[str, int]:
    """Bytes of each local file that is kept."""
    paths = {layout.kept_file(each): each for each in files}
    folders = sorted({path.rpartition("/")[0] for path in paths})
    return {
        paths[info.path]: info.size
        for infos in in_parallel(objects, objects.list, folders)
        for info in infos
        if info.path in paths
    }


def warnings(bundle: Bundle) -> Iterator[str]:
    """What whoever gets the bundle cannot do with it, and why."""
    unknown = [step.label for step in bundle.steps if not step.commit.origin and not step.id.startswith(ADOPTED)]
    if unknown:
        yield (
            f"nothing says with which code {few(unknown)} was made (by an earlier version): it can be pulled and "
            "verified, and not reproduced; --force makes it again"
        )
    for source in unpinned_sources(bundle.steps):
        rests = counted(len(source.rests), "step rests", "steps rest")
        on_it = f"; {rests} on it" if source.rests else ""
        yield f"{source.step.label} reads what no key fixes: whoever makes it again may get other bytes{on_it}"
    states = {git for origin in bundle.origins.values() if (git := origin.git) and git.is_dirty}
    for git in sorted(states, key=lambda each: (each.commit, each.note, each.untracked, each.patch or "")):
        told: list[str] = []
        if git.patch != "":
            patch = f"and without the patch: {git.note}" if git.note else "and the patch is in the bundle"
            told.append(f"tracked files had changes, {patch}")
        if git.untracked:
            told.append(f"{few(git.untracked)} was not in it; the snapshot of the code has what ran")
        yield f"the code was not that of the git commit {git.commit[:12]}: {'; '.join(told)}"
