"""Which files the imports of a module name: found on disk, never by importing.

Where several folders could hold a module, each file counts, those of `sys.path` included: which one Python takes
depends on how a program was started, and on what it does to `sys.path`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from marin_pipeline.core.projects import DISTRIBUTION, covered, own_parts, root_of


@dataclass(frozen=True)
class Import:
    """One import statement, as written."""

    module: str
    """Dotted name; empty for `from . import x`."""
    names: tuple[str, ...] = ()
    """What `from` takes out of the module; empty for a plain `import`."""
    level: int = 0
    """Leading dots."""


def imports_in(statements: Iterable[ast.AST]) -> Iterator[Import]:
    """The imports among some statements."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)


class Finder:
    """Finds the covered files that imports name.

    Args:
        folders: the folder of the step's file and others of its project in which modules are looked for.
        search: further folders, those of `sys.path`.
        looked_at: called with each folder whose list of files the answers rest on.
    """

    def __init__(self, folders: Iterable[str], search: Iterable[str], looked_at: Callable[[str], None]) -> None:
        self._folders = tuple(folders)
        self._search = tuple(search)
        self._looked_at = looked_at
        self._names: dict[str, frozenset[str] | None] = {}

    def files(self, path: str, imports: Iterable[Import]) -> list[str]:
        """Files that imports of the module at `path` name: modules, and the `__init__.py` of the packages around."""
        found: dict[str, None] = {}
        for statement in imports:
            files = self._relative(path, statement) if statement.level else self._absolute(path, statement)
            found |= dict.fromkeys(files)
        return [file for file in found if covered(file)]

    def packages_around(self, path: str) -> Iterator[str]:
        """The `__init__.py` files that are run before a module is imported."""
        folder = os.path.dirname(path)
        while self._is_package(folder):
            yield os.path.join(folder, "__init__.py")
            folder = os.path.dirname(folder)

    def _relative(self, path: str, statement: Import) -> Iterator[str]:
        base = os.path.dirname(path)
        for _ in range(statement.level - 1):
            base = os.path.dirname(base)
        yield from self.packages_around(os.path.join(base, "__init__.py"))
        yield from self._below(base, statement)

    def _absolute(self, path: str, statement: Import) -> Iterator[str]:
        if own_parts(path):
            yield from self._below(DISTRIBUTION, statement)
            return
        root = root_of(path)
        folders = dict.fromkeys([*self._folders, root, os.path.join(root, "src")])
        if not self._is_package(os.path.dirname(path)):
            folders |= {os.path.dirname(path): None}
        if own_parts(os.path.join(DISTRIBUTION, *statement.module.split("."))):
            folders |= {DISTRIBUTION: None}
        # This package is imported already, and from nowhere else.
        if statement.module.split(".")[0] != "marin_pipeline":
            folders |= dict.fromkeys(self._search)
        for folder in folders:
            yield from self._below(folder, statement)

    def _below(self, base: str, statement: Import) -> Iterator[str]:
        folder: str | None = base
        for part in statement.module.split(".") if statement.module else ():
            file, folder = self._step_into(folder, part)
            if file:
                yield file
            if folder is None:
                return
        for name in statement.names:
            file, _ = self._step_into(folder, name)
            if file:
                yield file

    def _step_into(self, folder: str, part: str) -> tuple[str | None, str | None]:
        """The file of a module or package in `folder`, and the folder in which its own modules lie."""
        names = self._list(folder) or frozenset()
        inner = os.path.join(folder, part)
        if part in names and (inside := self._list(inner)) is not None:
            if "__init__.py" in inside:
                return os.path.join(inner, "__init__.py"), inner
            if f"{part}.py" not in names:
                return None, inner
        return (f"{inner}.py", None) if f"{part}.py" in names else (None, None)

    def _is_package(self, folder: str) -> bool:
        return "__init__.py" in (self._list(folder) or ())

    def _list(self, folder: str) -> frozenset[str] | None:
        """Names in a folder; None where there is no such folder."""
        if folder not in self._names:
            self._looked_at(folder)
            try:
                self._names[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._names[folder] = None
        return self._names[folder]
