"""Steps that keep shards and parts, and break before they are done while `$MARIN_TEST_COUNTS/break` is there."""

from __future__ import annotations

import os
from pathlib import Path

from marin_pipeline import Context, ShardContext, step


def _break() -> None:
    if (Path(os.environ["MARIN_TEST_COUNTS"]) / "break").exists():
        raise ValueError("broken")


def _written(shard: ShardContext, item: int) -> int:
    (shard.out / "text.txt").write_text(f"item {item}")
    return 10 + item


@step
def maps_and_breaks(ctx: Context) -> list[int]:
    results = ctx.map(_written, [1, 2])
    _break()
    for index, result in enumerate(results):
        ctx.adopt(result, "text.txt", f"{index}.txt")
    return [result.value for result in results]


@step
def works_and_breaks(ctx: Context) -> str:
    if "part" not in ctx.work.items():
        with ctx.work.writing("part") as folder:
            (folder / "text.txt").write_text("1234")
    _break()
    return (ctx.work.open("part") / "text.txt").read_text()
