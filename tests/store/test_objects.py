"""Each object store keeps what all of them promise; and what is a store's own."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import time
import uuid
from pathlib import Path

import pytest

from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import CorruptOutput, StoreError, UsageError
from marin_pipeline.store.kept_files import SMALL, keep_file
from marin_pipeline.store.objects import ObjectStore, Wanted, open_objects
from tests.faults.faulty_objects import FaultyObjects
from tests.store.conformance import Conformance
from tests.stores import new_prefix


class TestLocalFiles(Conformance):
    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> ObjectStore:
        return open_objects(new_prefix(request, "local"))


class TestMemory(Conformance):
    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> ObjectStore:
        return open_objects(new_prefix(request, "memory"))


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


def test_a_url_with_one_slash_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"s3:/bucket: is written s3://bucket"):
        open_objects("s3:/bucket")
    assert open_objects("./s3:/bucket").url == str(tmp_path / "s3:" / "bucket")


def test_a_writer_whose_end_fails_leaves_nothing(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "store"))
    objects.create("taken", b"")
    (tmp_path / "file").write_bytes(bytes(SMALL + 1))
    writer = objects.writer("taken/below")
    writer.write(b"1")
    with pytest.raises(StoreError, match="a file stands where a folder is needed"):
        writer.close()
    writer.abort()
    digest = content_digest(tmp_path / "file")
    (tmp_path / "store" / "files").write_bytes(b"")
    with pytest.raises(StoreError, match="a file stands where a folder is needed"):
        keep_file(objects, tmp_path / "file", digest, SMALL + 1)
    assert objects.list("tmp") == []


def test_swap_works_where_only_files_that_can_be_written_are_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS."""
    plain = fcntl.flock

    def flock(file: int, operation: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        plain(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    objects = open_objects(str(tmp_path))
    version = objects.create("a/lease.json", b"1")
    assert version is not None
    assert objects.swap("a/lease.json", b"2", version) is not None
    assert objects.swap("a/lease.json", b"3", version) is None


def test_a_file_system_without_locks_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    objects = open_objects(str(tmp_path))
    version = objects.create("a/lease.json", b"1")
    assert version is not None
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreError, match=r"tmp/locks/..: cannot lock: the file system gives no locks there; choose"):
        objects.swap("a/lease.json", b"2", version)
    assert len(os.listdir("/proc/self/fd")) == opened


def test_another_scheme_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"abc://bucket: abc:// is not supported"):
        open_objects("abc://bucket")


@pytest.mark.parametrize(
    "prefix",
    [
        "s3://key:hunter2secret@bucket/x",
        "s3://key:hunter2secret/1@bucket/x",
        "s3:/key:hunter2secret@bucket/x",
        "gs://hunter2secret@bucket",
        "http://u:hunter2secret@h/x",
        "http://u:hunter2secret/1@h/x",
    ],
)
def test_a_prefix_with_credentials_is_refused_and_not_shown(prefix: str) -> None:
    with pytest.raises(UsageError, match="leave credentials out of it") as caught:
        open_objects(prefix)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("prefix", "meant"), [("gs:/lab/a", "gs://lab/a"), ("s3:lab", "s3://lab")])
def test_a_prefix_with_one_slash_is_no_folder(prefix: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"--prefix {prefix}: is written {meant}"):
        open_objects(prefix)


def test_half_of_a_key_of_s3_names_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-is-alone")
    with pytest.raises(UsageError, match="Missing AccessKeyId; set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_objects("s3://bucket/a")


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


@pytest.mark.parametrize("path", ["../a", "a/../../b", "..", "/etc/hostname", "a/..", "a\0b", "\ud800"])
def test_no_path_leads_out_of_a_local_store(tmp_path: Path, path: str) -> None:
    objects = open_objects(str(tmp_path / "store"))
    (tmp_path / "a").write_text("not of the store")
    calls = [
        lambda: objects.read(path),
        lambda: objects.create(path, b"x"),
        lambda: objects.swap(path, b"x", "1"),
        lambda: objects.delete(path),
        lambda: objects.list(path),
        lambda: objects.names(path),
        lambda: objects.folder(path),
        lambda: objects.fetch([Wanted(path, 0, "")]),
        lambda: list(objects.blocks(path)),
        lambda: objects.writer(path),
        lambda: objects.publish(path, []),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is no path inside the store"):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_what_is_no_file_reads_as_a_damaged_object_and_is_not_waited_for(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    for name in ("pipe", "folder", "loop", "socket"):
        found = objects.read(name)
        assert found is not None, name
        assert found.data == b""
    for name in ("pipe", "folder"):
        with pytest.raises(FileNotFoundError):
            objects.fetch([Wanted(name, 0, "")])
    (tmp_path / "endless").symlink_to("/dev/zero")
    found = objects.read("endless")
    assert found is not None
    assert found.data == b""
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    assert objects.read("pipe")
    os.close(writer)


def test_a_link_to_nothing_in_place_of_a_record_is_told(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    (tmp_path / "a").symlink_to("nowhere")
    assert objects.read("a") is None
    with pytest.raises(CorruptOutput, match="/a: is a link to what is not there; delete it"):
        objects.create("a", b"x")


def test_reading_a_long_object_takes_time_by_its_length(tmp_path: Path) -> None:
    with (tmp_path / "long").open("wb") as file:
        file.truncate(2**27)
    begun = time.process_time()
    expected = hashlib.sha256((tmp_path / "long").read_bytes()).hexdigest()
    once = time.process_time() - begun
    found = open_objects(str(tmp_path)).read("long", 2**27)
    assert time.process_time() - begun - once < 5 * once
    assert found is not None
    assert found.version == expected
