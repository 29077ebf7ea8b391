"""Docstrings of Python source, found by parsing it; nothing is imported or run.

A docstring is the first statement of a module, class or function when it is a string, indented as `inspect.cleandoc`
leaves it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Docstring(NamedTuple):
    """The docstring of one object."""

    name: str
    """Qualified name: module.path.Class.method."""
    kind: str
    """`module`, `class` or `function`."""
    text: str


class Unparsable(NamedTuple):
    """Why a file has no docstrings to give."""

    reason: str
    """`invalid_utf8` or `unparsable`."""
    detail: str


def module_name(path: str) -> str:
    """The module that a file is, by its path below the folder of packages; `a/b.py` and `a/b/__init__.py` are `a.b`."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def docstrings(source: bytes, module: str) -> list[Docstring] | Unparsable:
    """The docstrings of a file, empty ones included, in the order of the source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        return list(_walk(tree, module))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        try:
            source.decode()
        except UnicodeDecodeError as undecodable:
            return Unparsable("invalid_utf8", str(undecodable))
        return Unparsable("unparsable", f"{type(error).__name__}: {error}")


def _walk(node: ast.AST, name: str) -> Iterator[Docstring]:
    if isinstance(node, (ast.Module, *_NAMED)):
        text = ast.get_docstring(node)
        if text is not None:
            yield Docstring(name, _kind(node), text)
    for field in _BODIES:
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from _walk(child, f"{name}.{child.name}" if isinstance(child, _NAMED) else name)


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Module):
        return "module"
    return "class" if isinstance(node, ast.ClassDef) else "function"
