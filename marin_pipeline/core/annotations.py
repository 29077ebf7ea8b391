"""What an annotation is made of: its parts, its type variables, and how a person would write it."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from marin_pipeline.core.marks import plain

UNIONS = (typing.Union, types.UnionType)
"""What `typing.get_origin` gives for `int | None` and for `Optional[int]`."""

MEMBERS = 20
"""Of an enum that an error lists, at most."""


def describe(annotation: Any, around: tuple[Any, ...] = ()) -> str:
    """An annotation as a person would write it; one that stands inside itself (`around`) by its name."""
    name, annotation = getattr(annotation, "__name__", str(annotation)), plain(annotation)
    if any(annotation is each for each in around):
        return name
    around = (*around, annotation)
    if annotation is None or annotation is type(None):
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return " | ".join(describe(arg, around) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    members = _members(annotation)
    if members:
        more = f" and {len(members) - MEMBERS} more" if len(members) > MEMBERS else ""
        return f"{annotation.__name__} (one of {', '.join(members[:MEMBERS])}{more})"
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{', '.join('...' if arg is Ellipsis else describe(arg, around) for arg in args)}]"
    return getattr(annotation, "__name__", str(annotation))


def _members(annotation: Any) -> list[str]:
    """Names of the members of an enum; none of anything else."""
    return list(annotation.__members__) if isinstance(annotation, enum.EnumType) else []


def parts_of(annotation: Any) -> Iterator[Any]:
    """The annotations inside an annotation, at any depth; `type Tree = list[Tree]` stands inside itself."""
    seen: dict[int, Any] = {}
    waiting = [annotation]
    while waiting:
        whole = waiting.pop()
        if id(whole) not in seen and typing.get_origin(whole) is not typing.Literal:
            seen[id(whole)] = whole
            parts = typing.get_args(whole)
            yield from parts
            waiting += map(plain, parts)


def type_arguments(annotation: Any) -> Mapping[Any, Any]:
    """What the type variables of a generic class stand for in `Box[int]`."""
    variables = getattr(typing.get_origin(annotation), "__parameters__", ())
    return dict(zip(variables, typing.get_args(annotation), strict=False))


def substituted(annotation: Any, types_by_variable: Mapping[Any, Any]) -> Any:
    """An annotation with its type variables replaced."""
    if isinstance(annotation, typing.TypeVar):
        return types_by_variable.get(annotation, annotation)
    variables = () if isinstance(annotation, type) else getattr(annotation, "__parameters__", ())
    if not any(variable in types_by_variable for variable in variables):
        return annotation
    generic: Any = annotation
    return generic[tuple(types_by_variable.get(variable, variable) for variable in variables)]
