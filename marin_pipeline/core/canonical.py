"""The canonical form: one typed, JSON-shaped tree and one byte string for one meaning.

`encode` turns a value into a tree of JSON values, `dumps` turns a tree into the exact bytes that a key hashes. Equal
meanings give equal bytes on every Python and under every hash seed; what has no stable identity is refused with the
path of the argument, never replaced by a placeholder. The format is described in docs/keys.md.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import functools
import hashlib
import json
import math
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from marin_pipeline.core.dtypes import dtype_name
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.marks import MISSING, Marks, annotations_of, marks_of
from marin_pipeline.core.projects import is_third_party, module_id

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Tree = Any
"""None, bool, int, float, str, list of trees, or dict of trees by str."""

TAG = "~"
"""A key that begins with it marks a dict that stands for what JSON has no form for; in a plain dict it is doubled."""

MAX_DEPTH = 100
"""Deepest nesting of a value. Fixed, so that what one process could key, another one never fails to read back."""

MAX_VALUES = 10_000_000
"""Most values inside a value, those counted again that stand in several places: a spec of more is no spec but data."""

MAX_BITS = 4096
"""Largest integer. Python prints no decimal above 4,300 digits unless it is told to."""


class Reference(ABC):
    """A value that has its own canonical tree: artifacts, files and secrets implement it."""

    holds_content: ClassVar[bool] = True
    """Whether a step can read through it what is not in its name."""

    @abstractmethod
    def canonical(self, path: str) -> Tree:
        """The tree that stands for this value in a spec. `path` names the argument, for errors."""

    def fits(self, annotation: Any) -> bool:
        """Whether this is what `annotation`, one for its class, declares."""
        return True

    def typed(self, annotation: Any) -> Reference:
        """The same, knowing what it is declared as."""
        return self

    def described(self) -> str:
        """What this is, for errors."""
        return repr(self)


def _in_spec(reference: Reference, path: str) -> Tree:
    return reference.canonical(path)


@dataclasses.dataclass(frozen=True)
class Form:
    """What a tree is written for."""

    reference: Callable[[Reference, str], Tree] = _in_spec
    """How artifacts, files and secrets are written."""
    runtime: bool = False
    """Whether fields marked `Runtime` are written too: in a call that travels to a worker, never in a spec."""


SPEC = Form()


_WRITER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def dumps(tree: Tree) -> bytes:
    """The canonical bytes of `tree`: JSON in ASCII, keys sorted, no spaces, floats in their shortest form."""
    return _WRITER.encode(tree).encode("ascii")


def digest(tree: Tree) -> str:
    """sha256 of the canonical bytes, 64 hex."""
    return hashlib.sha256(dumps(tree)).hexdigest()


# What a value is made of ----------------------------------------------------------------------------------------------


_ATOMS = frozenset({type(None), bool, int, float, str})
_leaf_kinds: set[type] = set(_ATOMS)


def is_leaf(value: object) -> bool:
    """Whether nothing is inside a value, told at once for the commonest kinds."""
    kind = type(value)
    if kind in _leaf_kinds:
        return True
    if issubclass(kind, Reference):  # asked once a class: abstract ones take their time
        _leaf_kinds.add(kind)
        return True
    return False


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is keyed as a list. A named tuple is not: its names would be lost."""
    return issubclass(type(value), (list, tuple)) and not _has_names(value) and not dataclasses.is_dataclass(value)


def _has_names(value: object) -> bool:
    """Whether a value is a named tuple, or one of Python's own, such as `time.struct_time`."""
    return issubclass(type(value), tuple) and (hasattr(value, "_fields") or hasattr(value, "n_sequence_fields"))


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is keyed as a dict."""
    return issubclass(type(value), Mapping) and not dataclasses.is_dataclass(value)


def is_set(value: object) -> TypeGuard[AbstractSet[Any]]:
    """Whether a value is keyed as a set."""
    return issubclass(type(value), (set, frozenset)) and not dataclasses.is_dataclass(value)


def is_record(value: object) -> TypeGuard[DataclassInstance]:
    """Whether a value is a dataclass, and no artifact or file."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Reference, enum.Enum))


def children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values directly inside `value`, each with its path."""
    if is_sequence(value):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif is_mapping(value):
        for key, item in value.items():
            yield f"{path}[{key}]", item
    elif is_set(value):
        for item in value:
            yield f"{path}{{}}", item
    elif is_record(value):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name, None)


def refuse_deep(value: Any, path: str) -> None:
    """Raise a `DeclarationError` for a value that is nested too deeply, holds too much, or holds itself."""
    if is_leaf(value):
        return
    stack = [(value, 0)]
    count = 0
    while stack:
        item, depth = stack.pop()
        count += 1
        if count > MAX_VALUES:
            raise DeclarationError(f"{path}: holds more than {MAX_VALUES:,} values; write them to a file and pass that")
        if depth > MAX_DEPTH:
            raise DeclarationError(
                f"{path}: is nested more than {MAX_DEPTH} deep, or holds itself; make it flatter, or a file"
            )
        if not is_leaf(item):
            stack.extend((inner, depth + 1) for _, inner in children(item, ""))


def encode(value: Any, path: str, form: Form = SPEC) -> Tree:
    """The canonical tree of `value`.

    Args:
        path: name of the argument, such as `optimizer.schedule`; it opens every error message.
        form: what the tree is for; by default a spec.

    Raises:
        DeclarationError: for a value that has no stable identity.
    """
    refuse_deep(value, path)
    return _encode(value, path, form)


def _encode(value: Any, path: str, form: Form) -> Tree:
    if value is None or isinstance(value, bool):
        return value
    if type(value) not in _ATOMS and isinstance(value, Reference):
        return form.reference(value, path)
    if isinstance(value, enum.Enum):
        return _encode_enum(value, path)
    if type(value) not in _ATOMS and is_record(value):
        return _encode_record(value, path, form)
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise DeclarationError(
                f"{path}: an integer of {value.bit_length()} bits; {MAX_BITS} is the most, pass it as text or bytes"
            )
        return int.__int__(value)
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else {"~float": repr(number)}
    if is_sequence(value):
        return [_encode(item, inner, form) for inner, item in children(value, path)]
    if is_mapping(value):
        return {_escape(key_text(key, path)): _encode(item, f"{path}[{key}]", form) for key, item in value.items()}
    if is_set(value):
        found = {dumps(tree): tree for tree in (_encode(item, f"{path}{{}}", form) for item in value)}
        return {"~set": [found[written] for written in sorted(found)]}
    return _encode_leaf(value, path)


def _encode_leaf(value: Any, path: str) -> Tree:
    # Exact types: a subclass (such as pandas' Timestamp) may hold more than is written here.
    if type(value) in (datetime.datetime, datetime.time) and value.tzinfo is not None and value.utcoffset() is None:
        raise DeclarationError(
            f"{path}: {value.isoformat()} in the zone {value.tzinfo} has no offset from UTC, as it has no date; pass a "
            "datetime, or leave the zone out"
        )
    if type(value) is bytes:
        return {"~bytes": base64.b64encode(value).decode("ascii")}
    if type(value) is datetime.datetime:
        return {"~datetime": value.isoformat()}
    if type(value) is datetime.date:
        return {"~date": value.isoformat()}
    if type(value) is datetime.time:
        return {"~time": value.isoformat()}
    if type(value) is datetime.timedelta:
        return {"~timedelta": [value.days, value.seconds, value.microseconds]}
    name = dtype_name(value)
    if name is not None:
        return {"~dtype": name}
    raise DeclarationError(f"{path}: {why_refused(value)}")


def _encode_enum(value: enum.Enum, path: str) -> Tree:
    kind = type(value)
    if value.name not in kind.__members__:
        raise DeclarationError(
            f"{path}: {value!r} is a combination of flags; pass a set of members of {kind.__qualname__}"
        )
    return {"~enum": _identity(kind, path), "name": _text(value.name, path)}


def _text(value: str, path: str) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DeclarationError(
            f"{path}: the text holds the unpaired surrogate U+{ord(text[error.start]):04X}, which UTF-8 cannot write; "
            "read it with errors='replace'"
        ) from None
    return text


def key_text(key: Any, path: str) -> str:
    """A dict's key as plain text.

    Raises:
        DeclarationError: for one that is no text, or that UTF-8 cannot write.
    """
    if not isinstance(key, str) or isinstance(key, enum.Enum):
        raise DeclarationError(f"{path}: the dict key {key!r} is a {type(key).__name__}; keys must be strings")
    return _text(key, path)


def _escape(text: str) -> str:
    return TAG + text if text.startswith(TAG) else text


def _encode_record(value: DataclassInstance, path: str, form: Form) -> Tree:
    written: dict[str, Tree] = {}
    for field in fields_of(type(value), path):
        inner = f"{path}.{field.name}"
        item = field.value_in(value, path)
        if (field.marks.runtime and not form.runtime) or is_absent(item, field.marks):
            continue
        written[field.name] = _encode(item, inner, form)
    return {"~data": _identity(type(value), path), "fields": written}


def why_refused(value: Any) -> str:
    """Why a value cannot be keyed, and what to pass instead."""
    kind = value.__class__
    if isinstance(value, type):
        return f"the class {value.__qualname__} has no stable identity as an argument; pass a plain value that names it"
    if typing.get_origin(value) is not None:
        return f"the type {value} has no stable identity as an argument; pass a plain value that names it"
    if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>":
        return "a lambda has no stable identity; pass a plain value that names the choice, such as a string or an enum"
    if hasattr(value, "__fspath__"):
        return (
            f"the bare path {str(value)!r} says where, not what; use LocalFile({str(value)!r}), which is keyed by "
            "content, or a str if the text itself is the argument"
        )
    if callable(value) and hasattr(value, "__qualname__"):
        return (
            f"the function {value.__qualname__} has no stable identity as an argument; pass a plain value that names it"
        )
    if _has_names(value):
        return f"the named tuple {kind.__qualname__} would lose its names; use @dataclass(frozen=True)"
    if isinstance(value, complex):
        return "a complex number cannot be keyed; pass its two parts as floats"
    full_name = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(value, "read") or hasattr(value, "write"):
        return f"an open file ({full_name}) cannot be keyed; use LocalFile(path), which is keyed by content"
    if kind.__module__.startswith("numpy") and kind.__qualname__.lower().endswith("dtype"):
        return f"the dtype {value!s} has fields, a length or a foreign byte order; pass a plain native one"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"an array ({full_name}) cannot be keyed; pass plain numbers or lists of them, or a file"
    return f"a {full_name} cannot be keyed; use plain values, frozen dataclasses, enums, lists, dicts or files"


def same(left: Any, right: Any) -> bool:
    """Equality of meaning: `1`, `1.0` and `True` are three values; sequences and sets compare by content."""
    try:
        return dumps(encode(left, "")) == dumps(encode(right, ""))
    except DeclarationError:
        return left is right


def is_absent(value: Any, marks: Marks) -> bool:
    """Whether a value equals the literal of its `absent_when`."""
    return marks.absent is not MISSING and same(value, marks.absent)


# Dataclasses and the identity of classes ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a dataclass."""

    name: str
    annotation: Any
    marks: Marks
    init: bool
    """Whether it is given to the class; else `__post_init__` sets it."""

    def value_in(self, record: DataclassInstance, path: str) -> Any:
        """Its value in a record.

        Raises:
            DeclarationError: when it was never set.
        """
        value = getattr(record, self.name, MISSING)
        if value is MISSING:
            raise DeclarationError(
                f"{path}.{self.name}: the field has no value; set it in __post_init__, or give a default"
            )
        return value


def fields_of(kind: type[DataclassInstance], path: str) -> tuple[Field, ...]:
    """The fields of a dataclass whose values can be keyed and read back.

    Raises:
        DeclarationError: for one that is not frozen, or that takes what it does not keep.
    """
    try:
        return _fields(kind)
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from error


@functools.lru_cache(maxsize=4096)
def _fields(kind: Any) -> tuple[Field, ...]:
    for plain_kind in (str, int, float, bytes, list, tuple, set, frozenset, Mapping):
        if issubclass(kind, plain_kind):
            raise DeclarationError(
                f"the dataclass {kind.__qualname__} is also a {plain_kind.__name__}, and what it holds as such is in "
                "none of its fields; make it a field"
            )
    if not kind.__dataclass_params__.frozen:
        raise DeclarationError(
            f"the dataclass {kind.__qualname__} is not frozen and could change after it was keyed; "
            "declare it with @dataclass(frozen=True)"
        )
    hints = annotations_of(kind)
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            raise DeclarationError(
                f"the dataclass {kind.__qualname__} does not keep its InitVar {name!r}; make it a field"
            )
    return tuple(
        Field(field.name, hints[field.name], marks_of(hints[field.name]), field.init)
        for field in dataclasses.fields(kind)
    )


def _identity(kind: type, path: str) -> str:
    try:
        _refuse_lost(kind)
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from None
    return class_id(kind)


@functools.lru_cache(maxsize=4096)
def _refuse_lost(kind: type) -> None:
    """Raise a `DeclarationError` for a class that its name does not give back: another one may come to bear it."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not kind:
        raise DeclarationError(
            f"the class {kind.__qualname__} is not what {kind.__module__} holds under this name; define it once, with "
            "`class`, at the top level of a file"
        )


@functools.lru_cache(maxsize=4096)
def class_id(kind: type) -> str:
    """The identity of a class: its module's path in its project and its qualified name.

    Equal for `__main__` and imported.
    """
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    module = module_id(Path(file)) if file and not is_third_party(Path(file)) else kind.__module__.replace(".", "/")
    return f"{module}:{kind.__qualname__}"
