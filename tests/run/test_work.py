"""`ctx.work`: finished parts outlive an attempt, are verified, and are left aside by a forced run."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline import test_context
from marin_pipeline.core.errors import CorruptOutput, DeclarationError, InputError
from marin_pipeline.run.work import StoredWork
from marin_pipeline.store.local_objects import LocalObjects
from tests.run.sample_steps import resumable
from tests.run.sessions import Bench, digests, step_folder, value
from tests.store.far_objects import SlowObjects


def test_a_broken_step_goes_on_from_its_finished_parts(bench: Bench) -> None:
    (bench.counts / "break").touch()
    target = resumable(parts=3)
    assert not bench.run(target).ok
    assert bench.ran() == {"resumable": 1, "made-part-0": 1}
    (bench.counts / "break").unlink()
    result = bench.run(target)
    assert value(result, "resumable") == ["part 0", "part 1", "part 2"]
    assert bench.ran() == {"resumable": 1, "made-part-1": 1, "made-part-2": 1}
    assert digests(bench.run(target, force="resumable")) == digests(result)
    assert bench.ran() == {"resumable": 1, "made-part-0": 1, "made-part-1": 1, "made-part-2": 1}


def test_parts_are_removed_when_the_step_is_committed(bench: Bench) -> None:
    target = resumable(parts=2)
    bench.run(target)
    assert not list(step_folder(bench, target).glob("work/*"))


@pytest.fixture
def work(tmp_path: Path) -> StoredWork:
    return StoredWork(LocalObjects(tmp_path), "work")


def test_a_part_is_there_when_its_block_has_ended_without_an_error(work: StoredWork, tmp_path: Path) -> None:
    block = work.writing("a")
    (block.__enter__() / "x").write_text("half")
    assert work.items() == []
    error = ValueError("half")
    assert not block.__exit__(ValueError, error, None)
    assert work.items() == []
    assert not [file for file in (tmp_path / "work").rglob("*") if file.is_file()]
    with work.writing("a") as folder:
        (folder / "x").write_text("whole")
    assert work.items() == ["a"]
    assert (work.open("a") / "x").read_text() == "whole"


def test_the_first_to_finish_a_part_wins(work: StoredWork) -> None:
    with work.writing("a") as folder, work.writing("a") as other:
        (other / "x").write_text("first")
        (folder / "x").write_text("second")
    assert (work.open("a") / "x").read_text() == "first"


def test_a_part_whose_bytes_changed_is_refused(work: StoredWork, tmp_path: Path) -> None:
    with work.writing("a") as folder:
        (folder / "x").write_text("1")
    (folder / "x").write_text("2")
    with pytest.raises(CorruptOutput, match="its bytes are not those"):
        work.open("a")
    work.discard("a")
    assert work.items() == []
    with pytest.raises(InputError, match="no finished part 'a'"):
        work.open("a")


def test_a_name_that_is_a_path_is_refused(work: StoredWork) -> None:
    with pytest.raises(DeclarationError, match="may hold letters"), work.writing("../a"):
        pass


def test_a_step_function_can_be_tested_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_TEST_COUNTS", str(tmp_path))
    assert resumable.fn(test_context(tmp_path / "context"), parts=2) == ["part 0", "part 1"]


def test_which_parts_are_there_is_asked_of_all_at_once(work: StoredWork, tmp_path: Path) -> None:
    for number in range(20):
        with work.writing(f"part-{number:02}") as folder:
            (folder / "x").write_text("whole")
    objects = SlowObjects(tmp_path)
    assert StoredWork(objects, "work").items() == [f"part-{number:02}" for number in range(20)]
    assert objects.waits < 10
