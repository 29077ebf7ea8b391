"""What comes down is of one version, goes on where it was, and is given up as one; trouble with the local file is told
as that.
"""

from __future__ import annotations

import hashlib
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import CacheError, StoreError
from marin_pipeline.store import downloads
from marin_pipeline.store.objects import NoAnswer, ObjectStore, Wanted, open_objects
from marin_pipeline.store.remote_objects import RemoteObjects
from tests.store.far_objects import FarObjects
from tests.stores import new_prefix

PART = 1000
SIZE = 5 * PART + 7


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarObjects:
    """A store with an object `a` of several parts."""
    monkeypatch.setattr(downloads, "CHUNK", PART)
    monkeypatch.setattr(downloads, "WAITS", (0.01, 0.02))
    found = FarObjects(tmp_path / "far")
    assert found.create("a", DATA)
    return found


DATA = bytes(number % 251 for number in range(SIZE))


def sent(objects: FarObjects, monkeypatch: pytest.MonkeyPatch, blocks: Callable[[int, int], Iterator[bytes]]) -> None:
    """Have the store send what `blocks` gives of a range."""
    monkeypatch.setattr(objects, "_blocks", lambda path, start, stop: blocks(start, min(stop or SIZE, SIZE)))  # pyright: ignore[reportUnknownLambdaType]


def test_every_part_goes_on_where_its_connection_broke(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(start: int, stop: int) -> Iterator[bytes]:
        yield DATA[start : min(start + 100, stop)]
        if start % 200:
            raise NoAnswer("the line broke")  # else the answer ends too early

    sent(objects, monkeypatch, broken)
    assert b"".join(objects.blocks("a", 3, SIZE - 3)) == DATA[3 : SIZE - 3]
    parts = [hashlib.sha256(DATA[start : start + PART]).digest() for start in range(0, SIZE, PART)]
    assert objects.download("a", tmp_path / "got") == hashlib.sha256(b"".join(parts)).hexdigest()
    assert (tmp_path / "got").read_bytes() == DATA


def test_when_one_part_fails_the_others_are_given_up(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def endless(start: int, stop: int) -> Iterator[bytes]:
        if start // PART == 2:
            failed.set()
            raise StoreError("refused")
        failed.wait(60)
        for at in range(start, stop):
            yield DATA[at : at + 1]
            time.sleep(0.1)

    sent(objects, monkeypatch, endless)
    began = time.monotonic()
    with pytest.raises(StoreError, match="refused"):
        objects.download("a", tmp_path / "got")
    assert time.monotonic() - began < 60  # the whole of a part takes 100 s
    assert not (tmp_path / "got").exists()


def test_parts_of_another_version_are_not_mixed(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replacing(start: int, stop: int) -> Iterator[bytes]:
        if not start:
            objects.near.delete("a")
            objects.near.create("a", bytes(SIZE))
        yield DATA[start:stop]

    sent(objects, monkeypatch, replacing)
    monkeypatch.setattr(downloads, "AT_ONCE", 1)
    with pytest.raises(StoreError, match="/far/a: was replaced while it was read; run again"):
        objects.download("a", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_a_store_that_says_nothing_is_tried_once_more_and_not_for_ever(
    objects: FarObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def silent(start: int, stop: int) -> Iterator[bytes]:
        asked.append(start)
        if not start:
            yield DATA[:10]
        time.sleep(0.02)
        raise NoAnswer("it is silent")

    sent(objects, monkeypatch, silent)
    monkeypatch.setattr(downloads, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(NoAnswer, match="it is silent"):
        list(objects.blocks("a"))
    assert asked == [0, 10]


def test_a_file_that_is_there_is_not_written_over(objects: FarObjects, tmp_path: Path) -> None:
    (tmp_path / "got").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        objects.download("a", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"mine"


@pytest.fixture(params=["gs", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    return open_objects(new_prefix(request, request.param))


def test_trouble_with_the_disk_of_the_cache_is_told_as_that(remote: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(300_000))
    assert remote.create("a", bytes(300_000))
    wanted = Wanted("a", 300_000, content_digest(tmp_path / "file"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        with pytest.raises(CacheError, match=r"/cache: no files can be kept there \(File too large\); set MARIN_CACHE"):
            remote.fetch([wanted])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert isinstance(remote, RemoteObjects)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        remote.download("a", tmp_path / "nowhere" / "got")
    assert remote.fetch([wanted])[0].stat().st_size == 300_000
