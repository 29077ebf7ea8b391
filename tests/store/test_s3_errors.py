"""What goes wrong between this machine and an S3 store: it is told in a few seconds, with a remedy, and without a
secret.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from obstore.exceptions import GenericError
from obstore.store import S3Store

from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import CorruptOutput, MarinError, StoreError, UsageError
from marin_pipeline.store import downloads
from marin_pipeline.store.commit import look
from marin_pipeline.store.objects import FileToPublish, NoAnswer, put
from marin_pipeline.store.s3_objects import S3Objects
from tests import servers
from tests.faults.proxy import Line, line_to
from tests.servers import Server
from tests.stores import BUCKET, environment_of, set_environment

MIB = 2**20
SECRET = "only-the-server-and-we-know-this"
TOKEN = "a-token-of-this-session"


@pytest.fixture
def line(s3_server: Server, s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with line_to(s3_server.url) as found:
        set_environment(monkeypatch, environment_of("s3", found.url))
        yield found


def calls(objects: S3Objects, folder: Path) -> dict[str, Callable[[], object]]:
    """Every kind of call."""
    small, large = folder / "small", folder / "large"
    small.write_bytes(b"x")
    large.write_bytes(bytes(9 * MIB))

    def stream() -> None:
        writer = objects.writer("s")
        try:
            for _ in range(34):
                writer.write(bytes(MIB))
            writer.close()
        finally:
            writer.abort()

    return {
        "read": lambda: objects.read("a"),
        "create": lambda: objects.create("a", b"x"),
        "swap": lambda: objects.swap("a", b"x", '"1"'),
        "delete": lambda: objects.delete("a"),
        "list": lambda: objects.list("a"),
        "names": lambda: objects.names("a"),
        "publish": lambda: objects.publish("p", [FileToPublish("small", small, 1)]),
        "publish large": lambda: objects.publish("p", [FileToPublish("large", large, 9 * MIB)]),
        "stream": stream,
        "blocks": lambda: list(objects.blocks("a")),
        "download": lambda: objects.download("a", folder / "got"),
    }


def refusals(objects: S3Objects, folder: Path, but: Sequence[str] = ()) -> dict[str, MarinError]:
    """What each call but those is answered, each in a few seconds."""
    begun = time.monotonic()

    def refused(call: Callable[[], object]) -> MarinError:
        with pytest.raises(StoreError) as raised:
            call()
        return raised.value

    todo = {name: call for name, call in calls(objects, folder).items() if name not in but}
    with ThreadPoolExecutor(len(todo)) as pool:
        found = dict(zip(todo, pool.map(refused, todo.values()), strict=True))
    assert time.monotonic() - begun < 20
    for name, error in found.items():
        assert error.__cause__ is None, f"{name}: the answer of the server may repeat what it was asked"
        assert SECRET not in str(error), name
        assert TOKEN not in str(error), name
    return found


def test_a_bucket_that_does_not_exist_is_named_with_what_to_do(s3_prefix: str, tmp_path: Path) -> None:
    # A swap is answered as one that came too late; only who has read the object makes it.
    for name, error in refusals(S3Objects("s3://not-there/a"), tmp_path, but=["swap"]).items():
        assert str(error).startswith("s3://not-there: there is no such bucket at http://127.0.0.1"), (name, error)
        assert str(error).endswith("; create it, or choose another --prefix"), name


def test_a_server_that_does_not_answer_is_told_in_some_seconds(
    s3_prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{servers.free_port()}")
    for name, error in refusals(S3Objects(s3_prefix), tmp_path).items():
        assert isinstance(error, NoAnswer), name
        assert "does not answer; check AWS_ENDPOINT_URL" in str(error), name


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that knows two people, of whom one may only read."""
    folder = tmp_path_factory.mktemp("strict")
    people = [
        {"name": "writer", "credentials": [{"accessKey": "writer", "secretKey": SECRET}], "actions": ["Admin"]},
        {
            "name": "reader",
            "credentials": [{"accessKey": "reader", "secretKey": SECRET}],
            "actions": [f"Read:{BUCKET}", f"List:{BUCKET}"],
        },
    ]
    (folder / "identities.json").write_text(json.dumps({"identities": people}))
    with servers.seaweedfs(folder, folder / "identities.json") as server:
        yield server


def as_person(monkeypatch: pytest.MonkeyPatch, server: Server, key: str, secret: str = SECRET) -> S3Objects:
    set_environment(monkeypatch, environment_of("s3", server.url))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    return S3Objects(f"s3://{BUCKET}/strict")


@pytest.mark.parametrize(
    ("key", "secret", "code"),
    [("writer", "wrong", "SignatureDoesNotMatch"), ("nobody", SECRET, "InvalidAccessKeyId")],
)
def test_credentials_that_are_not_accepted_are_told_by_the_variables_to_look_at(
    strict_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, secret: str, code: str
) -> None:
    for name, error in refusals(as_person(monkeypatch, strict_server, key, secret), tmp_path).items():
        assert "are not accepted; check AWS_ACCESS_KEY_ID" in str(error), name
        assert code in str(error), name
        assert not isinstance(error, NoAnswer), name


def test_who_may_only_read_reads_and_is_told_what_is_missing_to_write(
    strict_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_bucket(strict_server)
    assert as_person(monkeypatch, strict_server, "writer").create("kept", b"1") is not None
    reader = as_person(monkeypatch, strict_server, "reader")
    found = reader.read("kept")
    assert found is not None
    assert found.data == b"1"
    for name in ("create", "swap", "publish", "publish large", "stream"):
        with pytest.raises(StoreError, match=r"access denied; the credentials need .*s3:PutObject"):
            calls(reader, tmp_path)[name]()


def make_bucket(server: Server) -> None:
    """The bucket of a server that asks for a signature: a PUT of its path, signed as that of an object is."""
    signing = S3Store(
        "any",
        endpoint=server.url,
        access_key_id="writer",
        secret_access_key=SECRET,
        client_options={"allow_http": True},
        virtual_hosted_style_request=True,
    )
    with suppress(GenericError):  # a bucket has no ETag
        signing.put(BUCKET, b"", use_multipart=False)


# Answers that the server here never gives -----------------------------------------------------------------------------


def answer(status: str, code: str, more: str = "") -> bytes:
    """An answer as S3 gives it."""
    body = f"<Error><Code>{code}</Code><Message>as it is</Message>{more}</Error>".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        ("400 Bad Request", "ExpiredToken", "the credentials have expired; renew them"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "set AWS_REGION to its region"),
        ("403 Forbidden", "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        ("403 Forbidden", "AccessDenied", "access denied; the credentials need"),
        ("418 Teapot", "Unheard", "http://127.0.0.1.* says Unheard"),
    ],
)
def test_a_refusal_is_told_with_its_remedy_and_nothing_of_the_request(
    line: Line, s3_prefix: str, tmp_path: Path, status: str, code: str, remedy: str
) -> None:
    objects = S3Objects(s3_prefix)
    asked = f"<CanonicalRequest>x-amz-security-token:{TOKEN}</CanonicalRequest>"
    for name, call in calls(objects, tmp_path).items():
        line.canned = [answer(status, code, asked)] * 12
        with pytest.raises(StoreError, match=remedy) as raised:
            call()
        assert not isinstance(raised.value, NoAnswer), name
        assert TOKEN not in str(raised.value), name
        assert raised.value.__cause__ is None, name
        line.canned = []


@pytest.mark.parametrize("headers", ["", 'ETag: "x"\r\n'])
def test_a_page_to_log_in_is_no_store(line: Line, s3_prefix: str, tmp_path: Path, headers: str) -> None:
    page = b"<html>log in</html>"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{headers}Content-Length: {len(page)}\r\nConnection: close"
    objects = S3Objects(s3_prefix)
    for name in ("read", "blocks", "download", *(("create", "publish", "publish large") if not headers else ())):
        line.canned = [f"{head}\r\n\r\n".encode() + page] * 12
        with pytest.raises(StoreError, match=r"what answers at http://127\.0\.0\.1:\d+ is not S3") as raised:
            calls(objects, tmp_path)[name]()
        assert not isinstance(raised.value, NoAnswer), name
        assert len(line.canned) == 11, "it is not asked again"
    line.canned = [f"{head}\r\n\r\n".encode() + page] * 200
    with pytest.raises(StoreError, match="is not S3"):
        look(objects, "steps/a.py:b", "0" * 64)
    line.canned = []


def test_a_server_without_conditional_writes_is_told(line: Line, s3_prefix: str) -> None:
    line.canned = [answer("501 Not Implemented", "NotImplemented")] * 12
    with pytest.raises(StoreError, match="lacks an operation that is needed"):
        S3Objects(s3_prefix).create("a", b"1")


def test_a_server_that_is_busy_for_a_moment_is_asked_again(line: Line, s3_prefix: str, tmp_path: Path) -> None:
    objects = S3Objects(s3_prefix)
    for name in ("create", "read", "list", "names", "publish", "publish large", "blocks", "download", "delete"):
        line.canned = [answer("503 Slow Down", "SlowDown")] * 2
        calls(objects, tmp_path)[name]()
        assert not line.canned, name


def test_a_server_that_is_busy_for_long_is_told_as_one_that_does_not_answer(line: Line, s3_prefix: str) -> None:
    line.canned = [answer("503 Slow Down", "SlowDown")] * 50
    with pytest.raises(NoAnswer, match="asks to slow down"):
        S3Objects(s3_prefix).create("a", b"1")


def test_an_object_that_others_write_at_the_moment_is_created_when_they_have_not(line: Line, s3_prefix: str) -> None:
    """S3 answers 409 when a delete or another write goes on: that does not say that the object is there."""
    objects = S3Objects(s3_prefix)
    line.canned = [answer("409 Conflict", "ConditionalRequestConflict")] * 2
    assert objects.create("a", b"1") is not None
    line.canned = [answer("409 Conflict", "ConditionalRequestConflict")] * 2
    assert objects.create("a", b"2") is None
    line.canned = [answer("409 Conflict", "ConditionalRequestConflict")] * 50
    with pytest.raises(NoAnswer):
        objects.create("b", b"2")


def test_a_write_whose_answer_was_lost_is_ours(line: Line, s3_prefix: str) -> None:
    objects = S3Objects(s3_prefix)
    line.cuts = [0]
    assert put(objects, "a", b"mine").data == b"mine"
    assert not line.cuts


# Broken connections ---------------------------------------------------------------------------------------------------


def test_reading_goes_on_where_the_connection_broke(line: Line, s3_prefix: str, tmp_path: Path) -> None:
    objects = S3Objects(s3_prefix)
    for size in (10 * MIB, 70 * MIB):
        data = random.Random(size).randbytes(size)
        (tmp_path / "file").write_bytes(data)
        (written,) = objects.publish("a", [FileToPublish("file", tmp_path / "file", size)])
        line.cuts = [3 * MIB, 2 * MIB, 1 * MIB]
        assert b"".join(objects.blocks("a/file")) == data
        assert not line.cuts
        line.cuts = [3 * MIB, 2 * MIB, 1 * MIB]
        assert objects.download("a/file", tmp_path / f"{size}") == written.sha256
        assert not line.cuts
        assert (tmp_path / f"{size}").read_bytes() == data


def test_an_object_that_is_replaced_while_it_is_read_is_not_read_as_a_mixture(
    line: Line, s3_prefix: str, tmp_path: Path
) -> None:
    objects = S3Objects(s3_prefix)
    file = tmp_path / "file"
    file.write_bytes(bytes(10 * MIB))
    objects.publish("a", [FileToPublish("file", file, 10 * MIB)])
    line.cuts = [3 * MIB]
    blocks = objects.blocks("a/file")
    next(blocks)
    file.write_bytes(b"\1" * 10 * MIB)
    S3Objects(s3_prefix).publish("a", [FileToPublish("file", file, 10 * MIB)])
    with pytest.raises(StoreError, match="was replaced while it was read"):
        b"".join(blocks)


def test_a_download_that_cannot_be_finished_leaves_no_file(
    line: Line, s3_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "WAITS", (0.1,))
    objects = S3Objects(s3_prefix)
    (tmp_path / "file").write_bytes(bytes(10 * MIB))
    objects.publish("a", [FileToPublish("file", tmp_path / "file", 10 * MIB)])
    line.cuts = [2 * MIB] + [0] * 200
    with pytest.raises(NoAnswer):
        objects.download("a/file", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_an_answer_that_announces_more_than_there_is_memory_is_none(
    line: Line, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "WAITS", ())
    objects = S3Objects(s3_prefix)
    head = b'HTTP/1.1 200 OK\r\nETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nConnection: close\r\n'
    for call, error in ((lambda: objects.read("a"), CorruptOutput), (lambda: list(objects.blocks("a")), NoAnswer)):
        line.canned = [head + b"Content-Length: 99999999999999999\r\n\r\nabc"] * 20
        with pytest.raises(error):
            call()
        line.canned.clear()


def test_an_upload_goes_on_after_the_connection_broke(line: Line, s3_prefix: str, tmp_path: Path) -> None:
    objects = S3Objects(s3_prefix)
    (tmp_path / "file").write_bytes(random.Random(5).randbytes(40 * MIB))
    line.cuts = [0, 0, 0]
    (written,) = objects.publish("a", [FileToPublish("file", tmp_path / "file", 40 * MIB)])
    assert not line.cuts
    assert objects.download("a/file", tmp_path / "got") == written.sha256 == content_digest(tmp_path / "file")


# ETags ----------------------------------------------------------------------------------------------------------------

_TAG = re.compile(rb'(?<=[";])[0-9a-f]{32}\b')


def test_where_etags_are_no_digests_what_the_store_answered_is_compared_with_what_it_lists(
    line: Line, s3_prefix: str, tmp_path: Path
) -> None:
    """As in a bucket whose objects are encrypted with KMS: a tag then says which version it is and nothing else."""
    as_it_is = line.answers
    line.answers = lambda data: _TAG.sub(lambda tag: tag[0][::-1], as_it_is(data))
    objects = S3Objects(s3_prefix)
    file = tmp_path / "file"
    file.write_bytes(b"the bytes")
    (written,) = objects.publish("a", [FileToPublish("file", file, 9)])
    (listed,) = objects.list("a")
    assert listed.checksum == written.checksum is not None
    assert objects.list("tmp") == []


@pytest.mark.parametrize("size", [5, 20 * MIB])
def test_other_bytes_than_were_written_are_found_out_by_the_etag(
    line: Line, s3_prefix: str, tmp_path: Path, size: int
) -> None:
    objects = S3Objects(s3_prefix)
    file = tmp_path / "file"
    file.write_bytes(random.Random(size).randbytes(size))
    (written,) = objects.publish("a", [FileToPublish("file", file, size)])
    assert written.checksum is not None
    tag = written.checksum.partition("-")[0].encode()
    as_it_is = line.answers
    line.answers = lambda data: as_it_is(data).replace(tag, b"0" * 32)
    with pytest.raises(StoreError, match=r"a/file: the store has other bytes than were written \(ETag 0000"):
        objects.publish("a", [FileToPublish("file", file, size)])


@pytest.mark.parametrize("how", ["create", "swap", "put", "writer"])
def test_a_record_that_was_changed_on_the_way_is_found_out_by_the_etag(line: Line, s3_prefix: str, how: str) -> None:
    objects, data = S3Objects(s3_prefix), b"0123456789 the bytes that are changed"
    version = objects.create("a/swap", b"")
    assert version is not None
    as_it_is = line.requests
    line.requests = lambda request: as_it_is(request).replace(data, data.replace(b"0", b"1"))

    def write() -> None:
        if how == "writer":
            with objects.writer("a/writer") as writer:
                writer.write(data)
        elif how == "swap":
            objects.swap("a/swap", data, version)
        elif how == "create":
            objects.create("a/create", data)
        else:
            put(objects, "a/put", data)

    with pytest.raises(StoreError, match=rf"a/{how}: the store has other bytes than were written \(ETag"):
        write()


def test_where_etags_are_no_digests_records_are_written_and_replaced(line: Line, s3_prefix: str) -> None:
    as_it_is = line.answers
    line.answers = lambda data: _TAG.sub(lambda tag: tag[0][::-1], as_it_is(data))
    line.requests = lambda data: _TAG.sub(lambda tag: tag[0][::-1], data)
    objects = S3Objects(s3_prefix)
    version = objects.create("a", b"1")
    assert version is not None
    assert objects.swap("a", b"2", version) is not None
    found = objects.read("a")
    assert found is not None
    assert found.data == b"2"
    assert objects.list("tmp") == []


# Variables ------------------------------------------------------------------------------------------------------------


def test_a_profile_without_boto3_is_told(s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert importlib.util.find_spec("boto3") is None
    with pytest.raises(UsageError, match=r"AWS_PROFILE is set, and boto3 is not installed.*; pip install boto3, or"):
        S3Objects(s3_prefix)


def test_no_credentials_at_all_are_told(s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Where a machine of the cloud would tell its credentials, nobody listens.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{servers.free_port()}")
    begun = time.monotonic()
    with pytest.raises(StoreError, match="no credentials were found; set AWS_ACCESS_KEY_ID"):
        S3Objects(s3_prefix).read("a")
    assert time.monotonic() - begun < 15


def test_an_endpoint_for_s3_alone_comes_before_that_for_all_services(
    s3_prefix: str, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    assert S3Objects(s3_prefix).create("a", b"1") is not None


def test_a_key_without_its_secret_names_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not; set both"):
        S3Objects("s3://bucket/folder")
