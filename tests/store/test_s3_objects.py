"""Objects of a real S3 server on the loopback: the promises of every store, and what is this one's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store import bucket_client, s3_objects, s3_uploads
from marin_pipeline.store.manifest import files_below
from marin_pipeline.store.objects import FileToPublish, NoAnswer, ObjectStore, Wanted, open_objects
from marin_pipeline.store.s3_objects import S3Objects, part_size
from tests import servers
from tests.faults.proxy import line_to
from tests.servers import Server
from tests.store.conformance import Conformance
from tests.stores import BUCKET

MIB = 2**20


class TestS3(Conformance):
    rounds = 3

    @pytest.fixture
    def objects(self, s3_prefix: str) -> ObjectStore:
        return open_objects(s3_prefix)


@pytest.mark.slow
class TestS3ForLong(Conformance):
    @pytest.fixture
    def objects(self, s3_prefix: str) -> ObjectStore:
        return open_objects(s3_prefix)


@pytest.fixture
def objects(s3_prefix: str) -> S3Objects:
    return S3Objects(s3_prefix)


def random_file(file: Path, size: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(random.Random(size).randbytes(size))
    return file


# Files ----------------------------------------------------------------------------------------------------------------

SIZES = (0, 1, 5 * MIB, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB, 65 * MIB + 3)


def test_what_is_published_has_the_digest_of_the_file_and_the_checksum_that_the_store_lists(objects: S3Objects) -> None:
    folder = objects.folder("a/out")
    for size in SIZES:
        random_file(folder / f"{size}", size)
    files = [FileToPublish(*each) for each in files_below(folder)]
    written = objects.publish("a/out", files)
    listed = {info.path: info for info in objects.list("a/out")}
    assert len(listed) == len(files)
    for each, said in zip(files, written, strict=True):
        assert said.sha256 == content_digest(each.file)
        assert listed[f"a/out/{each.name}"].size == said.size == each.size
        assert listed[f"a/out/{each.name}"].checksum == said.checksum
        assert said.checksum is not None
        assert ("-" in said.checksum) == (each.size > s3_objects.PART)


def test_what_is_fetched_has_the_bytes_and_the_digest(objects: S3Objects, tmp_path: Path) -> None:
    folder = objects.folder("a")
    for size in (0, 5 * MIB, 64 * MIB, 130 * MIB + 1):
        file = random_file(folder / f"{size}", size)
        objects.publish("a", [FileToPublish(f"{size}", file, size)])
        assert objects.download(f"a/{size}", tmp_path / f"{size}") == content_digest(file)
        assert (tmp_path / f"{size}").stat().st_size == size
        assert content_digest(tmp_path / f"{size}") == content_digest(file)


def test_ranges_of_an_object_are_those_of_its_bytes(objects: S3Objects) -> None:
    data = random.Random(1).randbytes(3 * MIB + 7)
    objects.create("a", data)
    for start, stop in ((0, None), (5, None), (0, 5), (MIB, 2 * MIB + 1), (len(data) - 1, None), (7, 7)):
        assert b"".join(objects.blocks("a", start, stop)) == data[start:stop]
    assert b"".join(objects.blocks("a", 3 * MIB, 9 * MIB)) == data[3 * MIB :]
    assert b"".join(objects.blocks("a", len(data))) == b""


@pytest.mark.parametrize("size", [0, 1, 32 * MIB, 32 * MIB + 1, 70 * MIB])
def test_a_stream_becomes_an_object_with_the_digest_of_its_bytes(objects: S3Objects, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    writer = objects.writer("a/stream")
    for start in range(0, size, 3_000_001):
        piece = bytearray(data[start : start + 3_000_001])
        assert writer.write(piece) == len(piece)
        piece[:] = bytes(len(piece))  # the writer has what it was given, whatever becomes of the buffer
    assert objects.list("a") == []
    written = writer.close()
    (listed,) = objects.list("a")
    assert (written.size, written.checksum) == (listed.size, listed.checksum)
    assert objects.download("a/stream", tmp_path / "got") == written.sha256
    assert (tmp_path / "got").read_bytes() == data


@pytest.mark.parametrize("size", [1, 70 * MIB])
def test_a_stream_that_is_given_up_leaves_nothing(objects: S3Objects, s3_server: Server, size: int) -> None:
    writer = objects.writer("a/stream")
    for _ in range(0, size, MIB):
        writer.write(bytes(min(size, MIB)))
    writer.abort()
    assert objects.list("a") == []
    assert unfinished(s3_server, objects) == 0


def unfinished(server: Server, objects: S3Objects) -> int:
    """Uploads in parts below the prefix that were begun and are not finished."""
    prefix = objects.url.rpartition("/")[2]
    return servers.answered(server.url, f"/{BUCKET}?uploads&prefix={prefix}").count(b"<Upload>")


def test_a_file_that_cannot_be_read_is_named(objects: S3Objects, tmp_path: Path) -> None:
    for size in (1, 9 * MIB):
        with pytest.raises(StoreError, match=r"gone: cannot read what was written"):
            objects.publish("a", [FileToPublish("gone", tmp_path / "gone", size)])
    assert objects.list("a") == []


def test_the_parts_of_a_large_file_are_at_most_as_many_as_s3_takes() -> None:
    for size in (9 * MIB, 80_000 * MIB, 80_001 * MIB, 5_000_000 * MIB):
        part = part_size(size)
        assert part >= s3_objects.PART
        assert -(-size // part) <= s3_uploads.MOST_PARTS


def test_many_objects_are_listed_and_deleted(objects: S3Objects) -> None:
    folder = objects.folder("a/many")
    for number in range(1050):
        (folder / f"{number}").write_text(f"{number}")
    files = [FileToPublish(*each) for each in files_below(folder)]
    objects.publish("a/many", files)
    assert len(objects.list("a")) == len(objects.names("a/many")) == 1050
    objects.delete("a")
    assert objects.list("a") == []


BROKEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: 5000\r\n\r\n<?xml"


def test_a_listing_that_breaks_off_is_asked_for_again(
    s3_server: Server, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with line_to(s3_server.url) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.url)
        objects = open_objects(s3_prefix)
        objects.create("a/x", b"1")
        for asked in (lambda: [info.path for info in objects.list("a")], lambda: objects.names("a"), objects.is_there):
            whole = asked()
            line.canned.append(BROKEN)
            assert (asked(), line.canned) == (whole, [])
        monkeypatch.setattr(bucket_client, "BROKEN_WAITS", (0.0, 0.0, 0.0))
        line.canned.extend([BROKEN] * 4)
        with pytest.raises(NoAnswer, match=r"cannot list: the answer of .* breaks off"):
            objects.list("a")


@pytest.mark.parametrize("path", ["../a", "a/../../b", "..", "/etc/hostname", "a/..", "a\0b", "\ud800", "a//b"])
def test_no_path_leads_out_of_the_prefix(objects: S3Objects, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: objects.read(path),
        lambda: objects.create(path, b"x"),
        lambda: objects.swap(path, b"x", '"1"'),
        lambda: objects.delete(path),
        lambda: objects.list(path),
        lambda: objects.names(path),
        lambda: objects.fetch([Wanted(path, 0, "")]),
        lambda: list(objects.blocks(path)),
        lambda: objects.writer(path).close(),
        lambda: objects.publish(path, [FileToPublish("x", Path(__file__), 1)]),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is no path inside the store"):
            call()


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "s3:///"])
def test_a_prefix_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="s3://bucket/folder"):
        S3Objects(url)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_prefix_that_cannot_be_is_told_with_the_reason(scheme: str) -> None:
    for prefix in ("bucket/a//b", "bucket/a/../b", "bucket/./b"):
        with pytest.raises(UsageError, match=r"its folder has an empty part, '\.' or '\.\.'; write it without"):
            open_objects(f"{scheme}://{prefix}")
    for bucket in ("b", "ab", "-abc", "abc-", "a b", "ä" * 5, "x" * 300):
        with pytest.raises(UsageError, match=r"cannot be a bucket's name: that has 3 to 63 characters"):
            open_objects(f"{scheme}://{bucket}/a")
    with pytest.raises(UsageError, match=rf"{scheme}://"):
        open_objects(f"{scheme}:///a")
