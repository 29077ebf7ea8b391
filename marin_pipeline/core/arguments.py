"""Arguments against their annotations: brought to the declared type before they are keyed.

A checked value is a snapshot: lists, dicts and dataclasses are rebuilt, so that later changes by the caller cannot move
a key. What a step gets is what was keyed: `int` becomes `float` where a float is declared, dicts are in the order of
their keys, `True` is never a number, and anything that does not fit is refused by name.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import functools
import operator
import reprlib
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from marin_pipeline.core.annotations import UNIONS, describe, parts_of, substituted, type_arguments
from marin_pipeline.core.canonical import (
    Reference,
    children,
    dumps,
    encode,
    fields_of,
    is_leaf,
    is_mapping,
    is_record,
    is_sequence,
    is_set,
    key_text,
    refuse_deep,
    same,
    why_refused,
)
from marin_pipeline.core.dtypes import dtype_name, dtype_named
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.marks import MISSING, annotations_of, marks_of, plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SEQUENCES = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


@dataclasses.dataclass(frozen=True)
class Record:
    """A dataclass or enum value whose class is not known here: its fields are readable by name."""

    class_id: str
    fields: dict[str, Any]

    def __hash__(self) -> int:
        return hash(self.class_id)  # its fields may hold lists, and it may stand in a set

    def described(self) -> str:
        """What this is, for errors."""
        return f"a {self.class_id}, which is not known here (import its module first)"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.fields:
            raise AttributeError(f"{self.class_id} has no field {name!r}")
        return self.fields[name]


def _mismatch(value: Any, annotation: Any, path: str, remedy: str = "") -> DeclarationError:
    if isinstance(value, (Reference, Record)):
        what = value.described()
    else:
        what = f"{_short.repr(value)} of type {type(value).__name__}"
        if not (is_sequence(value) or is_mapping(value) or is_set(value) or is_record(value)):
            try:
                encode(value, path)
            except DeclarationError:
                # An arbitrary object's repr tells little, may be long, and may hold what nobody should read.
                what = f"a {type(value).__name__}: {why_refused(value)}"
    return DeclarationError(f"{path}: expected {describe(annotation)}, got {what}{remedy}")


def _unknown(annotation: Any, path: str, remedy: str) -> DeclarationError:
    return DeclarationError(f"{path}: the annotation {describe(annotation)} is not one that a step can take; {remedy}")


@functools.lru_cache(maxsize=4096)
def checked_annotations(owner: Any) -> Mapping[str, Any]:
    """The annotations of a function or a dataclass, their marks checked.

    Raises:
        DeclarationError: for a mark that stands where it is not seen, or a literal that no value can equal.
    """
    hints = annotations_of(owner)
    for name, annotation in hints.items():
        marks, bare = marks_of(annotation), plain(annotation)
        if any(marks_of(inner) != marks_of(None) for inner in parts_of(bare)):
            raise DeclarationError(
                f"{name}: Runtime and absent_when mark a whole parameter or field, not a part of its type; "
                "write Runtime[list[int]], not list[Runtime[int]]"
            )
        if marks.runtime and any(_can_hold_content(part) for part in [bare, *parts_of(bare)]):
            raise DeclarationError(f"{name}: what an artifact or a file holds is never Runtime; leave the mark out")
        if marks.absent is not MISSING and not same(check(marks.absent, annotation, name), marks.absent):
            raise DeclarationError(
                f"{name}: the literal of absent_when({marks.absent!r}) is no {describe(annotation)}; "
                "write it as the step gets it"
            )
    return hints


def _can_hold_content(annotation: Any) -> bool:
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, Reference) and kind.holds_content


# Checking -------------------------------------------------------------------------------------------------------------


def check(value: Any, annotation: Any, path: str) -> Any:
    """`value` as the annotation declares it, rebuilt. Checking what has been checked changes nothing.

    Raises:
        DeclarationError: naming `path`, what was expected and what was given.
    """
    refuse_deep(value, path)
    return coerce(value, annotation, path)


def coerce(value: Any, annotation: Any, path: str) -> Any:
    if type(value) is annotation and annotation in (int, float, str, bool):
        return encode(value, path) if annotation is str or annotation is int else value
    value = _python_number(value)
    annotation, origin, args = _parts(annotation)
    if annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar):
        return _snapshot(value, path)
    if origin in UNIONS:
        return _check_union(value, annotation, args, path)
    if origin is typing.Literal:
        for choice in args:
            if same(value, choice):
                return choice
        raise _mismatch(value, annotation, path)
    kind = type(None) if annotation is None else origin or annotation
    if isinstance(value, Reference) or (isinstance(kind, type) and issubclass(kind, Reference)):
        return _check_reference(value, annotation, kind, path)
    if kind in _SEQUENCES:
        return _check_sequence(value, annotation, kind, args, path)
    if kind in _MAPPINGS:
        return _check_mapping(value, annotation, args, path)
    if kind in _SETS:
        if not is_set(value):
            raise _mismatch(value, annotation, path)
        items = frozen((coerce(each, args[0] if args else Any, f"{path}{{}}") for each in value), path)
        return set(items) if kind is set else items
    if isinstance(kind, type):
        return _check_plain(value, annotation, kind, path)
    raise _unknown(annotation, path, "use plain types, list, tuple, dict, set, frozen dataclasses, Artifact or File")


_parts_by_id: dict[int, tuple[Any, tuple[Any, Any, tuple[Any, ...]]]] = {}
"""By identity, and each annotation kept alive: `list[int] | list[float]` equals the union in the other order."""


def _parts(annotation: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """An annotation without its marks, its origin and its arguments."""
    known = _parts_by_id.get(id(annotation))
    if known is None:
        if len(_parts_by_id) > 4096:
            _parts_by_id.clear()
        inner = plain(annotation)
        known = annotation, (inner, typing.get_origin(inner), typing.get_args(inner))
        _parts_by_id[id(annotation)] = known
    return known[1]


def _python_number(value: Any) -> Any:
    """A numpy scalar as the Python value that it equals exactly; anything else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    item: Any = value.item()
    return item if type(item) in (bool, int, float, str) else value


def frozen(items: Iterable[Any], path: str) -> frozenset[Any]:
    """The items of a set, lists and sets among them made tuples and frozensets.

    Raises:
        DeclarationError: for an item that is in no set once it is as its annotation says.
    """
    held = [_hashable(item) for item in items]
    try:
        return frozenset(held)
    except TypeError as error:
        raise DeclarationError(
            f"{path}: holds what no set can hold ({error}); declare the fields of its items as tuples and frozensets, "
            "or use a list"
        ) from None


def _hashable(item: Any) -> Any:
    if is_sequence(item):
        return tuple(map(_hashable, item))
    return frozenset(map(_hashable, item)) if is_set(item) else item


def _check_union(value: Any, annotation: Any, args: tuple[Any, ...], path: str) -> Any:
    problems: list[DeclarationError] = []
    for choice in sorted(args, key=lambda each: not _is_exactly(value, each)):
        try:
            return coerce(value, choice, path)
        except DeclarationError as error:
            problems.append(error)
    deeper = [problem for problem in problems if not str(problem).startswith(f"{path}: expected")]
    if len(deeper) == 1:
        raise deeper[0]
    raise _mismatch(value, annotation, path)


def _is_exactly(value: Any, choice: Any) -> bool:
    # Lists and tuples are one in the canonical form, as are sets and frozensets: there the first that fits is taken.
    return type(value) is plain(choice) and not is_sequence(value) and not is_set(value)


def _check_reference(value: Any, annotation: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, Reference):
        if callable(value):
            name = getattr(value, "__name__", type(value).__name__)
            remedy = "call the step, so that it declares its artifact"
            raise DeclarationError(f"{path}: expected {describe(annotation)}, got {name} itself; {remedy}")
        raise _mismatch(value, annotation, path)
    if not _is_instance(value, kind, path) or not value.fits(annotation):
        has_files = hasattr(type(value), "files") and isinstance(kind, type) and hasattr(kind, "__fspath__")
        raise _mismatch(
            value, annotation, path, "; choose one of its files with `artifact / 'path'`" if has_files else ""
        )
    return value.typed(annotation)


def _is_instance(value: Any, kind: Any, path: str) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:
        raise _unknown(kind, path, "its values cannot be told apart when the step is declared") from None


def _check_sequence(value: Any, annotation: Any, kind: Any, args: tuple[Any, ...], path: str) -> Any:
    if not is_sequence(value):
        raise _mismatch(value, annotation, path)
    items = list(value)
    if len(items) != len(value):
        raise DeclarationError(
            f"{path}: the {type(value).__name__} says that it has {len(value)} items and gives {len(items)}; "
            "pass a plain list or tuple"
        )
    hints = [args[0] if args else Any] * len(items)
    if kind is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise DeclarationError(f"{path}: expected {describe(annotation)}, got {len(items)} items")
        hints = list(args)
    checked = [
        coerce(item, hint, f"{path}[{index}]") for index, (item, hint) in enumerate(zip(items, hints, strict=True))
    ]
    return checked if kind is list else tuple(checked)


def _check_mapping(value: Any, annotation: Any, args: tuple[Any, ...], path: str) -> dict[str, Any]:
    if not is_mapping(value):
        raise _mismatch(value, annotation, path)
    return {key: coerce(item, args[1] if args else Any, f"{path}[{key}]") for key, item in _entries(value, path)}


def _entries(value: Mapping[Any, Any], path: str) -> list[tuple[str, Any]]:
    """The entries in the order of their keys: two dicts of one key must not make a step write different bytes."""
    return sorted(((key_text(key, path), item) for key, item in value.items()), key=operator.itemgetter(0))


def _check_plain(value: Any, annotation: Any, kind: type, path: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, (bool, enum.Enum))
    if kind is float and is_number:
        try:
            return float(_leaf(value, path))
        except OverflowError:
            raise _mismatch(value, annotation, path) from None
    if kind is int and is_number and isinstance(value, int):
        return _leaf(value, path)
    if kind is str and isinstance(value, str) and not isinstance(value, enum.Enum):
        return _leaf(value, path)
    if kind in (bool, type(None)) and type(value) is kind:
        return value
    if kind in (bool, int, float, str, type(None)) or isinstance(value, bool):
        raise _mismatch(value, annotation, path)
    if dtype_name(value) is not None and (kind.__module__, kind.__name__) == ("numpy", "dtype"):
        return _leaf(value, path)
    # A datetime is a date to Python, but what is declared as a day has no time.
    if not _is_instance(value, kind, path) or (kind is datetime.date and isinstance(value, datetime.datetime)):
        raise _mismatch(value, annotation, path)
    if is_record(value):
        return _rebuild(value, path, annotation)
    if is_sequence(value) or is_mapping(value) or is_set(value):
        raise _unknown(annotation, path, "use list, tuple, Sequence, dict, Mapping, set or frozenset")
    return _leaf(value, path)


def _leaf(value: Any, path: str) -> Any:
    tree = encode(value, path)
    if isinstance(tree, (bool, int, float, str)) or tree is None:
        return tree
    if "~float" in tree:
        return float(tree["~float"])
    return dtype_named(tree["~dtype"]) if "~dtype" in tree else value


def _rebuild(value: DataclassInstance, path: str, annotation: Any = Any) -> Any:
    """A dataclass with its fields checked; the same object when nothing changed."""
    kind: Any = type(value)
    fields = fields_of(kind, path)
    types_by_variable = type_arguments(annotation)
    try:
        hints = checked_annotations(kind)
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {kind.__qualname__}.{error}") from error

    def checked(record: DataclassInstance, name: str) -> Any:
        return coerce(getattr(record, name), substituted(hints[name], types_by_variable), f"{path}.{name}")

    for field in fields:
        field.value_in(value, path)
    given = {field.name: checked(value, field.name) for field in fields if field.init}
    made = value
    if any(new is not getattr(value, name) for name, new in given.items()):
        made = construct(kind, given, path)
    if hasattr(kind, "__post_init__"):
        _refuse_moved(construct(kind, given, path) if made is value else made, given, path)
    for field in fields:
        if not field.init:
            new = checked(made, field.name)
            if new is not getattr(made, field.name):
                made = construct(kind, given, path) if made is value else made
                object.__setattr__(made, field.name, new)
    return made


def _refuse_moved(made: Any, given: Mapping[str, Any], path: str) -> None:
    """A step gets its arguments made from their fields again: that must give the same fields."""
    for name, before in given.items():
        after = getattr(made, name)
        if after is not before and not same(after, before):
            raise DeclarationError(
                f"{path}.{name}: is {_short.repr(before)}, and {_short.repr(after)} when the {type(made).__qualname__} "
                "is made from its fields again: its __post_init__ changes what it has changed already; let it leave "
                "such a value alone, or compute it in a property"
            )


def construct(kind: Any, given: Mapping[str, Any], path: str) -> Any:
    try:
        return kind(**given)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise DeclarationError(f"{path}: {kind.__qualname__} cannot be made from its fields: {error}") from error


def _snapshot(value: Any, path: str) -> Any:
    """A value without an annotation, in the shape in which it will be read back: a tuple is a list."""
    value = _python_number(value)
    if isinstance(value, Reference):
        return value
    if is_sequence(value):
        return [_snapshot(item, inner) for inner, item in children(value, path)]
    if is_mapping(value):
        return {key: _snapshot(item, f"{path}[{key}]") for key, item in _entries(value, path)}
    if is_set(value):
        return frozen((_snapshot(item, inner) for inner, item in children(value, path)), path)
    return _rebuild(value, path) if is_record(value) else _leaf(value, path)


# Walking --------------------------------------------------------------------------------------------------------------


Children = Callable[[Any, str], Iterable[tuple[str, Any]]]


def _walk(value: Any, path: str, inside: Children = children) -> Iterator[tuple[str, Any]]:
    """`value` and everything inside it, each with its path, in the order in which it is written."""
    stack = [(path, value)]
    while stack:
        where, item = stack.pop()
        yield where, item
        if not is_leaf(item):
            stack.extend(reversed(list(inside(item, where))))


def _numbered(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    """Like `children`, the items of a set in the order in which they are written, and with numbers."""
    if not is_set(value):
        return children(value, path)
    items = sorted(value, key=lambda item: dumps(encode(item, path)))
    return ((f"{path}{{{index}}}", item) for index, item in enumerate(items))


def references(value: Any, path: str) -> Iterator[tuple[str, Reference]]:
    """Every artifact, file and secret inside `value`, with the path at which it stands."""
    return ((where, item) for where, item in _walk(value, path) if isinstance(item, Reference))


def roles(value: Any, path: str) -> Iterator[tuple[str, Reference]]:
    """Every artifact, file and secret inside a checked value, each with a path of its own, in one order."""
    return ((where, item) for where, item in _walk(value, path, _numbered) if isinstance(item, Reference))


def classes_in(value: Any) -> Iterator[type]:
    """The classes of the dataclasses and enums inside `value`."""
    return (type(item) for _, item in _walk(value, "") if isinstance(item, enum.Enum) or is_record(item))


def transform(value: Any, change: Callable[[Reference], Any]) -> Any:
    """`value` with every reference replaced by `change(reference)`; what has none inside is returned as it is."""
    if isinstance(value, Reference):
        return change(value)
    if is_sequence(value):
        items = [transform(item, change) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if is_mapping(value):
        changed = {key: transform(item, change) for key, item in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    if is_set(value):
        moved = [(item, transform(item, change)) for item in value]
        return value if all(new is old for old, new in moved) else frozenset(new for _, new in moved)
    if is_record(value):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        given = {
            name: new for name in fields if (new := transform(getattr(value, name), change)) is not getattr(value, name)
        }
        return dataclasses.replace(value, **given) if given else value
    return value
