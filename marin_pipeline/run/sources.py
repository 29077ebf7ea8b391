"""Which files of code a run rests on, and what they are called in its snapshot: of no path of this machine.

Files that a code digest covers are taken in the state that was digested, so that what is kept is what was declared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.graph import Graph
from marin_pipeline.core.projects import DISTRIBUTION, own_parts, real_path, root_of, third_party
from marin_pipeline.core.source import SourceStamp, content_of, read_source
from marin_pipeline.run.disclosure import refuse_in_code
from marin_pipeline.store.snapshots import Snapshot

_OWN_PACKAGES = ("marin_pipeline", "steps")
_OWN_FILES = (".py", ".lock", "py.typed")


class Sources:
    """The files of code that a graph rests on.

    Raises:
        InputError: when a file was edited after it was digested, or holds a secret.
    """

    def __init__(self, graph: Graph) -> None:
        codes = {id(code): code for node in graph.nodes.values() if not node.loaded for code in [node.declaration.code]}
        stamps: dict[str, SourceStamp] = {}
        for code in codes.values():
            for file in code.files:
                if stamps.setdefault(file.path, file).digest != file.digest:
                    raise InputError(
                        f"{file.path}: was edited while the experiment was declared; run the same command again (in a "
                        "session, reload the module and declare all of its steps again)"
                    )
        self.root = _project(graph)
        """Of the project that is run: where its program lies, else its first step; absolute, without links."""
        self._others: dict[str, int] = {}
        self._digested = {path: content_of(stamp) for path, stamp in stamps.items()}
        for path, data in self._digested.items():  # other projects are numbered in the order of the graph
            refuse_in_code(self.place(path), data)

    def place(self, path: str) -> str:
        """What a file is called in the snapshot.

        Args:
            path: absolute, without links among its folders.
        """
        if self.root != DISTRIBUTION and (parts := own_parts(path)):
            return "/".join(["packages", *parts])
        if path.startswith(f"{self.root}{os.sep}"):
            return f"project/{_relative(path, self.root)}"
        root = root_of(path)
        number = self._others.setdefault(root, len(self._others) + 1)
        return f"others/{number}/{_relative(path, root)}"

    def relative(self, file: str) -> str:
        """A file's path in its project."""
        path = self.place(real_path(file))
        return path.split("/", 2 if path.startswith("others/") else 1)[-1]

    def snapshot(self) -> Snapshot:
        """All files, read."""
        found = {self.place(path): data for path, data in self._digested.items()}
        for path in [*_own_files(), *self._around()]:
            place = self.place(path)
            if place not in found:
                found[place] = read_source(Path(path))
                refuse_in_code(place, found[place])
        return Snapshot(found)

    def _around(self) -> Iterator[str]:
        """The program, and what Python and this program read above the files of the projects."""
        program = _program()
        roots = {self.root, *self._others}
        yield from filter(None, [program])
        seen: set[str] = set()
        for path in [*self._digested, *filter(None, [program])]:
            root = self.root if path.startswith(f"{self.root}{os.sep}") else root_of(path)
            folder = os.path.dirname(path)
            while folder.startswith(f"{root}{os.sep}") and folder not in seen:
                seen.add(folder)
                yield from _there(f"{folder}{os.sep}__init__.py")
                folder = os.path.dirname(folder)
        for root in roots:
            yield from _there(f"{root}{os.sep}pyproject.toml")


def _project(graph: Graph) -> str:
    program = _program()
    if program is not None:
        return root_of(program)
    for key in graph.targets:
        if not graph.nodes[key].loaded:
            return root_of(real_path(graph.nodes[key].declaration.step.file))
    return root_of(real_path("session.py"))


def _program() -> str | None:
    """The file of the program that runs; None in a session, and where somebody else's program runs the steps."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = real_path(file) if file else ""
    return path if os.path.isfile(path) and not third_party(path) and not own_parts(path) else None


def _own_files() -> Iterator[str]:
    """The files of this distribution's packages."""
    for package in _OWN_PACKAGES:
        for folder, folders, names in os.walk(os.path.join(DISTRIBUTION, package)):
            folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
            yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(_OWN_FILES))


def _there(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path


def _relative(path: str, root: str) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")
