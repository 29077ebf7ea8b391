"""`run` and `load` from Python, stores in memory, and graphs of a size."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Experiment, load, run
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.run.driver import RunFailed
from tests.conftest import Program
from tests.run.sample_steps import add, fails, increment, number, times, words
from tests.run.sessions import Bench, outcomes, value


def test_run_returns_the_artifact_with_its_output_and_load_finds_it(bench: Bench) -> None:
    prefix = str(bench.prefix)
    target = times(count=words(text="a bb"), factor=2)
    assert run(target, prefix=prefix, backend=bench.backend).value == 4
    found = load("words", prefix=prefix)
    assert (found.value.words, found.value.longest) == (2, "bb")
    assert (found / "words.txt").read_text() == "a\nbb"
    assert load(target.key[:8], prefix=prefix).value == 4
    with pytest.raises(UsageError, match="'nothing' is no name and no key"):
        load("nothing", prefix=prefix)


def test_a_failed_run_says_why_with_the_traceback_first(inline: Bench) -> None:
    with pytest.raises(RunFailed) as caught:
        run([add(numbers=[fails(word="grue")])], prefix=str(inline.prefix), backend="inline")
    text = str(caught.value)
    assert text.index("in fails") < text.index("add: blocked by fails")


@pytest.fixture
def lower_limit() -> Iterator[int]:
    """Calls that may be open at once: far fewer than Python allows, so that a short chain shows a recursion."""
    before, limit = sys.getrecursionlimit(), 400
    sys.setrecursionlimit(limit)
    yield limit
    sys.setrecursionlimit(before)


def test_an_unknown_option_is_refused(inline: Bench) -> None:
    with pytest.raises(UsageError, match="no option speed"):
        run(number(value=1), speed=3)
    wrong_options: list[dict[str, Any]] = [
        {"code": "maybe"},
        {"max_parallel": 0},
        {"lease_life": 0.0},
        {"backend": "cloud"},
    ]
    for wrong in wrong_options:
        with pytest.raises(UsageError, match=str(*wrong.values())):
            run(number(value=1), prefix=str(inline.prefix), **wrong)


def test_a_life_of_a_lease_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_LEASE_SECONDS", "soon")
    with pytest.raises(UsageError, match="MARIN_LEASE_SECONDS='soon'"):
        run(number(value=1))


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e-9", "0", "-5"])
def test_a_life_of_a_lease_that_no_run_could_keep_is_refused(
    inline: Bench, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    monkeypatch.setenv("MARIN_LEASE_SECONDS", seconds)
    with pytest.raises(UsageError, match=r"MARIN_LEASE_SECONDS: .* must be from 0\.1 to 86400"):
        run(number(value=1), prefix=str(inline.prefix), backend="inline")
    assert not inline.ran()


@pytest.mark.parametrize("seconds", ["inf", "nan", "0", "-1"])
def test_no_command_takes_a_life_of_a_lease_that_no_run_could_keep(
    program: Program, tmp_path: Path, seconds: str
) -> None:
    tool, kept = tmp_path / "tool.py", tmp_path / "kept.txt"
    tool.write_text("from marin_pipeline.tool import main\nmain()\n")
    kept.write_text("kept")
    assert program(tool, "adopt", str(kept), "--as", "kept").code == 0
    for command in (["gc"], ["adopt", str(kept), "--as", "more"]):
        ran = program(tool, *command, extra={"MARIN_LEASE_SECONDS": seconds})
        assert (ran.code, ran.out) == (2, "")
        assert f"MARIN_LEASE_SECONDS: {float(seconds)} must be from 0.1 to 86400" in ran.err


def test_an_experiment_can_be_run_and_nothing_is_printed_on_stdout(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    experiment = Experiment("Two numbers", [number(value=3), words(text="a b")])
    first, second = run(experiment, prefix=str(bench.prefix), backend=bench.backend)
    assert (first.value, second.value.words) == (3, 2)
    out, err = capfd.readouterr()
    assert not out
    assert "number" in err
    run(experiment, prefix=str(bench.prefix), backend=bench.backend)
    assert capfd.readouterr() == ("", "")


def test_a_store_in_memory_is_for_inline_only(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    assert run(times(count=words(text="a b")), prefix=url, backend="inline").value == 2
    assert run(times(count=words(text="a b")), prefix=url, backend="inline", force=["words"]).value == 2
    with pytest.raises(UsageError, match="seen by this process only; add --backend inline"):
        run(number(value=1), prefix=url)


def test_a_prefix_that_is_a_file_is_refused_before_anything_runs(inline: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a file stands where a folder is needed; choose another prefix"):
        run(number(value=1), prefix=str(tmp_path / "file"), backend="inline")
    assert not inline.ran()


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_small_steps_run(inline: Bench, count: int) -> None:
    result = inline.run(add(numbers=[number(value=each) for each in range(count)]))
    assert result.ok
    assert value(result, "add") == sum(range(count))


@pytest.mark.parametrize("length", [450, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_long_chain_runs_without_recursion(inline: Bench, lower_limit: int, length: int) -> None:
    assert length > lower_limit
    last = number(value=0)
    for _ in range(length):
        last = increment(before=last)
    result = inline.run(last)
    assert set(outcomes(result).values()) == {"done"}
    assert result.bound(last.key).value == length


def test_what_was_loaded_can_be_the_input_of_a_new_step(bench: Bench) -> None:
    prefix = str(bench.prefix)
    run(words(text="a bb"), prefix=prefix, backend=bench.backend)
    assert run(times(count=load("words", prefix=prefix), factor=5), prefix=prefix, backend=bench.backend).value == 10


def test_what_was_loaded_from_another_store_is_not_made_again(inline: Bench, tmp_path: Path) -> None:
    run(words(text="a bb"), prefix=str(inline.prefix), backend="inline")
    elsewhere = load("words", prefix=str(inline.prefix))
    with pytest.raises(RunFailed, match=r"words: .*loaded from a store, and is not made again here"):
        run(times(count=elsewhere, factor=5), prefix=str(tmp_path / "other"), backend="inline")
