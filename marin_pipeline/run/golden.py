"""Golden inputs: small artifacts that show, when they are made again, whether the code of a step still gives what it
gave. `marin-pipeline code check` and `code accept` are here.

A folder of steps declares them in its `golden.py`, as `golden(folder)` that returns artifacts and may write small files
into `folder`. Each artifact of a step of that folder, the ones that another depends on included, is a golden input of
its step. They are made in a store of their own, which is thrown away.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from marin_pipeline.core import projects
from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.canonical import Tree, is_sequence
from marin_pipeline.core.errors import InputError, MarinError, UsageError
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.core.step import Step
from marin_pipeline.run.code_lock import LOCK, CodeLock, Entry, Golden, differences, figures, read_lock, write_lock
from marin_pipeline.run.driver import RunFailed, Session
from marin_pipeline.run.explain import code_text, compare_code
from marin_pipeline.run.options import Options
from marin_pipeline.run.plan import pieces_of
from marin_pipeline.run.screen import choose_screen
from marin_pipeline.run.words import counted
from marin_pipeline.store.manifest import VALUE
from marin_pipeline.store.output import CommittedOutput

GOLDEN = "golden.py"

_HAS_STEPS = re.compile(r"^@(\w+\.)*step\b", re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """The steps with a version that are defined in one folder, and their golden inputs."""

    folder: Path
    steps: Mapping[str, Step[Any, Any]]
    """By id."""
    unversioned: Sequence[Step[Any, Any]]
    """Those that follow their source: nothing of theirs is ever accepted."""
    graph: Graph
    """Of the golden inputs."""

    def golden(self, id: str) -> list[Node]:
        """The golden inputs of a step."""
        return [node for node in self.graph.nodes.values() if node.id == id]

    def select(self, selectors: Sequence[str]) -> list[str]:
        """Ids of the steps that are meant, inputs before what depends on them; all when none is named.

        Raises:
            UsageError: for what is no step here, or follows its source.
        """
        meant = {self._one(selector) for selector in selectors} or set(self.steps)
        in_order = dict.fromkeys(node.id for node in self.graph.nodes.values())
        return [id for id in dict.fromkeys([*in_order, *sorted(self.steps)]) if id in meant]

    def _one(self, selector: str) -> str:
        found = [id for id, step in self.steps.items() if selector in (id, id.partition("/")[2], step.fn.__name__)]
        if len(found) == 1:
            return found[0]
        if any(selector in (step.id, step.fn.__name__) for step in self.unversioned):
            raise UsageError(
                f"{selector!r} has no version: its key follows its source, and there is nothing to accept; "
                "write @step(version=1) for a key that follows the number"
            )
        known = ", ".join(sorted(self.steps)) or "none"
        raise UsageError(f"no step with a version is called {selector!r} in {self.folder}; there are: {known}")


@dataclass(frozen=True)
class Finding:
    """How one step stands to the lock."""

    id: str
    version: int | None
    status: str
    """`accepted`; `code`, `version`, `golden`, `new`, `gone`: the lock does not have it as it is; `no golden`: it could
    not be told; `differs`: a golden output is not what it was; `unversioned`: it follows its source, needs no lock."""
    text: str
    """Why, and what to do."""

    def tree(self) -> Tree:
        """The line of `--json`."""
        return vars(self)

    def __str__(self) -> str:
        return f"{self.status:<11} {self.id}  {self.text}".rstrip()


def exit_code(found: Sequence[Finding], action: str) -> int:
    """1 when a golden output is not what it was, or nothing could be accepted; 3 when a code is not in the lock."""
    statuses = {each.status for each in found} - {"accepted", "unversioned"}
    if "differs" in statuses or (statuses and action == "accept"):
        return 1
    return 3 if statuses else 0


# Finding what is declared --------------------------------------------------------------------------------------------


def default_folder(here: Path) -> Path:
    """The folder of steps that is meant in a working directory: itself, or `steps` in its project."""
    if (here / GOLDEN).is_file():
        return here
    return projects.project_root(here / GOLDEN) / "steps"


@contextmanager
def opened(folder: Path) -> Generator[Library]:
    """The library of a folder; the files that its golden inputs rest on are there until the end of the block.

    Raises:
        UsageError: when there is no `golden.py`, or it does not declare artifacts.
    """
    file = Path(projects.real_path(folder / GOLDEN))
    if not file.is_file():
        raise UsageError(
            f"{folder}: there is no {GOLDEN}, which declares the golden inputs of a folder's steps; write one with "
            "`def golden(folder: Path) -> list[Artifact]:`, or name another folder with --folder"
        )
    steps, unversioned = _steps_in(file.parent)
    with tempfile.TemporaryDirectory(prefix="marin-golden-") as scratch:
        declare = getattr(_imported(file), "golden", None)
        targets = declare(Path(scratch)) if callable(declare) else None
        if not is_sequence(targets) or not targets or not all(isinstance(each, Artifact) for each in targets):
            raise UsageError(f"{file}: must define `golden(folder)`, which returns a list of artifacts")
        yield Library(file.parent, steps, unversioned, Graph(targets))


def _steps_in(folder: Path) -> tuple[dict[str, Step[Any, Any]], list[Step[Any, Any]]]:
    """The steps that the files of a folder define: those with a version by id, and the others."""
    found: list[Step[Any, Any]] = []
    for file in sorted(folder.glob("*.py")):
        if file.name != GOLDEN and _HAS_STEPS.search(file.read_text(encoding="utf-8", errors="replace")):
            members = vars(_imported(file)).values()
            found += [each for each in members if isinstance(each, Step) and each.file.samefile(file)]
    versioned = [step for step in found if step.version is not None]
    return {step.id: step for step in versioned}, [step for step in found if step.version is None]


def _imported(file: Path) -> ModuleType:
    """The module of a file, under the name that it has from its project's root.

    Raises:
        UsageError: when another file has that name, or none.
    """
    root = projects.project_root(file)
    root = root / "src" if file.is_relative_to(root / "src") else root
    if sys.path[0] != str(root):
        sys.path.insert(0, str(root))
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"{file}: cannot be imported as {name} ({error}): another {name.partition('.')[0]} is found first; "
            f"give the folder an __init__.py, or another name"
        ) from error
    if module.__file__ is None or not Path(module.__file__).samefile(file):
        raise UsageError(f"{file}: the module {name} is {module.__file__} here; put {root} first in PYTHONPATH")
    return module


# Making them ---------------------------------------------------------------------------------------------------------


def _measured(library: Library, ids: Sequence[str]) -> dict[str, dict[str, Golden]]:
    """What the golden inputs of some steps give, and those that they depend on; by the step's id, then by name.

    Raises:
        MarinError: when a step fails.
    """
    wanted = [node for id in ids for node in library.golden(id)]
    if not wanted:
        return {}
    with tempfile.TemporaryDirectory(prefix="marin-golden-") as prefix:
        # In this process: one start of the libraries, and what a golden.py puts on sys.path is there.
        options = Options(prefix=prefix, backend="inline", until=[node.name for node in wanted])
        session = Session.open([library.graph.nodes[key].artifact for key in library.graph.targets], options, "golden")
        looks = session.looks()
        result = session.show(choose_screen(-1, sys.stderr), session.plan(looks), looks)
        if result.interrupted:
            raise KeyboardInterrupt
        if not result.ok:
            raise MarinError(f"the golden inputs cannot be made: {RunFailed(result).args[0]}")
        found: dict[str, dict[str, Golden]] = {}
        for node in result.graph.nodes.values():
            output = result.output(node)
            if node.id in library.steps and output is not None:
                found.setdefault(node.id, {})[node.name] = measure(node, output)
        return found


def measure(node: Node, output: CommittedOutput) -> Golden:
    """What a golden output is compared by.

    Raises:
        InputError: when it has nothing to be compared by.
    """
    exact = node.declaration.exact
    if exact == "tolerance":
        numbers = dict(figures(output.value_tree))
        if not numbers:
            raise InputError(f"{node.name}: the value of a golden output with exact='tolerance' must hold numbers")
        return Golden(node.key, figures=numbers)
    if exact == "logical" and output.commit.compared is not None:
        return Golden(node.key, logical=output.commit.compared)
    files = {entry.path: entry.sha256 for entry in output.manifest.entries}
    return Golden(node.key, output=output.digest, files={VALUE: files.pop(VALUE), **files})


# Comparing -----------------------------------------------------------------------------------------------------------


def _is_accepted(entry: Entry, node: Node) -> bool:
    """Whether the code that a golden input reaches is in the lock.

    Of an input that the lock knows, the very state must be there: its output then is the recorded one.
    """
    pieces = pieces_of(node)
    return pieces in entry.accepted if _knows(entry, node.name, node.key) else entry.covers(pieces)


def _knows(entry: Entry, name: str, key: str) -> bool:
    return name in entry.golden and entry.golden[name].key == key


def _finding(library: Library, lock: CodeLock, id: str) -> Finding:
    """How a step stands to the lock, without running anything."""
    step, nodes, entry = library.steps[id], library.golden(id), lock.steps.get(id)

    def found(status: str, text: str = "") -> Finding:
        return Finding(id, step.version, status, text)

    accept = f"run `marin-pipeline code accept {id.partition('/')[2]}`"
    if not nodes:
        return found("no golden", f"{GOLDEN} declares no golden input for it; add one")
    if entry is None:
        return found("new", f"is not in {LOCK}; {accept}")
    if entry.version != step.version:
        return found("version", f"is version {step.version}, and {LOCK} has {entry.version}; {accept}")
    strange = [pieces_of(node) for node in nodes if not _is_accepted(entry, node)]
    if strange:
        changed = code_text(compare_code(entry.accepted[-1], strange[0]))
        return found("code", f"code changed: {changed}; {accept}, or give the step another version")
    if {node.name: node.key for node in nodes} != entry.inputs:
        return found("golden", f"its golden input has changed; {accept}")
    return found("accepted")


def _changed(library: Library, lock: CodeLock, measured: Mapping[str, Mapping[str, Golden]]) -> dict[str, str]:
    """How the outputs of golden inputs differ from those in the lock, and what to do, by the step's id.

    An input that the lock does not know, or has of another version of the step, proves nothing.
    """
    found: dict[str, str] = {}
    for id, made in measured.items():  # inputs come first
        entry, version = lock.steps.get(id), library.steps[id].version or 1
        if entry is None or entry.version != version:
            continue
        changed = [
            f"{name}: {difference}"
            for name, now in made.items()
            if _knows(entry, name, now.key)
            for difference in differences(entry.golden[name], now)
        ]
        if changed:
            needed = library.graph.ancestors([now.key for now in made.values()])
            first = next((each for each in found if needed & {node.key for node in library.golden(each)}), None)
            remedy = f"give the step version={version + 1}, or undo the change"
            if first is not None:
                remedy = f"what it is made from is another already, see {first}"
            found[id] = f"{'; '.join(changed)}: {remedy}"
    return found


def check(library: Library, selectors: Sequence[str] = (), rerun: bool = False) -> list[Finding]:
    """How steps stand to the lock.

    Args:
        selectors: ids or names of functions; all steps when there are none.
        rerun: also make the golden inputs again and compare what they give.
    """
    lock, ids = read_lock(library.folder), library.select(selectors)
    found = [_finding(library, lock, id) for id in ids]
    if rerun:
        changed = _changed(library, lock, _measured(library, ids))
        found = [
            replace(each, text=f"its golden output is the same; {each.text}")
            if each.status == "code" and each.id not in changed
            else each
            for each in found
            if each.id not in changed
        ]
        found += _differing(library, changed)
    if not selectors:
        gone = sorted(set(lock.steps) - set(library.steps))
        found += [
            Finding(id, None, "gone", f"is in {LOCK} and no step any more; run `marin-pipeline code accept --all`")
            for id in gone
        ]
        found += [Finding(step.id, None, "unversioned", "follows its source") for step in library.unversioned]
    return found


def _differing(library: Library, changed: Mapping[str, str]) -> list[Finding]:
    return [Finding(id, library.steps[id].version, "differs", text) for id, text in changed.items()]


def accept(library: Library, selectors: Sequence[str] = ()) -> list[Finding]:
    """Make the golden inputs of steps again, and enter their present code in the lock if they give what they gave.

    Returns:
        How each stands now. Where one is neither `accepted` nor `equal`, nothing was written.

    Raises:
        UsageError: for a step without a golden input.
    """
    lock, ids = read_lock(library.folder), library.select(selectors)
    for id in ids:
        if not library.golden(id):
            raise UsageError(f"{id}: {library.folder / GOLDEN} declares no golden input for it; add one")
    measured = _measured(library, ids)
    changed = _changed(library, lock, measured)
    entries = dict(lock.steps)
    found = _differing(library, changed)
    for id in (id for id in ids if id not in changed):
        entry = _accepted(library, lock.steps.get(id), id, measured[id])
        if isinstance(entry, Finding):
            found.append(entry)
            continue
        entries[id] = entry
        codes = counted(len(entry.accepted), "code")
        found.append(Finding(id, entry.version, "accepted", f"{codes} of version {entry.version}"))
    if not selectors:
        entries = {id: entry for id, entry in entries.items() if id in library.steps}
    refused = [each.id for each in found if each.status != "accepted"]
    if refused:
        text = f"its golden output is the same; not written, because of {refused[0]}"
        return [
            replace(each, status="equal", text=text)
            if each.status == "accepted" and entries[each.id] != lock.steps.get(each.id)
            else each
            for each in found
        ]
    if entries != lock.steps:
        write_lock(library.folder, CodeLock(entries))
    return found


def _accepted(library: Library, entry: Entry | None, id: str, made: Mapping[str, Golden]) -> Entry | Finding:
    """The new entry of a step whose outputs are those in the lock where it knows the input; or why there is none."""
    nodes, version = library.golden(id), library.steps[id].version or 1
    if entry is None or entry.version != version:
        entry = Entry(version, {}, ())
    else:
        # Equal outputs speak for a new code only where the lock knew the input.
        unproven = [node.name for node in nodes if not _knows(entry, node.name, node.key)]
        if any(not _is_accepted(entry, node) for node in nodes if node.name in unproven):
            text = (
                f"the golden input {unproven[0]} and the code have both changed, so nothing shows that the code gives "
                f"the same; accept one without the other, or give the step version={version + 1}"
            )
            return Finding(id, version, "golden", text)
    for node in nodes:
        entry = entry.accepting(pieces_of(node))
    # What is known stays as it was first written, so that small differences do not add up.
    known = {name: entry.golden[name] for name, now in made.items() if _knows(entry, name, now.key)}
    return replace(entry, golden={**made, **known})
