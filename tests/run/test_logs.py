"""What a step prints can be read while it runs, after it failed, and after its process was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline.core.errors import UsageError
from marin_pipeline.run.history import RunRecord, all_runs, begin_run, run_stem
from marin_pipeline.run.logs import Following, Line, follow, lines
from marin_pipeline.run.movement import moving
from marin_pipeline.run.runs import list_runs
from marin_pipeline.run.selection import find_step
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name, now
from marin_pipeline.store.lease import Holder, LeaseRecord, Waiting, this_process
from marin_pipeline.store.names import owner
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.conftest import environment
from tests.run.sample_steps import add, fails, number, squares, times, words
from tests.run.sessions import Bench, step_folder, wait_until
from tests.stores import new_prefix

PRINTING = """
import os
import sys
import time
from pathlib import Path
from marin_pipeline import Artifact, Context, ShardContext, main, step

GATE = Path(os.environ["GATE"])

def wait(name):
    (GATE / f"{name}.{os.getpid()}").touch()
    while not (GATE / f"open-{name}").exists():
        time.sleep(0.01)

@step
def first(ctx: Context) -> int:
    print("first begins")
    wait("first")
    return 1

def part(shard: ShardContext, item: int) -> int:
    print(f"part {item}")
    wait("part")
    if item == 13:
        raise ValueError("thirteen")
    print("no end", end="")
    return item

@step
def second(ctx: Context, before: Artifact[int], items: list[int]) -> int:
    print("second begins", flush=True)
    results = ctx.map(part, items)
    print("second ends")
    return len(results)

def build(item: int = 2) -> Artifact[int]:
    return second(before=first(), items=[1, item])

if __name__ == "__main__":
    main(build)
"""

TOOL = (sys.executable, "-c", "from marin_pipeline.tool import main; main()")


@dataclass
class Stage:
    """A program whose steps wait, and what watches it."""

    folder: Path
    prefix: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.prefix)

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(self.prefix), "GATE": str(self.folder / "gate")},
        )
        self.processes.append(process)
        return process

    def program(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(sys.executable, str(self.folder / "printing.py"), "--json", *arguments)

    def tool(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(*TOOL, *arguments)

    def at(self, name: str, but: int = 0) -> int:
        """Process id of what waits at a gate."""

        def found() -> list[int]:
            pids = [int(file.suffix[1:]) for file in (self.folder / "gate").glob(f"{name}.*")]
            return [pid for pid in pids if pid != but]

        return wait_until(found)[0]

    def kept(self, name: str = "log.txt") -> list[str]:
        """What the store has of the logs of the attempts, or of other files, in order."""
        paths = [info.path for info in self.objects.list("steps") if info.path.endswith(f"/{name}")]
        return [b"".join(self.objects.blocks(path)).decode() for path in paths]

    def open(self, *names: str) -> None:
        for name in names:
            (self.folder / "gate" / f"open-{name}").touch()


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.slow)])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Over files, and over a store to which logs are uploaded."""
    (tmp_path / "gate").mkdir()
    (tmp_path / "printing.py").write_text(PRINTING)
    found = Stage(tmp_path, new_prefix(request, request.param))
    yield found
    for process in found.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out.splitlines()


def test_a_running_step_is_followed_by_name_to_its_end_with_its_shards(stage: Stage) -> None:
    driver = stage.program()
    stage.at("first")
    follower = stage.tool("logs", "second", "--follow")
    assert follower.stdout is not None
    assert "waits for its turn in printing@1, where first runs" in follower.stdout.readline()
    stage.open("first")
    begun = [follower.stdout.readline() for _ in range(3)]
    assert begun[0] == "second begins\n"
    stage.open("part")
    code, rest = ended(follower)
    assert code == 0
    assert "second ends" in rest
    assert ended(driver)[0] == 0
    code, whole = ended(stage.tool("logs", "second"))
    assert code == 0
    assert sorted(whole) == sorted(
        [
            "second begins",
            "second ends",
            *(f"second[{index}] {text}" for index in (0, 1) for text in (f"part {index + 1}", "no end")),
        ]
    )
    assert len(rest) + 3 == len(whole), "nothing is shown twice"


def test_a_failed_step_is_followed_to_its_failure_and_its_shards_are_found_after(stage: Stage) -> None:
    stage.open("first", "part")
    driver = stage.program("--item", "13")
    assert ended(driver)[0] == 1
    code, found = ended(stage.tool("logs", "second", "--follow", "--json"))
    assert code == 1
    events = [json.loads(line) for line in found]
    assert events[-1]["event"] == "failed"
    assert "thirteen" in events[-1]["message"]
    assert {"shard": "second[1]", "line": "part 13"}.items() <= next(
        event for event in events if event.get("line") == "part 13"
    ).items()
    assert all(event["key"] == events[0]["key"] for event in events)
    assert "second[1] part 13" in ended(stage.tool("logs", "second"))[1]


def test_a_killed_worker_leaves_its_log_and_the_next_attempt_is_followed(stage: Stage) -> None:
    driver = stage.program()
    worker = stage.at("first")
    follower = stage.tool("logs", "first", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first begins\n"
    os.kill(worker, signal.SIGKILL)
    stage.at("first", but=worker)
    stage.open("first", "part")
    assert ended(follower) == (0, ["first begins"])
    assert ended(driver)[0] == 0
    assert stage.kept()[:2] == ["first begins\n"] * 2


def test_a_killed_driver_leaves_a_log_and_a_run_that_has_ended(stage: Stage) -> None:
    driver = stage.program()
    stage.at("first")
    (run,) = all_runs(stage.objects)
    record = run.read(stage.objects)
    assert record is not None
    assert (run.name, run.state(record), record.statuses) == ("printing@1", "running", {})
    wait_until(lambda: stage.kept() == ["first begins\n"])
    driver.kill()
    driver.wait()
    assert run.state(record) == "ended"
    id, key = find_step(stage.objects, "first")
    ticks = iter(range(0, 100_000, 3))
    following = Following(stage.objects, id, key, sleep=lambda seconds: None, clock=lambda: float(next(ticks)))
    assert [str(line) for line in following] == ["first begins"]
    assert following.state == "ended"
    code, found = ended(stage.tool("logs", key[:10]))
    assert (code, found) == (0, ["first begins"])


def test_ctrl_c_ends_a_follower_with_130(stage: Stage) -> None:
    stage.program()
    stage.at("first")
    follower = stage.tool("logs", "first", "--follow")
    assert follower.stdout is not None
    follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    assert ended(follower)[0] == 130


def test_a_step_that_was_never_tried_is_told(stage: Stage) -> None:
    stage.open("first", "part")
    ended(stage.program("--until", "first"))
    code, _ = ended(stage.tool("logs", "nothing", "--follow"))
    assert code == 2


def test_the_log_of_a_failed_attempt_is_found_by_name_before_an_older_result(inline: Bench) -> None:
    assert inline.run(squares(numbers=[2])).ok
    assert not inline.run(squares(numbers=[13])).ok
    assert find_step(inline.objects, "squares", newest=True)[1] == squares(numbers=[13]).key
    assert find_step(inline.objects, "squares")[1] == squares(numbers=[2]).key
    assert find_step(inline.objects, "squares@1")[1] == squares(numbers=[2]).key
    assert not inline.run(fails(word="x")).ok
    assert list(lines(inline.objects, "fails", False))[-1] == "ValueError: the word was x"
    with pytest.raises(UsageError, match="'nothing' is no name and no key"):
        find_step(inline.objects, "nothing")


def test_the_log_of_an_adopted_output_is_that_of_the_attempt_that_made_it(inline: Bench) -> None:
    source = add(numbers=[number(value=2)]).named("source")
    taken = add(numbers=[times(count=words(text="a b"))]).named("taken")
    inline.run(source)
    inline.run(taken)
    (log,) = step_folder(inline, source).glob("attempts/*/log/log.txt")
    log.write_bytes(b"one\n")
    told, line = lines(inline.objects, "taken", False)
    assert told.startswith(f"{add.id} {taken.key[:8]} was adopted from {add.id} {source.key[:8]}, whose attempt")
    assert line == "one"
    (tree,) = map(json.loads, lines(inline.objects, "taken", True))
    assert (tree["key"], tree["adopted_from"]["key"], tree["line"]) == (taken.key, source.key, "one")
    followed: list[str] = []
    assert follow(inline.objects, "taken", False, followed.append) == 0
    assert followed == [told, "one"]


@dataclass
class Passing:
    """Time that passes only while a follower sleeps, a second at a time."""

    seconds: float = 0.0
    each: Callable[[float], None] = lambda seconds: None
    """Called after each."""

    def sleep(self, seconds: float) -> None:
        self.seconds += 1.0
        assert self.seconds < 1000
        self.each(self.seconds)

    def clock(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("machine", "ends"), [(None, 405), ("elsewhere", 305)])
def test_a_step_runs_while_its_holder_is_known_to_be_there_or_may_yet_renew_its_lease(
    inline: Bench, monkeypatch: pytest.MonkeyPatch, machine: str | None, ends: int
) -> None:
    monkeypatch.setenv("MARIN_LEASE_SECONDS", "300")
    step = (number.id, number(value=1).key)
    inline.objects.create(layout.attempt_log(*step, attempt_name()), b"")
    lease = Waiting(inline.objects, layout.lease(*step), 300).attempt()
    assert lease is not None
    if machine is not None:
        record = LeaseRecord(2, 0, replace(this_process(), machine=machine))
        (inline.prefix / layout.lease(*step)).write_bytes(record.dumps())
    time = Passing(each=lambda seconds: lease.release() if seconds == 400 else None)
    monkeypatch.setattr("marin_pipeline.run.logs.Following", partial(Following, sleep=time.sleep, clock=time.clock))
    told: list[str] = []
    begin(inline, {"number": step}, None)
    assert follow(inline.objects, "number", True, told.append) == 1
    assert json.loads(told[-1])["event"] == "ended"
    assert ends <= time.seconds <= ends + 3


def begin(bench: Bench, steps: dict[str, tuple[str, str]], process: Holder | None) -> None:
    """Record that a run has begun."""
    record = RunRecord("tests/other", "", [], owner(), now(), "", False, steps, process=process)
    begin_run(bench.objects, record, run_stem(record.started))


def test_a_run_of_another_machine_goes_on_while_it_moves_a_lease(inline: Bench) -> None:
    steps = {"first": (number.id, number(value=3).key), "late": (number.id, number(value=4).key)}
    begin(inline, steps, replace(this_process(), machine="elsewhere"))
    path = layout.lease(*steps["first"])
    assert Waiting(inline.objects, path, 30).attempt() is not None

    def renew(seconds: float) -> None:
        if seconds <= 100:
            record = LeaseRecord(1, int(seconds), replace(this_process(), machine="elsewhere"))
            (inline.prefix / path).write_bytes(record.dumps())

    time = Passing(each=renew)
    following = Following(inline.objects, *steps["late"], sleep=time.sleep, clock=time.clock)
    assert following.expected
    assert list(following) == []
    assert following.state == "ended"
    assert 135 <= time.seconds <= 138


@pytest.mark.parametrize("renews", [True, False])
def test_runs_says_of_a_run_of_another_machine_whether_it_renews_its_leases(
    inline: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, renews: bool
) -> None:
    there = replace(this_process(), machine="elsewhere", host="far")
    step = (number.id, number(value=3).key)
    begin(inline, {"first": step}, there)
    path = inline.prefix / layout.lease(*step)
    path.parent.mkdir(parents=True)

    def renew(seconds: float) -> None:
        path.write_bytes(LeaseRecord(1, int(seconds) if renews else 0, replace(there, uuid="other")).dumps())

    renew(0)
    time = Passing(each=renew)
    monkeypatch.setattr("marin_pipeline.run.runs.moving", partial(moving, sleep=time.sleep, clock=time.clock))
    (line,) = list_runs(inline.objects, None, False)
    assert time.seconds <= 10.5
    told = "1 step; no end is recorded, and far, process"
    assert (" running  1 step" in line, f" silent   {told}" in line) == (renews, not renews)
    assert "looking for up to 10 s whether 1 run of other machines" in capsys.readouterr().err
    (tree,) = [json.loads(line) for line in list_runs(inline.objects, None, True)]
    assert (tree["state"], tree["host"]) == ("running" if renews else "silent", "far")


def test_of_a_run_that_holds_no_lease_is_said_at_once_that_nothing_is_seen(inline: Bench) -> None:
    begin(inline, {"first": (number.id, number(value=3).key)}, replace(this_process(), machine="elsewhere"))
    (line,) = list_runs(inline.objects, None, False)
    assert " silent " in line


def test_a_step_that_waits_is_told_what_runs_before_it(inline: Bench) -> None:
    inline.run(number(value=1))
    (run,) = all_runs(inline.objects)
    record = run.read(inline.objects)
    assert record is not None
    target = words(text="a")
    assert target.declaration is not None
    lease = Waiting(inline.objects, layout.lease(number.id, number(value=3).key), 30).attempt()
    assert lease is not None
    steps = {"first": (number.id, number(value=3).key), "late": (target.declaration.step.id, target.key)}
    begin_run(inline.objects, replace(record, steps=steps, process=this_process()), run_stem(now()))
    with pytest.raises(
        UsageError, match=r"has not been tried.*; it waits for its turn in tests/bench@2, where first runs"
    ):
        list(lines(inline.objects, "late", False))
    lease.release()


def test_lines_are_split_as_they_were_printed(inline: Bench) -> None:
    inline.run(words(text="a"))
    (log,) = step_folder(inline, words(text="a")).glob("attempts/*/log/log.txt")
    log.write_bytes(b"one\r\ntwo\x0bthree\n\xff four\nfive")
    id, key = find_step(inline.objects, "words")
    found: list[Line] = list(Following(inline.objects, id, key))
    shown: list[Any] = [json.loads(line)["line"] for line in lines(inline.objects, "words", True)]
    assert [line.text for line in found] == shown == ["one", "two", "three", "� four", "five"]


def test_a_long_log_is_shown_while_it_is_read(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.run(words(text="a"))
    (log,) = step_folder(inline, words(text="a")).glob("attempts/*/log/log.txt")
    text = "".join(f"line {number} é\n" for number in range(2**18)).encode() + b"x" * 2**21 + b"\nlast"
    log.write_bytes(text)
    objects, taken = inline.objects, list[int]()
    blocks = objects.blocks

    def noted(path: str, start: int = 0) -> Iterator[bytes]:
        for block in blocks(path, start):
            taken.append(len(block))
            yield block

    monkeypatch.setattr(objects, "blocks", noted)
    found = lines(objects, "words", False)
    first = next(found)
    assert len(taken) == 1
    assert "\n".join([first, *found]).encode() == text
