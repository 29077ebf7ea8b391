"""What holds on every backend: one suite over `inline` and `local`."""

from __future__ import annotations

import pytest

from marin_pipeline import LocalFile
from marin_pipeline.run.logs import lines
from marin_pipeline.store import manifest
from tests.run.sample_steps import (
    Colour,
    Count,
    add,
    echo,
    fails,
    first_line,
    number,
    random_bytes,
    refuses,
    squares,
    times,
    words,
)
from tests.run.sessions import Bench, digests, failure, step_folder, value


def test_a_graph_runs_once_and_is_cached_after(bench: Bench) -> None:
    target = times(count=words(text="a bb ccc"), factor=2)
    first = bench.run(target)
    assert first.ok
    assert value(first, "times") == 6
    assert bench.ran() == {"words": 1, "times": 1}
    second = bench.run(target)
    assert digests(second) == digests(first)
    assert not bench.ran()
    assert bench.statuses(target) == {"words": "cached", "times": "cached"}


def test_both_backends_make_the_same_bytes(bench: Bench) -> None:
    made = digests(bench.run(times(count=words(text="a bb ccc"), factor=2)))
    bench.backend = "local" if bench.backend == "inline" else "inline"
    assert digests(bench.run(times(count=words(text="a bb ccc"), factor=2), force=["words", "times"])) == made


def test_a_value_of_a_class_of_the_user_is_read_back_as_that_class(bench: Bench) -> None:
    result = bench.run(words(text="a bb"))
    assert value(result, "words") == Count(2, "bb", (Colour.BLUE,))


def test_a_runtime_argument_moves_no_key(bench: Bench) -> None:
    bench.run(words(text="a"))
    assert bench.outcomes(words(text="a", loud=True)) == {"words": "cached"}


def test_files_travel_as_dependencies_and_as_local_files(bench: Bench, tmp_path) -> None:
    file = tmp_path / "given.txt"
    file.write_text("mine\nnot mine")
    target = [
        first_line(file=words(text="a b") / "words.txt").named("made"),
        first_line(file=LocalFile(file)).named("given"),
    ]
    result = bench.run(target)
    assert (value(result, "made"), value(result, "given")) == ("a", "mine")


def test_a_failure_blocks_what_needs_it_and_nothing_else(bench: Bench) -> None:
    bad = fails(word="grue")
    result = bench.run([add(numbers=[bad, number(value=1)]), number(value=2).named("free")])
    assert {name: result.settled[key].outcome for key, node in result.graph.nodes.items() for name in node.names} == {
        "fails": "failed",
        "number": "done",
        "add": "blocked",
        "free": "done",
    }
    assert result.exit_code == 1
    assert result.settled[result.graph.select("add").key].message == "blocked by fails"
    text = failure(result)
    assert text.startswith("ValueError: the word was grue")
    assert "in fails" in text
    assert "run_attempt" not in text
    assert bench.reasons(bad) == {"fails": "new; failed before: ValueError: the word was grue"}


def test_a_users_error_is_not_tried_again(bench: Bench) -> None:
    bench.run(fails(word="grue"))
    assert bench.ran() == {"fails": 1}


def test_forced_steps_run_again_and_equal_bytes_make_nobody_stale(bench: Bench) -> None:
    target = times(count=words(text="a b"))
    bench.run(target)
    assert bench.outcomes(target, force=["words"], reason="to be sure") == {"words": "done", "times": "cached"}
    assert bench.statuses(target) == {"words": "cached", "times": "cached"}
    assert (step_folder(bench, words(text="a b")) / "commits" / "2.json").exists()
    assert "to be sure" in (step_folder(bench, words(text="a b")) / "invalidations" / "1.json").read_text()


def test_other_bytes_make_dependents_stale(bench: Bench) -> None:
    target = echo(text=random_bytes(seed=1))
    first = digests(bench.run(target))
    assert bench.outcomes(target, force=["random_bytes"]) == {"random_bytes": "done", "echo": "done"}
    result = bench.run(target)
    assert digests(result) != first
    assert value(result, "echo") == value(result, "random_bytes")
    assert bench.statuses(target) == {"random_bytes": "cached", "echo": "cached"}


def test_what_a_step_prints_is_kept_with_its_attempt(bench: Bench) -> None:
    bench.run(words(text="a", loud=True))
    (log,) = step_folder(bench, words(text="a")).glob("attempts/*/log/log.txt")
    assert log.read_text() == "counting\n"


def test_records_are_kept_and_count_for_no_digest(bench: Bench) -> None:
    target = words(text="a")
    first = digests(bench.run(target))
    assert digests(bench.run(target, force="words")) == first
    assert len({file.read_text() for file in step_folder(bench, target).glob("attempts/*/records/when")}) == 2


def test_progress_is_reported(bench: Bench) -> None:
    bench.run(squares(numbers=[1, 2]))
    (progress,) = [notice.data for notice in bench.notices if notice.verb == "progress"]
    assert (progress["done"], progress["total"], progress["unit"]) == (2, 2, "items")


def test_what_is_committed_to_a_bucket_is_told_while_it_is_uploaded(
    in_each_store: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "SOON", 0.0)
    in_each_store.run(words(text="a b"))
    told = [notice.data for notice in in_each_store.notices if notice.verb == "progress"]
    if in_each_store.objects.in_place:  # there is nothing to upload
        assert not told
        return
    assert {each["doing"] for each in told} == {"committing 3 files"}
    assert (told[-1]["figures"], told[-1]["unit"]) == ({"files": 3.0}, "bytes")
    assert told[-1]["done"] == told[-1]["total"] > 0


@pytest.mark.parametrize("limit", [1, 3])
def test_max_parallel_runs_everything(bench: Bench, limit: int) -> None:
    result = bench.run([number(value=value) for value in range(5)], max_parallel=limit)
    assert result.ok
    assert bench.ran() == {"number": 5}


@pytest.mark.parametrize(("said", "log"), [("", []), ("no end", ["no end"]), ("end\n", ["end"])])
def test_why_a_step_failed_is_the_last_thing_in_its_log(bench: Bench, said: str, log: list[str]) -> None:
    refused = refuses(said=said)
    result = bench.run(refused)
    assert list(lines(bench.objects, "refuses", False)) == [*log, "2 of 3 rows cannot be read"]
    bench.run(fails(word="grue"))
    first, *_, last = lines(bench.objects, "fails", False)
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: the word was grue")
    assert failure(result).count("2 of 3 rows cannot be read") == 1


def test_a_failed_step_without_its_log_is_told_all_the_same(local: Bench) -> None:
    assert "2 of 3 rows cannot be read" in failure(local.run(refuses(said="x", removed=True)))


def test_fail_fast_starts_nothing_new(bench: Bench) -> None:
    result = bench.run([fails(word="x"), *(number(value=value) for value in range(4))], fail_fast=True, max_parallel=1)
    assert result.exit_code == 1
    assert not bench.ran()["number"]
    assert "blocked by --fail-fast after fails" in [settled.message for settled in result.settled.values()]
