"""What a step and its shards stream are files of its output like any other."""

from __future__ import annotations

from pathlib import Path

from marin_pipeline import test_context as context_over
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
    assert not [path for path in (bench.prefix / "tmp").rglob("*") if path.is_file()]


def test_a_step_function_streams_in_its_own_unit_test(tmp_path: Path) -> None:
    ctx = context_over(tmp_path)
    assert streaming.fn(ctx, numbers=[1, 2]) == [1, 2]
    assert (ctx.out / "all.txt").read_text() == "1\n2\n"
    assert (ctx.out / "parts" / "2.bin").read_bytes() == b"\2\2"
