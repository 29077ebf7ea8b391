"""Arguments against their annotations: checked and brought to the declared type before they are keyed, read back when a step runs.

A checked value is a snapshot: lists, dicts and dataclasses are rebuilt, so that later changes by the caller cannot move a key.
`int` becomes `float` where a float is declared; `True` is never a number; anything that does not fit is refused by name.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import datetime
import enum
import importlib
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from marin_pipeline.core.canonical import (
    MISSING,
    TAG,
    Reference,
    Tree,
    annotations_of,
    class_id,
    dtype_name,
    marks_of,
    same,
)
from marin_pipeline.core.errors import DeclarationError

_SEQUENCES = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_SETS = (set, frozenset, collections.abc.Set)


def describe(annotation: Any) -> str:
    """An annotation as a person would write it."""
    if annotation is None or annotation is type(None):
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe(args[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(describe(arg) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{', '.join('...' if arg is Ellipsis else describe(arg) for arg in args)}]"
    return getattr(annotation, "__name__", str(annotation))


def _mismatch(value: Any, annotation: Any, path: str) -> DeclarationError:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    what = shown if isinstance(value, Reference) else f"{shown} of type {type(value).__name__}"
    return DeclarationError(f"{path}: expected {describe(annotation)}, got {what}")


def check(value: Any, annotation: Any, path: str) -> Any:
    """`value` as the annotation declares it, rebuilt.

    Raises:
        DeclarationError: naming `path`, what was expected and what was given.
    """
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    if annotation is Any or annotation is object or annotation is MISSING or isinstance(annotation, typing.TypeVar):
        return _snapshot(value, path)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _check_union(value, annotation, args, path)
    if origin is typing.Literal:
        for choice in args:
            if same(value, choice):
                return choice
        raise _mismatch(value, annotation, path)
    kind = origin or annotation
    if isinstance(value, Reference) or (isinstance(kind, type) and issubclass(kind, Reference)):
        return _check_reference(value, annotation, kind, path)
    if kind in _SEQUENCES:
        return _check_sequence(value, annotation, kind, args, path)
    if kind in _MAPPINGS:
        if not isinstance(value, collections.abc.Mapping):
            raise _mismatch(value, annotation, path)
        item = args[1] if len(args) == 2 else Any
        for key in value:
            if not isinstance(key, str):
                raise DeclarationError(f"{path}: the dict key {key!r} is a {type(key).__name__}; keys must be strings")
        return {key: check(each, item, f"{path}[{key}]") for key, each in value.items()}
    if kind in _SETS:
        if not isinstance(value, (set, frozenset)):
            raise _mismatch(value, annotation, path)
        return frozenset(check(each, args[0] if args else Any, f"{path}{{}}") for each in value)
    if isinstance(kind, type):
        return _check_plain(value, annotation, kind, path)
    raise DeclarationError(f"{path}: the annotation {describe(annotation)} is not one that a step can take")


def _check_union(value: Any, annotation: Any, args: tuple[Any, ...], path: str) -> Any:
    for exact in args:
        plain = exact.__origin__ if typing.get_origin(exact) is typing.Annotated else exact
        if type(value) is (type(None) if plain is None else plain):
            return check(value, plain, path)
    problems: list[DeclarationError] = []
    for choice in args:
        try:
            return check(value, choice, path)
        except DeclarationError as error:
            problems.append(error)
    deeper = [problem for problem in problems if not str(problem).startswith(f"{path}: expected")]
    if len(deeper) == 1:
        raise deeper[0]
    raise _mismatch(value, annotation, path)


def _check_reference(value: Any, annotation: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, Reference) or not isinstance(kind, type) or not isinstance(value, kind):
        raise _mismatch(value, annotation, path)
    problem = value.mismatch(annotation)
    if problem:
        raise DeclarationError(f"{path}: expected {describe(annotation)}, got {problem}")
    return value


def _check_sequence(value: Any, annotation: Any, kind: Any, args: tuple[Any, ...], path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _mismatch(value, annotation, path)
    if kind is tuple and args and not (len(args) == 2 and args[1] is Ellipsis):
        if len(value) != len(args):
            raise DeclarationError(f"{path}: expected {describe(annotation)}, got {len(value)} items")
        return tuple(check(each, item, f"{path}[{i}]") for i, (each, item) in enumerate(zip(value, args, strict=True)))
    item = args[0] if args else Any
    checked = [check(each, item, f"{path}[{index}]") for index, each in enumerate(value)]
    return checked if kind is list else tuple(checked)


def _check_plain(value: Any, annotation: Any, kind: type, path: str) -> Any:
    if kind is type(None):
        if value is None:
            return None
        raise _mismatch(value, annotation, path)
    if kind is bool or isinstance(value, bool):
        if kind is bool and isinstance(value, bool):
            return value
        raise _mismatch(value, annotation, path)
    if issubclass(kind, enum.Enum):
        if isinstance(value, kind):
            return value
        raise _mismatch(value, annotation, path)
    if kind is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, enum.Enum):
            return operator.index(value)
        raise _mismatch(value, annotation, path)
    if kind is float:
        if isinstance(value, float) or (isinstance(value, numbers.Integral) and not isinstance(value, enum.Enum)):
            return float(value)
        raise _mismatch(value, annotation, path)
    if kind is str:
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            return str(value)
        raise _mismatch(value, annotation, path)
    if dataclasses.is_dataclass(kind) and isinstance(value, kind):
        return _rebuild(value, path)
    if kind is datetime.date and isinstance(value, datetime.datetime):
        raise _mismatch(value, annotation, path)
    if isinstance(value, kind):
        return value
    if dtype_name(value) is not None and kind.__module__.partition(".")[0] == "numpy":
        return value
    raise _mismatch(value, annotation, path)


def _rebuild(value: Any, path: str) -> Any:
    """A dataclass with its fields checked; the same object when nothing changed."""
    hints = annotations_of(type(value))
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = check(old, hints.get(field.name, Any), f"{path}.{field.name}")
        if new is not old:
            changed[field.name] = (field.init, new)
    if not changed:
        return value
    blocked = [name for name, (init, _) in changed.items() if not init]
    for name in blocked:
        changed.pop(name)
    return dataclasses.replace(value, **{name: new for name, (_, new) in changed.items()})


def _snapshot(value: Any, path: str) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_snapshot(item, f"{path}[{i}]") for i, item in enumerate(value)]) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: _snapshot(item, f"{path}[{key}]") for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _rebuild(value, path)
    return value


def references(value: Any, path: str) -> Iterator[tuple[str, Reference]]:
    """Every artifact, file and secret inside `value`, with its role: the path at which it stands."""
    if isinstance(value, Reference):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from references(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from references(item, f"{path}[{key}]")
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield from references(item, f"{path}{{}}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from references(getattr(value, field.name), f"{path}.{field.name}")


def transform(value: Any, change: Callable[[Reference], Any]) -> Any:
    """`value` with every reference replaced by `change(reference)`; what has none inside is returned as it is."""
    if isinstance(value, Reference):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [transform(item, change) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    if isinstance(value, dict):
        changed = {key: transform(item, change) for key, item in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    if isinstance(value, (set, frozenset)):
        return frozenset(transform(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = {field.name: transform(getattr(value, field.name), change) for field in dataclasses.fields(value) if field.init}
        new = {name: item for name, item in new.items() if item is not getattr(value, name)}
        return dataclasses.replace(value, **new) if new else value
    return value


def classes_in(value: Any) -> Iterator[type]:
    """The classes of the dataclasses and enums inside `value`."""
    if isinstance(value, enum.Enum):
        yield type(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from classes_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from classes_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, Reference)):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from classes_in(getattr(value, field.name))


# Reading back -------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Record:
    """A dataclass value whose class cannot be imported here: its fields are readable by name."""

    class_id: str
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"{self.class_id} has no field {name!r}") from None


def decode(tree: Tree, annotation: Any, path: str, reference: Callable[[dict[str, Tree], str], Any] | None = None) -> Any:
    """The value that `tree` stands for, checked against `annotation`.

    Args:
        reference: reads a tree with a reference tag (`~artifact`, `~file`, `~secret`).
    """
    known: dict[str, type] = {class_id(kind): kind for kind in _classes_of_annotation(annotation, set())}
    value = _decode(tree, path, known, reference)
    return value if isinstance(value, Record) else check(value, annotation, path)


def _classes_of_annotation(annotation: Any, seen: set[Any]) -> Iterator[type]:
    for arg in typing.get_args(annotation):
        if not isinstance(arg, (str, int, float, bytes)):
            yield from _classes_of_annotation(arg, seen)
    if not isinstance(annotation, type) or annotation in seen:
        return
    seen.add(annotation)
    if dataclasses.is_dataclass(annotation):
        yield annotation
        for hint in annotations_of(annotation).values():
            yield from _classes_of_annotation(hint, seen)
    elif issubclass(annotation, enum.Enum):
        yield annotation


def _find_class(identity: str, known: dict[str, type]) -> type | None:
    if identity in known:
        return known[identity]
    module, _, qualname = identity.partition(":")
    try:
        found: Any = importlib.import_module(module.replace("/", "."))
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _decode(tree: Tree, path: str, known: dict[str, type], reference: Callable[[dict[str, Tree], str], Any] | None) -> Any:
    if isinstance(tree, list):
        return [_decode(item, f"{path}[{index}]", known, reference) for index, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    tag = next((key for key in tree if key.startswith(TAG) and not key.startswith(TAG + TAG)), None)
    if tag is None:
        return {
            key[1:] if key.startswith(TAG) else key: _decode(item, f"{path}[{key}]", known, reference)
            for key, item in tree.items()
        }
    body = tree[tag]
    if tag == "~data":
        fields = {name: _decode(item, f"{path}.{name}", known, reference) for name, item in tree["fields"].items()}
        kind = _find_class(body, known)
        return Record(body, fields) if kind is None else _construct(kind, fields, path)
    if tag == "~enum":
        kind = _find_class(body, known)
        if kind is None:
            return Record(body, {"name": tree["name"]})
        return kind[tree["name"]]  # pyright: ignore[reportIndexIssue]
    simple: dict[str, Callable[[Any], Any]] = {
        "~float": float,
        "~set": lambda items: frozenset(_decode(item, f"{path}{{}}", known, reference) for item in items),
        "~bytes": base64.b64decode,
        "~datetime": datetime.datetime.fromisoformat,
        "~date": datetime.date.fromisoformat,
        "~time": datetime.time.fromisoformat,
        "~timedelta": lambda parts: datetime.timedelta(*parts),
        "~dtype": _dtype,
    }
    if tag in simple:
        return simple[tag](body)
    if reference is not None:
        return reference(tree, path)
    raise DeclarationError(f"{path}: the tag {tag} is not known to this version")


def _dtype(name: str) -> Any:
    import ml_dtypes  # noqa: F401  # pyright: ignore[reportUnusedImport] - registers bfloat16 and the like with numpy
    import numpy

    return numpy.dtype(name)


def _construct(kind: type, fields: dict[str, Any], path: str) -> Any:
    hints = annotations_of(kind)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        marks = marks_of(hints.get(field.name))
        if field.name in fields:
            value = check(fields[field.name], hints.get(field.name, Any), f"{path}.{field.name}")
        elif marks.absent is not MISSING:
            value = marks.absent
        else:
            continue
        if field.init:
            given[field.name] = value
    return kind(**given)
