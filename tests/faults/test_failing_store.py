"""A store that fails at one object fails one step, by name and with a remedy; the others go on, and the rerun does the
rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from marin_pipeline import Artifact, Resources
from tests.faults.breaking_steps import maps_and_breaks, works_and_breaks
from tests.faults.faulty_objects import Fault, FaultyObjects, Rule, always, nth, outage
from tests.faults.truth import check
from tests.run.sample_steps import first_line, number, times, words
from tests.run.sessions import Bench, digests, failure, outcomes, step_folder


def with_faults(bench: Bench, rule: Rule) -> Bench:
    bench.wrap = lambda objects: FaultyObjects(objects, rule)
    return bench


def without_faults(bench: Bench) -> Bench:
    bench.wrap = lambda objects: objects
    return bench


TARGET = [times(count=words(text="a b")), number(value=1)]


@pytest.mark.parametrize("object", ["manifest.json", "commits/1.json", "spec.json", "lease.json"])
def test_a_disk_that_is_full_when_a_record_is_written_commits_nothing_and_the_rerun_goes_on(
    inline: Bench, object: str
) -> None:
    first = outcomes(with_faults(inline, nth("create", object, "full")).run(TARGET))
    failed = next(name for name, outcome in first.items() if outcome == "failed")
    assert failed in ("words", "number")
    assert list(first.values()).count("done") >= 1
    for artifact in (words(text="a b"), number(value=1)):
        if not (step_folder(inline, artifact) / "commits").exists():
            assert not list(step_folder(inline, artifact).glob("attempts/*/out"))
    assert set(without_faults(inline).outcomes(TARGET).values()) <= {"done", "cached"}


def test_the_error_of_a_full_disk_names_the_object_and_the_remedy(inline: Bench) -> None:
    result = with_faults(inline, nth("create", "commits/1.json", "full")).run(number(value=1))
    text = failure(result)
    assert "commits/1.json: cannot create: the disk is full; free some space there" in text
    assert result.exit_code == 1


def test_a_failure_that_cannot_be_recorded_is_told_all_the_same(inline: Bench) -> None:
    commit, record = always("create", "commits/", "full"), always("create", "failures/", "full")
    result = with_faults(inline, lambda *asked: commit(*asked) or record(*asked)).run(number(value=1))
    assert "commits/1.json: cannot create: the disk is full" in failure(result)
    assert "(and the failure could not be recorded: " in failure(result)
    assert result.exit_code == 1


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_pipeline.run.scheduler.PATIENCE", (0,) * 4)
    monkeypatch.setattr("marin_pipeline.store.objects.WAITS", (0, 0))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", ["before", "after", "late"])
@pytest.mark.parametrize("object", ["lease.json", "spec.json", "manifest.json", "commits/1.json"])
def test_a_store_that_does_not_answer_once_or_twice_is_asked_again(
    inline: Bench, object: str, fault: Fault, times: int
) -> None:
    rule = nth("create", f"{words(text='a b').key[:16]}/{object}", fault, times=times)
    assert set(with_faults(inline, rule).outcomes(TARGET).values()) == {"done"}


def test_a_store_that_never_answers_fails_that_step_only(inline: Bench) -> None:
    session = inline.session(TARGET)
    looks = session.looks()
    rule = always("create", f"{words(text='a b').key[:16]}/lease.json", "before")
    result = with_faults(inline, rule).session(TARGET).run(inline.notices.append, looks)
    assert outcomes(result) == {"words": "failed", "times": "blocked", "number": "done"}
    assert "lease.json: cannot create" in failure(result)
    assert [notice.verb for notice in inline.notices].count("retry") == 2


def test_what_was_made_is_not_made_again_because_the_commit_was_not_answered(inline: Bench) -> None:
    silent = iter([True] * 7 + [False] * 1000)
    rule = always("create", "commits/1.json", "before")
    result = with_faults(inline, lambda *asked: rule(*asked) if rule(*asked) and next(silent) else None).run(TARGET)
    assert set(outcomes(result).values()) == {"done"}
    assert len(list(inline.prefix.glob("steps/**/attempts/*"))) == len(TARGET) + 1


def test_a_look_that_fails_in_the_loop_fails_that_step_only(inline: Bench) -> None:
    looks = inline.session(TARGET).looks()
    rule = always("read", f"{words(text='a b').key[:16]}/commits", "before")
    result = with_faults(inline, rule).session(TARGET).run(looks=looks)
    assert outcomes(result) == {"words": "failed", "times": "blocked", "number": "done"}
    assert set(without_faults(inline).outcomes(TARGET).values()) == {"done", "cached"}


def test_a_force_that_cannot_be_recorded_forces_nothing(inline: Bench) -> None:
    before = digests(inline.run(TARGET))
    result = with_faults(inline, always("create", "invalidations", "before")).run(TARGET, force=["words"])
    assert outcomes(result)["words"] == "failed"
    assert digests(without_faults(inline).run(TARGET)) == before
    assert inline.statuses(TARGET) == {"words": "cached", "times": "cached", "number": "cached"}


@pytest.mark.parametrize(
    ("operation", "object"),
    [
        ("create", "lease.json"),
        ("create", "spec.json"),
        ("create", "manifest.json"),
        ("create", "commits/1.json"),
        ("swap", "lease.json"),
    ],
)
def test_a_lost_reply_changes_nothing(inline: Bench, operation: str, object: str) -> None:
    result = with_faults(inline, nth(operation, object, "denied after")).run(TARGET)
    assert result.ok
    assert set(outcomes(result).values()) == {"done"}
    assert not list(inline.prefix.glob("steps/**/divergences/*"))


def test_a_release_that_fails_does_not_undo_a_commit(inline: Bench) -> None:
    result = with_faults(inline, nth("swap", "lease.json", "full")).run(number(value=1))
    assert result.ok


@pytest.mark.parametrize(
    ("target", "record"), [(works_and_breaks(), "part/record.json"), (maps_and_breaks(), "/record.json")]
)
def test_a_part_or_shard_whose_record_was_not_answered_keeps_its_files(
    inline: Bench, target: Artifact[Any], record: str
) -> None:
    """The record was written, which nobody could know: removing its files would have made it false for good."""
    result = with_faults(inline, outage("create", record, "after", calls=3)).run(target)
    assert result.ok
    assert [notice.verb for notice in inline.notices].count("retry") == 1
    check(inline.objects)
    assert set(without_faults(inline).outcomes(target).values()) == {"cached"}


def test_a_commit_that_was_not_answered_keeps_its_files_though_the_disk_is_full_then(inline: Bench) -> None:
    def rule(operation: str, path: str) -> Fault | None:
        return next(faults, None) if operation == "create" and "commits/" in path else None

    told: list[Fault] = ["after", "full", "full", "full", "full", "full"]
    faults = iter(told)
    with_faults(inline, rule).run(number(value=1))
    check(inline.objects)
    assert without_faults(inline).outcomes(number(value=1)) == {"number": "cached"}


def test_a_forced_step_uses_no_part_though_the_store_did_not_let_it_remove_them_at_once(inline: Bench) -> None:
    target = works_and_breaks()
    (inline.counts / "break").touch()
    assert not inline.run(target).ok
    (inline.counts / "break").unlink()
    (part,) = inline.prefix.glob("steps/**/work/**/text.txt")
    part.write_text("4321")
    silent = iter([True])
    rule = always("delete", "/work/", "before")
    wrapped = with_faults(inline, lambda *asked: rule(*asked) if rule(*asked) and next(silent, False) else None)
    result = wrapped.run(target, force="works_and_breaks")
    assert result.ok, failure(result)
    assert result.artifacts["works_and_breaks"].value == "1234"


@pytest.mark.parametrize(
    "rule",
    [
        lambda: outage("swap", "lease.json", "after", calls=2),
        lambda: outage("swap", "lease.json", "late", calls=2),
        lambda: outage("read", "commits/2.json", "before", calls=3),
    ],
    ids=["its reply was lost", "it comes late", "its release was lost"],
)
def test_a_lease_of_its_own_that_a_silent_store_left_is_not_waited_for(inline: Bench, rule: Callable[[], Rule]) -> None:
    assert inline.run(number(value=1)).ok
    session = with_faults(inline, rule()).session(number(value=1), force="number")
    assert session.run(inline.notices.append).ok
    assert [notice.verb for notice in inline.notices].count("retry") == 1
    assert "wait" not in [notice.verb for notice in inline.notices]
    assert check(inline.objects).held == ()


def test_a_commit_that_is_not_answered_for_good_leaves_no_lease_behind(inline: Bench) -> None:
    target = number(value=1).using(Resources(retries=0))
    result = with_faults(inline, always("create", "commits/1.json", "before")).run(target)
    assert outcomes(result) == {"number": "failed"}
    assert check(inline.objects).held == ()
    assert without_faults(inline).outcomes(target) == {"number": "done"}
    assert check(inline.objects).held == ()


@pytest.mark.parametrize("fault", ["before", "after", "late", "stale", "slow"])
def test_a_listing_that_is_late_or_lacks_what_was_written_commits_nothing_false(inline: Bench, fault: Fault) -> None:
    result = with_faults(inline, nth("list", "/out", fault)).run(words(text="a b"))
    # A listing without a file fails the attempt; one that does not come is asked for again, by another attempt.
    assert outcomes(result) == {"words": "failed" if fault == "stale" else "done"}
    if fault == "stale":
        assert "was written, but is missing there; the attempt is given up, run again" in failure(result)
    check(inline.objects)
    assert without_faults(inline).run(words(text="a b")).ok


@pytest.mark.parametrize("fault", ["torn", "zeroed"])
@pytest.mark.parametrize("object", ["commits/1.json", "manifest.json", "words.txt", "value.json"])
def test_a_half_written_object_is_noticed_by_its_reader(inline: Bench, object: str, fault: Fault) -> None:
    inline.run(words(text="a b"))
    operation = "read" if object in ("commits/1.json", "manifest.json") else "fetch"
    target = [times(count=words(text="a b")), first_line(file=words(text="a b") / "words.txt")]
    looks = inline.session(target).looks()
    faulty = with_faults(inline, lambda asked, path: fault if asked == operation and path.endswith(object) else None)
    result = faulty.session(target).run(looks=looks)
    assert result.exit_code == 1
    assert object in failure(result)
    assert set(without_faults(inline).outcomes(target).values()) <= {"done", "cached"}
    check(inline.objects)


def test_the_first_look_at_a_store_that_does_not_answer_once_is_made_again(inline: Bench) -> None:
    inline.run(TARGET)
    rule = nth("read", "commits/1.json", "before", 2)
    assert set(with_faults(inline, rule).statuses(TARGET).values()) == {"cached"}
