"""Substitutes: what another store has is taken instead of being made, when it is the same, and only what is needed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, adopted
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.run import fetching, substitutes
from marin_pipeline.run.adoption import Content, adopt
from marin_pipeline.run.scheduler import Scheduler
from marin_pipeline.store import layout, objects
from marin_pipeline.store.clock import now
from marin_pipeline.store.commit import Commit, Invalidation, invalidate, look
from marin_pipeline.store.gc import collect
from marin_pipeline.store.lease import Waiting
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.read_only import ReadOnlyObjects
from tests.conftest import Program
from tests.faults.faulty_objects import Fault, FaultyObjects, always
from tests.run.conftest import bench, inline
from tests.run.sample_steps import add, echo, fails, increment, joined, number, random_bytes, squares, times, words
from tests.run.sessions import Bench, digests, outcomes, value
from tests.store.test_copying import findings, is_believed

__all__ = ["bench", "inline"]

COUNT: Artifact[Any] = words(text="to be or not to be")
PRODUCT: Artifact[Any] = times(count=COUNT, factor=2)
TOTAL: Artifact[Any] = add(numbers=[PRODUCT, number(value=5)])


def step_id(artifact: Artifact[Any]) -> str:
    assert artifact.declaration is not None
    return artifact.declaration.step.id


def commit_of(store: ObjectStore, artifact: Artifact[Any]) -> Commit:
    commit = look(store, step_id(artifact), artifact.key).commit
    assert commit is not None
    return commit


@pytest.fixture
def theirs(inline: Bench, tmp_path: Path) -> Bench:
    """Somebody else's store, in which all is made."""
    other = replace(inline, prefix=tmp_path / "theirs", notices=[])
    assert other.run(TOTAL).ok
    assert other.ran() == Counter(words=1, times=1, number=1, add=1)
    return other


def taking(*benches: Bench, **options: Any) -> dict[str, Any]:
    return {"substitutes": [str(each.prefix) for each in benches], **options}


def tree(bench: Bench) -> dict[str, tuple[int, int]]:
    """Every file of a store, with its size and time."""
    return {
        os.path.relpath(file, bench.prefix): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in bench.prefix.rglob("*")
    }


def damage(bench: Bench, artifact: Artifact[Any]) -> Path:
    """Flip a byte of the value of an output."""
    folder = bench.prefix / layout.attempt(step_id(artifact), artifact.key, commit_of(bench.objects, artifact).attempt)
    file = folder / "out" / "value.json"
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    return file


def test_what_another_store_has_is_taken_and_nothing_runs(bench: Bench, tmp_path: Path) -> None:
    other = replace(bench, prefix=tmp_path / "theirs", notices=[])
    made = other.run(TOTAL)
    other.ran()
    before = tree(other)
    result = bench.run(TOTAL, **taking(other))
    assert result.ok
    assert bench.ran() == Counter()
    assert value(result, "add") == value(made, "add") == 17
    assert digests(result) == digests(made)
    assert commit_of(bench.objects, TOTAL).copied_from == str(other.prefix)
    assert findings(bench.objects) == []
    assert tree(other) == before


def test_what_only_taken_steps_are_made_from_stays_where_it_is(inline: Bench, theirs: Bench) -> None:
    plan = inline.plan(TOTAL, **taking(theirs))
    assert {each.node.name: (each.status, each.reason.split(",")[-1].strip()) for each in plan.nodes.values()} == {
        "words": ("cached", "not needed here"),
        "times": ("cached", "not needed here"),
        "number": ("cached", "not needed here"),
        "add": ("run", f"{commit_of(theirs.objects, TOTAL).bytes} B"),
    }
    assert f"from {theirs.prefix}" in plan.nodes[TOTAL.key].reason
    result = inline.run(TOTAL, **taking(theirs))
    assert outcomes(result) == dict.fromkeys(["words", "times", "number", "add"], "cached")
    assert [is_believed(inline.objects, each) for each in (COUNT, PRODUCT, TOTAL)] == [False, False, True]
    # They can be read all the same, where they are.
    assert value(result, "times") == 12
    assert [notice.node.name for notice in inline.notices if notice.verb == "fetched"] == ["add"]


def test_a_new_step_gets_its_inputs_and_no_more(inline: Bench, theirs: Bench) -> None:
    new: Artifact[Any] = increment(before=TOTAL)
    assert inline.statuses(new, **taking(theirs)) == {
        "words": "cached",
        "times": "cached",
        "number": "cached",
        "add": "run",
        "increment": "run",
    }
    result = inline.run(new, **taking(theirs))
    assert value(result, "increment") == 18
    assert not is_believed(inline.objects, PRODUCT)
    assert inline.ran() == Counter()


def test_a_second_run_needs_the_substitute_for_what_was_left_only(inline: Bench, theirs: Bench) -> None:
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert set(inline.statuses(TOTAL, **taking(theirs)).values()) == {"cached"}
    again = inline.run(TOTAL, **taking(theirs))
    assert again.ok
    assert inline.ran() == Counter()
    shutil.rmtree(theirs.prefix)
    assert value(inline.run([TOTAL], only=["add"]), "add") == 17


def test_a_damaged_output_is_said_and_made_here_from_inputs_that_are_taken(inline: Bench, theirs: Bench) -> None:
    file = damage(theirs, TOTAL)
    result = inline.run(TOTAL, **taking(theirs))
    assert value(result, "add") == 17
    assert inline.ran() == Counter(add=1)
    assert [is_believed(inline.objects, each) for each in (COUNT, PRODUCT, TOTAL)] == [False, True, True]
    (told,) = [notice.text for notice in inline.notices if notice.verb == "retry"]
    assert str(file) in told
    assert "sha256 differs" in told
    assert findings(inline.objects) == []


def test_all_is_made_here_when_all_is_damaged(inline: Bench, theirs: Bench) -> None:
    for artifact in (COUNT, PRODUCT, TOTAL, number(value=5)):
        damage(theirs, artifact)
    assert value(inline.run(TOTAL, **taking(theirs)), "add") == 17
    assert inline.ran() == Counter(words=1, times=1, number=1, add=1)


def test_the_next_store_is_asked_when_the_first_has_it_damaged(inline: Bench, theirs: Bench, tmp_path: Path) -> None:
    third = replace(theirs, prefix=tmp_path / "third")
    shutil.copytree(theirs.prefix, third.prefix)
    damage(theirs, TOTAL)
    assert inline.run(TOTAL, **taking(theirs, third)).ok
    assert inline.ran() == Counter()
    assert commit_of(inline.objects, TOTAL).copied_from == str(third.prefix)


def test_stores_are_asked_in_order(inline: Bench, theirs: Bench, tmp_path: Path) -> None:
    third = replace(theirs, prefix=tmp_path / "third")
    shutil.copytree(theirs.prefix, third.prefix)
    assert inline.run(TOTAL, **taking(third, theirs)).ok
    assert commit_of(inline.objects, TOTAL).copied_from == str(third.prefix)


def test_a_damaged_commit_of_a_substitute_is_said_and_not_taken(
    inline: Bench, theirs: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = theirs.prefix / layout.commit(step_id(TOTAL), TOTAL.key, 1)
    commit.write_bytes(commit.read_bytes()[:-9])
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert inline.ran() == Counter(add=1)
    assert f"warning: {commit}" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["nowhere", "a file"])
def test_a_store_that_is_not_there_is_said_once_and_the_run_goes_on(
    inline: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    (tmp_path / "a file").write_text("")
    assert inline.run(TOTAL, substitutes=[str(tmp_path / missing)]).ok
    assert inline.ran() == Counter(words=1, times=1, number=1, add=1)
    err = capsys.readouterr().err
    assert err.count("warning: ") <= 1
    assert missing == "a file" or f"{tmp_path / missing}: there is no store" in err


def between(monkeypatch: pytest.MonkeyPatch, rule: Callable[[str, str], Fault | None]) -> None:
    """Faults between the engine and substitutes; no patience."""
    monkeypatch.setattr(objects, "WAITS", ())
    monkeypatch.setattr(fetching, "WAITS", ())
    monkeypatch.setattr(substitutes, "open_given", lambda prefix, _: FaultyObjects(open_objects(prefix), rule))


def test_a_store_that_does_not_answer_is_said_once_and_asked_once(
    inline: Bench, theirs: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def rule(operation: str, path: str) -> Fault | None:
        asked.append(path)
        return "before"

    between(monkeypatch, rule)
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert inline.ran() == Counter(words=1, times=1, number=1, add=1)
    assert len(asked) == 1
    assert capsys.readouterr().err.count("warning: ") == 1


def test_a_store_that_goes_away_in_the_middle_is_said_once_and_the_run_goes_on(
    inline: Bench, theirs: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    between(monkeypatch, always("blocks", "", "before"))
    assert value(inline.run(TOTAL, **taking(theirs)), "add") == 17
    assert inline.ran() == Counter(words=1, times=1, number=1, add=1)
    assert capsys.readouterr().err.count("nothing more is taken from there") == 1


def test_a_reply_that_is_lost_once_is_asked_again(
    inline: Bench, theirs: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ["blocks", "read"]

    def once(operation: str, path: str) -> Fault | None:
        if operation in left and "/attempts/" in path:
            left.remove(operation)
            return "before"
        return None

    between(monkeypatch, once)
    monkeypatch.setattr(fetching, "WAITS", (0.0, 0.0))
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert left == []
    assert inline.ran() == Counter()


def test_force_takes_nothing(inline: Bench, theirs: Bench) -> None:
    assert inline.run(TOTAL, **taking(theirs, force=["add"])).ok
    assert inline.ran() == Counter(add=1)
    assert is_believed(inline.objects, PRODUCT)


@pytest.mark.parametrize(
    ("reason", "is_taken"),
    [("invalidated", False), ("forced", False), ("code", False), ("stale", True), ("collected", True)],
)
def test_what_was_ended_on_purpose_is_made_anew(inline: Bench, theirs: Bench, reason: str, is_taken: bool) -> None:
    assert inline.run(TOTAL).ok
    inline.ran()
    invalidate(inline.objects, step_id(TOTAL), TOTAL.key, 1, Invalidation(reason, "an example", now()))
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert inline.ran() == (Counter() if is_taken else Counter(add=1))
    assert commit_of(inline.objects, TOTAL).number == 2


def test_what_was_ended_in_the_substitute_is_not_taken(inline: Bench, theirs: Bench) -> None:
    invalidate(theirs.objects, step_id(TOTAL), TOTAL.key, 1, Invalidation("invalidated", "an example", now()))
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert inline.ran() == Counter(add=1)


def test_what_was_made_from_other_bytes_than_are_here_is_not_taken(inline: Bench, tmp_path: Path) -> None:
    target: Artifact[Any] = echo(text=random_bytes(seed=1))
    other = replace(inline, prefix=tmp_path / "theirs")
    assert other.run(target).ok
    assert inline.run(random_bytes(seed=1)).ok
    inline.ran()
    assert inline.statuses(target, **taking(other)) == {"random_bytes": "cached", "echo": "run"}
    result = inline.run(target, **taking(other))
    assert value(result, "echo") == value(result, "random_bytes")
    assert inline.ran() == Counter(echo=1)


@pytest.mark.parametrize("equal", [True, False])
def test_what_was_made_from_a_step_that_runs_here_is_taken_when_that_gives_the_same_bytes(
    inline: Bench, tmp_path: Path, equal: bool
) -> None:
    base: Artifact[Any] = words(text="a b") if equal else random_bytes(seed=1)
    target: Artifact[Any] = times(count=base) if equal else echo(text=base)
    other = replace(inline, prefix=tmp_path / "theirs")
    assert other.run(target).ok
    invalidate(other.objects, step_id(base), base.key, 1, Invalidation("invalidated", "an example", now()))
    inline.ran()
    planned = inline.plan(target, **taking(other)).nodes[target.key]
    assert planned.status == "run"
    assert planned.reason.endswith(f"unless {'words' if equal else 'random_bytes'} gives other bytes")
    assert inline.run(target, **taking(other)).ok
    assert inline.ran() == (Counter(words=1) if equal else Counter(random_bytes=1, echo=1))


DRIFTING = """
from marin_pipeline import Artifact, Context, main, step

@step(version=1)
def base(ctx: Context) -> int:
    return 1

@step(version=1)
def top(ctx: Context, base: Artifact[int]) -> int:
    return base.value + {number}

if __name__ == "__main__":
    main(top(base=base()))
"""


@pytest.fixture
def drifted(tmp_path: Path, program: Program) -> Path:
    """An experiment that ran in `theirs`, and whose code has changed since."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "sample"\n')
    file = tmp_path / "drifting.py"
    file.write_text(DRIFTING.format(number=1))
    assert program(file, prefix=tmp_path / "theirs").code == 0
    file.write_text(DRIFTING.format(number="0 + 1"))
    return file


def test_what_other_code_made_is_not_taken(drifted: Path, tmp_path: Path, program: Program) -> None:
    ran = program(drifted, "--json", "--substitute", str(tmp_path / "theirs"))
    assert ran.code == 0
    assert {name: (each["status"], "copied_from" in each) for name, each in ran.summary.items()} == {
        "base": ("cached", True),
        "top": ("done", False),
    }


def test_what_other_code_made_is_taken_where_it_is_accepted(drifted: Path, tmp_path: Path, program: Program) -> None:
    ran = program(drifted, "--json", "--substitute", str(tmp_path / "theirs"), "--code", "accept", "--reason", "equal")
    assert ran.code == 0
    assert {name: each["status"] for name, each in ran.summary.items()} == {"base": "cached", "top": "cached"}
    assert ran.summary["base"]["left"] is True
    assert program(drifted, "plan", "--check", "--substitute", str(tmp_path / "theirs")).code == 0
    (record,) = (tmp_path / "store").rglob("accepted/*.json")
    assert '"reason":"equal"' in record.read_text()


def test_what_a_person_accepted_there_counts_as_accepted_here(drifted: Path, tmp_path: Path, program: Program) -> None:
    assert program(drifted, "--code", "accept", "--reason", "equal", prefix=tmp_path / "theirs").code == 0
    ran = program(drifted, "--json", "--substitute", str(tmp_path / "theirs"))
    assert {name: each["status"] for name, each in ran.summary.items()} == {"base": "cached", "top": "cached"}
    assert program(drifted, "plan", "--check", "--substitute", str(tmp_path / "theirs")).code == 0


def test_what_is_declared_as_adopted_is_taken_too(inline: Bench, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a b c")
    other = replace(inline, prefix=tmp_path / "theirs")
    content = Content.of(tmp_path / "texts", "texts", "null")
    adopt(other.objects, content, 30.0)
    texts: Artifact[Any] = adopted("texts", content.digest)
    assert inline.statuses(texts) == {"texts": "blocked"}
    assert inline.statuses(texts, **taking(other)) == {"texts": "run"}
    result = inline.run(texts, **taking(other))
    assert result.ok
    assert (result.artifacts["texts"] / "a.txt").read_text() == "a b c"
    assert findings(inline.objects) == []


def test_a_failure_here_does_not_keep_from_taking_what_is_made_from_it(inline: Bench, tmp_path: Path) -> None:
    other = replace(inline, prefix=tmp_path / "theirs")
    assert other.run(TOTAL).ok
    target: Artifact[Any] = add(numbers=[PRODUCT, fails(word="x")])
    result = inline.run([target, TOTAL], **taking(other))
    assert outcomes(result)["fails"] == "failed"
    assert is_believed(inline.objects, TOTAL)


def test_steps_that_only_may_not_run_are_taken(inline: Bench, theirs: Bench) -> None:
    new: Artifact[Any] = increment(before=TOTAL)
    assert inline.run(new, **taking(theirs, only=["increment"])).ok


def test_many_steps_of_shards_are_taken_and_verified(bench: Bench, tmp_path: Path) -> None:
    target: list[Artifact[Any]] = [joined(squares=squares(numbers=[index, index + 1])) for index in range(12)]
    other = replace(bench, prefix=tmp_path / "theirs")
    made = other.run(target)
    other.ran()
    result = bench.run(target, **taking(other))
    assert digests(result) == digests(made)
    assert bench.ran() == Counter()
    assert findings(bench.objects) == []


def test_two_runs_at_once_take_it_once(inline: Bench, theirs: Bench) -> None:
    found: list[bool] = []
    start = threading.Barrier(3)

    def take() -> None:
        start.wait()
        found.append(replace(inline, notices=[]).run(TOTAL, **taking(theirs)).ok)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3
    assert inline.objects.names(f"{layout.step(step_id(TOTAL), TOTAL.key)}/commits") == ["1.json"]
    assert findings(inline.objects) == []


def test_a_key_that_somebody_is_at_work_on_is_waited_for(inline: Bench, theirs: Bench) -> None:
    lease = Waiting(inline.objects, layout.lease(step_id(TOTAL), TOTAL.key), 30.0).attempt()
    assert lease is not None
    timer = threading.Timer(1.0, lease.release)
    timer.start()
    assert inline.run(TOTAL, **taking(theirs)).ok
    timer.join()
    assert next(notice.verb for notice in inline.notices if notice.node.name == "add") == "wait"
    assert inline.ran() == Counter()


def test_gc_ends_what_was_taken_like_any_other(inline: Bench, theirs: Bench) -> None:
    import datetime

    assert inline.run(TOTAL, **taking(theirs)).ok
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    collect(inline.objects, delete=True, clock=lambda: later)
    assert is_believed(inline.objects, TOTAL)  # the newest run has it
    assert replace(inline.session(number(value=1)), experiment="tests/bench").run().ok
    much_later = later + datetime.timedelta(days=60)
    for name in inline.objects.list("names"):
        inline.objects.delete(name.path)
    collect(inline.objects, delete=True, clock=lambda: much_later)
    assert not is_believed(inline.objects, TOTAL)


class Slow(FaultyObjects):
    """Gives one block, and then waits until it is told to go on."""

    go_on = threading.Event()
    began = threading.Event()

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        for block in super().blocks(path, start, stop):
            self.began.set()
            self.go_on.wait(60)
            yield block


def test_a_run_that_is_stopped_while_it_takes_something_goes_on_next_time(
    inline: Bench, theirs: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow.go_on.clear()
    Slow.began.clear()
    monkeypatch.setattr(
        substitutes, "open_given", lambda prefix, _: Slow(open_objects(prefix), lambda operation, path: None)
    )

    stop = Scheduler._stop

    def seen(scheduler: Scheduler) -> None:
        stop(scheduler)
        Slow.go_on.set()

    monkeypatch.setattr(Scheduler, "_stop", seen)

    def interrupt() -> None:
        Slow.began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = inline.run(TOTAL, **taking(theirs))
    thread.join()
    assert result.interrupted
    assert not is_believed(inline.objects, TOTAL)
    monkeypatch.undo()
    assert inline.run(TOTAL, **taking(theirs)).ok
    assert inline.ran() == Counter()


def test_a_run_that_is_stopped_while_a_store_does_not_answer_waits_no_more(
    inline: Bench, theirs: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()

    def rule(operation: str, path: str) -> Fault | None:
        if operation == "blocks":
            silent.set()
            return "before"
        return None

    def interrupt() -> None:
        silent.wait(60)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    between(monkeypatch, rule)
    monkeypatch.setattr(fetching, "WAITS", (300.0,))
    thread, begun = threading.Thread(target=interrupt), time.monotonic()
    thread.start()
    assert inline.run(TOTAL, **taking(theirs)).interrupted
    assert time.monotonic() - begun < 120
    thread.join()


def test_nothing_can_be_written_to_a_store_that_is_only_looked_in(tmp_path: Path) -> None:
    store = ReadOnlyObjects(open_objects(str(tmp_path / "theirs")))
    for write in (
        lambda: store.create("a", b""),
        lambda: store.swap("a", b"", "1"),
        lambda: store.delete("a"),
        lambda: store.folder("a"),
        lambda: store.publish("a", []),
        lambda: store.writer("a"),
    ):
        with pytest.raises(StoreError, match="only looked in"):
            write()
    assert not (tmp_path / "theirs").exists()


def test_a_substitute_of_an_unknown_kind_is_wrong_use(inline: Bench) -> None:
    with pytest.raises(UsageError, match="--substitute ftp://"):
        inline.plan(TOTAL, substitutes=["ftp://host/store"])


def test_a_substitute_of_an_unknown_kind_in_the_environment_names_the_variable(
    inline: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_SUBSTITUTES", "ftp://host/store")
    with pytest.raises(UsageError, match="MARIN_SUBSTITUTES ftp://"):
        inline.plan(TOTAL)


def test_a_plan_says_for_programs_where_an_output_is_fetched_from(inline: Bench, theirs: Bench) -> None:
    trees = {each.node.key: each.tree() for each in inline.plan(TOTAL, **taking(theirs)).nodes.values()}
    assert trees[TOTAL.key]["from"] == theirs.objects.url
    assert [key for key, tree in trees.items() if "from" in tree] == [TOTAL.key]  # the others are not needed here
    assert not any("from" in each.tree() for each in inline.plan(TOTAL).nodes.values())


def test_a_store_that_is_its_own_substitute_is_not_looked_in_twice(inline: Bench) -> None:
    assert inline.run(TOTAL, **taking(inline)).ok
    assert inline.ran() == Counter(words=1, times=1, number=1, add=1)


def test_a_memory_store_can_be_a_substitute(inline: Bench, theirs: Bench) -> None:
    from marin_pipeline.store.copying import copy_output

    url = f"memory://{uuid.uuid4().hex}"
    copy_output(theirs.objects, open_objects(url), step_id(TOTAL), TOTAL.key, commit_of(theirs.objects, TOTAL))
    assert inline.run(TOTAL, substitutes=[url]).ok
    assert inline.ran() == Counter(words=1, times=1, number=1)  # there, only what was copied


HELLO = """
from marin_pipeline import Artifact, Context, main, step

@step
def part(ctx: Context, index: int) -> int:
    return index

@step
def whole(ctx: Context, parts: list[Artifact[int]]) -> int:
    return sum(each.value for each in parts)

if __name__ == "__main__":
    main([whole(parts=[part(index=index) for index in range(20)]), *[part(index=index) for index in range(20)]])
"""


def test_the_screen_counts_what_is_fetched_and_the_environment_names_substitutes(
    tmp_path: Path, program: Program
) -> None:
    file = tmp_path / "hello.py"
    file.write_text(HELLO)
    theirs = tmp_path / "theirs"
    assert program(file, prefix=theirs).code == 0
    extra = {"MARIN_SUBSTITUTES": f"{tmp_path / 'nowhere'}, {theirs}"}
    plan = program(file, "plan", extra=extra)
    assert " · 21 to fetch" in plan.out.splitlines()[0]
    assert f"run      (21 steps)  from {theirs}, " in plan.out
    assert f"warning: {tmp_path / 'nowhere'}: there is no store" in plan.err
    ran = program(file, extra=extra)
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("21 fetched in ")
    assert program(file, "plan", "--check").code == 0


def test_json_says_what_was_fetched_and_what_was_left(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "hello.py"
    file.write_text(HELLO.replace(", *[part(index=index) for index in range(20)]]", "]"))
    theirs = tmp_path / "theirs"
    assert program(file, prefix=theirs).code == 0
    ran = program(file, "--json", "--substitute", str(theirs))
    assert ran.code == 0
    whole = ran.summary["whole"]
    assert (whole["status"], whole["fetched"], whole["copied_from"]) == ("cached", True, str(theirs))
    assert whole["path"].startswith(str(tmp_path / "store"))
    part = next(each for name, each in ran.summary.items() if name != "whole")
    assert part["left"] is True
    assert part["path"].startswith(str(theirs))
    (fetched,) = [event for event in ran.events if event["event"] == "fetched"]
    assert fetched["copied_from"] == str(theirs)
