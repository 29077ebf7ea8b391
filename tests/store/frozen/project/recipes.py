"""Steps whose outputs lie in frozen stores: this file is never changed, since its code is in keys and commits there."""

# fmt: off

import os
from typing import Any

from marin_pipeline import Artifact, Context, File, LocalFile, ShardContext, adopted, step

TEXTS = "a3c6e5717e35d41bfee6bf648140d2dbf1876da68c5441c80c2081368010d720"


@step(version=1)
def words(ctx: Context, text: str) -> int:
    found = text.split()
    (ctx.out / "words.txt").write_text("\n".join(found) + "\n")
    (ctx.out / "deep").mkdir()
    (ctx.out / "deep" / "length").write_text(str(len(text)))
    return len(found)


@step(version=2)
def line(ctx: Context, file: File | LocalFile) -> str:
    return file.read_text().partition("\n")[0]


@step
def scaled(ctx: Context, count: Artifact[int], by: float) -> float:
    return count.value * by


def square(shard: ShardContext, item: int) -> int:
    (shard.out / "square.txt").write_text(str(item * item))
    return item * item


@step(version=1)
def squares(ctx: Context, numbers: list[int]) -> list[int]:
    results = ctx.map(square, numbers)
    for index, result in enumerate(results):
        ctx.adopt(result, "square.txt", f"squares/{index}.txt")
    return [result.value for result in results]


@step(version=1)
def streamed(ctx: Context, lines: int) -> int:
    with ctx.stream("lines.txt") as stream:
        for index in range(lines):
            stream.write(f"line {index}\n".encode())
    return lines


@step(version=1)
def many(ctx: Context, files: int) -> int:
    for index in range(files):
        (ctx.out / f"{index:03}.txt").write_text(str(index % 3))
    return files


@step(version=1)
def same(ctx: Context, count: Artifact[int]) -> int:
    return count.value + 1


@step(version=1)
def total(ctx: Context, counts: list[Artifact[int]]) -> int:
    return sum(count.value for count in counts)


@step(version=1, unpinned=lambda arguments: [arguments["address"]])
def page(ctx: Context, address: str) -> str:
    return f"what was at {address}"


@step(version=1)
def parts(ctx: Context, count: int) -> list[str]:
    """Makes parts, and ends after two of them where `FROZEN_BREAK` is set."""
    for index in range(count):
        if f"part-{index}" in ctx.work.items():
            continue
        if index == 2 and os.environ.get("FROZEN_BREAK"):
            from marin_pipeline.core.errors import InputError

            raise InputError("stopped after two parts, as asked")
        with ctx.work.writing(f"part-{index}") as folder:
            (folder / "data.txt").write_text(f"part {index} made by {os.environ.get('FROZEN_BREAK', 'the present')}")
    return [(ctx.work.open(name) / "data.txt").read_text() for name in ctx.work.items()]


def experiment(folder: str) -> list[Artifact[Any]]:
    """What the frozen stores hold.

    Args:
        folder: where `given.txt` lies.
    """
    counted = words(text="to be or not to be")
    six = total(counts=[counted])
    return [
        scaled(count=counted, by=0.5),
        line(file=counted / "words.txt").named("first"),
        line(file=LocalFile(os.path.join(folder, "given.txt"))).named("given"),
        squares(numbers=[2, 3, 4]),
        streamed(lines=100).named("stream/lines"),
        many(files=10),
        same(count=six).named("seven"),
        same(count=total(counts=[six])).named("seven_again"),
        page(address="https://example.org/page"),
        parts(count=3),
        words(text="a b c").named("elsewhere"),
        adopted("texts", TEXTS),
    ]
