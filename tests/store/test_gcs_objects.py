"""Objects in Google Cloud Storage keep what all stores promise; and what is this store's own: what happens when the
line breaks, and what is said to whoever may not do what they ask for.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store import downloads, gcs_client, gcs_objects, gcs_uploads
from marin_pipeline.store.gcs_objects import GcsObjects
from marin_pipeline.store.manifest import build_manifest
from marin_pipeline.store.objects import FileToPublish, NoAnswer, ObjectStore, Told, Wanted, open_objects, put, untold
from tests.faults.gcs_protocol import EMPTY, GENERATION, Store, gcs_protocol, refusal
from tests.faults.proxy import Line, line_to
from tests.servers import Server, free_port
from tests.store.conformance import Conformance
from tests.stores import BUCKET

MIB = 2**20


class TestGcs(Conformance):
    @pytest.fixture
    def objects(self, gs_prefix: str) -> ObjectStore:
        return open_objects(gs_prefix)


@pytest.fixture
def objects(gs_prefix: str) -> GcsObjects:
    return GcsObjects(gs_prefix)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits long."""
    monkeypatch.setattr(gcs_client, "CALL_WAITS", (0.01, 0.01))
    monkeypatch.setattr(gcs_uploads, "SESSION_WAITS", (0.01, 0.01))
    monkeypatch.setattr(downloads, "WAITS", (0.01, 0.01))
    quickly = {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.01), "base": 2}
    monkeypatch.setattr(gcs_client, "READ_RETRIES", {**gcs_client.READ_RETRIES, "max_retries": 2, "backoff": quickly})


@pytest.fixture
def line(gs_server: Server, monkeypatch: pytest.MonkeyPatch, impatient: None) -> Iterator[Line]:
    """The line to the server, which knows the bucket `marin-test`."""
    with line_to(gs_server.url) as line:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", line.url)
        yield line


@pytest.fixture
def beyond(line: Line) -> GcsObjects:
    """A new store at the end of the line."""
    return GcsObjects(f"gs://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture
def protocol(monkeypatch: pytest.MonkeyPatch, impatient: None) -> Iterator[Store]:
    """A server that answers as it is told."""
    with gcs_protocol() as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
        yield store


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def publish(objects: ObjectStore, folder: Path, data: bytes, told: Told = untold) -> Any:
    file = folder / "file"
    file.write_bytes(data)
    (written,) = objects.publish("a", [FileToPublish("file", file, len(data))], told)
    assert written.sha256 == content_digest(file)
    assert written.size == len(data)
    return written


def in_store(objects: ObjectStore, path: str) -> bytes:
    return b"".join(objects.blocks(path))


# What is written is what is there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 8 * MIB, 8 * MIB + 1, 67 * MIB + 5])
def test_files_of_every_size_are_published_hashed_and_downloaded(
    objects: GcsObjects, tmp_path: Path, size: int
) -> None:
    data = some_bytes(size)
    told: list[tuple[int, int]] = []
    written = publish(objects, tmp_path, data, lambda count, size: told.append((count, size)))
    assert (sum(count for count, _ in told), sum(size for _, size in told)) == (1, size)
    (info,) = objects.list("a")
    assert (info.path, info.size, info.checksum) == ("a/file", size, written.checksum)
    assert in_store(objects, "a/file") == data
    assert objects.download("a/file", tmp_path / "got") == written.sha256
    assert (tmp_path / "got").read_bytes() == data


@pytest.mark.parametrize("size", [0, 5, 16 * MIB, 16 * MIB + 1, 40 * MIB])
def test_a_stream_of_every_size_is_one_object(objects: GcsObjects, size: int) -> None:
    data = some_bytes(size)
    writer = objects.writer("a/stream")
    for start in range(0, size, 3 * MIB):
        assert writer.write(memoryview(data)[start : start + 3 * MIB]) == len(data[start : start + 3 * MIB])
    assert objects.list("a") == []
    written = writer.close()
    (info,) = objects.list("a")
    assert (written.size, written.checksum) == (info.size, info.checksum)
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    assert in_store(objects, "a/stream") == data


def test_of_a_stream_that_is_given_up_nothing_is_there(objects: GcsObjects) -> None:
    writer = objects.writer("a/stream")
    writer.write(bytes(40 * MIB))
    writer.abort()
    assert objects.list("a") == []


def test_a_range_is_read(objects: GcsObjects, tmp_path: Path) -> None:
    data = some_bytes(5 * MIB)
    publish(objects, tmp_path, data)
    for start, stop in ((0, 10), (3, 3), (MIB, 4 * MIB), (4 * MIB, None), (5 * MIB, None), (4 * MIB, 9 * MIB)):
        assert b"".join(objects.blocks("a/file", start, stop)) == data[start:stop]
    with pytest.raises(FileNotFoundError):
        list(objects.blocks("a/none", 3, 3))


def test_thousands_of_objects_are_listed_over_several_pages_and_deleted(objects: GcsObjects, tmp_path: Path) -> None:
    files: list[FileToPublish] = []
    for number in range(1100):
        (tmp_path / f"{number}").write_bytes(b"x")
        files.append(FileToPublish(f"{number}", tmp_path / f"{number}", 1))
    told: list[tuple[int, int]] = []
    objects.publish("many", files, lambda count, size: told.append((count, size)))
    assert (sum(count for count, _ in told), sum(size for _, size in told)) == (1100, 1100)
    objects.create("many.json", b"")
    assert [info.path for info in objects.list("many")] == sorted(f"many/{number}" for number in range(1100))
    assert objects.names("many") == sorted(f"{number}" for number in range(1100))
    objects.delete("many")
    assert objects.list("many") == []
    assert objects.read("many.json") is not None


def test_what_is_said_of_one_object_is_what_a_listing_says(objects: GcsObjects) -> None:
    objects.create("a/b", b"12")
    objects.create("a/bc", b"1")
    assert objects.info("a/b") == objects.list("a")[0]
    assert objects.info("a") is None
    assert objects.info("c") is None


def test_two_prefixes_of_a_bucket_do_not_see_each_other(gs_prefix: str) -> None:
    one, two = open_objects(gs_prefix), open_objects(f"{gs_prefix}-2/")
    assert not one.is_there()
    one.create("a", b"1")
    assert one.is_there()
    assert not two.is_there()
    assert two.read("a") is None
    assert two.url == f"{gs_prefix}-2"


@pytest.mark.parametrize("path", ["../a", "a/../../b", "..", "/etc/hostname", "a/..", "a\0b", "\ud800"])
def test_no_path_leads_out_of_the_prefix(objects: GcsObjects, tmp_path: Path, path: str) -> None:
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
        lambda: objects.download(path, tmp_path / "x"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is no path inside the store"):
            call()


@pytest.mark.parametrize("url", ["gs://", "gs:///a", "gs://A/b", "gs://bucket/../a", "gs://bucket/a//b", "gs://b/a"])
def test_a_prefix_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"is not gs://BUCKET/FOLDER|cannot be a bucket's name|has an empty part"):
        open_objects(url)


@pytest.mark.parametrize("path", ["a\nb", "a/\t", "\x7f"])
def test_a_name_with_a_control_character_is_refused(objects: GcsObjects, path: str) -> None:
    for call in (lambda: objects.create(path, b""), lambda: objects.read(path), lambda: list(objects.blocks(path))):
        with pytest.raises(StoreError, match=r"has a control character, .*; rename it"):
            call()


def test_objects_are_read_by_the_xml_api_where_the_server_is_no_emulator(
    objects: GcsObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects.client, "emulator", None)
    objects.client.reader.cache_clear()
    names = ["a/odd  name '\"?#%2F.txt", "a/ünï", "a/-rf", "a/b\\c", "a/%41", "a/a+b c", "a/q|{}^`<>*[]~"]
    for name in names:
        version = objects.create(name, name.encode())
        found = objects.read(name)
        assert found == (name.encode(), version)
        assert list(objects.blocks(name, 2, 4)) == [name.encode()[2:4]]
    assert objects.read("a/none") is None
    publish(objects, tmp_path, some_bytes(67 * MIB))
    assert objects.download("a/file", tmp_path / "got") == content_digest(tmp_path / "file")
    monkeypatch.undo()
    objects.client.reader.cache_clear()


# The line breaks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4 * MIB, 20 * MIB])
def test_a_line_that_breaks_while_a_file_goes_up_loses_nothing(
    line: Line, beyond: GcsObjects, tmp_path: Path, size: int
) -> None:
    line.cuts_of_requests = [3 * MIB]
    written = publish(beyond, tmp_path, some_bytes(size))
    assert line.cuts_of_requests == []
    assert in_store(beyond, "a/file") == some_bytes(size)
    assert beyond.list("a")[0].checksum == written.checksum


@pytest.mark.parametrize("size", [4 * MIB, 70 * MIB])
@pytest.mark.parametrize("call", ["blocks", "download"])
def test_what_comes_down_goes_on_where_the_line_broke(
    line: Line, beyond: GcsObjects, tmp_path: Path, size: int, call: str
) -> None:
    data = some_bytes(size)
    written = publish(beyond, tmp_path, data)
    line.received, line.cuts = 0, [3 * MIB] * (size // (8 * MIB) + 1)
    if call == "blocks":
        assert in_store(beyond, "a/file") == data
    else:
        assert beyond.download("a/file", tmp_path / "got") == written.sha256
        assert (tmp_path / "got").read_bytes() == data
    assert line.cuts == []
    assert line.received < 1.6 * size + 4 * MIB, "what had come was asked for again"


def test_a_version_that_is_there_no_more_is_replaced_and_not_missing(protocol: Store) -> None:
    objects = GcsObjects("gs://bucket/x")
    protocol.objects["x/a"] = b"0123456789"
    opened = objects.opened("a", 2, 5, GENERATION)
    assert (opened.version, opened.size, b"".join(opened.blocks)) == (GENERATION, 10, b"234")
    with pytest.raises(StoreError, match="gs://bucket/x/a: was replaced while it was read"):
        objects.opened("a", 2, 5, "6")
    with pytest.raises(FileNotFoundError):
        objects.opened("b", 2, 5, "")


HEAD = (
    b'HTTP/1.1 200 OK\r\nETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
    b"X-Goog-Generation: 1\r\nConnection: close\r\n"
)


def test_an_answer_that_announces_more_than_there_is_memory_or_ends_early_is_none(
    line: Line, beyond: GcsObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "WAITS", ())
    calls = (
        lambda: beyond.read("a"),
        lambda: in_store(beyond, "a"),
    )
    for length in (b"99999999999999999", b"9"):
        for call in calls:
            line.canned = [HEAD + b"Content-Length: " + length + b"\r\n\r\nabc"] * 20
            with pytest.raises(StoreError, match=r"the store does not answer|it ended at byte 3|has more than"):
                call()
            line.canned.clear()


def test_a_body_that_trickles_is_given_up(line: Line, beyond: GcsObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_objects, "CALL_SECONDS", 1.0)
    assert beyond.create("a", bytes(1000)) is not None
    line.answers = trickling
    began = time.monotonic()
    for call in (lambda: beyond.read("a"), lambda: list(beyond.blocks("a", 0, 1001))):
        with pytest.raises(NoAnswer):
            call()
    assert time.monotonic() - began < 20


def trickling(data: bytes) -> bytes:
    """An answer after whose head nothing comes but now and then."""
    time.sleep(0.7)
    return data[:300] if data.startswith(b"HTTP") else b""


def test_a_proxy_of_the_environment_is_asked_by_reads_and_by_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with gcs_protocol() as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://gcs.invalid")
        monkeypatch.setenv("http_proxy", store.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        objects = GcsObjects("gs://bucket/x")
        store.answers = [EMPTY]
        assert objects.list("a") == []
        assert store.asked == 1
        assert objects.read("a") is not None
        assert store.asked == 2


def test_what_is_replaced_while_it_is_read_is_told(line: Line, beyond: GcsObjects, tmp_path: Path) -> None:
    publish(beyond, tmp_path, some_bytes(20 * MIB))
    line.cuts = [3 * MIB]
    reading = beyond.blocks("a/file")
    next(reading)
    beyond.create("else", b"")
    publish(beyond, tmp_path, some_bytes(21 * MIB))
    with pytest.raises(StoreError, match="a/file: was replaced while it was read; run again"):
        list(reading)
    assert in_store(beyond, "a/file") == some_bytes(21 * MIB)


def test_a_download_that_fails_leaves_no_file(objects: GcsObjects, tmp_path: Path) -> None:
    publish(objects, tmp_path, some_bytes(MIB))
    with pytest.raises(FileNotFoundError) as raised:
        objects.download("a/none", tmp_path / "got")
    assert raised.value.filename == "a/none"
    with pytest.raises(FileNotFoundError, match=r"nowhere/got"):
        objects.download("a/file", tmp_path / "nowhere" / "got")
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, resource.RLIM_INFINITY))
    try:
        with pytest.raises(OSError, match="File too large"):
            objects.download("a/file", tmp_path / "got")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not (tmp_path / "got").exists()


def test_a_write_whose_answer_was_lost_is_found_when_it_is_read_back(line: Line, beyond: GcsObjects) -> None:
    line.lost = [b"POST /upload"]
    assert beyond.create("a", b"1") is None
    line.lost = [b"POST /upload"]
    assert put(beyond, "b", b"1").data == b"1"
    found = beyond.read("b")
    assert found is not None
    line.lost = [b"POST /upload"]
    assert beyond.swap("b", b"2", found.version) is None
    again = beyond.read("b")
    assert again is not None
    assert again.data == b"2"
    assert line.lost == []


def test_an_upload_in_parts_whose_last_answer_was_lost_is_whole(line: Line, beyond: GcsObjects, tmp_path: Path) -> None:
    line.lost = [b"PUT /upload"]
    publish(beyond, tmp_path, some_bytes(9 * MIB))
    assert line.lost == []
    assert in_store(beyond, "a/file") == some_bytes(9 * MIB)


@pytest.mark.parametrize("switch", ["refusing", "silent"])
def test_a_server_that_refuses_or_says_nothing_is_given_up(
    line: Line, beyond: GcsObjects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, switch: str
) -> None:
    publish(beyond, tmp_path, some_bytes(70 * MIB))
    monkeypatch.setattr(gcs_client, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(gcs_uploads, "SILENCE_SECONDS", 0.2)
    setattr(line, switch, True)
    calls = [
        lambda: beyond.read("a"),
        lambda: beyond.create("a", b""),
        lambda: beyond.swap("a", b"", "1"),
        lambda: beyond.delete("a"),
        lambda: beyond.list("a"),
        lambda: beyond.names("a"),
        lambda: publish(beyond, tmp_path, bytes(10)),
        lambda: publish(beyond, tmp_path, bytes(70 * MIB)),
        lambda: in_store(beyond, "a/file"),
        lambda: beyond.fetch([Wanted("a/file", 0, "")]),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(NoAnswer, match=r"gs://.*the store does not answer \(.+\); check the network") as raised:
            call()
        assert "::" not in str(raised.value), "a name of the client's own classes"
        assert time.monotonic() - began < 20
    setattr(line, switch, False)


def test_a_port_where_nobody_listens_is_given_up_in_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{free_port()}")
    objects = open_objects("gs://bucket/x")
    for call, doing in ((lambda: objects.read("a"), "read"), (lambda: objects.create("a", b""), "write")):
        began = time.monotonic()
        with pytest.raises(
            NoAnswer,
            match=rf"gs://bucket/x/a: cannot {doing}: the store does not answer \(Conn",
        ):
            call()
        assert 2 < time.monotonic() - began < 20


# Uploads in parts as Google answers them -----------------------------------------------------------------------------


def test_what_was_kept_of_an_upload_is_not_sent_again(protocol: Store, tmp_path: Path) -> None:
    size = 40 * MIB + 7
    protocol.break_after = [15 * MIB, 10 * MIB]
    publish(GcsObjects("gs://bucket/x"), tmp_path, some_bytes(size))
    assert protocol.objects["x/a/file"] == some_bytes(size)
    assert size <= protocol.received < size + 2 * 256 * 1024


def test_what_was_kept_of_a_stream_is_not_sent_again(protocol: Store) -> None:
    size = 40 * MIB + 7
    protocol.break_after = [15 * MIB, 1 * MIB, 3 * MIB + 5]
    writer = GcsObjects("gs://bucket/x").writer("stream")
    writer.write(some_bytes(size))
    assert writer.close().sha256 == hashlib.sha256(some_bytes(size)).hexdigest()
    assert protocol.objects["x/stream"] == some_bytes(size)
    assert size <= protocol.received < size + 3 * 256 * 1024


def test_a_file_is_sent_anew_when_the_store_has_forgotten_the_upload(protocol: Store, tmp_path: Path) -> None:
    protocol.break_after, protocol.forget = [15 * MIB], 1
    publish(GcsObjects("gs://bucket/x"), tmp_path, some_bytes(20 * MIB))
    assert protocol.objects["x/a/file"] == some_bytes(20 * MIB)


def test_a_stream_whose_upload_was_forgotten_has_failed(protocol: Store) -> None:
    protocol.break_after, protocol.forget = [15 * MIB], 1
    writer = GcsObjects("gs://bucket/x").writer("stream")
    with pytest.raises(NoAnswer, match="it forgets what was sent"):
        writer.write(some_bytes(60 * MIB))
    with pytest.raises(NoAnswer, match="it forgets what was sent"):
        writer.close()
    writer.abort()
    assert protocol.objects == {}


# Refusals ------------------------------------------------------------------------------------------------------------

NO_BUCKET = "gs://no-such-bucket: there is no such bucket; .*`gcloud storage buckets create gs://no-such-bucket`"


def test_a_bucket_that_does_not_exist_is_named_with_what_makes_it(gs_prefix: str, tmp_path: Path) -> None:
    objects = open_objects("gs://no-such-bucket/x")
    calls = [
        objects.is_there,
        lambda: objects.create("a", b""),
        lambda: objects.list("a"),
        lambda: objects.names("a"),
        lambda: publish(objects, tmp_path, bytes(10)),
        lambda: publish(objects, tmp_path, bytes(10 * MIB)),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=NO_BUCKET):
            call()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refusal(404, "The specified bucket does not exist."), "gs://bucket: there is no such bucket"),
        (
            refusal(401, "Invalid Credentials", "authError"),
            "gs://bucket/x/a: cannot read: the credentials are refused .*`gcloud auth application-default login`",
        ),
        (
            refusal(403, "a@b.com does not have storage.objects.get access to the object.", "forbidden"),
            r"permission denied \(a@b.com does not have storage.objects.get access.*roles/storage.objectUser",
        ),
        (
            refusal(400, "Bucket is a requester pays bucket but no user project provided."),
            "requester pays; say who pays with `export FSSPEC_GS_REQUESTER_PAYS=PROJECT`",
        ),
        (refusal(418, "I am a teapot"), "cannot read: it answered 418, I am a teapot"),
    ],
)
def test_a_refusal_says_what_to_do_and_is_not_asked_again(protocol: Store, answer: tuple[int, str], told: str) -> None:
    protocol.answers = [answer]
    with pytest.raises(StoreError, match=told) as raised:
        open_objects("gs://bucket/x").read("a")
    assert not isinstance(raised.value, NoAnswer)
    assert protocol.asked == 1


def all_calls(objects: GcsObjects, folder: Path) -> dict[str, Callable[[], object]]:
    """Every kind of call."""

    def stream() -> None:
        writer = objects.writer("a/s")
        try:
            writer.write(bytes(20 * MIB))
            writer.close()
        finally:
            writer.abort()

    return {
        "is_there": objects.is_there,
        "read": lambda: objects.read("a"),
        "create": lambda: objects.create("a", b""),
        "swap": lambda: objects.swap("a", b"", "1"),
        "delete": lambda: objects.delete("a"),
        "list": lambda: objects.list("a"),
        "names": lambda: objects.names("a"),
        "info": lambda: objects.info("a"),
        "region": objects.region,
        "publish": lambda: publish(objects, folder, bytes(10)),
        "publish large": lambda: publish(objects, folder, bytes(10 * MIB)),
        "stream": stream,
        "blocks": lambda: in_store(objects, "a/file"),
        "range": lambda: list(objects.blocks("a/file", 3, 9)),
        "download": lambda: objects.download("a/file", folder / "got"),
        "fetch": lambda: objects.fetch([Wanted("a/file", 3, "")]),
    }


@pytest.mark.parametrize("headers", [{}, {"ETag": '"x"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}])
@pytest.mark.parametrize("body", ["<html>please log in</html>", "[]", "null"])
def test_what_answers_everything_with_a_page_is_no_store(
    protocol: Store, tmp_path: Path, headers: dict[str, str], body: str
) -> None:
    protocol.page = (body, {"Content-Type": "text/html", **headers})
    for name, call in all_calls(GcsObjects("gs://bucket/x"), tmp_path).items():
        with pytest.raises(StoreError, match=rf"^gs://bucket.*what answers at {protocol.url} is not GCS") as raised:
            call()
        assert not isinstance(raised.value, NoAnswer), name
    assert not (tmp_path / "got").exists()


def test_an_object_whose_answer_says_nothing_of_it_is_none(protocol: Store) -> None:
    protocol.answers = [(200, "{}")]
    with pytest.raises(StoreError, match="is not GCS"):
        GcsObjects("gs://bucket/x").info("a")


@pytest.mark.parametrize("body", ["{}", '{"items": []}', '{"kind": "storage#object"}', '{"status": "log in"}'])
def test_an_answer_that_does_not_say_that_it_is_a_listing_is_none(protocol: Store, body: str) -> None:
    objects = GcsObjects("gs://bucket/x")
    more = json.dumps({"kind": "storage#objects", "nextPageToken": "more"})
    calls = [lambda: objects.list("a"), lambda: objects.names("a"), lambda: objects.delete("a"), objects.is_there]
    for call in calls:
        protocol.answers = [(200, body)]
        with pytest.raises(StoreError, match=r"cannot list: .*is not GCS"):
            call()
    for call in calls[:2]:
        protocol.answers = [(200, more), (200, body)]
        with pytest.raises(StoreError, match=r"cannot list: .*is not GCS"):
            call()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_is_busy_is_asked_again(protocol: Store, status: int) -> None:
    protocol.answers = [refusal(status, "later"), refusal(status, "later"), (200, "now")]
    found = open_objects("gs://bucket/x").read("a")
    assert found is not None
    assert found.data == b"now"
    protocol.answers = [refusal(status, "later")]
    with pytest.raises(NoAnswer, match=f"it answered {status}, later"):
        open_objects("gs://bucket/x").read("a")


def test_a_rate_limit_that_comes_as_a_403_is_one(protocol: Store) -> None:
    protocol.answers = [refusal(403, "slow down", "rateLimitExceeded"), EMPTY]
    assert open_objects("gs://bucket/x").list("a") == []
    protocol.answers = [refusal(403, "slow down", "RateLimitExceeded")]
    with pytest.raises(NoAnswer, match="it answered 403, slow down"):
        open_objects("gs://bucket/x").read("a")


def test_without_credentials_a_refusal_says_that_none_were_found(
    protocol: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = GcsObjects("gs://bucket/x")
    monkeypatch.setattr(objects.client, "no_credentials", "File /nowhere.json was not found.")
    protocol.answers = [refusal(401, "Anonymous caller does not have storage.objects.get access")]
    with pytest.raises(
        StoreError, match=r"not allowed without credentials, and none were found \(File /nowhere.json.*gcloud auth"
    ):
        objects.read("a")


def test_credentials_that_have_expired_and_a_token_in_an_answer(protocol: Store) -> None:
    objects = GcsObjects("gs://bucket/x")
    credentials = objects.client._fs.credentials
    credentials.credentials = Credentials("ya29.this-is-secret")
    protocol.objects["x/a"] = b"1"
    assert objects.read("a") == (b"1", GENERATION)
    assert protocol.authorization == "Bearer ya29.this-is-secret"
    protocol.answers = [refusal(403, "the token ya29.this-is-secret may not do that")]
    with pytest.raises(StoreError, match="permission denied") as raised:
        objects.read("a")
    assert "ya29" not in str(raised.value)

    credentials.credentials = Credentials(
        None, refresh_token="old", token_uri=f"{protocol.url}/token", client_id="a", client_secret="also-secret"
    )
    protocol.answers = [(400, '{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}')]
    with pytest.raises(
        StoreError,
        match=r"have expired and cannot be renewed \(.*invalid_grant.*`gcloud auth application-default login`",
    ) as raised:
        objects.read("a")
    assert not isinstance(raised.value, NoAnswer)
    assert "secret" not in str(raised.value)


def test_who_pays_is_told_to_the_store() -> None:
    with gcs_protocol() as store:
        store.objects["x/a"] = b""
        script = (
            "from marin_pipeline.store.gcs_objects import GcsObjects\n"
            "objects = GcsObjects('gs://bucket/x')\n"
            "print(objects.client.object_url('bucket', 'a'), objects.read('a'))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "STORAGE_EMULATOR_HOST": store.url, "FSSPEC_GS_REQUESTER_PAYS": "my-project"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert "userProject=my-project" in done.stdout
    assert store.project == "my-project"


# What is compared ----------------------------------------------------------------------------------------------------


def test_what_the_store_says_of_the_bytes_is_compared(objects: GcsObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = objects.folder("a/out")
    (folder / "file").write_bytes(b"right")
    manifest = build_manifest(objects, folder, "a/out", {})
    assert manifest.entries[0].checksum == objects.list("a/out")[0].checksum
    told = GcsObjects.publish

    def damaged(self: GcsObjects, path: str, *files: Any) -> Any:
        found = told(self, path, *files)
        self.delete(f"{path}/file")
        self.create(f"{path}/file", b"wrong")
        return found

    monkeypatch.setattr(GcsObjects, "publish", damaged)
    with pytest.raises(StoreError, match="was written, but has the checksum"):
        build_manifest(objects, folder, "a/out", {})


# Bytes that are changed on the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["create", "swap", "put", "publish", "writer"])
@pytest.mark.parametrize("size", [MIB, 20 * MIB])
def test_bytes_that_were_changed_on_the_way_are_found_out_by_the_checksum_that_the_store_answers(
    line: Line, beyond: GcsObjects, tmp_path: Path, how: str, size: int
) -> None:
    mark = b"0123456789 the bytes that are changed"
    data = some_bytes(size // 2) + 2 * mark + some_bytes(size // 2)  # one may come in two pieces
    version = beyond.create("a/swap", b"")
    assert version is not None
    line.requests = lambda data: data.replace(mark, mark.replace(b"0", b"1"))

    def write() -> None:
        if how == "publish":
            (tmp_path / how).write_bytes(data)
            beyond.publish("a", [FileToPublish(how, tmp_path / how, len(data))])
        elif how == "writer":
            with beyond.writer("a/writer") as writer:
                writer.write(data)
        elif how == "swap":
            beyond.swap("a/swap", data, version)
        elif how == "create":
            beyond.create("a/create", data)
        else:
            put(beyond, "a/put", data)

    with pytest.raises(StoreError, match=rf"a/{how}: .*(other bytes than were written|CRC32C|crc32c)"):
        write()
