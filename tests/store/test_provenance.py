"""Origins, code and local files are kept for as long as a commit that counts names them, and no longer."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import LocalFile
from marin_pipeline.run import housekeeping
from marin_pipeline.store import gc as gc_module
from marin_pipeline.store import layout
from marin_pipeline.store.clock import utc
from marin_pipeline.store.gc import Collection, collect
from marin_pipeline.store.lease import Waiting
from marin_pipeline.store.objects import holds, open_objects
from marin_pipeline.store.origins import read_origin
from marin_pipeline.store.verify import Verifier
from tests.run.conftest import inline
from tests.run.sample_steps import fails, first_line, number
from tests.run.sessions import Bench, step_folder
from tests.stores import gs_server, prefix, s3_server

__all__ = ["gs_server", "inline", "prefix", "s3_server"]

FOLDERS = ("origins", "code", "files")


def kept(bench: Bench) -> set[str]:
    """What a store has of origins, code and local files."""
    return {info.path for folder in FOLDERS for info in bench.objects.list(folder)}


def collected(bench: Bench, days: float, delete: bool = True) -> Collection:
    """A pass, some days from now."""
    grace = datetime.timedelta(days=7)
    return collect(bench.objects, grace, delete=delete, clock=lambda: utc() + datetime.timedelta(days=days))


def deleted(report: Collection) -> set[str]:
    return {item.path for item in report.items if item.kind == "provenance"}


def strange(bench: Bench) -> set[str]:
    """Objects that look like what an older run has kept, and that no commit names."""
    found = {layout.origin("a" * 64), layout.snapshot("b" * 64), layout.kept_file("c" * 64)}
    for path in found:
        bench.objects.create(path, b"{}")
    return found


@pytest.fixture
def target(inline: Bench, tmp_path: Path) -> Any:
    (tmp_path / "text").write_text("one line")
    found = first_line(file=LocalFile(tmp_path / "text"))
    assert inline.run(found).ok
    return found


def test_what_a_current_commit_names_is_kept_and_the_rest_goes_after_its_grace(inline: Bench, target: Any) -> None:
    named = kept(inline)
    assert len(named) == 3
    others = strange(inline)
    assert not deleted(collected(inline, 30, delete=False)), "a pass that only looks dates nothing"
    assert not deleted(collected(inline, 0))
    assert not deleted(collected(inline, 6))
    assert deleted(collected(inline, 8, delete=False)) == others
    assert kept(inline) == named | others
    assert deleted(collected(inline, 8)) == others
    assert kept(inline) == named
    assert not list(inline.prefix.glob("gc/*.json")), "what has gone is noted no more"
    assert inline.outcomes(target) == {"first_line": "cached"}


def test_what_an_ended_commit_names_is_kept_for_a_grace_period(inline: Bench, target: Any) -> None:
    named = kept(inline)
    list(housekeeping.end_output(inline.objects, "first_line", "wrong", False, False))
    assert not deleted(collected(inline, 6))
    assert kept(inline) == named
    collected(inline, 8)
    assert deleted(collected(inline, 16)) == named
    assert not kept(inline)


def test_nothing_goes_while_somebody_is_at_work(inline: Bench, target: Any) -> None:
    others = strange(inline)
    collected(inline, 0)
    lease = Waiting(inline.objects, layout.lease("somebody", "d" * 64), 30.0).attempt()
    assert lease is not None
    assert not deleted(collected(inline, 8))
    lease.release()
    assert deleted(collected(inline, 8)) == others


def test_nothing_goes_that_is_committed_while_a_pass_is_looking(
    inline: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed run left its origin; a week later a run of the same code begins and ends in the middle of a pass."""
    assert not inline.run(fails(word="no")).ok
    origin = kept(inline)
    assert len(origin) == 2
    collected(inline, 0)
    looked = gc_module.held_keys

    def held_keys(*arguments: Any, take_over: bool) -> tuple[set[str], list[str]]:
        if not take_over:
            assert inline.run(number(value=1)).ok
        return looked(*arguments, take_over=take_over)

    monkeypatch.setattr(gc_module, "held_keys", held_keys)
    assert not deleted(collected(inline, 8))
    assert kept(inline) == origin
    monkeypatch.undo()
    assert not deleted(collected(inline, 30))


def test_an_origin_that_cannot_be_read_keeps_all_code(inline: Bench, target: Any) -> None:
    others = strange(inline)
    (file,) = (path for path in inline.prefix.glob("origins/*") if path.stem != "a" * 64)
    collected(inline, 0)
    file.write_bytes(b"damaged")
    report = collected(inline, 8)
    assert any("no code is deleted" in why for why in report.kept)
    assert deleted(report) == {path for path in others if not path.startswith("code/")}


def test_a_commit_that_cannot_be_read_keeps_everything(inline: Bench, target: Any) -> None:
    others = strange(inline)
    collected(inline, 0)
    (step_folder(inline, target) / "commits" / "1.json").write_bytes(b"damaged")
    assert not deleted(collected(inline, 8))
    assert others <= kept(inline)


def test_the_command_that_verify_names_mends_what_was_kept(inline: Bench, target: Any) -> None:
    for pattern in ("origins/*", "code/*", "files/*/*"):
        (file,) = inline.prefix.glob(pattern)
        file.write_bytes(b"damaged")
        file.unlink()
        list(housekeeping.end_output(inline.objects, "first_line", "damaged", False, False))
        assert inline.run(target).ok
        assert file.exists()
        assert housekeeping.verify(inline.objects, [], "full", False) == 0


def test_a_run_replaces_other_bytes_in_place_of_what_it_keeps(inline: Bench, target: Any) -> None:
    for pattern in ("origins/*", "code/*", "files/*/*"):
        (file,) = inline.prefix.glob(pattern)
        data = file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(b"X" * len(data))
        list(housekeeping.end_output(inline.objects, "first_line", "damaged", False, False))
        assert inline.run(target).ok
        assert file.read_bytes() == data


def test_a_kept_file_that_cannot_be_read_is_a_finding(inline: Bench, target: Any) -> None:
    (file,) = inline.prefix.glob("files/*/*")
    file.unlink()
    os.mkfifo(file)
    (short,) = inline.objects.names(f"steps/{first_line.id}")
    verified = Verifier(inline.objects, "full").verify(first_line.id, short)
    assert verified is not None
    (finding,) = verified.findings
    assert finding.where == str(file)
    assert finding.what == "cannot be read (No such file or directory)"
    assert finding.remedy.startswith("delete it, ")


def test_whether_an_object_is_there_is_told_of_empty_ones_and_of_folders(prefix: str) -> None:
    objects = open_objects(prefix)
    objects.create("some/empty", b"")
    assert holds(objects, "some/empty")
    assert not holds(objects, "some")
    assert not holds(objects, "some/other")
    assert not holds(objects, "some/empty/below")


def test_an_origin_holds_what_it_did_when_it_was_written(inline: Bench, target: Any) -> None:
    (file,) = inline.prefix.glob("origins/*")
    found = read_origin(inline.objects, file.stem)
    assert (found.digest, found.data) == (file.stem, file.read_bytes())
