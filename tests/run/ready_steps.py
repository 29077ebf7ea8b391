"""Steps that say before they are started that their inputs do not fit.

`stock` holds what stands in the file `$MARIN_TEST_COUNTS/stock`, outside of every key, so that it can be rebuilt with
other bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_pipeline import Artifact, Context, File, Runtime, step
from marin_pipeline.core.errors import InputError
from tests.run.sample_steps import counted


@dataclass(frozen=True)
class Stock:
    items: int
    kind: str = "apples"


def set_stock(counts: Path, items: int) -> None:
    (counts / "stock").write_text(str(items))


@step
def stock(ctx: Context, shelf: int = 1) -> Stock:
    counted("stock")
    (ctx.out / "list.txt").write_text("apples")
    return Stock(int(Path(os.environ["MARIN_TEST_COUNTS"], "stock").read_text()))


def enough(arguments: Mapping[str, Any]) -> None:
    """Refuse too small a stock."""
    counted("asked")
    held = arguments["source"].value
    if held.items < arguments["sold"]:
        raise InputError(f"{held.items} {held.kind} are there, and {arguments['sold']} are sold; sell fewer")


@step(ready=enough)
def sell(ctx: Context, source: Artifact[Stock], sold: int, broken: Runtime[bool] = False) -> int:
    counted("sell")
    if broken:
        raise InputError("the scales are broken; mend them")
    return source.value.items - sold


@step
def after(ctx: Context, left: Artifact[int]) -> int:
    counted("after")
    return left.value


@dataclass(frozen=True)
class Shelf:
    files: tuple[File, ...]
    others: dict[str, Artifact[Any]]


def described(arguments: Mapping[str, Any]) -> str:
    """All that can be known of the arguments without reading a file of an input."""
    shelf: Shelf = arguments["shelf"]
    found = {
        "parts": [(part.key, part.name, part.value, part.files) for part in arguments["parts"]],
        "files": [(file.name, file.size, file.sha256) for file in shelf.files],
        "others": [(name, type(part.value).__name__, part.value) for name, part in sorted(shelf.others.items())],
        "rest": {name: value for name, value in arguments.items() if name not in ("parts", "shelf")},
    }
    return repr(found)


def note(arguments: Mapping[str, Any]) -> None:
    counted("asked")
    with Path(os.environ["MARIN_TEST_COUNTS"], "noted").open("a") as file:
        file.write(described(arguments) + "\n")


@step(ready=note)
def describe(
    ctx: Context, parts: list[Artifact[int]], shelf: Shelf, text: str, limits: set[float], quick: Runtime[bool] = False
) -> str:
    """What the step itself sees."""
    return described({"parts": parts, "shelf": shelf, "text": text, "limits": limits, "quick": quick})


def reads_a_file(arguments: Mapping[str, Any]) -> None:
    (arguments["source"] / "list.txt").read_text()


@step(ready=reads_a_file)
def reading(ctx: Context, source: Artifact[Stock]) -> int:
    counted("reading")
    return 1


def mistaken(arguments: Mapping[str, Any]) -> None:
    raise KeyError(arguments["source"].value.kind)


@step(ready=mistaken)
def asking(ctx: Context, source: Artifact[Stock]) -> int:
    counted("asking")
    return 1
