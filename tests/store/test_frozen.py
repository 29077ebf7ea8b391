"""Stores that earlier versions have written are read, verified, found cached and extended by the present one."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_pipeline import Artifact, load
from marin_pipeline.run.driver import RunResult
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.gc import collect
from marin_pipeline.store.names import resolve
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.verify import Verifier
from tests.store.frozen.make import HERE, PROJECT, recipes, session, unpack
from tests.store.test_copying import findings
from tests.stores import STORES, new_prefix

VERSIONS = sorted(each.name for each in HERE.iterdir() if each.name.isdecimal())

VALUES = {
    "words": 6,
    "scaled": 3.0,
    "first": "to",
    "given": "a given line",
    "squares": [4, 9, 16],
    "stream/lines": 100,
    "many": 10,
    "seven": 7,
    "seven_again": 7,
    "page": "what was at https://example.org/page",
    "elsewhere": 3,
    "texts": None,
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The steps; the module that bore their name before is put back."""
    before, path = sys.modules.get("recipes"), list(sys.path)
    monkeypatch.setenv("MARIN_OWNER", "somebody")
    yield recipes()
    sys.path[:] = path
    sys.modules.pop("recipes")
    if before is not None:
        sys.modules["recipes"] = before


@pytest.fixture(params=[(version, kind) for version in VERSIONS for kind in STORES], ids="-".join)
def frozen(request: pytest.FixtureRequest) -> tuple[str, dict[str, bytes]]:
    """The prefix of a store that holds what was frozen, and its objects."""
    version, kind = request.param
    prefix = new_prefix(request, kind)
    return prefix, unpack(HERE / version / f"{kind}.zip", open_objects(prefix))


def experiment(made: ModuleType) -> list[Artifact[Any]]:
    return made.experiment(str(PROJECT))


def by_name(result: RunResult) -> dict[str, Any]:
    return {name: artifact.value for name, artifact in result.artifacts.items()}


def commit_of(objects: ObjectStore, made: ModuleType, name: str) -> Commit:
    artifact = next(each for each in experiment(made) if each.name == name)
    assert artifact.declaration is not None
    commit = look(objects, artifact.declaration.step.id, artifact.key).commit
    assert commit is not None
    return commit


def test_every_byte_is_as_it_was_committed(frozen: tuple[str, dict[str, bytes]]) -> None:
    prefix, held = frozen
    assert len({path.rpartition("/commits/")[0] for path in held if "/commits/" in path}) >= 13
    assert findings(open_objects(prefix)) == []
    objects = open_objects(prefix)
    committed = (re.fullmatch(r"steps/(.+)/([0-9a-f]{16})/commits/1.json", path) for path in held)
    for id, short in {(found[1], found[2]) for found in committed if found is not None}:
        verified = Verifier(objects, "intact").verify(id, short)
        assert verified is not None
        assert verified.ok


def test_all_is_cached_and_read_and_nothing_runs(frozen: tuple[str, dict[str, bytes]], made: ModuleType) -> None:
    prefix, _ = frozen
    plan = session(prefix, experiment(made)).plan()
    statuses = {planned.node.name: planned.status for planned in plan.nodes.values()}
    assert statuses.pop("parts") == "run"
    assert set(statuses.values()) == {"cached"}
    result = session(prefix, [each for each in experiment(made) if each.name != "parts"]).run()
    assert {each.outcome for each in result.settled.values()} == {"cached"}
    values = by_name(result)
    assert {name: values[name] for name in VALUES} == VALUES
    artifacts = result.artifacts
    assert (artifacts["words"] / "words.txt").read_text() == "to\nbe\nor\nnot\nto\nbe\n"
    assert (artifacts["squares"] / "squares/2.txt").read_text() == "16"
    assert sorted(file.name for file in (artifacts["squares"] / "squares").path.iterdir()) == [
        "0.txt",
        "1.txt",
        "2.txt",
    ]
    with (artifacts["stream/lines"] / "lines.txt").open("rb") as file:
        file.seek(-8, 2)
        assert file.read() == b"line 99\n"
    assert artifacts["many"].files == [f"{index:03}.txt" for index in range(10)]
    assert (artifacts["texts"] / "hamlet.txt").read_text() == "to be or not to be\n"


def test_records_say_what_they_said(frozen: tuple[str, dict[str, bytes]], made: ModuleType) -> None:
    prefix, held = frozen
    objects = open_objects(prefix)
    assert commit_of(objects, made, "first").number == 2
    seven, again = commit_of(objects, made, "seven"), commit_of(objects, made, "seven_again")
    sources = [each.adopted_from for each in (seven, again) if each.adopted_from is not None]
    assert len(sources) == 1
    assert commit_of(objects, made, "elsewhere").copied_from == "memory://another"
    assert commit_of(objects, made, "page").unpinned == ("https://example.org/page",)
    assert commit_of(objects, made, "given").origin
    failures = [json.loads(data) for path, data in held.items() if "/failures/" in path]
    assert [each["message"] for each in failures] == ["stopped after two parts, as asked"]
    assert load("kept/squares", prefix=prefix).value == [4, 9, 16]
    assert resolve(objects, "somebody/squares@1") == resolve(objects, "kept/squares")


def test_parts_of_an_earlier_version_are_gone_on_from(frozen: tuple[str, dict[str, bytes]], made: ModuleType) -> None:
    prefix, _ = frozen
    result = session(prefix, experiment(made)).run()
    assert result.ok, result.failures
    assert by_name(result)["parts"] == [
        "part 0 made by an earlier version",
        "part 1 made by an earlier version",
        "part 2 made by the present",
    ]
    assert findings(open_objects(prefix)) == []


def test_the_present_version_builds_on_it(frozen: tuple[str, dict[str, bytes]], made: ModuleType) -> None:
    prefix, held = frozen
    objects = open_objects(prefix)
    counted = made.words(text="to be or not to be")
    # Another recipe for a six, on which `same` gives what it gave before; one more shard; and a new text.
    six = made.total(counts=[made.total(counts=[made.total(counts=[counted])])])
    targets: list[Artifact[Any]] = [
        made.same(count=six).named("once_more"),
        made.squares(numbers=[2, 3, 4, 5]).named("one_more"),
        made.words(text="a new text"),
    ]
    result = session(prefix, targets).run()
    assert result.ok, result.failures
    (once_more,) = (node for node in result.graph.nodes.values() if "once_more" in node.names)
    commit = result.settled[once_more.key].commit
    assert commit is not None
    assert commit.adopted_from is not None
    shards = {path.split("/")[2] for path in held if path.startswith("shards/")}
    assert len({info.path.split("/")[2] for info in objects.list("shards")} - shards) == 1
    for path, data in held.items():
        found = objects.read(path)
        assert found is not None
        assert found.data == data or path.endswith("lease.json"), path
    assert findings(objects) == []
    assert collect(objects).kept == []


def test_what_was_frozen_can_be_made_again_with_equal_bytes(
    frozen: tuple[str, dict[str, bytes]], made: ModuleType, tmp_path: Path
) -> None:
    prefix, _ = frozen
    targets = [each for each in experiment(made) if each.name not in ("parts", "texts")]
    old, new = session(prefix, targets).run(), session(str(tmp_path / "new"), targets).run()
    assert new.ok
    for node in old.graph.nodes.values():
        mine, theirs = new.output(node), old.output(node)
        assert mine is not None
        assert theirs is not None
        assert mine.digest == theirs.digest, node.name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", STORES)
def test_a_frozen_store_holds_one_of_each_thing_and_does_not_tell_who_made_it(version: str, kind: str) -> None:
    with zipfile.ZipFile(HERE / version / f"{kind}.zip") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    for part in (
        "commits/1.json", "commits/2.json", "invalidations/1.json", "/failures/", "/divergences/", "/accepted/",
        "/work/", "/copied/", "/manifest/0.json", "shards/", "resolved/", "names/", "roots/", ".dropped.json",
        "experiments/", ".begun", "origins/", "code/", "files/", "lease.json", "spec.json",
    ):  # fmt: skip
        assert any(part in path for path in held), part
    everything = b"\n".join(data for data in held.values())
    for path, data in held.items():
        if path.startswith("code/"):
            with zipfile.ZipFile(HERE / version / f"{kind}.zip") as archive, archive.open(path) as code:
                inner = zipfile.ZipFile(code)
                everything += b"\n".join(inner.read(name) for name in inner.namelist())
        assert len(data) < 20_000
    for word in (
        b"/tmp/",
        b"/home/",
        b"/root",
        b"127.0.0.1",
        str(HERE.parents[2]).encode(),
    ):
        assert word not in everything, word
    told = {found[1] for found in re.finditer(rb'"(?:user|owner|host)":"([^"]*)"', everything)}
    assert told == {b"somebody", b"somewhere"}
