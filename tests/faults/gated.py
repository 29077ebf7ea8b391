"""An experiment whose steps wait at a gate, so that a test can kill them at a known moment.

A step at the gate leaves `$MARIN_TEST_GATE/<step>-<pid>`; it goes on when `$MARIN_TEST_GATE/open` is there.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin_pipeline import Artifact, Context, ShardContext, main, step

GATE = "MARIN_TEST_GATE"


def pass_gate(name: str) -> None:
    gate = Path(os.environ[GATE])
    (gate / f"{name}-{os.getpid()}").touch()
    while not (gate / "open").exists():
        time.sleep(0.01)


@step
def begin(ctx: Context, seed: int) -> int:
    (ctx.out / "begin.txt").write_text(str(seed))
    return seed


@step
def plain(ctx: Context, before: Artifact[int]) -> int:
    """Writes half, waits, writes the rest; has a child of its own meanwhile."""
    (ctx.out / "half.txt").write_text("half")
    child = subprocess.Popen(["sleep", "60"])
    try:
        Path(os.environ[GATE], f"child-{child.pid}").touch()
        pass_gate("plain")
    finally:
        child.kill()
        child.wait()
    (ctx.out / "half.txt").write_text(f"whole {before.value}")
    return before.value + 1


@step
def listening(ctx: Context, before: Artifact[int], parts: int) -> list[str]:
    """Makes parts and looks after each whether it is to stop."""
    for index in range(parts):
        name = f"part-{index}"
        if name not in ctx.work.items():
            with ctx.work.writing(name) as folder:
                (folder / "text").write_text(f"{before.value} {index}")
            with Path(os.environ[GATE], f"made-{name}").open("a") as made:
                made.write("x")
        Path(os.environ[GATE], f"listening-{os.getpid()}").touch()
        while not ctx.stopping and not Path(os.environ[GATE], "open").exists():
            time.sleep(0.01)
        if ctx.stopping and not Path(os.environ[GATE], "stubborn").exists():
            raise ctx.stop()
        if ctx.stopping:
            Path(os.environ[GATE], f"asked-{os.getpid()}").touch()
        while ctx.stopping:
            time.sleep(0.01)
    return [(ctx.work.open(name) / "text").read_text() for name in ctx.work.items()]


def waits(shard: ShardContext, item: int) -> int:
    if item:
        pass_gate(f"shard{item}")
    (shard.out / "item.txt").write_text(str(item))
    return item


@step
def mapping(ctx: Context, before: Artifact[int], items: list[int]) -> list[int]:
    assert not ctx.stopping
    results = ctx.map(waits, items)
    for index, result in enumerate(results):
        ctx.adopt(result, "item.txt", f"{index}.txt")
    return [result.value for result in results]


def waits_at_gate(arguments: Mapping[str, Any]) -> None:
    assert arguments["before"].value == 7
    pass_gate("asking")


@step(ready=waits_at_gate)
def asked(ctx: Context, before: Artifact[int]) -> int:
    """Is asked whether it may start, and waits with the answer."""
    (ctx.out / "asked.txt").write_text(str(before.value))
    return before.value


def build(kind: str = "plain") -> Artifact[int] | Artifact[list[str]] | Artifact[list[int]]:
    before = begin(seed=7)
    if kind == "plain":
        return plain(before=before)
    if kind == "asked":
        return asked(before=before)
    if kind == "listening":
        return listening(before=before, parts=3)
    return mapping(before=before, items=[0, 1, 2])


if __name__ == "__main__":
    main(build)
