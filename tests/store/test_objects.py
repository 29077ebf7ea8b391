"""Each object store keeps what all of them promise; and what is a store's own."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.faults.faulty_objects import FaultyObjects
from tests.store.conformance import Conformance


class TestLocalFiles(Conformance):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return open_objects(str(tmp_path / "prefix"))


class TestMemory(Conformance):
    @pytest.fixture
    def objects(self) -> ObjectStore:
        return open_objects(f"memory://{uuid.uuid4().hex}")


class TestFaultyWithoutFaults(Conformance):
    """What the tests put between the engine and a store changes nothing but by its faults."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return FaultyObjects(open_objects(str(tmp_path / "prefix")), lambda operation, path: None)


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
