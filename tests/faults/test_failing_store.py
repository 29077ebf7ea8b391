"""A store that fails at one object fails one step, by name and with a remedy; the others go on, and the rerun does the
rest.
"""

from __future__ import annotations

import pytest

from tests.faults.faulty_objects import FaultyObjects, Rule, always, nth
from tests.run.sample_steps import number, times, words
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


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("object", ["lease.json", "spec.json", "manifest.json", "commits/1.json"])
def test_a_store_that_does_not_answer_once_is_asked_again(inline: Bench, object: str, fault: str) -> None:
    rule = nth("create", f"{words(text='a b').key[:16]}/{object}", fault)  # pyright: ignore[reportArgumentType]
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
