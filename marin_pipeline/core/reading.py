"""Canonical trees read back: the values that a step gets where it runs, and the value that it returned.

A tree says what it is by its tags, never how to make it: only dataclasses and enums of the identity that it names are
made, and what cannot be imported is readable as a `Record`.
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
from pathlib import Path
from typing import Any

from marin_pipeline.core.annotations import parts_of
from marin_pipeline.core.arguments import Record, check, coerce, construct, frozen
from marin_pipeline.core.canonical import TAG, Tree, class_id, fields_of, is_mapping, is_sequence
from marin_pipeline.core.dtypes import dtype_named
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.marks import MISSING, annotations_of, plain
from marin_pipeline.core.projects import module_id

ReadReference = Callable[[Mapping[str, Tree], str], Any]
"""Reads a tree with a reference tag (`~artifact`, `~file`, `~secret`); its second argument is the path."""


def decode(tree: Tree, annotation: Any, path: str, reference: ReadReference | None = None) -> Any:
    """The value that `tree` stands for, checked against `annotation`: `decode(encode(x)) == x` for a checked `x`.

    Args:
        reference: reads artifacts, files and secrets.

    Raises:
        DeclarationError: when it does not fit the annotation.
    """
    known = {class_id(kind): kind for kind in _classes_of(annotation, set())}
    return check(_Reader(known, reference).read(tree, path), annotation, path)


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
        main = sys.modules.get("__main__")
        file = getattr(main, "__file__", None)
        try:
            is_main = file is not None and module_id(Path(file)) == module
            found: Any = main if is_main else importlib.import_module(module.replace("/", "."))
            for name in qualname.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError, ValueError, TypeError):
            return None
        return found if _is_kind(found) and class_id(found) == identity else None


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
