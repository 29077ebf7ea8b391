"""`name.argument.path=value` on the command line: an argument is replaced, its step and all descendants declared again.

The text is read by draccus and checked against the annotation, which has the last word: draccus reads the text `on` as
True and `null` as None, and makes a number of True.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import typing
from collections.abc import Collection, Sequence
from typing import Any

from marin_pipeline.core.annotations import UNIONS, describe, parts_of, substituted, type_arguments
from marin_pipeline.core.arguments import check
from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.canonical import Reference, children, is_mapping, is_record, is_sequence
from marin_pipeline.core.errors import DeclarationError, UsageError
from marin_pipeline.core.graph import Graph, Node, rebuild
from marin_pipeline.core.marks import annotations_of, plain
from marin_pipeline.core.secrets import Secret

_OVERRIDE = re.compile(r"(?P<name>[^.=]+)(?P<path>(?:\.[A-Za-z_]\w*|\[[^\]]+\])+)=(?P<value>.*)", re.DOTALL)
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
        found = _OVERRIDE.fullmatch(text)
        if found is None or not found["path"].startswith("."):
            raise UsageError(
                f"{text!r}: an override is written name.argument=value, name.argument.field=value or "
                "name.argument[key]=value"
            )
        path = tuple(field or key for field, key in _PART.findall(found["path"]))
        return cls(text, found["name"], path, found["value"])


def apply(targets: Sequence[Artifact[Any]], overrides: Sequence[Override]) -> list[Artifact[Any]]:
    """The targets with the overrides applied, their descendants declared again.

    Raises:
        UsageError: for a step or an argument that does not exist, or a value that does not fit.
    """
    graph = Graph(targets)
    wanted: dict[str, list[Override]] = {}
    for override in overrides:
        others = wanted.setdefault(graph.select(override.name).key, [])
        for other in others:
            if other.path[: len(override.path)] == override.path:
                raise UsageError(
                    f"{override.text!r}: undoes {other.text!r}, which overrides the same; leave one of them away"
                )
        others.append(override)

    def change(node: Node, arguments: dict[str, Any]) -> dict[str, Any]:
        changed = dict(arguments)
        for override in wanted.get(node.key, []):
            _replace_argument(node, changed, override)
        return changed

    return rebuild(graph, change)


def _replace_argument(node: Node, arguments: dict[str, Any], override: Override) -> None:
    argument, *rest = override.path
    if argument not in arguments:
        known = ", ".join(arguments) or "none"
        raise UsageError(f"{override.text!r}: {node.name} has no argument {argument!r}; it has {known}")
    annotation = node.declaration.step.annotations[argument]
    where = f"{node.name}.{argument}"
    try:
        arguments[argument] = _replaced(arguments[argument], annotation, rest, override.value, where)
    except DeclarationError as error:
        raise UsageError(f"{override.text!r}: {error}") from error


def _replaced(value: Any, annotation: Any, path: Sequence[str], text: str, where: str) -> Any:
    """`value` with what stands at `path` replaced by what `text` says."""
    if not path and (isinstance(value, Secret) or Secret in (plain(annotation), *parts_of(plain(annotation)))):
        raise UsageError(
            f"{where} takes a secret, which is never given on the command line: that is kept in histories and records; "
            'export the value under a name, and pass Secret("NAME") in the experiment'
        )
    if isinstance(value, Reference):
        raise DeclarationError(
            f"{where} is {value!r}; override the arguments of the step that makes it, or edit the experiment"
        )
    if not path:
        return read(text, annotation, where)
    part, *rest = path
    if is_record(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        if part not in names:
            raise DeclarationError(f"{where} has no field {part!r}; it has {', '.join(names)}")
        hint = substituted(annotations_of(type(value))[part], type_arguments(_member(annotation, value)))
        new = _replaced(getattr(value, part), hint, rest, text, f"{where}.{part}")
        try:
            return dataclasses.replace(value, **{part: new})
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise DeclarationError(f"{where}: {error}") from error
    hints = typing.get_args(_member(annotation, value))
    if is_mapping(value):
        if rest and part not in value:
            raise DeclarationError(f"{where} has no entry {part!r}; it has {', '.join(value) or 'none'}")
        hint = hints[1] if hints else Any
        return {**value, part: _replaced(value.get(part), hint, rest, text, f"{where}[{part}]")}
    if is_sequence(value):
        if not part.isdecimal() or len(part) > 18 or int(part) >= len(value):
            raise DeclarationError(f"{where} has {len(value)} items, counted from 0; {part!r} is none of them")
        index = int(part)
        is_fixed = isinstance(value, tuple) and bool(hints) and hints[-1] is not Ellipsis and len(hints) == len(value)
        hint = hints[index if is_fixed else 0] if hints else Any
        items = list(value)
        items[index] = _replaced(items[index], hint, rest, text, f"{where}[{part}]")
        return type(value)(items)
    raise DeclarationError(f"{where} is {value!r} and has nothing inside to override; give it a whole value")


def _member(annotation: Any, value: Any) -> Any:
    """Of a union, the member that `value` is one of; any other annotation as it is."""
    annotation = plain(annotation)
    if typing.get_origin(annotation) not in UNIONS:
        return annotation
    for member in typing.get_args(annotation):
        try:
            check(value, member, "")
        except DeclarationError:
            continue
        return plain(member)
    return Any


def read(text: str, annotation: Any, where: str) -> Any:
    """The value that a text on the command line stands for.

    Raises:
        DeclarationError: when it does not fit the annotation.
    """
    bare = plain(annotation)
    choices = [plain(choice) for choice in (typing.get_args(bare) if typing.get_origin(bare) in UNIONS else (bare,))]
    if choices == [str]:
        return check(text, str, where)
    named = _named_choice(text, choices)
    if named is not None:
        return named
    import draccus

    parsed = _parse(text, where)
    # What the annotation takes as it is needs no reading; of `int | str`, a text that reads as an int is one.
    for candidate in (parsed, text) if str in choices else (parsed,):
        try:
            return check(candidate, bare, where)
        except DeclarationError:
            continue
    hint = "; write a list as [a, b]" if all(_takes_many(choice) for choice in choices) else ""
    expected = DeclarationError(f"{where}: expected {describe(bare)}, got {text!r}{hint}")
    if hint and not isinstance(parsed, (list, dict)):
        raise expected
    try:
        decoded = draccus.decode(bare, parsed)
    except Exception as error:  # draccus raises several kinds; the annotation says what was expected
        raise expected from error
    if _truths(parsed) != _truths(decoded):
        raise expected
    try:
        return check(decoded, bare, where)
    except DeclarationError as error:
        raise expected if str(error).startswith(f"{where}: expected") else error from None


def _named_choice(text: str, choices: Sequence[Any]) -> Any:
    """A text of a `Literal` or the name of an enum's member: written as it is, whatever YAML makes of it."""
    for choice in choices:
        if typing.get_origin(choice) is typing.Literal and text in typing.get_args(choice):
            return text
        if isinstance(choice, type) and issubclass(choice, enum.Enum) and text in choice.__members__:
            return choice.__members__[text]
    return None


def _takes_many(choice: Any) -> bool:
    """Whether a value of this annotation holds several, so that a single word is none."""
    kind = typing.get_origin(choice) or choice
    return isinstance(kind, type) and issubclass(kind, Collection) and not issubclass(kind, (str, bytes))


def _parse(text: str, where: str) -> Any:
    from draccus import cfgparsing

    try:
        return cfgparsing.parse_string(text)
    except Exception as error:  # whatever the YAML reader raises, the text is what was wrong
        raise DeclarationError(f"{where}: cannot read {text!r} ({error})") from error


def _truths(value: Any) -> int:
    """How many booleans there are inside. When they get fewer, one was taken for a number or a text."""
    return isinstance(value, bool) + sum(_truths(item) for _, item in children(value, ""))
