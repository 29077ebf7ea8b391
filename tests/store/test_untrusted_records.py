"""A record of a store may be anybody's: what it says leads to no file outside of its place, or it is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from marin_pipeline.core.errors import CorruptOutput, MarinError, StoreError
from marin_pipeline.core.visible import as_line
from marin_pipeline.run.difference import Sides
from marin_pipeline.run.shards import read_shard
from marin_pipeline.run.work import StoredWork
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now
from marin_pipeline.store.commit import Commit, Source
from marin_pipeline.store.copying import checked_spec
from marin_pipeline.store.manifest import Manifest
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.pages import manifest_of
from marin_pipeline.store.resolved import read_entry, resolved_digest
from marin_pipeline.store.sealed import seal

KEY = "ab" * 32
ENTRY = {"path": "a", "object": "steps/x/" + "ab" * 8 + "/attempts/one/out/a", "size": 0, "sha256": "0" * 64}
COMMIT = Commit(
    number=1, attempt="one", fence=1, manifest="m" * 64, output="o" * 64, compared=None, inputs={}, resolved="",
    code="", pieces={}, arguments={}, fingerprint={}, started="", finished="", seconds=0.0, bytes=0, key=KEY,
)  # fmt: skip
OUTSIDE = [
    "..", "../a", "a/../../b", "/etc/passwd", "/", "", ".", "./a", "a//b", "a/", "a\0b", "a\nb", "\ud800", "//a",
    "steps/../names/x", "steps/x/../../../../etc/passwd",
]  # fmt: skip
NO_PATHS: list[Any] = [*OUTSIDE, None, 5, True, ["a"], {"a": "b"}]


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(str(tmp_path / "store"))


def manifest_with(**changed: Any) -> bytes:
    entry = {name: value for name, value in {**ENTRY, "checksum": None, **changed}.items() if value is not Ellipsis}
    return json.dumps({"schema": 1, "files": [entry]}).encode()


def test_the_entry_that_the_others_are_changed_from_is_fine() -> None:
    assert Manifest.loads(manifest_with(), "there").entries[0].path == "a"


WRONG = [
    *({"path": path} for path in NO_PATHS),
    *({"object": path} for path in NO_PATHS),
    *({"object": path} for path in ("names/me/x@/1.json", "a", "stepsx/a", "tmp/1d/a", "code/x.zip", "steps")),
    *({"size": size} for size in (-1, 1.5, "1", None, True, [])),
    *({"sha256": digest} for digest in ("", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n", None, 5, "../a")),
    *({"checksum": checksum} for checksum in (5, [], "a\0b", "a\nb")),
    {"other": 1},
    {"path": ...},
    {"sha256": ...},
    {"path": "x" * 256},
]


@pytest.mark.parametrize("changed", WRONG, ids=ascii)
def test_a_manifest_that_leads_outside_is_refused_when_it_is_read(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CorruptOutput, match="there: not a manifest"):
        Manifest.loads(manifest_with(**changed), "there")


@pytest.mark.parametrize("changed", WRONG, ids=ascii)
def test_so_is_the_record_of_a_shard_and_of_a_part(changed: dict[str, Any], objects: ObjectStore) -> None:
    files = json.loads(manifest_with(**changed))["files"]
    data = seal({"key": KEY, "attempt": "one", "value": 1, "files": files})
    objects.create(layout.shard_record(KEY), data)
    with pytest.raises(CorruptOutput, match="not a record of a shard"):
        read_shard(objects, KEY, Any)
    objects.create("work/item/record.json", seal({"folder": "x", "files": files}))
    with pytest.raises(CorruptOutput, match="not a record of a part"):
        StoredWork(objects, "work").open("item")


@pytest.mark.parametrize(
    "paths", [["a", "a"], ["b", "a"], ["a", "a/b"], ["a", "a-b", "a/b/c"]], ids=["twice", "unsorted", "folder", "deep"]
)
def test_files_that_cannot_lie_in_one_folder_are_refused(paths: list[str]) -> None:
    data = json.dumps({"schema": 1, "files": [{**ENTRY, "path": path} for path in paths]}).encode()
    with pytest.raises(CorruptOutput, match="there: not a manifest"):
        Manifest.loads(data, "there")


@pytest.mark.parametrize("path", NO_PATHS, ids=ascii)
def test_so_are_the_pages_of_a_manifest(path: Any, objects: ObjectStore) -> None:
    page = {"object": path, "size": 1, "sha256": "0" * 64, "first": "a", "last": "b", "files": 1, "bytes": 1}
    with pytest.raises(CorruptOutput, match="there: not a manifest"):
        manifest_of(objects, json.dumps({"schema": 1, "pages": [page]}).encode(), "there")


@hypothesis.given(
    st.dictionaries(st.sampled_from(list(ENTRY)), st.one_of(st.text(max_size=20), st.sampled_from(NO_PATHS)))
)
def test_whatever_an_entry_says_nothing_outside_is_read_or_written(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("untrusted")
    (folder / "outside").write_bytes(b"")
    objects = open_objects(str(folder / "store"))
    try:
        entry = Manifest.loads(manifest_with(**changed), "there").entries[0]
    except CorruptOutput:
        return
    for path in (objects.folder("steps/out") / entry.path, folder / "store" / entry.object):
        assert Path(os.path.normpath(path)).is_relative_to(folder / "store")


LAYOUT: list[Callable[[Any], str]] = [
    lambda bad: layout.step(bad, KEY),
    lambda bad: layout.attempt("x", KEY, bad),
    lambda bad: layout.manifest("x", KEY, bad),
    lambda bad: layout.failure("x", KEY, bad),
    lambda bad: layout.divergence("x", KEY, bad),
    lambda bad: layout.attempt_log("x", KEY, bad),
    lambda bad: layout.shard_log(KEY, bad),
    layout.shard,
    lambda bad: layout.step("x", bad),
    layout.resolved,
    lambda bad: layout.commit("x", KEY, bad),
    lambda bad: layout.invalidation("x", KEY, bad),
    lambda bad: layout.names(bad, "x"),
    lambda bad: layout.root(bad, "x", 1),
    lambda bad: layout.root("me", "x", bad),
]


@pytest.mark.parametrize("path", LAYOUT)
def test_no_id_key_or_name_of_a_record_leads_out_of_its_place(path: Callable[[Any], str]) -> None:
    for bad in OUTSIDE:
        with pytest.raises(CorruptOutput, match="the record that says so is damaged"):
            path(bad)


@hypothesis.given(st.text(max_size=20), st.text(max_size=20))
def test_a_path_of_the_layout_stays_below_its_folder(id: str, attempt: str) -> None:
    try:
        path = layout.attempt_log(id, KEY, attempt)
    except CorruptOutput:
        return
    assert path.startswith("steps/")
    assert os.path.normpath(path) == path


@pytest.mark.parametrize("name", ["attempt", "key", "number"])
@pytest.mark.parametrize("value", ["../x", "a/b", "", None, 5, [], "\0"], ids=ascii)
def test_a_commit_whose_fields_lead_elsewhere_is_refused(name: str, value: Any) -> None:
    if (name, value) in (("number", 5), ("key", "")):
        return
    tree = {**COMMIT.tree(), name: value}
    if name == "key" and isinstance(value, str):
        return  # it is compared with the key that was looked for
    with pytest.raises(CorruptOutput, match="there: not a commit"):
        Commit.loads(seal(tree), "there")


@pytest.mark.parametrize("name", ["id", "key", "number", "attempt"])
def test_a_commit_that_was_adopted_from_elsewhere_is_refused(name: str) -> None:
    good = Source("x", KEY, 1, "one")
    assert Commit.loads(dataclasses.replace(COMMIT, adopted_from=good).dumps(), "there").adopted_from == good
    for value in ("../x", "", None, [], "/x"):
        tree = {**COMMIT.tree(), "adopted_from": {**vars(good), name: value}}
        with pytest.raises(CorruptOutput, match="there: not a commit"):
            Commit.loads(seal(tree), "there")


STEERING = ["\x1b]0;title\a", "\x9b2J", "a\rb", "a\nb", "\u202etxt.exe"]
"""Text that a terminal acts upon, or that is not read as it stands."""

NO_TEXT: list[tuple[str, Any]] = [
    *(("copied_from", text) for text in (*STEERING, "s3://user:password@bucket/folder", "gs://user@b/x", 5, None, [])),
    *(("unpinned", [text]) for text in (*STEERING, 5, None)),
    *(("unpinned", wrong) for wrong in ("abc", 5, {"a": 1})),
    *((name, text) for name in ("started", "finished") for text in (*STEERING, "then", "2026-01-31", 5, None)),
]


@pytest.mark.parametrize(("name", "value"), NO_TEXT, ids=ascii)
def test_what_a_commit_says_to_people_is_a_time_a_url_or_a_line_of_text(name: str, value: Any) -> None:
    if value is None and name == "unpinned":
        return
    with pytest.raises(CorruptOutput, match="there: not a commit"):
        Commit.loads(seal({**COMMIT.tree(), name: value}), "there")


def test_what_is_written_down_of_a_store_is_read_back() -> None:
    for url in ("s3://bucket/a b", "/home/me@work/störe", "gs://bucket/a@b", as_line("/tmp/a\nb\x1b\udcff")):
        written = dataclasses.replace(COMMIT, copied_from=url, unpinned=("https://a.b/ü?c=d",), started=now())
        assert Commit.loads(written.dumps(), "there") == written


@pytest.mark.parametrize("entry", [{"id": 5}, {"key": "../x"}, {"number": "../x"}, {"number": None}, {"id": ["x"]}])
def test_an_entry_of_equal_results_is_believed_only_if_it_is_one(objects: ObjectStore, entry: dict[str, Any]) -> None:
    objects.create(layout.resolved(KEY), seal({"id": "x", "key": KEY, "number": 1, **entry}))
    found = read_entry(objects, KEY)
    assert found is not None
    if found.id:
        with pytest.raises(CorruptOutput):
            layout.commit(found.id, found.key, found.number)


def test_a_store_refuses_what_leads_out_of_it_whoever_asks(objects: ObjectStore, tmp_path: Path) -> None:
    for each in (objects, open_objects(f"memory://{tmp_path}")):
        for path in ("../x", "/etc/x", "a/../../x", "a\0b"):
            with pytest.raises(StoreError, match="no path inside the store"):
                each.folder(path)


def test_links_to_files_of_several_places_stay_in_one_folder(objects: ObjectStore, tmp_path: Path) -> None:
    """The folder of links is made of the manifest's paths: it was checked when that was read."""
    data = manifest_with(path="../../../../../../tmp/evil")
    path = layout.manifest("x", KEY, "one")
    objects.create(path, data)
    commit = dataclasses.replace(COMMIT, manifest=hashlib.sha256(data).hexdigest())
    with pytest.raises(MarinError, match="not a manifest"):
        CommittedOutput(objects, "x", KEY, commit).local("..")


NO_SPECS = [b"\xff", b"[]", b"5", b"null", b"{}", b"{", b"[" * 100_000, b'{"step": "x"}', b'{"step": 5, "code": {}}']


@pytest.mark.parametrize("data", NO_SPECS, ids=lambda data: ascii(data[:12]))
def test_bytes_that_hash_to_their_key_and_are_no_spec_are_refused(data: bytes, objects: ObjectStore) -> None:
    key = hashlib.sha256(data).hexdigest()
    objects.create(layout.spec("x", key), data)
    with pytest.raises(CorruptOutput, match=r"spec\.json: is no spec.*; it cannot be taken from there"):
        checked_spec(objects, "x", key)
    with pytest.raises(CorruptOutput, match=r"spec\.json: is no spec.*; delete it"):
        Sides(objects).side(key, "x")


@pytest.mark.parametrize(
    "data", [b"\xff", b"{", b"[" * 100_000, b"[" * 900 + b"]" * 900], ids=lambda data: ascii(data[:9])
)
def test_a_spec_that_cannot_be_read_has_no_digest_of_what_it_was_made_from(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"decode|Expecting|deeply"):
        resolved_digest(data, {})
