"""On a store that is not at hand, what a step prints and records is there while it runs and after, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_pipeline.core.errors import StoreError
from marin_pipeline.run import log_upload
from marin_pipeline.run.log_upload import uploading
from marin_pipeline.store.objects import NoAnswer, ObjectStore, ObjectWriter, open_objects
from tests.conftest import environment
from tests.run.sessions import wait_until
from tests.store.far_objects import FarObjects
from tests.stores import new_prefix

PRINTING = """
import os, sys, time
from pathlib import Path
from marin_pipeline import Context, ShardContext, main, step

GATE = Path(os.environ["GATE"])

def part(shard: ShardContext, item: int) -> int:
    print(f"part {item}")
    return item

@step
def talking(ctx: Context, how: str) -> int:
    (ctx.records / "note").write_text("noted")
    ctx.map(part, [1, 2])
    print("first words", flush=True)
    with ctx.stream("out.txt", "w") as out:
        out.write("o")
    if how == "fails":
        raise ValueError("as asked")
    if how == "waits":
        (GATE / str(os.getpid())).touch()
        while not (GATE / "open").exists():
            time.sleep(0.01)
        print("last words", flush=True)
        (GATE / f"{os.getpid()}.said").touch()
        while not (GATE / "end").exists():
            time.sleep(0.01)
    return 1

if __name__ == "__main__":
    main(talking(how=sys.argv.pop(1)))
"""


class Stage:
    """A program over a store on a server."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.gate = folder / "gate"
        self.gate.mkdir()
        self.file = folder / "printing.py"
        self.file.write_text(PRINTING)
        self.prefix = prefix
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str) -> subprocess.Popen[str]:
        env = {**environment(self.prefix), "GATE": str(self.gate), "TMPDIR": str(self.folder)}
        command = [sys.executable, str(self.file), *arguments]
        self.started.append(subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE))
        return self.started[-1]

    def pid(self, but: int = 0) -> int:
        """Of a step that waits."""
        found = lambda: [int(file.name) for file in self.gate.iterdir() if file.name.isdigit()]  # noqa: E731
        return wait_until(lambda: [each for each in found() if each != but])[0]

    def kept(self, ending: str) -> list[str]:
        """What the store has of the attempts' files of this name, in order."""
        objects = open_objects(self.prefix)
        paths = [info.path for info in objects.list("steps") if info.path.endswith(ending)]
        return [b"".join(objects.blocks(path)).decode() for path in paths]


@pytest.fixture(params=["gs", "s3"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path, new_prefix(request, request.param))
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


TOLD = "talking[0] part 1\ntalking[1] part 2\nfirst words\n"


def test_what_a_step_printed_is_kept_after_it_is_done_and_its_scratch_is_gone(stage: Stage) -> None:
    assert stage.run("passes").wait(60) == 0
    assert stage.kept("log/log.txt") == [TOLD]
    assert stage.kept("records/note") == ["noted"]
    assert len(stage.kept("log/shards.jsonl")[0].splitlines()) == 2
    (scratch,) = stage.folder.glob(f"marin-{os.getuid()}")
    assert [path for path in scratch.rglob("*") if path.is_file() and path.stat().st_size] == []


@pytest.mark.parametrize("backend", ["local", "inline"])
def test_what_a_step_printed_and_recorded_is_kept_after_it_has_failed(stage: Stage, backend: str) -> None:
    assert stage.run("fails", "--backend", backend).wait(60) == 1
    (log,) = stage.kept("log/log.txt")
    assert "\nfirst words\nTraceback (most recent call last):\n" in log
    assert log.splitlines()[-1] == "ValueError: as asked"
    assert stage.kept("records/note") == ["noted"]


def test_what_a_step_prints_is_there_while_it_runs_and_its_last_words_when_it_is_taken_away(stage: Stage) -> None:
    driver = stage.run("waits")
    worker = stage.pid()
    wait_until(lambda: stage.kept("log/log.txt") == [TOLD])
    (stage.gate / "open").touch()
    wait_until((stage.gate / f"{worker}.said").exists)
    os.kill(worker, signal.SIGTERM)
    stage.pid(but=worker)
    assert stage.kept("log/log.txt")[0] == f"{TOLD}last words\n"
    (stage.gate / "end").touch()
    assert driver.wait(60) == 0
    assert len(stage.kept("log/log.txt")) == 2
    assert stage.kept("failures") == []


# Over a folder -------------------------------------------------------------------------------------------------------


class Counting(FarObjects):
    """Counts the bytes that are uploaded."""

    sent = 0

    def writer(self, path: str) -> ObjectWriter:
        inner, outer = super().writer(path), self
        plain = inner.write

        def write(data: bytes | bytearray | memoryview) -> int:
            outer.sent += len(data)
            return plain(data)

        inner.write = write
        return inner


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_upload, "EVERY", 0.01)


def uploaded(objects: ObjectStore) -> bytes:
    found = objects.read("a/log/log.txt")
    return b"" if found is None else found.data


def test_a_long_log_is_not_sent_over_and_over(often: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_upload, "RATE", 4_000_000)
    objects, begun = Counting(tmp_path), time.monotonic()
    with uploading(objects, "a/log/log.txt", at_once=False) as path, path.open("ab", buffering=0) as log:
        for _ in range(200):
            log.write(b"x" * 10_000)
            time.sleep(0.005)
    assert uploaded(objects) == b"x" * 2_000_000
    assert objects.sent < 4_000_000 * (time.monotonic() - begun) + 2 * 2_000_000
    assert len(objects.calls) > 3
    assert not (tmp_path / "a" / "records").exists()


def test_nothing_is_uploaded_of_a_task_that_prints_nothing(often: None, tmp_path: Path) -> None:
    objects = Counting(tmp_path)
    with uploading(objects, "a/log/log.txt", at_once=False) as log:
        log.touch()
        time.sleep(0.05)
    assert objects.calls == []
    assert "marin-logs" not in [each.name for each in threading.enumerate()]


def test_nothing_is_uploaded_any_more_when_the_task_has_ended(often: None, tmp_path: Path) -> None:
    for _ in range(50):
        with uploading(Counting(tmp_path), "a/log/log.txt", at_once=True):
            pass
        assert "marin-logs" not in [each.name for each in threading.enumerate()]


def test_an_attempt_is_found_by_its_log_before_it_has_printed_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_upload, "EVERY", 3600.0)
    objects = Counting(tmp_path)
    with uploading(objects, "a/log/log.txt", at_once=True):
        wait_until(lambda: objects.list("a/log"))
    assert [(info.path, info.size) for info in objects.list("a")] == [("a/log/log.txt", 0)]
    assert objects.calls == [("writer", "a/log/log.txt")]


def test_a_store_that_does_not_take_a_log_fails_no_step_and_is_told(
    often: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str) -> ObjectWriter:
        raise StoreError("no permission to write")

    objects = FarObjects(tmp_path)
    monkeypatch.setattr(objects, "writer", refuse)
    with uploading(objects, "a/log/log.txt", at_once=False) as log:
        log.write_text("x")
    assert "a/log: what was printed is not kept there: no permission to write" in capsys.readouterr().err


def test_a_break_in_the_line_delays_a_log_only(often: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, count, plain = FarObjects(tmp_path), 0, FarObjects.writer

    def broken(path: str) -> ObjectWriter:
        nonlocal count
        count += 1
        if count < 4:
            raise NoAnswer("the store does not answer")
        return plain(objects, path)

    monkeypatch.setattr(objects, "writer", broken)
    with uploading(objects, "a/log/log.txt", at_once=False) as log:
        log.write_text("x")
        wait_until(lambda: uploaded(objects) == b"x")
    assert count == 4
    assert uploaded(objects) == b"x"
