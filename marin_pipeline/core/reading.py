"""Canonical trees read back: the values that a step gets where it runs, and the value that it returned.

A tree says what it is by its tags, never how to make it: only dataclasses and enums of the identity that it names are
made. A value that was read from a store may be anybody's, and names its classes itself; to import a module runs its
code. So of such a value only those classes are made that the annotation names, and those of modules that this process
has loaded already; another one is readable as a `Record`. The arguments of a task, which this process was given to run,
may name any module that can be imported.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import importlib
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marin_pipeline.core.annotations import parts_of
from marin_pipeline.core.arguments import Record, check, coerce, construct, frozen
from marin_pipeline.core.canonical import TAG, Tree, class_id, fields_of, is_mapping, is_sequence
from marin_pipeline.core.dtypes import dtype_named
from marin_pipeline.core.errors import DeclarationError, MarinError
from marin_pipeline.core.marks import MISSING, annotations_of, plain
from marin_pipeline.core.projects import module_id

ReadReference = Callable[[Mapping[str, Tree], str], Any]
"""Reads a tree with a reference tag (`~artifact`, `~file`, `~secret`); its second argument is the path."""


def decode(
    tree: Tree, annotation: Any, path: str, reference: ReadReference | None = None, *, importing: bool = False
) -> Any:
    """The value that `tree` stands for, checked against `annotation`: `decode(encode(x)) == x` for a checked `x`.

    Args:
        reference: reads artifacts, files and secrets.
        importing: whether modules are imported that the tree names: never those of a tree that was read from a store.

    Raises:
        DeclarationError: when it does not fit the annotation, or is no tree that `encode` writes.
    """
    known = {class_id(kind): kind for kind in _classes_of(annotation, set())}
    try:
        found = _Reader(known, reference, importing).read(tree, path)
    except MarinError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DeclarationError(f"{path}: not a value as it is written here ({problem})") from error
    return check(found, annotation, path)


def _classes_of(annotation: Any, seen: set[Any]) -> Iterator[type]:
    annotation = plain(annotation)
    for part in (annotation, *map(plain, parts_of(annotation))):
        kind = typing.get_origin(part) or part
        if not isinstance(kind, type) or kind in seen:
            continue
        seen.add(kind)
        if dataclasses.is_dataclass(kind):
            yield kind
            for hint in annotations_of(kind).values():
                yield from _classes_of(hint, seen)
        elif issubclass(kind, enum.Enum):
            yield kind


@dataclasses.dataclass(frozen=True)
class _Reader:
    known: Mapping[str, type]
    """Classes that the annotation names, by identity."""
    reference: ReadReference | None
    importing: bool

    def read(self, tree: Tree, path: str) -> Any:
        if is_sequence(tree):
            return [self.read(item, f"{path}[{index}]") for index, item in enumerate(tree)]
        if is_mapping(tree):
            tag = next((key for key in tree if key.startswith(TAG) and not key.startswith(TAG + TAG)), None)
            if tag is not None:
                return self._tagged(tag, tree, path)
            return {key.removeprefix(TAG): self.read(item, f"{path}[{key}]") for key, item in tree.items()}
        return tree

    def _tagged(self, tag: str, tree: Mapping[str, Tree], path: str) -> Any:
        if tag == "~data":
            return self._data(tree, path)
        if tag == "~enum":
            kind = self._find_class(tree[tag])
            return Record(tree[tag], {"name": tree["name"]}) if kind is None else kind.__members__[tree["name"]]
        if tag == "~set":
            return frozen((self.read(item, f"{path}{{}}") for item in tree[tag]), path)
        if tag in _LEAVES:
            return _LEAVES[tag](tree[tag])
        if self.reference is None:
            raise DeclarationError(
                f"{path}: holds a {tag}, which only a step's arguments may; return its value or path"
            )
        return self.reference(tree, path)

    def _data(self, tree: Mapping[str, Tree], path: str) -> Any:
        values = {name: self.read(item, f"{path}.{name}") for name, item in tree["fields"].items()}
        kind = self._find_class(tree["~data"])
        if kind is None:
            return Record(tree["~data"], values)
        fields = fields_of(kind, path)
        for field in fields:
            if field.name not in values and field.marks.absent is not MISSING:
                values[field.name] = field.marks.absent
            if field.name in values:
                values[field.name] = coerce(values[field.name], field.annotation, f"{path}.{field.name}")
        given = {field.name: values[field.name] for field in fields if field.init and field.name in values}
        made = construct(kind, given, path)
        for field in fields:
            if not field.init and field.name in values:
                object.__setattr__(made, field.name, values[field.name])
        return made

    def _find_class(self, identity: str) -> Any:
        if identity in self.known:
            return self.known[identity]
        module, _, qualname = identity.partition(":")
        found = self._find_module(module)
        for name in qualname.split("."):
            # Not by getattr: a package may import what it is asked for.
            found = getattr(found, "__dict__", {}).get(name)
        return found if _is_kind(found) and class_id(found) == identity else None

    def _find_module(self, module: str) -> Any:
        main = sys.modules.get("__main__")
        file = getattr(main, "__file__", None)
        if file is not None and module_id(Path(file)) == module:
            return main
        name = module.replace("/", ".")
        if self.importing and name not in sys.modules:
            with suppress(ImportError, ValueError, TypeError):
                importlib.import_module(name)
        return sys.modules.get(name)


def _is_kind(found: Any) -> bool:
    return isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum))


def _timedelta(parts: list[int]) -> datetime.timedelta:
    return datetime.timedelta(*parts)


_LEAVES: Mapping[str, Callable[[Any], Any]] = {
    "~float": float,
    "~bytes": base64.b64decode,
    "~datetime": datetime.datetime.fromisoformat,
    "~date": datetime.date.fromisoformat,
    "~time": datetime.time.fromisoformat,
    "~timedelta": _timedelta,
    "~dtype": dtype_named,
}
