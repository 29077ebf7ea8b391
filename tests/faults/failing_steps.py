"""A step whose attempts fail in given ways, one after the other, before one succeeds. How often it was tried is noted
in the folder `$MARIN_TEST_COUNTS`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from marin_pipeline import Context, Runtime, ShardContext, step
from marin_pipeline.core.errors import MarinError
from marin_pipeline.store.objects import NoAnswer


def _fail_next(ways: list[str], name: str) -> None:
    counts = Path(os.environ["MARIN_TEST_COUNTS"]) / name
    tries = len(counts.read_text()) if counts.exists() else 0
    counts.write_text("x" * (tries + 1))
    way = ways[tries] if tries < len(ways) else ""
    if way == "user":
        raise ValueError("the step's own")
    if way == "memory":
        raise MemoryError
    if way == "silent":
        raise NoAnswer("store: does not answer")
    if way == "late":
        while not (counts.parent / "after").exists():
            time.sleep(0.01)
        raise NoAnswer("store: does not answer")
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "preempted":
        os.kill(os.getpid(), signal.SIGTERM)


@step
def tries(ctx: Context, seed: int, ways: Runtime[list[str]]) -> int:
    (ctx.out / "half").write_text("half")
    (ctx.out / "more").mkdir()
    _fail_next(ways, "tries")
    (ctx.out / "half").write_text("whole")
    return seed


def _shard(shard: ShardContext, item: int, ways: Runtime[list[str]]) -> int:
    _fail_next(ways, "shard")
    return item


@step
def maps(ctx: Context, seed: int, ways: Runtime[list[str]]) -> list[int]:
    return [result.value for result in ctx.map(_shard, [seed], ways=ways)]


def _slow_or_failing_shard(shard: ShardContext, item: int) -> int:
    counts = Path(os.environ["MARIN_TEST_COUNTS"])
    if item == 0:
        _wait_for(counts / "slow begun")
        raise ValueError("the first")
    (counts / "slow begun").touch()
    _wait_for(counts / "caught")
    (counts / "slow ended").touch()
    return item


def _wait_for(file: Path, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.01)


@step
def catches(ctx: Context, seed: int) -> int:
    counts = Path(os.environ["MARIN_TEST_COUNTS"])
    try:
        ctx.map(_slow_or_failing_shard, [0, 1])
    except MarinError:
        (counts / "caught").touch()
    _wait_for(counts / "slow ended")
    time.sleep(0.5)  # until the run has heard of it
    return seed


def _writing_shard(shard: ShardContext, item: int, ways: Runtime[list[str]]) -> int:
    killed = not (Path(os.environ["MARIN_TEST_COUNTS"]) / "writing").exists() and bool(ways)
    with (shard.out / "rows.txt").open("a") as file:
        file.write("row\n")
    with shard.stream("streamed.txt", "w") as stream:
        stream.write("streamed")
    if killed:
        (shard.out / "half.tmp").write_text("half")
    _fail_next(ways, "writing")
    return item


@step
def writes(ctx: Context, seed: int, ways: Runtime[list[str]]) -> int:
    [result] = ctx.map(_writing_shard, [seed], ways=ways)
    for path in result.files:
        ctx.adopt(result, path)
    return result.value
