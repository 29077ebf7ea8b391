"""A step says by the values of its inputs that it cannot use them, before anything is started for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_pipeline import Artifact, step
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.hooks import ask_ready
from marin_pipeline.core.step import Step
from marin_pipeline.run.driver import RunFailed
from marin_pipeline.run.driver import run as run_from_python
from marin_pipeline.run.readiness import with_refusals
from marin_pipeline.store import layout
from marin_pipeline.store.lease import read_lease
from tests.conftest import Program
from tests.faults.faulty_objects import FaultyObjects, nth
from tests.run.ready_steps import (
    Shelf,
    after,
    asking,
    describe,
    enough,
    reading,
    sell,
    set_stock,
    stock,
)
from tests.run.sample_steps import number, words
from tests.run.sessions import Bench, failure, outcomes, step_folder, value

SOURCE = stock()
SOLD = sell(source=SOURCE, sold=5)
LAST = after(left=SOLD)
REFUSED = "3 apples are there, and 5 are sold; sell fewer"


def held(bench: Bench, artifact: Artifact[Any]) -> list[str]:
    """All that the store has of a key, but for what says who may make it."""
    folder = step_folder(bench, artifact)
    files = (str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in files if name not in ("lease.json", "spec.json"))


def nobody_is_at_work(bench: Bench, artifact: Artifact[Any]) -> bool:
    declaration = artifact.declaration
    assert declaration is not None
    return read_lease(bench.objects, layout.lease(declaration.step.id, artifact.key)) is None


def test_a_step_whose_inputs_do_not_fit_fails_and_nothing_is_started_for_it(bench: Bench) -> None:
    set_stock(bench.counts, 3)
    result = bench.run([LAST, number(value=1)])
    assert outcomes(result) == {"stock": "done", "sell": "failed", "after": "blocked", "number": "done"}
    assert result.exit_code == 1
    ((node, failed),) = result.failures
    assert (node.name, failed.kind, failed.message, failed.traceback) == ("sell", "user", REFUSED, "")
    assert result.settled[LAST.key].message == "blocked by sell"
    assert bench.ran() == {"stock": 1, "asked": 1, "number": 1}
    assert [notice.verb for notice in bench.notices if notice.node is not None and notice.node.name == "sell"] == [
        "fail"
    ]
    assert held(bench, SOLD) == []
    assert nobody_is_at_work(bench, SOLD)


def test_a_rerun_asks_again_and_passes_when_the_input_was_rebuilt(bench: Bench) -> None:
    set_stock(bench.counts, 3)
    bench.run(LAST)
    assert bench.outcomes(LAST) == {"stock": "cached", "sell": "failed", "after": "blocked"}
    assert bench.ran() == {"stock": 1, "asked": 2}
    set_stock(bench.counts, 7)
    result = bench.run(LAST, force=["stock"])
    assert outcomes(result) == {"stock": "done", "sell": "done", "after": "done"}
    assert value(result, "after") == 2
    assert bench.ran() == {"stock": 1, "asked": 1, "sell": 1, "after": 1}


def test_a_step_is_asked_when_it_is_made_again_and_not_when_it_is_done(bench: Bench) -> None:
    set_stock(bench.counts, 7)
    bench.run(LAST)
    assert bench.ran()["asked"] == 1
    bench.run(LAST)
    assert bench.ran() == {}
    bench.run(LAST, force=["sell"])
    assert bench.ran() == {"asked": 1, "sell": 1}
    set_stock(bench.counts, 8)
    bench.run(LAST, force=["stock"])
    assert bench.ran() == {"stock": 1, "asked": 1, "sell": 1, "after": 1}


def test_a_step_whose_equal_result_is_adopted_is_not_asked(inline: Bench) -> None:
    set_stock(inline.counts, 7)
    inline.run(SOLD)
    inline.ran()
    other = sell(source=stock(shelf=2), sold=5)
    result = inline.run(other)
    assert [notice.verb for notice in inline.notices].count("adopt") == 1
    assert outcomes(result)["sell"] == "cached"
    assert inline.ran() == {"stock": 1}


@pytest.mark.parametrize("force", ["sell", "stock"])
def test_a_step_that_is_to_be_made_again_and_may_not_keeps_what_it_has(bench: Bench, force: str) -> None:
    """Forced, or stale since its input was rebuilt: what it made before counts until it may be made again."""
    set_stock(bench.counts, 7)
    bench.run(SOLD)
    before = held(bench, SOLD)
    set_stock(bench.counts, 3)
    if force == "sell":
        bench.run(SOURCE, force=["stock"])
    assert bench.outcomes(SOLD, force=[force])["sell"] == "failed"
    assert held(bench, SOLD) == before
    assert nobody_is_at_work(bench, SOLD)
    assert bench.statuses(SOLD) == {"stock": "cached", "sell": "stale"}
    set_stock(bench.counts, 7)
    result = bench.run(SOLD, force=["stock"])
    assert result.ok
    assert value(result, "sell") == 2


def test_an_older_failure_is_still_told(bench: Bench) -> None:
    set_stock(bench.counts, 7)
    broken = sell(source=SOURCE, sold=5, broken=True)
    bench.run(broken)
    before = held(bench, SOLD)
    told = bench.reasons(SOLD)["sell"]
    assert told.endswith("failed before: the scales are broken; mend them")
    set_stock(bench.counts, 3)
    assert bench.outcomes(SOLD, force=["stock"])["sell"] == "failed"
    assert held(bench, SOLD) == before
    assert bench.reasons(SOLD)["sell"] == told


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.integers(-3, 3), max_size=4),
    texts=st.lists(st.text(alphabet="ab c", max_size=5), max_size=2),
    text=st.text(max_size=5),
    limits=st.sets(st.floats(allow_nan=False), max_size=2),
    quick=st.booleans(),
)
def test_it_is_asked_once_a_start_with_the_values_that_the_step_then_sees(
    inline: Bench, parts: list[int], texts: list[str], text: str, limits: set[float], quick: bool
) -> None:
    noted = inline.counts / "noted"
    noted.unlink(missing_ok=True)
    made = [words(text=each) for each in texts]
    shelf = Shelf(tuple(each / "words.txt" for each in made), {f"of {index}": each for index, each in enumerate(made)})
    numbers: list[Artifact[int]] = [number(value=each) for each in parts]
    result = inline.run(describe(numbers, shelf, text, limits, quick), force=["describe"])
    assert result.ok, failure(result)
    assert noted.read_text() == value(result, "describe") + "\n"


def test_the_values_are_those_that_the_process_of_the_step_sees(local: Bench) -> None:
    made = words(text="a bb")
    target = describe([number(value=3)], Shelf((made / "deep" / "length",), {"x": made}), "t", {0.5}, True)
    seen = value(local.run(target), "describe")
    assert (local.counts / "noted").read_text() == seen + "\n"
    assert "Count(words=2, longest='bb', colours=(<Colour.BLUE: 2>,))" in seen


def test_in_each_store_values_are_read_and_nothing_is_started(in_each_store: Bench) -> None:
    set_stock(in_each_store.counts, 3)
    assert in_each_store.outcomes(LAST) == {"stock": "done", "sell": "failed", "after": "blocked"}
    set_stock(in_each_store.counts, 7)
    assert set(in_each_store.outcomes(LAST, force=["stock"]).values()) == {"done"}
    assert in_each_store.ran() == {"stock": 2, "asked": 2, "sell": 1, "after": 1}


def test_a_store_that_does_not_answer_is_asked_again(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_pipeline.run.scheduler.PATIENCE", (0,) * 4)
    monkeypatch.setattr("marin_pipeline.store.objects.WAITS", (0, 0))
    set_stock(inline.counts, 7)
    inline.run(SOURCE)
    inline.ran()
    wrapped: list[FaultyObjects] = []

    def wrap(objects: Any) -> FaultyObjects:
        wrapped.append(FaultyObjects(objects, nth("fetch", "value.json", "before")))
        return wrapped[-1]

    inline.wrap = wrap
    assert inline.outcomes(SOLD) == {"stock": "cached", "sell": "done"}
    assert [path.rpartition("/")[2] for _, path in wrapped[-1].faults] == ["value.json"]
    assert [notice.verb for notice in inline.notices].count("retry") == 1
    assert inline.ran() == {"asked": 1, "sell": 1}


def test_a_value_that_is_damaged_fails_the_step_and_starts_nothing(inline: Bench) -> None:
    set_stock(inline.counts, 7)
    inline.run(SOURCE)
    (file,) = step_folder(inline, SOURCE).glob("attempts/*/out/value.json")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[::-1])
    result = inline.run(SOLD)
    assert outcomes(result) == {"stock": "cached", "sell": "failed"}
    assert "its bytes are not those that were committed" in failure(result)
    assert inline.ran() == {"stock": 1}


def test_what_asks_wrongly_is_told_with_the_step_and_the_others_go_on(bench: Bench) -> None:
    set_stock(bench.counts, 3)
    result = bench.run([asking(source=SOURCE), reading(source=SOURCE), number(value=1)])
    assert outcomes(result) == {"stock": "done", "asking": "failed", "reading": "failed", "number": "done"}
    told = {node.name: failed.message for node, failed in result.failures}
    assert told["asking"].startswith("step asking (ready_steps.py:")
    assert "ready= raised KeyError: 'apples'; it is a function of one argument" in told["asking"]
    assert "ready= reads the file 'list.txt' of stock; it is asked before the step starts" in told["reading"]
    assert bench.ran() == {"stock": 1, "number": 1}


@pytest.mark.parametrize("returned", [False, "too few", 0])
def test_a_refusal_that_is_returned_is_not_taken_for_consent(returned: Any) -> None:
    ask_ready("step sell (file.py:1)", lambda arguments: None, {})
    told = rf"step sell \(file.py:1\): ready= returned a {type(returned).__name__}; it is a function of one argument"
    with pytest.raises(DeclarationError, match=told):
        ask_ready("step sell (file.py:1)", lambda arguments: returned, {})


def test_what_cannot_be_asked_is_refused_when_the_step_is_declared() -> None:
    with pytest.raises(DeclarationError, match=r"step sell .*: ready= cannot be called so .* returns None, or raises"):
        step(ready=lambda: None)(sell.fn)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_it_is_in_no_key() -> None:
    assert Step(sell.fn)(source=SOURCE, sold=5).key == SOLD.key
    assert sell.ready is enough


def test_from_python_the_error_begins_with_the_step_and_what_it_said(inline: Bench) -> None:
    set_stock(inline.counts, 3)
    with pytest.raises(RunFailed, match=rf"\Asell: {REFUSED}\nafter: blocked by sell\Z"):
        run_from_python(LAST, quiet=True, prefix=str(inline.prefix), backend="inline")


def test_a_plan_says_what_will_be_refused_where_all_inputs_are_there(inline: Bench) -> None:
    def told() -> dict[str, str]:
        session = inline.session(LAST)
        return {each.node.name: each.reason for each in with_refusals(session.plan(), session.objects).nodes.values()}

    set_stock(inline.counts, 3)
    assert told() == inline.reasons(LAST)  # nothing to ask of yet
    inline.run(SOURCE)
    assert told() == {**inline.reasons(LAST), "sell": f"new; will not be started: {REFUSED}"}
    assert inline.ran() == {"stock": 1, "asked": 1}
    set_stock(inline.counts, 7)
    inline.run(SOURCE, force=["stock"])
    assert told() == inline.reasons(LAST)
    inline.run(LAST)
    inline.ran()
    assert told() == inline.reasons(LAST)  # it is done
    assert inline.ran() == {}


PROGRAM = """
import sys
from marin_pipeline import Artifact, Context, main, step
from marin_pipeline.core.errors import InputError

@step
def tokens(ctx: Context, count: int) -> int:
    return count

def refuse_few(arguments):
    print("asking")
    if arguments["held"].value < 10:
        raise InputError("held: fewer than 10 tokens; give more")
    loaded = {"jax", "numpy", "pyarrow", "ray", "fsspec"} & set(sys.modules)
    if loaded:
        raise InputError(f"the run has loaded {loaded}")

@step(ready=refuse_few)
def train(ctx: Context, held: Artifact[int]) -> int:
    import numpy
    return held.value

def build(count: int = 3) -> Artifact[int]:
    return train(held=tokens(count=count))

if __name__ == "__main__":
    main(build)
"""


def test_the_events_of_a_program_say_what_failed_and_nothing_heavy_is_loaded(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "work" / "program.py"
    file.parent.mkdir()
    file.write_text(PROGRAM)
    ran = program(file, "--json")
    assert ran.code == 1
    events = [json.loads(line) for line in ran.out.splitlines()]
    (failed,) = [each for each in events if each["event"] == "fail"]
    assert (failed["name"], failed["kind"], failed["text"]) == (
        "train",
        "user",
        "held: fewer than 10 tokens; give more",
    )
    assert {step["name"]: step["status"] for step in events[-1]["steps"]} == {"tokens": "done", "train": "failed"}
    assert not [each for each in events if each["event"] == "run" and each["name"] == "train"]
    *_, planned = [json.loads(line) for line in program(file, "plan", "--json").out.splitlines()]
    assert planned["status"] == "run"
    assert planned["reason"].endswith("will not be started: held: fewer than 10 tokens; give more")
    assert "will not be started: held: fewer than 10 tokens" in program(file, "explain", "train").out
    shown = program(file)
    assert shown.code == 1
    assert "held: fewer than 10 tokens; give more" in shown.out + shown.err
    assert "Traceback" not in shown.out + shown.err
    assert program(file, "--json", "--count", "10").code == 0
