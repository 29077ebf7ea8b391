"""The canonical form: one typed, JSON-shaped tree and one byte string for one meaning.

`encode` turns a value into a tree of JSON values, `dumps` turns a tree into the exact bytes that a key hashes, `decode` reads a
tree back by annotation. Equal meanings give equal bytes on every Python and under every hash seed; what has no stable identity is
refused with the path of the argument, never replaced by a placeholder. The format is described in docs/keys.md.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.projects import is_third_party, module_id

Tree = Any
"""None, bool, int, float, str, list of trees, or dict of trees by str."""

TAG = "~"


class Reference:
    """A value that has its own canonical tree: artifacts, files and secrets implement it."""

    def canonical(self, path: str) -> Tree:
        """The tree that stands for this value in a spec. `path` names the argument, for errors."""
        raise NotImplementedError

    def mismatch(self, annotation: Any) -> str | None:
        """What this is instead, when it does not fit `annotation`; None when it does."""
        raise NotImplementedError


def _in_spec(reference: Reference, path: str) -> Tree:
    return reference.canonical(path)


@dataclasses.dataclass(frozen=True)
class Form:
    """What a tree is written for."""

    reference: Callable[[Reference, str], Tree] = _in_spec
    """How artifacts, files and secrets are written."""
    runtime: bool = False
    """Whether values marked `Runtime` are written too: in a call that travels to a worker, never in a spec."""


SPEC = Form()


def dumps(tree: Tree) -> bytes:
    """The canonical bytes of `tree`: JSON in ASCII, sorted keys, no spaces, floats in their shortest form with a point or exponent."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def digest(tree: Tree) -> str:
    """sha256 of the canonical bytes, 64 hex."""
    return hashlib.sha256(dumps(tree)).hexdigest()


def encode(value: Any, path: str, form: Form = SPEC) -> Tree:
    """The canonical tree of `value`.

    Args:
        path: name of the argument, such as `train.optimizer.schedule`; it opens every error message.
        form: what the tree is for; by default a spec.

    Raises:
        DeclarationError: for a value that has no stable identity.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return {"~enum": class_id(type(value)), "name": value.name}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"~float": repr(number)}
    if isinstance(value, Reference):
        return form.reference(value, path)
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{path}[{index}]", form) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_escape(key, path): encode(item, f"{path}[{key}]", form) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return {"~set": sorted((encode(item, f"{path}{{}}", form) for item in value), key=dumps)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path, form)
    if isinstance(value, bytes):
        return {"~bytes": base64.b64encode(value).decode("ascii")}
    for kind, tag in ((datetime.datetime, "~datetime"), (datetime.date, "~date"), (datetime.time, "~time")):
        if isinstance(value, kind):
            return {tag: value.isoformat()}
    if isinstance(value, datetime.timedelta):
        return {"~timedelta": [value.days, value.seconds, value.microseconds]}
    name = dtype_name(value)
    if name is not None:
        return {"~dtype": name}
    raise DeclarationError(f"{path}: {_why_refused(value)}")


def _escape(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise DeclarationError(f"{path}: the dict key {key!r} is a {type(key).__name__}; keys must be strings")
    return TAG + key if key.startswith(TAG) else key


def _unescape(key: str) -> str:
    return key[1:] if key.startswith(TAG + TAG) else key


def _encode_dataclass(value: Any, path: str, form: Form) -> Tree:
    if not type(value).__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
        raise DeclarationError(
            f"{path}: the dataclass {type(value).__qualname__} is not frozen and could change after it was keyed; "
            "declare it with @dataclass(frozen=True)"
        )
    hints = annotations_of(type(value))
    fields: dict[str, Tree] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        marks = marks_of(hints.get(field.name))
        if marks.runtime and not form.runtime:
            continue
        if marks.absent is not MISSING and same(item, marks.absent):
            continue
        fields[field.name] = encode(item, f"{path}.{field.name}", form)
    return {"~data": class_id(type(value)), "fields": fields}


def _why_refused(value: Any) -> str:
    if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>":
        return "a lambda has no stable identity; pass a plain value that names the choice, such as a string or an enum"
    if callable(value) and not isinstance(value, type):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"the function {name} has no stable identity as an argument; pass a plain value that names it"
    if hasattr(value, "__fspath__"):
        return (
            f"the bare path {str(value)!r} says where, not what; use LocalFile({str(value)!r}), which is keyed by content, "
            "or a str if the text itself is the argument"
        )
    if isinstance(value, type):
        return f"the class {value.__qualname__} has no stable identity as an argument; pass a plain value that names it"
    if isinstance(value, complex):
        return "a complex number cannot be keyed; pass its two parts as floats"
    if type(value).__module__.partition(".")[0] in ("numpy", "jaxlib", "jax"):
        return f"a {type(value).__module__}.{type(value).__qualname__} cannot be keyed; pass plain numbers or lists of them"
    return (
        f"a {type(value).__module__}.{type(value).__qualname__} cannot be keyed; pass plain values, frozen dataclasses, enums, "
        "lists, dicts, artifacts or files"
    )


def dtype_name(value: Any) -> str | None:
    """The name of a numpy or jax dtype (`float32`, `bfloat16`), or None for anything else. Loads no numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.dtype):
        return str(value.name)
    if isinstance(value, type) and issubclass(value, numpy.generic):
        return str(numpy.dtype(value).name)
    inner = getattr(value, "dtype", None)
    if isinstance(inner, numpy.dtype) and not hasattr(value, "shape"):
        return str(inner.name)
    return None


def same(left: Any, right: Any) -> bool:
    """Equality of meaning: `1`, `1.0` and `True` are three values; sequences and sets compare by content."""
    try:
        return dumps(encode(left, "")) == dumps(encode(right, ""))
    except DeclarationError:
        return left is right


# Marks that an annotation carries -----------------------------------------------------------------------------------------------


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


@dataclasses.dataclass(frozen=True)
class RuntimeMark:
    """Marks a parameter or a field that says where or how fast, never what: it is not in the key."""


@dataclasses.dataclass(frozen=True)
class absent_when:
    """`Annotated[int, absent_when(0)]`: an argument equal to this literal is left out of the spec.

    So a new parameter need not move the keys of those who do not use it. The literal never changes after that, whatever the default.
    """

    value: Any


@dataclasses.dataclass(frozen=True)
class Marks:
    """What an annotation says besides the type."""

    runtime: bool = False
    absent: Any = MISSING


def marks_of(annotation: Any) -> Marks:
    """The marks of an annotation."""
    runtime, absent = False, MISSING
    while typing.get_origin(annotation) is typing.Annotated:
        for mark in annotation.__metadata__:
            runtime = runtime or isinstance(mark, RuntimeMark)
            absent = mark.value if isinstance(mark, absent_when) else absent
        annotation = annotation.__origin__
    return Marks(runtime, absent)


@functools.lru_cache(maxsize=4096)
def annotations_of(owner: Any) -> Mapping[str, Any]:
    """The resolved annotations of a function or a class, marks kept.

    Raises:
        DeclarationError: when an annotation names something that does not exist.
    """
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise DeclarationError(
            f"{owner.__module__}.{owner.__qualname__}: an annotation cannot be resolved ({error}); "
            "import the name at the top of the file, outside `if TYPE_CHECKING`"
        ) from error


# Identity of classes ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def class_id(kind: type) -> str:
    """The identity of a class: its module's path in its project and its qualified name, equal for `__main__` and imported."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    module = module_id(Path(file)) if file and not is_third_party(Path(file)) else kind.__module__.replace(".", "/")
    return f"{module}:{kind.__qualname__}"
