"""`ctx.map`: by content, in order, and named in errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from marin_pipeline.run.context import RunContext
from marin_pipeline.run.logs import lines
from marin_pipeline.run.shards import run_shard
from marin_pipeline.run.task import Target, Task
from marin_pipeline.store import layout
from tests.run.sample_steps import joined, nested, square, squares
from tests.run.sessions import Bench, digests, failure, step_folder, value
from tests.store.far_objects import SlowObjects


def test_results_are_in_the_order_of_the_items(bench: Bench) -> None:
    assert value(bench.run(squares(numbers=[3, 1, 2], offset=1)), "squares") == [10, 2, 5]
    assert bench.ran() == {"squares": 1, "square": 3}


def test_one_added_item_computes_one_shard(bench: Bench) -> None:
    bench.run(squares(numbers=[1, 2, 3]))
    bench.ran()
    assert value(bench.run(squares(numbers=[4, 3, 2, 1, 3])), "squares") == [16, 9, 4, 1, 9]
    assert bench.ran() == {"squares": 1, "square": 1}


def test_other_common_arguments_compute_all(bench: Bench) -> None:
    bench.run(squares(numbers=[1, 2]))
    bench.ran()
    bench.run(squares(numbers=[1, 2], offset=1))
    assert bench.ran() == {"squares": 1, "square": 2}


def test_adopted_files_are_read_by_dependents_through_the_manifest(bench: Bench) -> None:
    target = joined(squares=squares(numbers=[2, 3]))
    assert value(bench.run(target), "joined") == "4 9"
    out = step_folder(bench, squares(numbers=[2, 3])) / "attempts"
    assert [file.name for file in out.glob("*/out/*")] == ["value.json"]


def test_files_of_dependencies_and_of_shards_are_items(bench: Bench) -> None:
    target = nested(squares=squares(numbers=[2]), numbers=[5, 6])
    assert value(bench.run(target), "nested") == ["44", "252525", "363636"]
    bench.ran()
    bench.run(nested(squares=squares(numbers=[2, 9]), numbers=[6]))
    assert bench.ran() == {"squares": 1, "square": 1, "nested": 1}


def test_a_failed_shard_is_named_and_the_others_are_kept(bench: Bench) -> None:
    result = bench.run(squares(numbers=[1, 2, 13, 3]), max_parallel=1)
    assert "squares[2]: ValueError: thirteen is unlucky" in failure(result)
    assert "in square\n" in failure(result)
    assert bench.ran() == {"squares": 1, "square": 3}
    assert bench.run(squares(numbers=[1, 2])).ok
    assert bench.ran() == {"squares": 1}


def test_what_runs_beside_a_failed_shard_is_kept_where_it_has_ended(bench: Bench) -> None:
    """A shard that has begun and not ended when the step fails is none of these."""
    assert not bench.run(squares(numbers=[1, 13, 2])).ok
    kept = len(list((bench.prefix / "shards").rglob("record.json")))
    bench.ran()
    assert bench.run(squares(numbers=[1, 2])).ok
    assert bench.ran()["square"] == 2 - kept


def test_a_failed_shard_leaves_no_files(bench: Bench) -> None:
    bench.run(squares(numbers=[13]))
    assert not [file for file in (bench.prefix / "shards").rglob("*") if file.is_file() and "log" not in file.parts[-2]]


def test_a_forced_step_reads_no_earlier_shards(bench: Bench) -> None:
    target = squares(numbers=[1, 2])
    first = digests(bench.run(target))
    bench.ran()
    assert digests(bench.run(target, force="squares")) == first
    assert bench.ran() == {"squares": 1, "square": 2}


def test_a_damaged_shard_record_is_named_with_its_remedy(bench: Bench) -> None:
    bench.run(squares(numbers=[1]))
    (record,) = (bench.prefix / "shards").rglob("record.json")
    record.write_text("{")
    assert "record.json: not a record of a shard" in failure(bench.run(squares(numbers=[1, 2])))


def test_changed_bytes_of_an_adopted_file_are_not_believed_and_force_gets_past(bench: Bench) -> None:
    made = squares(numbers=[2, 3])
    bench.run(made)
    for file in (bench.prefix / "shards").rglob("square.txt"):
        file.write_text("8")
    assert "its bytes are not those that were committed" in failure(bench.run(joined(squares=made)))
    assert bench.run(joined(squares=made), force="squares").ok


def test_what_a_shard_prints_is_in_the_log_of_its_step(bench: Bench) -> None:
    bench.run(squares(numbers=[3, 4]))
    text = "\n".join(lines(bench.objects, "squares", False))
    assert text.count("squared 3") == 1
    assert text.count("squared 4") == 1


def test_results_and_logs_of_shards_are_asked_for_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARIN_TEST_COUNTS", str(tmp_path))
    objects = SlowObjects(tmp_path / "store")
    task = Task("t", "step", Target("", "", "", False), str(tmp_path / "store"), "a/step", "0" * 64, "t", {}, {})

    def run(tasks: Sequence[Task]) -> None:
        for each in tasks:
            run_shard(objects.near, each)
            objects.near.create(layout.shard_log(each.key, each.attempt), b"printed\n")

    context = RunContext(objects, task, None, map_runner=run, report=lambda event: None, is_stopping=lambda: False)
    numbers = list(range(20, 40))
    assert [each.value for each in context.map(square, [*numbers, 27])] == [number**2 for number in [*numbers, 27]]
    assert [line for line in capsys.readouterr().out.splitlines() if "printed" in line] == [
        f"[{20 if number == 27 else number - 20}] printed" for number in numbers
    ]
    assert objects.waits < 30
    objects.waits = 0
    assert len(context.map(square, numbers)) == 20
    assert objects.waits < 10
