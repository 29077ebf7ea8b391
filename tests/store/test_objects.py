"""What every object store promises: one suite over local files and memory."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store.objects import ObjectStore, open_objects, put


@pytest.fixture(params=["local", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_objects(str(tmp_path / "prefix") if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def test_an_object_that_is_not_there_reads_as_none(objects: ObjectStore) -> None:
    assert objects.read("a/b.json") is None
    assert objects.list("a") == []
    assert objects.names("a") == []


def test_create_writes_once_and_never_again(objects: ObjectStore) -> None:
    assert objects.create("a/b.json", b"first")
    assert not objects.create("a/b.json", b"second")
    found = objects.read("a/b.json")
    assert found is not None
    assert found.data == b"first"


def test_swap_replaces_only_the_version_that_was_seen(objects: ObjectStore) -> None:
    objects.create("lease.json", b"one")
    seen = objects.read("lease.json")
    assert seen is not None
    assert objects.swap("lease.json", b"two", seen.version)
    assert not objects.swap("lease.json", b"three", seen.version)
    now = objects.read("lease.json")
    assert now is not None
    assert now.data == b"two"
    assert now.version != seen.version


def test_swap_of_an_object_that_is_not_there_writes_nothing(objects: ObjectStore) -> None:
    assert not objects.swap("nowhere/lease.json", b"x", "1")
    assert objects.read("nowhere/lease.json") is None


def test_list_has_all_objects_below_a_folder_with_their_sizes(objects: ObjectStore) -> None:
    for path, data in (("a/z.txt", b"12"), ("a/b/c.txt", b"1"), ("ab/d.txt", b"")):
        objects.create(path, data)
    assert [(info.path, info.size) for info in objects.list("a")] == [("a/b/c.txt", 1), ("a/z.txt", 2)]
    assert objects.names("a") == ["b", "z.txt"]


def test_delete_removes_an_object_or_a_folder_and_nothing_else(objects: ObjectStore) -> None:
    for path in ("a/b/c", "a/b/d", "a/bc"):
        objects.create(path, b"x")
    objects.delete("a/b")
    objects.delete("a/not there")
    assert [info.path for info in objects.list("a")] == ["a/bc"]
    objects.delete("a/bc")
    assert objects.read("a/bc") is None


def test_published_files_are_objects_with_the_same_bytes(objects: ObjectStore) -> None:
    folder = objects.folder("attempts/1/out")
    (folder / "deep").mkdir()
    (folder / "deep" / "odd name \n'\".txt").write_bytes(b"\x00\xff")
    objects.publish(folder, "attempts/1/out")
    (info,) = objects.list("attempts/1/out")
    assert info.path == "attempts/1/out/deep/odd name \n'\".txt"
    assert objects.local(info.path).read_bytes() == b"\x00\xff"


def test_a_local_file_of_a_missing_object_is_refused(objects: ObjectStore) -> None:
    with pytest.raises(FileNotFoundError):
        objects.local("nothing")


def test_put_tells_who_was_first(objects: ObjectStore) -> None:
    assert put(objects, "a", b"mine").data == b"mine"
    assert put(objects, "a", b"theirs").data == b"mine"


def test_two_memory_stores_of_one_name_are_the_same() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    open_objects(url).create("a", b"1")
    assert open_objects(url).read("a") is not None
    assert open_objects(url + "x").read("a") is None


def test_a_killed_writer_leaves_no_half_object(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    (tmp_path / "tmp" / "1d").mkdir(parents=True)
    (tmp_path / "tmp" / "1d" / "left by a killed writer").write_bytes(b"ha")
    assert objects.create("a", b"half no more")
    assert [info.path for info in objects.list("a")] == []
    assert objects.names(".") == ["a", "tmp"]


def test_another_scheme_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"gs://bucket: gs:// is not supported"):
        open_objects("gs://bucket")


def test_a_prefix_that_is_a_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    objects = open_objects(str(tmp_path / "file"))
    assert objects.read("a") is None
    with pytest.raises(
        StoreError, match=r"cannot write: a file stands where a folder is needed; choose another prefix"
    ):
        objects.create("a/b", b"")
    with pytest.raises(StoreError, match="a file stands where a folder is needed"):
        objects.folder("a/b")
