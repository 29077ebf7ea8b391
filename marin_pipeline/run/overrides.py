"""`name.argument.path=value` on the command line: an argument is replaced, its step and all descendants are declared again.

The text is read by draccus for the annotation and checked against the annotation after it, since draccus is freer than a key may be
(it reads the text `on` as True and `null` as None).
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from marin_pipeline.core.arguments import check, describe
from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.canonical import Reference, annotations_of
from marin_pipeline.core.errors import DeclarationError, UsageError
from marin_pipeline.core.graph import Graph, Node, rebuild

_PART = re.compile(r"\.([A-Za-z_]\w*)|\[([^\]]+)\]")


@dataclasses.dataclass(frozen=True)
class Override:
    """One `name.argument.path=value`."""

    text: str
    """As it was written."""
    name: str
    """Of the step."""
    path: tuple[str, ...]
    """The argument, then fields, keys and indices."""
    value: str

    @classmethod
    def parse(cls, text: str) -> Override:
        """Read an override.

        Raises:
            UsageError: when it has another form.
        """
        left, equals, value = text.partition("=")
        name, dot, rest = left.partition(".")
        parts = [part for found in _PART.findall(dot + rest) for part in found if part]
        if not equals or not name or not parts or "".join(found.group(0) for found in _PART.finditer(dot + rest)) != dot + rest:
            raise UsageError(f"{text!r}: an override is written name.argument=value, name.argument.field=value or name.argument[key]=value")
        return cls(text, name, tuple(parts), value)


def apply(targets: Sequence[Artifact[Any]], overrides: Sequence[Override]) -> list[Artifact[Any]]:
    """The targets with the overrides applied, their descendants declared again.

    Raises:
        UsageError: for a step or an argument that does not exist, or a value that does not fit.
    """
    graph = Graph(targets)
    wanted: dict[str, list[Override]] = {}
    for override in overrides:
        wanted.setdefault(graph.select(override.name).key, []).append(override)

    def change(node: Node, arguments: dict[str, Any]) -> dict[str, Any]:
        changed = dict(arguments)
        for override in wanted.get(node.key, []):
            _replace_argument(node, changed, override)
        return changed

    return rebuild(graph, change)


def _replace_argument(node: Node, arguments: dict[str, Any], override: Override) -> None:
    argument, *rest = override.path
    if argument not in arguments:
        raise UsageError(f"{override.text!r}: {node.name} has no argument {argument!r}; it has {', '.join(arguments)}")
    annotation = node.declaration.step.annotations.get(argument, Any)
    where = f"{node.name}.{argument}"
    try:
        arguments[argument] = _replaced(arguments[argument], annotation, rest, override.value, where)
    except DeclarationError as error:
        raise UsageError(f"{override.text!r}: {error}") from error


def _replaced(value: Any, annotation: Any, path: Sequence[str], text: str, where: str) -> Any:
    if not path:
        if isinstance(value, Reference):
            raise DeclarationError(f"{where} is {value!r}; override the arguments of the step that makes it, or edit the experiment")
        return read(text, annotation, where)
    part, *rest = path
    inner = f"{where}.{part}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        if part not in names:
            raise DeclarationError(f"{where} has no field {part!r}; it has {', '.join(names)}")
        hint = annotations_of(type(value)).get(part, Any)
        return dataclasses.replace(value, **{part: _replaced(getattr(value, part), hint, rest, text, inner)})
    arguments = typing.get_args(_plain(annotation))
    if isinstance(value, Mapping):
        return {**value, part: _replaced(value.get(part), arguments[1] if len(arguments) == 2 else Any, rest, text, inner)}
    if isinstance(value, (list, tuple)):
        if not part.isdigit() or int(part) >= len(value):
            raise DeclarationError(f"{where} has {len(value)} items; {part!r} is none of them")
        items = list(value)
        items[int(part)] = _replaced(items[int(part)], arguments[0] if arguments else Any, rest, text, inner)
        return type(value)(items)
    raise DeclarationError(f"{where} is {value!r} and has nothing inside to override")


def _plain(annotation: Any) -> Any:
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    return annotation


def read(text: str, annotation: Any, where: str) -> Any:
    """The value that a text on the command line stands for.

    Raises:
        DeclarationError: when it does not fit the annotation.
    """
    plain = _plain(annotation)
    if plain is str:
        return text
    import draccus
    from draccus import cfgparsing

    try:
        parsed = cfgparsing.parse_string(text)
    except Exception as error:  # whatever the YAML reader raises, the text is what was wrong
        raise DeclarationError(f"{where}: cannot read {text!r} ({error})") from error
    choices = typing.get_args(plain) if typing.get_origin(plain) in (typing.Union, types.UnionType) else (plain,)
    if str in choices and not (parsed is None and type(None) in choices):
        return check(parsed if isinstance(parsed, (int, float)) and len(choices) > 2 else text, annotation, where)
    if plain is Any:
        return check(parsed, annotation, where)
    try:
        decoded = draccus.decode(plain, parsed)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # draccus raises several kinds; the annotation says what was expected
        raise DeclarationError(f"{where}: expected {describe(annotation)}, got {text!r}") from error
    return check(decoded, annotation, where)
