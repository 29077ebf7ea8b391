"""A small graph that makes use of all that the engine keeps: files, values, parts, shards. What it makes is the same
each time, but for `noisy`, which is asked for by an argument, and `outer`, which reads what no key knows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from marin_pipeline import Artifact, Context, ShardContext, step
from marin_pipeline.core.errors import InputError

OUTER = "MARIN_TEST_OUTER"


@step
def begin(ctx: Context, seed: int) -> int:
    (ctx.out / "begin.txt").write_text(f"begun with {seed}")
    return seed


@step
def also(ctx: Context, seed: int) -> int:
    """What `begin` makes, by another recipe."""
    (ctx.out / "begin.txt").write_text(f"begun with {seed}")
    return seed


@step
def outer(ctx: Context, seed: int) -> str:
    """Not a function of its arguments: forced again, it may give other bytes."""
    return f"{seed} {os.environ.get(OUTER, '')}"


@step
def noisy(ctx: Context, before: Artifact[int]) -> str:
    """Other bytes each time."""
    text = f"{before.value} {uuid.uuid4().hex}"
    (ctx.out / "noise.txt").write_text(text)
    return text


@step
def worked(ctx: Context, before: Artifact[Any], parts: int) -> list[str]:
    """Keeps finished parts on the way."""
    for index in range(parts):
        if f"{index}" not in ctx.work.items():
            with ctx.work.writing(f"{index}") as folder:
                (folder / "text").write_text(f"part {index} of {before.value}")
    return [(ctx.work.open(f"{index}") / "text").read_text() for index in range(parts)]


def _tenfold(shard: ShardContext, item: int) -> int:
    (shard.out / "tenfold.txt").write_text(str(10 * item))
    return 10 * item


@step
def mapped(ctx: Context, before: Artifact[Any], items: list[int]) -> list[int]:
    results = ctx.map(_tenfold, items)
    for index, result in enumerate(results):
        ctx.adopt(result, "tenfold.txt", f"{index}.txt")
    (ctx.out / "before.txt").write_text(str(before.value))
    return [result.value for result in results]


def joinable(arguments: Mapping[str, Any]) -> None:
    if None in [part.value for part in arguments["parts"]]:
        raise InputError("parts: one has no value")


@step(ready=joinable)
def end(ctx: Context, parts: list[Artifact[Any]]) -> str:
    return " | ".join(str(part.value) for part in parts)


def chains() -> dict[str, Artifact[str]]:
    """Three steps, one after another, by what is in the middle."""
    first = begin(seed=7)
    middles = [noisy(before=first), worked(before=first, parts=2), mapped(before=first, items=[1])]
    return {middle.declaration.step.name: end(parts=[middle]) for middle in middles if middle.declaration}


def twins() -> list[Artifact[list[int]]]:
    """The same work on equal bytes that two recipes make: the second to be made is adopted from the first."""
    return [mapped(before=begin(seed=7), items=[1]), mapped(before=also(seed=7), items=[1]).named("twin")]


def wide() -> list[Artifact[Any]]:
    """Parts, shards, an end that goes stale with `outer`, and a result that can be adopted: `twin` asks for the same
    work as `mapped`, by an input that another step makes equal.
    """
    first, second = begin(seed=7), also(seed=7)
    parts = worked(before=first, parts=2)
    found = mapped(before=first, items=[1, 2])
    twin = mapped(before=second, items=[1, 2]).named("twin")
    return [end(parts=[parts, found, outer(seed=3)]), twin]
