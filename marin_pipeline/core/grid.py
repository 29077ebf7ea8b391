"""Grids: one step declared for every combination of some of its arguments.

A grid is plain Python over artifacts: each cell is an artifact like any other, with a name that says which combination
it is. The name depends on the cell alone, so adding a value to a grid renames no other cell (unless two values would be
called the same; these bear a digest).
"""

from __future__ import annotations

import decimal
import enum
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from marin_pipeline.core.arguments import check
from marin_pipeline.core.artifact import LONGEST_NAME, Artifact, File
from marin_pipeline.core.canonical import digest, encode, is_record, is_sequence
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.step import Step

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
V = TypeVar("V")

_WORD = re.compile(r"[a-z0-9_-]+")
_LOOKS_OTHERWISE = re.compile(r"-?[0-9]+(e-?[0-9]+)?|-?inf|nan|true|false|none|.*-[0-9a-f]{8}")
"""Texts that another value, or a digest, is written as."""
_LONGEST_WORD = 32


_MANY = 20
"""Values of an argument that an error lists, at most."""


class NoSuchCell(DeclarationError, KeyError):
    """A grid was asked for a cell that it does not have; the message lists the values that there are."""

    def __str__(self) -> str:
        return Exception.__str__(self)


@dataclass(frozen=True)
class fixed(Generic[V]):
    """`fixed([1, 3])`: a list that is the same in all cells of a grid, where a bare list would vary."""

    value: V


@dataclass(frozen=True)
class _Cell(Generic[R_co]):
    values: tuple[Any, ...]
    words: str
    """Which cell it is, as a part of a name: `learning_rate-1e-3/seed-0`."""
    artifact: Artifact[R_co]


class Grid(Mapping[tuple[Any, ...], Artifact[R_co]], Generic[R_co]):
    """Artifacts by the values that vary: `sweep[1e-3, 0]`. In the order of the product, the last argument fastest."""

    def __init__(self, varied: Sequence[str], cells: Sequence[_Cell[R_co]]) -> None:
        self.varied = tuple(varied)
        """Names of the arguments that vary, in the order in which they were given."""
        self._cells = tuple(cells)
        self._places = {_identity(cell.values): place for place, cell in enumerate(self._cells)}

    @property
    def artifacts(self) -> list[Artifact[R_co]]:
        """The cells in the order of the product."""
        return [cell.artifact for cell in self._cells]

    def __getitem__(self, values: Any) -> Artifact[R_co]:
        """The cell with these values; of a grid over one argument the value alone will do."""
        given: tuple[Any, ...] = cast("tuple[Any, ...]", values) if isinstance(values, tuple) else (values,)
        place = self._places.get(_identity(given))
        if place is None and len(self.varied) == 1:  # the value itself is a tuple
            place = self._places.get(_identity((given,)))
        if place is None:
            raise NoSuchCell(self._why_none(given))
        return self._cells[place].artifact

    def _why_none(self, given: tuple[Any, ...]) -> str:
        shown = ", ".join(map(_brief, given))
        if len(given) != len(self.varied):
            return f"{self!r} has no cell [{shown}]; give a value for each of {', '.join(self.varied)}"
        known: list[str] = []
        for argument, values in zip(self.varied, zip(*self, strict=True), strict=True):
            each = list(dict.fromkeys(map(_brief, values)))
            more = f" and {len(each) - _MANY} more" if len(each) > _MANY else ""
            known.append(f"{argument} is one of {', '.join(each[:_MANY])}{more}")
        return f"{self!r} has no cell [{shown}]; {'; '.join(known)}"

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (cell.values for cell in self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def named(self, name: str) -> Grid[R_co]:
        """The same grid, its cells named `name/learning_rate-1e-3/seed-0`. Names are not in the key."""
        return self._with([cell.artifact.named(_cell_name(name, cell.words)) for cell in self._cells])

    def map(self, change: Callable[[Artifact[R_co]], Artifact[R]]) -> Grid[R]:
        """The grid of `change(cell)`, such as the evaluation of each. What has no name yet is named as its cell is."""
        return self._with([change(artifact) for artifact in self.artifacts]).labelled()

    def labelled(self) -> Grid[R_co]:
        """The same grid, each artifact without a name of its own named by its step and its cell."""
        return self._with(
            [
                cell.artifact
                if cell.artifact.label is not None
                else cell.artifact.named(_cell_name(cell.artifact.name, cell.words))
                for cell in self._cells
            ]
        )

    def _with(self, artifacts: Sequence[Artifact[R]]) -> Grid[R]:
        cells = [_Cell(cell.values, cell.words, new) for cell, new in zip(self._cells, artifacts, strict=True)]
        return Grid(self.varied, cells)

    def __repr__(self) -> str:
        return f"<grid of {len(self)} over {', '.join(self.varied)}>"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _identity(values: tuple[Any, ...]) -> str:
    """Equal for equal values, hashable or not; `1` and `True` are two."""
    try:
        return digest([encode(value, "a value of the grid") for value in values])
    except DeclarationError:
        return ""  # what cannot be keyed is in no cell


def grid(make: Callable[..., Artifact[R]], /, *, at_most: int | None = None, **arguments: Any) -> Grid[R]:
    """One artifact for each combination: `grid(train, learning_rate=[1e-3, 3e-3], seed=[0, 1], data=tokens)`.

    Lists vary; everything else is shared. A list that is to be shared is written `fixed([1, 3])`. Cells are named
    `train/learning_rate-1e-3/seed-0`.

    Args:
        make: a step, or a function that returns an artifact.
        at_most: how many cells run at once within a run; by default as many as there is room for. Not in the key.

    Raises:
        DeclarationError: when nothing varies, a list is empty or holds a value twice, or a cell cannot be declared.
    """
    where = f"grid({getattr(make, '__name__', make)!s})"
    varied: dict[str, list[Any]] = {name: value for name, value in arguments.items() if isinstance(value, list)}
    shared = {name: _shared(value) for name, value in arguments.items() if name not in varied}
    if not varied:
        raise DeclarationError(f"{where}: nothing varies; give at least one argument as a list of values")
    if at_most is not None and (type(at_most) is not int or at_most < 1):
        raise DeclarationError(f"{where}: at_most={at_most!r} must be an int from 1 on")
    for argument, values in varied.items():
        if not values:
            raise DeclarationError(f"{where}: {argument}=[] leaves no cell; give it values, or fixed([])")
    made: list[tuple[tuple[Any, ...], Artifact[R]]] = []
    for values in itertools.product(*varied.values()):
        try:
            made.append((values, make(**dict(zip(varied, values, strict=True)), **shared)))
        except DeclarationError as error:
            raise DeclarationError(
                f"{error} (in {where}, over {', '.join(varied)}; a list that does not vary is written fixed([...]))"
            ) from error
    base = made[0][1].name
    if at_most is not None:
        # Named by what is in it, so that two grids of one step have limits of their own.
        group = f"{base}/{digest([artifact.key for _, artifact in made])[:16]}"
        made = [
            (values, artifact.using(replace(artifact.resources, group=group, at_most=at_most)))
            for values, artifact in made
        ]
    words = [_words(_checked(make, name, values), name, where) for name, values in varied.items()]
    cells = [
        _Cell(values, "/".join(parts), artifact)
        for (values, artifact), parts in zip(made, itertools.product(*words), strict=True)
    ]
    return Grid(list(varied), cells).named(base)


def _shared(value: Any) -> Any:
    return cast("fixed[Any]", value).value if isinstance(value, fixed) else value


def _checked(make: Any, argument: str, values: Sequence[Any]) -> list[Any]:
    """The values as the step gets them, so that a cell has one name whether it was declared with 1 or with 1.0."""
    annotations: Mapping[str, Any] = cast("Step[..., Any]", make).annotations if isinstance(make, Step) else {}
    return [check(value, annotations.get(argument, Any), argument) for value in values]


def _cell_name(base: str, words: str) -> str:
    name = f"{base}/{words}"
    return name if len(name) <= LONGEST_NAME else f"{base[: LONGEST_NAME - 17]}/{digest(words)[:16]}"


def _words(values: Sequence[Any], argument: str, where: str) -> list[str]:
    """What each value is called, after its argument. Two values that would be called the same bear a digest."""
    words = [_word(value, f"{where}: {argument}") for value in values]
    often = Counter(words)
    told = [word if often[word] == 1 else _told_apart(word, value) for word, value in zip(words, values, strict=True)]
    for word, value in zip(told, values, strict=True):
        if told.count(word) > 1:
            raise DeclarationError(f"{where}: {argument} has {value!r} twice; give each value once")
    return [f"{_slug(argument)}-{word}" for word in told]


def _word(value: Any, where: str) -> str:
    """A value in the characters of a name, readable where that is possible."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        word = value.name.lower()
        return word if value.name in (word, word.upper()) and _WORD.fullmatch(word) else _told_apart(word, value)
    if isinstance(value, int) and abs(value) < 10**20:
        return str(int(value))
    if isinstance(value, float):
        return _number(float(value))
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and len(value) <= _LONGEST_WORD and not _LOOKS_OTHERWISE.fullmatch(value)
        return value if plain else _told_apart(value, value)
    if isinstance(value, Artifact):
        return _slug(cast("Artifact[Any]", value).name)
    encode(value, where)  # what has no stable identity is refused here, by name
    if isinstance(value, File):
        return _told_apart(value.name, value)
    if is_record(value):
        return _told_apart(type(value).__name__, value)
    if is_sequence(value):
        return _told_apart("_".join(_slug(str(item)) for item in value), value)
    return _told_apart(type(value).__name__, value)


def _number(value: float) -> str:
    """A float as an integer and a power of ten, the shortest that reads back: 0.001 is `1e-3`, 1.5 is `15e-1`."""
    if not math.isfinite(value):
        return str(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    return f"{'-' if sign else ''}{''.join(map(str, digits))}e{exponent}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "_", text.lower()).strip("_") or "_"


def _told_apart(text: str, value: Any) -> str:
    """What is left of a text, and a digest of the value."""
    return f"{_slug(text)[:_LONGEST_WORD]}-{digest(encode(value, text))[:8]}"


def flattened(targets: Iterable[Any]) -> list[Any]:
    """A list of targets with the cells of each grid in its place."""
    found: list[Any] = []
    for target in targets:
        found.extend(cast("Grid[Any]", target).artifacts if isinstance(target, Grid) else [target])
    return found
