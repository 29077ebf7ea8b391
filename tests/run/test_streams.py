"""What a step and its shards stream are files of its output like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline import Context, ShardContext, step
from marin_pipeline import test_context as context_over
from marin_pipeline.core.step import Step
from tests.run.sample_steps import streaming, streams_read
from tests.run.sessions import Bench, failure, step_folder, value


def test_streams_are_read_by_dependents(bench: Bench) -> None:
    target = streams_read(streams=streaming(numbers=[3, 2]))
    assert value(bench.run(target), "streams_read") == ["3\n", "2\n", "all.txt 4", "parts/2.bin 2", "parts/3.bin 3"]
    (out,) = step_folder(bench, streaming(numbers=[3, 2])).glob("attempts/*/out")
    assert sorted(path.name for path in out.iterdir()) == ["all.txt", "value.json"]


def test_a_step_that_fails_in_a_stream_leaves_no_such_file(bench: Bench) -> None:
    result = bench.run(streaming(numbers=[1], broken=True))
    assert "broken while it was streamed" in failure(result)
    assert not list(bench.prefix.rglob("all.txt"))
    assert not [path for path in (bench.prefix / "tmp" / "1d").rglob("*") if path.is_file()]


def test_a_step_function_streams_in_its_own_unit_test(tmp_path: Path) -> None:
    ctx = context_over(tmp_path)
    assert streaming.fn(ctx, numbers=[1, 2]) == [1, 2]
    assert (ctx.out / "all.txt").read_text() == "1\n2\n"
    assert (ctx.out / "parts" / "2.bin").read_bytes() == b"\2\2"


HELD: list[object] = []
"""What a step of this file keeps beyond its end, in its own process."""


def _begun(ctx: Context | ShardContext, how: str) -> None:
    block = ctx.stream("a.bin")
    block.__enter__().write(b"lost")
    if how == "held":
        HELD.append(block)


@step
def never_ended(ctx: Context, how: str) -> int:
    _begun(ctx, how)
    return 1


@step
def ended_at_last(ctx: Context) -> int:
    _begun(ctx, "dropped")
    with ctx.stream("a.bin") as file:
        file.write(b"kept")
    return 1


def _part(shard: ShardContext, item: int, how: str) -> int:
    _begun(shard, how)
    return item


@step
def shards_never_end(ctx: Context, how: str) -> int:
    return len(ctx.map(_part, [1], how=how))


@pytest.mark.parametrize("how", ["dropped", "held"])
@pytest.mark.parametrize("made", [never_ended, shards_never_end])
def test_a_stream_that_is_begun_and_never_ended_fails_the_attempt(made: Step[..., int], how: str, bench: Bench) -> None:
    result = bench.run(made(how=how))
    HELD.clear()
    assert "the stream 'a.bin' was begun and not ended" in failure(result)
    assert not list(bench.prefix.rglob("a.bin"))


def test_a_stream_that_is_begun_again_and_ended_is_kept(inline: Bench) -> None:
    assert inline.run(ended_at_last()).ok
    (kept,) = inline.prefix.rglob("a.bin")
    assert kept.read_bytes() == b"kept"
