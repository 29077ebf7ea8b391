"""Paths inside an output: what may be one, on every store and every machine.

Such a path is UTF-8, is in its one shortest form with `/`, leads nowhere but down, and holds no control character:
object stores refuse those or mangle them in listings, and terminals act upon them. Names that differ only in case or in
Unicode form are two names, as they are on Linux and in object stores; a Mac that takes them for one cannot hold such an
output.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from marin_pipeline.core.errors import DeclarationError

LONGEST_PART = 255
"""Bytes of a name in UTF-8, as file systems have it."""

_PART = r"(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
_PATH = re.compile(f"{_PART}(?:/{_PART})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_path(path: object) -> bool:
    """Whether something is a path inside an output, but for the length of its parts."""
    return isinstance(path, str) and _PATH.fullmatch(path) is not None


def problem_with(path: str) -> str:
    """Why no file of an output can have this path, and what to do; empty when one can."""
    if not is_path(path):
        return _problem(path)
    if len(path) * 4 > LONGEST_PART and any(len(part.encode()) > LONGEST_PART for part in path.split("/")):
        return f"has a name of more than {LONGEST_PART} bytes; choose a shorter one"
    return ""


def _problem(path: str) -> str:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "has a name that is not UTF-8; rename it"
    if _CONTROL.search(path):
        return "has a control character in its name, such as a line break; rename it"
    return "is not a path inside an output; give one relative to it, without '.', '..' or empty parts"


def relative_path(path: str) -> str:
    """`path` in its shortest form, as `pathlib` has it, if it stays inside the folder that it is relative to.

    Raises:
        DeclarationError: for an empty or absolute path, one with `..`, or one that no file of an output can have.
    """
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or str(pure) == ".":
        raise DeclarationError(f"{path!r} is not a path inside an output; give one relative to it, without '..'")
    if problem := problem_with(str(pure)):
        raise DeclarationError(f"{path!r} {problem}")
    return str(pure)
