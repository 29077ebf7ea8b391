"""The digest of the code that a step reaches, found from files: nothing is imported, no path of a machine is in it.

In the file that defines the step it covers what the step reaches by name; in other files of the project whole modules,
since what importing a module does cannot be told from outside. What is compared is normalized text (see `source_text`),
so that a digest is equal on every Python, for `__main__` and imported, for a checkout and a wheel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.imports import Finder, Import, imports_in
from marin_pipeline.core.projects import (
    DISTRIBUTION,
    covered,
    id_of,
    is_third_party,
    module_id,
    project_name,
    project_root,
    real_folder,
    real_path,
    root_of,
    third_party,
)
from marin_pipeline.core.source_names import NameTable, Statement
from marin_pipeline.core.source_text import SourceText, normalized, read_source

__all__ = [
    "CodeDigest",
    "Piece",
    "code_digest",
    "digest_of",
    "is_third_party",
    "module_id",
    "normalized",
    "project_name",
    "project_root",
    "unchanging",
]

_SCHEMA = "marin_pipeline code 1"

_PUBLIC = os.path.join(DISTRIBUTION, "marin_pipeline", "__init__.py")

_SETTLED_NS = 50_000_000
"""A file that changed less than this long before it was looked at may change again within the resolution of its time
(4 ms and more on common file systems), so its time and size prove nothing."""

Stamp = tuple[int, int] | None
"""Time of change in ns and size in bytes; None for what does not exist."""


@dataclass(frozen=True)
class Piece:
    """A part of the code that a step reaches."""

    name: str
    """`experiments/hello:count_words` for a name in the step's own file, `steps/dedupe` for a whole module."""
    digest: str
    """sha256 of its normalized text, 64 hex digits."""


class SourceStamp(NamedTuple):
    """A file in one state."""

    path: str
    """Absolute, without links."""
    modified: int
    """Time of change, ns."""
    size: int
    """Bytes."""
    digest: str
    """Of the whole module: the same for a file that was only touched, or given a comment."""

    @property
    def state(self) -> tuple[int, int]:
        """Time of change and size."""
        return self.modified, self.size


@dataclass(frozen=True)
class CodeDigest:
    """What the code of a step comes to."""

    digest: str
    """64 hex digits, over the pieces."""
    pieces: tuple[Piece, ...]
    """Those of the step's own file first, then whole modules; each name once."""
    files: tuple[SourceStamp, ...] = field(default=(), compare=False)
    """The files that it rests on, as they were when they were looked at."""


def code_digest(
    file: Path,
    qualname: str,
    *,
    classes: Iterable[tuple[Path, str]] = (),
    uses: Iterable[tuple[Path, str]] = (),
    search: Iterable[str | Path] = (),
) -> CodeDigest:
    """Digest of the code that a function reaches.

    Args:
        file: the file that defines it.
        qualname: its name there; empty for the whole file.
        classes: file and qualified name of the classes of its argument values.
        uses: file and qualified name of what the code reaches in a way that its text does not show.
        search: absolute folders in which modules are looked for beside those of the project, as those of `sys.path`.

    Raises:
        InputError: when a file cannot be read or parsed, or a name is not at the top level of its file.
    """
    question = file, qualname, (*classes, *uses), tuple(search)
    if _held is not None and question in _asked:
        return _asked[question]
    path = real_path(file)
    with _lock:
        look = _look(_folders(path), root_of(path), _search_folders(tuple(map(str, question[3]))))
        answer = look.digest(path, qualname, tuple(dict.fromkeys(question[2])))
        if _held is not None:
            _asked[question] = answer
    return answer


def digest_of(pieces: Mapping[str, str]) -> str:
    """Digest of a code by the digests of its pieces by name, in any order: that of `CodeDigest.digest`."""
    # A piece of the step's own file has a colon in its name; those come first.
    ordered = sorted(pieces.items(), key=lambda piece: (":" not in piece[0], piece[0]))
    text = "\n".join([_SCHEMA, *(f"{name} {digest}" for name, digest in ordered)])
    return hashlib.sha256(text.encode()).hexdigest()


def module_digest(data: bytes, path: Path) -> str:
    """Digest of a whole module, as in `SourceStamp.digest`."""
    return SourceText.decoded(data, path).digest()


def content_of(file: SourceStamp) -> bytes:
    """The bytes of a file in the state that was digested.

    Raises:
        InputError: when it was edited since, and nobody has them any more.
    """
    known = _files.get(file.path)
    if known and known[2].module[0] == file.digest:
        return known[2].data
    data = read_source(Path(file.path))
    if module_digest(data, Path(file.path)) != file.digest:
        raise InputError(
            f"{file.path}: was edited after the steps were declared that rest on it, and before they began; run the "
            "same command again (in a session, reload the module and declare them again)"
        )
    return data


@contextlib.contextmanager
def unchanging() -> Generator[None, None, None]:
    """Inside, what was looked at is taken not to change: a plan sees one state of the files, and looks at each once.

    Outside, each digest asks for the times of all files that it rests on, some 2 microseconds a file.
    """
    global _held
    outer = _held
    _held = outer or object()
    try:
        yield
    finally:
        _held = outer
        if outer is None:
            _asked.clear()


# Files, parsed once while they do not change


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _settled(stamp: Stamp) -> bool:
    return stamp is None or time.time_ns() - stamp[0] > _SETTLED_NS


class _SourceFile:
    """The bytes of a file, and what is asked of them, computed once."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = Path(path)
        self.data = data

    @functools.cached_property
    def module(self) -> tuple[str, tuple[Import, ...]]:
        """Digest of the whole module, and its imports."""
        text = SourceText.decoded(self.data, self._path)
        return text.digest(), tuple(dict.fromkeys(imports_in(text.imported_statements())))

    @functools.cached_property
    def written_imports(self) -> tuple[Import, ...]:
        """All its imports, also those that only a type checker follows."""
        return tuple(imports_in(SourceText.decoded(self.data, self._path).statements))

    @functools.cached_property
    def names(self) -> NameTable:
        """Its top-level statements by name."""
        return NameTable(SourceText.decoded(self.data, self._path))


_lock = threading.Lock()
_held: object | None = None
"""The `unchanging` block that is open."""
_asked: dict[tuple[Path, str, tuple[tuple[Path, str], ...], tuple[str | Path, ...]], CodeDigest] = {}
"""What was asked in it, and the answers."""
_files: dict[str, tuple[Stamp, bool, _SourceFile]] = {}


def _load(path: str) -> _SourceFile:
    stamp = _stamp(path)
    known = _files.get(path)
    if known and known[0] == stamp and known[1]:
        return known[2]
    data = read_source(Path(path))
    file = known[2] if known and known[2].data == data else _SourceFile(path, data)
    _files[path] = stamp, _settled(stamp), file
    return file


# The modules around a file


@functools.lru_cache(maxsize=64)
def _search_folders(search: tuple[str, ...]) -> tuple[str, ...]:
    folders = dict.fromkeys(real_folder(os.path.abspath(folder)) for folder in search)
    return tuple(
        folder for folder in folders if os.path.isdir(folder) and not third_party(os.path.join(folder, "module.py"))
    )


def _folders(path: str) -> tuple[str, ...]:
    """The folders of a project in which modules are looked for: of a link to a file also those of the file."""
    folders: dict[str, None] = {}
    for file in (path, os.path.realpath(path)):
        folders |= dict.fromkeys((os.path.dirname(file), root_of(file), os.path.join(root_of(file), "src")))
    return tuple(folders)


@functools.lru_cache(maxsize=64)
def _look(folders: tuple[str, ...], root: str, search: tuple[str, ...]) -> _Look:
    return _Look(folders, root, search)


class _Look:
    """What was seen of the files around some folders; seen anew when any of it has changed."""

    def __init__(self, folders: tuple[str, ...], root: str, search: tuple[str, ...]) -> None:
        self._root = root
        self._folders = folders
        self._search = search
        self._looked_in: object | None = None
        self._forget()

    def digest(self, path: str, qualname: str, others: tuple[tuple[Path, str], ...]) -> CodeDigest:
        if _held is None or self._looked_in is not _held:
            self._looked_in = _held
            if not self._current or any(_stamp(seen) != stamp for seen, stamp in self._stamps.items()):
                self._forget()
        question = path, qualname, others
        if question not in self._answers:
            self._answers[question] = self._digest(path, qualname, others)
        return self._answers[question]

    def _forget(self) -> None:
        self._current = True
        self._stamps: dict[str, Stamp] = {}
        self._finder = Finder(self._folders, self._search, self._watch)
        self._found: dict[tuple[str, tuple[Import, ...]], list[str]] = {}
        self._closures: dict[tuple[str, ...], tuple[tuple[Piece, ...], tuple[str, ...]]] = {}
        self._answers: dict[tuple[str, str, tuple[tuple[Path, str], ...]], CodeDigest] = {}

    def _watch(self, path: str) -> None:
        if path not in self._stamps:
            self._stamps[path] = _stamp(path)
            self._current = self._current and _settled(self._stamps[path])

    def _digest(self, path: str, qualname: str, others: tuple[tuple[Path, str], ...]) -> CodeDigest:
        self._watch(path)
        table = _load(path).names
        by_name: list[str] = []
        modules: list[str] = [] if qualname else [path]
        for other, name in others:
            where = real_path(other)
            if where == path and name:
                by_name.append(_top_level(table, path, name))
            elif covered(where):
                modules += [where, *filter(covered, self._finder.packages_around(where))]
        step = _top_level(table, path, qualname) if qualname else None
        statements = table.reached(step, by_name)
        for statement in statements:
            modules += self._imported(path, statement.imports)
        whole, paths = self._whole_modules(tuple(dict.fromkeys(modules)))
        pieces = self._own_pieces(path, statements) + whole
        files = tuple(
            SourceStamp(each, *stamp, _load(each).module[0])
            for each in dict.fromkeys((path, *paths))
            if (stamp := self._stamps[each])
        )
        return CodeDigest(digest_of({piece.name: piece.digest for piece in pieces}), pieces, files)

    def _public(self, imports: tuple[Import, ...]) -> Iterator[Import]:
        """Where the public names of `marin_pipeline` come from; its `__init__.py`, which loads them, does not count."""
        wanted = {name for statement in imports if statement.module == "marin_pipeline" for name in statement.names}
        if wanted:
            self._watch(_PUBLIC)
            for home in _load(_PUBLIC).written_imports:
                if names := tuple(name for name in home.names if name in wanted):
                    yield Import(home.module, names)

    def _own_pieces(self, path: str, statements: list[Statement]) -> tuple[Piece, ...]:
        own = id_of(path, self._root)
        pieces = [Piece(f"{own}:{statement.name}", statement.digest) for statement in statements]
        ordered = [statement.name for statement in statements if statement.ordered]
        if len(ordered) > 1:
            digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()
            pieces.append(Piece(f"{own}: order of statements", digest))
        return _one_a_name(pieces)

    def _whole_modules(self, start: tuple[str, ...]) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
        """Some modules, with all that they import in turn; and their files."""
        if start not in self._closures:
            found: dict[str, Piece] = {}
            waiting = list(start)
            while waiting:
                path = waiting.pop()
                if path not in found:
                    self._watch(path)
                    digest, imports = _load(path).module
                    found[path] = Piece(id_of(path, self._root), digest)
                    waiting += self._imported(path, imports)
            pieces = _one_a_name(self._candidates(found))
            self._closures[start] = pieces, tuple(sorted(found))
        return self._closures[start]

    def _candidates(self, found: Mapping[str, Piece]) -> Iterator[Piece]:
        """Modules by file, those of one name in the order in which their folders are searched, wherever these lie.

        Where all of one name are equal, there is one: so a tree of links has the digest of the tree that it shows.
        """
        by_name: dict[str, list[str]] = {}
        for path, piece in found.items():
            by_name.setdefault(piece.name, []).append(path)
        for paths in by_name.values():
            if len({found[path].digest for path in paths}) == 1:
                yield found[paths[0]]
            else:
                yield from (
                    found[path] for path in sorted(paths, key=lambda path: (self._rank(path), found[path].digest))
                )

    def _rank(self, path: str) -> int:
        folders = [*self._folders, *self._search]
        inside = (number for number, folder in enumerate(folders) if path.startswith(os.path.join(folder, "")))
        return next(inside, len(folders))

    def _imported(self, path: str, imports: tuple[Import, ...]) -> list[str]:
        if (path, imports) not in self._found:
            self._found[path, imports] = self._finder.files(path, [*imports, *self._public(imports)])
        return self._found[path, imports]


def _top_level(table: NameTable, path: str, qualname: str) -> str:
    """The top-level name that holds `qualname`."""
    name, *inner = qualname.split(".")
    if "<locals>" not in inner and table.defines(name):
        return name
    last = qualname.split(".")[-1]
    line = table.line_of_nested(last)
    where = f"{path}, line {line}" if line else path
    raise InputError(
        f"{where}: {qualname} is not defined at the top level of its file, so its code cannot be followed; "
        f"move {last} there, outside of functions and of `if __name__ == '__main__'`"
    )


def _one_a_name(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces sorted by name; those of one name are joined, in the order given."""
    digests: dict[str, list[str]] = {}
    for piece in pieces:
        digests.setdefault(piece.name, []).append(piece.digest)
    return tuple(
        Piece(name, same[0] if len(same) == 1 else hashlib.sha256("".join(same).encode()).hexdigest())
        for name, same in sorted(digests.items())
    )
