"""A committed file stays as it was committed, whatever the steps do that read it: it is read-only, and a step that
wrote on it all the same fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marin_pipeline import Artifact, Context, ShardContext, step
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.objects import FileToPublish
from tests.run.sample_steps import words
from tests.run.sessions import Bench, failure, outcomes, step_folder

HOWS = ["append", "same size", "replace", "remove"]


def write_on(path: Path, how: str) -> None:
    """As a step does whose user may write everywhere."""
    if how == "remove":
        path.unlink()
    elif how == "replace":
        path.with_name("aside").write_text("other")
        path.with_name("aside").replace(path)
    else:
        path.chmod(0o644)
        data = path.read_bytes()
        path.write_bytes(data + b"!" if how == "append" else data[::-1])


@step
def made(ctx: Context) -> int:
    (ctx.out / "a.txt").write_text("first")
    with ctx.stream("b.txt", "w") as file:
        file.write("streamed")
    with ctx.work.writing("part") as folder:
        (folder / "c.txt").write_text("part")
    return 1


@step
def vandal(ctx: Context, count: Artifact[object], name: str, how: str) -> int:
    write_on((count / name).path, how)
    return 1


def part(shard: ShardContext, item: int) -> int:
    (shard.out / "part.txt").write_text("part")
    return item


def vandal_part(shard: ShardContext, item: Artifact[object]) -> int:
    write_on((item / "words.txt").path, "append")
    return 1


@step
def maps(ctx: Context, count: Artifact[object]) -> int:
    return len(ctx.map(vandal_part, [count]))


@step
def writes_on_its_shards(ctx: Context) -> int:
    (result,) = ctx.map(part, [1])
    write_on((result / "part.txt").path, "append")
    return 1


COUNT: Artifact[object] = words(text="to be or not").named("count")


@pytest.mark.parametrize("how", HOWS)
def test_a_step_that_writes_on_its_input_fails_and_is_named(how: str, bench: Bench) -> None:
    target = vandal(count=COUNT, name="words.txt", how=how).named("vandal")
    result = bench.run(target)
    assert outcomes(result) == {"count": "done", "vandal": "failed"}
    told = failure(result)
    assert "step vandal (test_kept_inputs.py" in told
    assert f"its input {bench.prefix}" in told
    assert "words.txt was written or removed while it ran" in told
    assert "a file of the output of" in told
    assert COUNT.key[:8] in told
    assert not list(step_folder(bench, target).glob("commits/*"))


def test_a_shard_that_writes_on_its_input_fails(bench: Bench) -> None:
    told = failure(bench.run(maps(count=COUNT)))
    assert "the function vandal_part of ctx.map: its input" in told
    assert "was written or removed" in told


def test_a_step_that_writes_on_its_shards_fails(bench: Bench) -> None:
    told = failure(bench.run(writes_on_its_shards()))
    assert "step writes_on_its_shards" in told
    assert "is a file of the shard" in told


def test_what_is_committed_is_read_only(bench: Bench) -> None:
    assert bench.run([made(), COUNT]).ok
    files = [path for path in bench.prefix.glob("steps/**/out/**/*") if path.is_file()]
    assert {path.name for path in files} == {"a.txt", "b.txt", "words.txt", "length", "value.json"}
    assert {path.stat().st_mode & 0o222 for path in files} == {0}
    bench.objects.delete("steps")
    assert not list(bench.prefix.glob("steps/*"))


def test_files_of_others_stay_writable(tmp_path: Path) -> None:
    """What has another name outside of the store, which its owner goes on writing."""
    mine, outside = tmp_path / "store" / "out" / "mine", tmp_path / "outside"
    mine.parent.mkdir(parents=True)
    outside.write_text("text")
    os.link(outside, mine)
    LocalObjects(tmp_path / "store").publish("out", [FileToPublish("mine", mine, 4)])
    assert outside.stat().st_mode & 0o200
