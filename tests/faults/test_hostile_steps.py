"""Whatever a step does, the run says which step and why, and the next step runs."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact
from marin_pipeline.store.objects import explain_os_error
from marin_pipeline.store.own_folder import scratch_parent
from tests.faults import hostile_steps as hostile
from tests.run.sample_steps import number
from tests.run.sessions import Bench, failure, step_folder, value, wait_until
from tests.stores import new_prefix


def refused(bench: Bench, artifact: Artifact[Any], *texts: str) -> None:
    """The step fails with these words; another one in the same worker does not; nothing is committed."""
    following = number(value=int(artifact.key[:8], 16))
    result = bench.run([artifact, following], max_parallel=1)
    assert result.settled[artifact.key].outcome == "failed"
    assert result.settled[following.key].outcome == "done"
    assert result.exit_code == 1
    for text in texts:
        assert text in failure(result)
    assert not (step_folder(bench, artifact) / "commits").exists()
    assert list((step_folder(bench, artifact) / "failures").iterdir())


def test_a_step_may_print_anything(bench: Bench) -> None:
    assert bench.run([hostile.prints_binary(), hostile.prints(text="words")], max_parallel=1).ok
    (log,) = step_folder(bench, hostile.prints_binary()).glob("attempts/*/log/log.txt")
    assert b"binary\n" in log.read_bytes()


def test_a_step_may_close_stdout(bench: Bench) -> None:
    assert bench.run([hostile.closes_stdout(), hostile.prints(text="after")], max_parallel=1).ok
    (log,) = step_folder(bench, hostile.closes_stdout()).glob("attempts/*/log/log.txt")
    assert log.read_text() == "before\n"


def test_what_children_print_is_kept_too(local: Bench) -> None:
    local.run(hostile.prints(text="x"))
    (log,) = step_folder(local, hostile.prints(text="x")).glob("attempts/*/log/log.txt")
    assert log.read_text() == "x\nchild x\nchild error x\n"


def test_sys_exit_is_an_error_even_with_0(bench: Bench) -> None:
    refused(bench, hostile.exits(code=0, hard=False), "the step called exit(0); raise an error instead")


def test_os_exit_is_the_steps_own_error_and_is_not_tried_again(local: Bench) -> None:
    refused(local, hostile.exits(code=3, hard=True), "ended its own process with exit code 3")
    assert "retry" not in [notice.verb for notice in local.notices]


def test_a_base_exception_is_an_error_of_the_step(bench: Bench) -> None:
    refused(bench, hostile.aborts(), "Abort: no", "in aborts")
    refused(bench, hostile.interrupts(), "KeyboardInterrupt")


def test_an_error_without_a_text_is_still_told(bench: Bench) -> None:
    refused(bench, hostile.raises_unprintable(), "Unprintable")
    refused(bench, hostile.raises_unspeakable(), "Unspeakable")
    refused(bench, hostile.raises_numberless(), "Numberless", "cannot be shown (RuntimeError)")


def test_a_step_that_stops_unasked_is_not_done(bench: Bench) -> None:
    result = bench.run(hostile.stops_unasked())
    assert result.exit_code == 1
    (settled,) = result.settled.values()
    assert settled.message == "stopped as asked; run the same command again to go on"


def test_a_value_of_another_type_is_refused(bench: Bench) -> None:
    refused(bench, hostile.returns_wrong(), "the returned value: expected int, got 'seven'")


def test_a_value_that_cannot_be_written_is_refused(bench: Bench) -> None:
    refused(
        bench,
        hostile.returns_unkeyable(),
        "step returns_unkeyable (hostile_steps.py:",
        "a lambda has no stable identity",
    )


def test_a_link_and_the_values_name_are_refused(bench: Bench) -> None:
    refused(bench, hostile.writes_link(), "the output 'link' is a link; write the content itself")
    refused(bench, hostile.writes_value(), "wrote value.json, which is kept for the returned value")


def test_a_step_that_removes_its_folder_is_told(bench: Bench) -> None:
    refused(bench, hostile.removes_its_folder(), "removed ctx.out, the folder of its output")


def test_odd_names_are_kept(bench: Bench) -> None:
    result = bench.run(hostile.writes_odd_names())
    artifact = result.artifacts["writes_odd_names"]
    assert len(artifact.files) == 6
    assert all((artifact / name).read_text() == name for name in artifact.files)


def test_a_child_that_a_step_leaves_ends_with_its_worker(local: Bench) -> None:
    result = local.run(hostile.leaves_a_child())
    child = value(result, "leaves_a_child")
    wait_until(lambda: not _alive(child))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "step", [hostile.fills_the_disk, hostile.fills_the_disk_in_words, hostile.fills_the_disk_inside]
)
def test_a_full_disk_is_named_with_a_remedy_and_what_was_written_is_removed(bench: Bench, step: Any) -> None:
    artifact = step()
    refused(bench, artifact, "the disk is full; free some space there, or choose another prefix with --prefix")
    assert not list(step_folder(bench, artifact).glob("attempts/*/out"))
    (record,) = (step_folder(bench, artifact) / "failures").iterdir()
    assert '"kind":"infrastructure"' in record.read_text()


def test_on_the_way_to_a_bucket_it_is_the_disk_for_temporary_files(
    inline: Bench, request: pytest.FixtureRequest
) -> None:
    inline.url = new_prefix(request, "gs")
    for step in (hostile.fills_the_disk, hostile.fills_the_disk_in_words):
        ((_, failed),) = inline.run(step()).failures
        assert failed.message == (
            f"{scratch_parent()}: the disk is full; free some space there, or set TMPDIR to a folder on another disk, "
            "and run again"
        )
    told = explain_os_error(OSError(errno.ENOSPC, "full"), scratch_parent() / "x", "write")
    assert "set TMPDIR to a folder on another disk" in str(told)
    assert "--prefix" not in str(told)


def test_errors_that_lead_back_to_themselves_are_told(bench: Bench) -> None:
    refused(bench, hostile.raises_a_cycle(), "ValueError: error 1", "error 0", "in raises_a_cycle")
    refused(bench, hostile.maps_a_cycle(), "ValueError: error 1", "error 0", "in _raises_a_cycle")


def test_of_a_long_chain_of_errors_both_ends_are_shown(bench: Bench) -> None:
    refused(
        bench,
        hostile.raises_a_long_chain(count=3000),
        "error 0",
        "error 2",
        "(2,993 more errors between these)",
        "error 2996",
        "error 2999",
        "in raises_a_long_chain",
    )


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("remakes", [False, True])
def test_a_step_that_removes_its_key_or_the_store_fails_once(bench: Bench, whole: bool, remakes: bool) -> None:
    result = bench.run(hostile.removes_its_key(whole=whole, remakes=remakes))
    assert result.exit_code == 1
    assert "lease.json: was removed while the step ran" in failure(result)
    assert "retry" not in [notice.verb for notice in bench.notices]


@pytest.mark.parametrize("how", ["returns", "raises", "reused", "sockets", "maps"])
def test_a_step_that_closes_what_it_has_not_opened_is_told(local: Bench, how: str) -> None:
    refused(local, hostile.closes_descriptors(how=how), "closed the line between its process and the run")
    assert "retry" not in [notice.verb for notice in local.notices]


@pytest.mark.parametrize("parent", [False, True])
def test_an_output_folder_that_is_a_link_is_refused(bench: Bench, parent: bool) -> None:
    refused(bench, hostile.links_its_folder(parent=parent), "out: is a link by now")


@pytest.mark.parametrize("item", [".", ".."])
def test_a_part_has_a_name_of_its_own(bench: Bench, item: str) -> None:
    refused(bench, hostile.writes_part(item=item), "ctx.work", "not only dots")


def test_a_path_too_long_to_be_read_is_named_without_the_engines_own_traceback(bench: Bench) -> None:
    artifact = hostile.digs_deep()
    refused(bench, artifact, "/out: cannot read what was written: the path is too long")
    (_, failed), *_ = bench.run(artifact).failures
    assert failed.traceback == ""


def test_a_lowered_limit_of_open_files_ends_with_its_step(bench: Bench) -> None:
    assert bench.run([hostile.lowers_the_limit_of_files(), number(value=1)], max_parallel=1).ok


def test_a_step_that_leaves_too_many_files_open_is_told(local: Bench) -> None:
    result = local.run([hostile.uses_up_its_files(), number(value=1)], max_parallel=1)
    assert [settled.outcome for settled in result.settled.values()] == ["failed", "done"]
    assert "too many open files; close what is open" in failure(result)
    assert "marin_pipeline/" not in failure(result)
