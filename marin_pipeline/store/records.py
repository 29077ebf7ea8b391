"""Records read back from JSON: each field is of the type that its class declares, or the record is refused."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from marin_pipeline.core.errors import CorruptOutput

T = TypeVar("T")

_PLAIN = (str, int, bool)


MOST_VALUES = 4_000_000
"""Values of a record at most, by its brackets and commas: a real one has one in 30 bytes, and one that is made up has
one in 2, which takes 100 times its bytes in memory."""

_SMALL = 2**20
"""Bytes of a record that is not counted: it cannot have that many."""


def parsed(data: bytes | str) -> Any:
    """The JSON value of a record.

    Raises:
        ValueError: when it is none, or has more values or is nested deeper than one of ours.
    """
    if not data:
        raise ValueError("it is empty, or no file at all")
    if len(data) > _SMALL and _values(data) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values, which no record has")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _values(data: bytes | str) -> int:
    """How many values a record has at most; those of a text inside it count too."""
    if isinstance(data, str):
        return sum(data.count(each) for each in ",[{")
    return sum(data.count(each) for each in b",[{")


def spec_tree(data: bytes, where: str, remedy: str = "delete it, a run writes it again") -> dict[str, Any]:
    """The fields of a spec. That its bytes hash to the key says nothing of them: anybody may have made up both.

    Raises:
        CorruptOutput: when it is none.
    """
    problem = ""
    try:
        tree = parsed(data)
    except ValueError as error:
        tree, problem = None, f" ({error})"
    kinds = {"step": str, "code": dict, "arguments": dict}
    if not isinstance(tree, dict) or not all(isinstance(tree.get(name), kind) for name, kind in kinds.items()):
        raise CorruptOutput(f"{where}: is no spec{problem}; {remedy}")
    return tree


def typed(tree: Any, kind: type[T], what: str = "it") -> T:
    """A JSON value as a class says it: a dataclass or named tuple by its fields, a list, a mapping or a plain value.

    Raises:
        ValueError: for a value of another type, or a field that is missing or unknown; names it.
    """
    return _typed(tree, kind, what)


def _typed(tree: Any, annotation: Any, what: str) -> Any:
    if annotation is Any:
        return tree
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _one_of(tree, arguments, what)
    if origin is typing.Literal:
        fits = tree in arguments
    elif origin in (dict, collections.abc.Mapping):
        fits = isinstance(tree, dict)
        if fits and arguments[1] in _PLAIN and all(type(each) is arguments[1] for each in tree.values()):
            return tree
        if fits:
            return {name: _typed(each, arguments[1], f"{what}.{name}") for name, each in tree.items()}
    elif origin in (list, tuple):
        fits = isinstance(tree, list)
        if fits:
            return _sequence(tree, origin, arguments, what)
    elif annotation in (bool, str, type(None)):
        fits = type(tree) is annotation
    elif annotation in (int, float):
        fits = type(tree) is int or (annotation is float and type(tree) is float)
    else:
        fits = isinstance(tree, dict)
        if fits:
            return _record(tree, annotation, what)
    if not fits:
        shown = f"a {type(tree).__name__}" if isinstance(tree, (list, dict)) else repr(tree)[:40]
        raise ValueError(f"{what} is {shown}")
    return tree


def _one_of(tree: Any, choices: tuple[Any, ...], what: str) -> Any:
    *others, last = sorted(choices, key=lambda each: each is not type(None))  # what it should be is told by the last
    for choice in others:
        try:
            return _typed(tree, choice, what)
        except ValueError:
            continue
    return _typed(tree, last, what)


def _sequence(tree: list[Any], origin: Any, arguments: tuple[Any, ...], what: str) -> Any:
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(tree) != len(arguments):
            raise ValueError(f"{what} has {len(tree)} parts instead of {len(arguments)}")
        return tuple(
            _typed(each, kind, f"{what}[{i}]") for i, (each, kind) in enumerate(zip(tree, arguments, strict=True))
        )
    return origin(_typed(each, arguments[0], f"{what}[{index}]") for index, each in enumerate(tree))


def _record(tree: Mapping[str, Any], kind: Any, what: str) -> Any:
    hints, needed = _fields(kind)
    unknown, missing = sorted(tree.keys() - hints.keys()), sorted(needed - tree.keys())
    if unknown or missing:
        raise ValueError(f"{what} has no {missing[0]}" if missing else f"{what} has an unknown field {unknown[0]!r}")
    return kind(**{name: _typed(each, hints[name], f"{what}.{name}") for name, each in tree.items()})


@functools.cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Annotations of a record's fields, and the names of those without a default."""
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        absent = dataclasses.MISSING
        needed = [
            each.name for each in dataclasses.fields(kind) if (each.default, each.default_factory) == (absent, absent)
        ]
    else:
        needed = [name for name in hints if name not in kind._field_defaults]
    return hints, frozenset(needed)
