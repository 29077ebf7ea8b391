"""Whatever stands in a record, its readers say which one is damaged, or do without it: nothing else is raised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.lab import share
from marin_pipeline.run import history, housekeeping, inspection, logs, runs
from marin_pipeline.run.code_lock import CodeLock
from marin_pipeline.run.lock_file import LockFile
from marin_pipeline.store import names
from tests.run.sample_steps import fails, number, squares, times, words
from tests.run.sessions import Bench, step_folder

OTHERS = st.sampled_from(
    [
        None,
        True,
        0,
        5,
        -1,
        1.5,
        10**400,
        "",
        "x",
        "²",
        "../../x",
        "\ud800",
        "a\0b",
        [],
        {},
        [5],
        [[]],
        {"a": 5},
        {"a": []},
    ]
)
BYTES = st.sampled_from(
    [b"", b"null", b"[]", b"5", b'"x"', b"{}", b"\xff", b"[" * 100_000, b'{"a":' * 900, b"1" * 5000]
)
KINDS = {
    "lease": "steps/**/lease.json",
    "spec": "steps/**/spec.json",
    "commit": "steps/**/commits/1.json",
    "invalidation": "steps/**/invalidations/1.json",
    "failure": "steps/**/failures/*.json",
    "manifest": "steps/**/manifest.json",
    "shards": "steps/**/shards.jsonl",
    "shard": "shards/**/record.json",
    "name": "names/**/*.json",
    "root": "roots/**/*.json",
    "run": "experiments/**/*.json",
    "begun": "experiments/**/*.begun",
    "gc": "gc/*.json",
    "resolved": "resolved/**/*",
    "origin": "origins/*.json",
}
WORDS, NUMBER, SQUARES, FAILS = words(text="a b"), number(value=1), squares(numbers=[1, 2]), fails(word="no")
TARGET = [times(count=WORDS), NUMBER, SQUARES, FAILS]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """A store that has every kind of record."""
    with pytest.MonkeyPatch.context() as patch:
        bench = Bench.at(tmp_path_factory.mktemp("records"), "inline", patch)
        bench.run(TARGET)
        objects = bench.objects
        names.give_name(objects, "kept", *names.resolve(objects, "number"))
        list(housekeeping.end_output(objects, "words", "wrong", False, False))
        bench.run(TARGET, force="number")
        names.drop_root(objects, str(names.give_name(objects, "dropped", *names.resolve(objects, "number"))))
        for folder in ("tmp/1d/left", f"{step_folder(bench, NUMBER).relative_to(bench.prefix)}/attempts/left"):
            (bench.prefix / folder).mkdir(parents=True)
            (bench.prefix / folder / "file").write_text("")
        list(housekeeping.gc(objects, "0s", True, 0.1, False))
        yield bench.prefix


def readers(bench: Bench) -> Iterable[Callable[[], Any]]:
    objects = bench.objects

    def all_of(lines: Iterable[str]) -> None:
        for _ in lines:
            pass

    yield lambda: bench.plan(TARGET)
    yield lambda: bench.run(TARGET)
    yield lambda: all_of(runs.list_runs(objects, None, True))
    yield lambda: all_of(inspection.list_steps(objects, True))
    yield lambda: list(history.newest_records(objects, "tests/bench", 5))
    for each in (WORDS, NUMBER, SQUARES, FAILS):
        yield lambda key=each.key: all_of(inspection.show(objects, key, True))
        yield lambda key=each.key: all_of(logs.lines(objects, key, True))
        yield lambda key=each.key: all_of(share.share(objects, key, None, True))
    yield lambda: runs.diff(objects, "number", "squares", False, lambda line: None)
    yield lambda: runs.diff(objects, "tests/bench@1", "tests/bench@2", False, lambda line: None)
    yield lambda: all_of(housekeeping.name(objects, ["number"], None, False))
    yield lambda: names.current_names(objects)
    yield lambda: housekeeping.verify(objects, [], "full", True)
    yield lambda: all_of(housekeeping.gc(objects, "7d", False, 0.1, True))
    yield lambda: all_of(housekeeping.gc(objects, "0s", True, 0.1, True))


def changed(tree: Any, data: st.DataObject) -> Any:
    """A JSON value with one thing in it that is another."""
    if isinstance(tree, (dict, list)) and tree and data.draw(st.integers(0, 3)):
        where = data.draw(st.sampled_from(list(tree) if isinstance(tree, dict) else range(len(tree))))
        how = data.draw(st.sampled_from(["inside", "inside", "inside", "gone"]))
        copy: Any = tree.copy()
        if how == "gone":
            del copy[where]
        else:
            copy[where] = changed(tree[where], data)
        return copy
    return data.draw(OTHERS)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_of_a_changed_record_raise_nothing_but_errors_for_people(
    kind: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [each.relative_to(store) for each in sorted(store.glob(KINDS[kind])) if each.is_file()]
    assert files
    bench = Bench.at(tmp_path, "inline", monkeypatch)

    @hypothesis.settings(
        max_examples=12,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    )
    @hypothesis.given(st.data())
    def every_reader(data: st.DataObject) -> None:
        shutil.rmtree(bench.prefix, ignore_errors=True)
        shutil.copytree(store, bench.prefix)
        file = bench.prefix / data.draw(st.sampled_from(files))
        if data.draw(st.booleans()):
            text = file.read_text().splitlines()[0]
            file.write_bytes(json.dumps(changed(json.loads(text), data)).encode() + b"\n")
        else:
            file.write_bytes(data.draw(BYTES) + b"\n")
        for read in readers(bench):
            with suppress(MarinError):
                read()

    every_reader()


@pytest.mark.parametrize(
    "text",
    ['{"fence":"x","beat":0,"owner":null}', "null", "[]", '{"fence":-1,"beat":0,"owner":null}',
     '{"fence":1,"beat":0,"owner":{"uuid":5}}', '{"fence":true,"beat":0,"owner":null}'],
)  # fmt: skip
def test_a_lease_of_other_types_is_named_by_a_run_and_by_gc(inline: Bench, text: str) -> None:
    inline.run(number(value=1))
    lease = step_folder(inline, number(value=1)) / "lease.json"
    lease.write_text(text)
    result = inline.run(number(value=1), force="number")
    assert "lease.json: not a lease" in result.failures[0][1].message
    assert any("lease.json: not a lease" in line for line in housekeeping.gc(inline.objects, "0s", True, 0.1, False))
    lease.unlink()
    assert inline.run(number(value=1), force="number").ok


@hypothesis.given(st.data())
def test_a_changed_lock_file_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    step = {"id": "a", "key": "0" * 64, "digest": "0" * 64}
    tree = {"schema": 1, "arguments": {"a": "b"}, "overrides": ["a=1"], "steps": {"x": step}}
    path = tmp_path_factory.mktemp("lock") / "x.lock.json"
    path.write_bytes(data.draw(st.one_of(BYTES, st.just(json.dumps(changed(tree, data)).encode()))))
    with suppress(InputError):
        lock = LockFile.read(path)
        assert lock is not None
        assert all(isinstance(each, str) for each in lock.asked.overrides)
        assert str(lock.asked)


@hypothesis.given(st.data())
def test_a_changed_lock_of_code_is_refused_or_read(data: st.DataObject) -> None:
    tree = {"schema": 1, "steps": {"a": {"version": 1, "golden": {"x": {"key": "0"}}, "codes": []}}}
    text = data.draw(
        st.one_of(BYTES.map(lambda each: each.decode("latin-1")), st.just(json.dumps(changed(tree, data))))
    )
    with suppress(ValueError):
        assert isinstance(CodeLock.loads(text).dumps(), str)
