"""What an annotation says besides the type: whether an argument is in the key, and when it is left out."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marin_pipeline.core.errors import DeclarationError


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


@dataclass(frozen=True)
class RuntimeMark:
    """Marks a parameter or a field that says where or how fast, never what: it is not in the key."""


# Each is equal to itself alone: typing keeps one `Annotated` for equal marks, and to Python 0, 0.0 and False are equal.
@dataclass(frozen=True, eq=False)
class absent_when:
    """`Annotated[int, absent_when(0)]`: an argument equal to this literal is left out of the spec.

    So a new parameter need not move the keys of those who do not use it. The literal never changes after that,
    whatever the default.
    """

    value: Any


@dataclass(frozen=True)
class Marks:
    """The marks of an annotation."""

    runtime: bool = False
    absent: Any = MISSING


NO_MARKS = Marks()


def marks_of(annotation: Any) -> Marks:
    """The marks of an annotation."""
    if isinstance(annotation, type):
        return NO_MARKS
    runtime, absent = False, MISSING
    while typing.get_origin(annotation) is typing.Annotated:
        for mark in annotation.__metadata__:
            runtime = runtime or isinstance(mark, RuntimeMark)
            absent = mark.value if isinstance(mark, absent_when) else absent
        annotation = annotation.__origin__
    return Marks(runtime, absent)


def plain(annotation: Any) -> Any:
    """An annotation without its marks, and without the names that `NewType` and `type X = ...` give it."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = annotation.__origin__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


@functools.lru_cache(maxsize=4096)
def annotations_of(owner: Any) -> Mapping[str, Any]:
    """The resolved annotations of a function or a class, marks kept.

    Raises:
        DeclarationError: when an annotation names something that does not exist.
    """
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DeclarationError(
            f"{owner.__module__}.{owner.__qualname__}: an annotation cannot be resolved ({error}); "
            "import the name at the top of the file, outside `if TYPE_CHECKING`"
        ) from error
