"""Objects of gs:// and s3://, on real servers: what is read is one generation, one version or one ETag, whole."""

from __future__ import annotations

import gzip
import hashlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote import google
from marin_pipeline.data.remote.address import parse
from marin_pipeline.data.remote.place import State
from marin_pipeline.data.remote.sources import Clients, Found, Wanted
from marin_pipeline.data.remote.transfer import Patience, Watch, patiently
from tests import servers
from tests.data.remote.conftest import QUICK, Reader
from tests.stores import environment_of, set_environment

DATA = bytes(range(256)) * 40
OTHER = bytes(reversed(DATA))
NAMES = ("texts/a.jsonl", "texts/b.jsonl.gz", "texts/deep/c.jsonl", "other/a b+é%.txt")


def find(url: str, **options: Any) -> list[Found]:
    def asked(call: Any, shown: str) -> list[Found]:
        return patiently(call, shown, patience=QUICK, watch=Watch(), log=lambda message: None)

    return Clients(5.0, asked).find([Wanted(parse(url), **options)])


def read(reader: Reader, url: str) -> bytes:
    (found,) = find(url)
    return reader.read(found.place, found.expected)[0]


# gs:// ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gcs() -> Iterator[servers.Server]:
    with servers.fake_gcs() as server:
        servers.make_gcs_bucket(server, "corpora")
        yield server


@pytest.fixture
def bucket(gcs: servers.Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    set_environment(monkeypatch, environment_of("gs", gcs.url))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    google.file_system.cache_clear()
    files = google.file_system()
    for name in NAMES:
        files.pipe_file(f"corpora/{name}", DATA)
    yield files
    google.file_system.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_an_object_is_read_at_its_generation_which_pins_it(bucket: Any, reader: Reader, name: str) -> None:
    (found,) = find(f"gs://corpora/{name}")
    generation = bucket.info(f"corpora/{name}")["generation"]
    assert found.facts == {"generation": generation}
    assert found.expected == {"md5": hashlib.md5(DATA, usedforsecurity=False).hexdigest()}
    data, fetched = reader.read(found.place, found.expected)
    assert data == DATA
    pinned = json.loads(found.pin(fetched.state, fetched.sha256))
    assert pinned == f"gs://corpora/{name}#{generation}"
    assert parse(pinned).is_fixed
    (again,) = find(pinned)
    assert again.pin(fetched.state, fetched.sha256) == ""


def test_an_object_that_is_cut_goes_on_by_range(bucket: Any, reader: Reader) -> None:
    (found,) = find("gs://corpora/texts/a.jsonl")
    state = State(found.place.fixed, len(DATA))
    reply = found.place.open(1000, state)
    assert (reply.start, b"".join(reply.blocks())) == (1000, DATA[1000:])
    reply.close()


def test_a_pattern_names_objects(bucket: Any) -> None:
    assert [each.path for each in find("gs://corpora/texts/**")] == ["a.jsonl", "b.jsonl.gz", "deep/c.jsonl"]
    assert [each.path for each in find("gs://corpora/texts/*.jsonl", name="all")] == ["all/a.jsonl"]
    with pytest.raises(InputError, match="no file fits"):
        find("gs://corpora/texts/*.parquet")


@pytest.mark.parametrize("url", ["gs://corpora/none", "gs://nowhere/none", "gs://corpora/texts/a.jsonl#17"])
def test_an_object_that_is_not_there_is_told(bucket: Any, url: str) -> None:
    with pytest.raises(InputError, match="no such bucket, object or generation; check the address"):
        find(url)


def test_another_generation_than_was_asked_for_is_refused(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call = bucket.call

    def unheard(*args: Any, generation: str | None, **query: Any) -> Any:
        return call(*args, **query)

    monkeypatch.setattr(bucket, "call", unheard)
    generation = bucket.info("corpora/texts/a.jsonl")["generation"]
    assert find(f"gs://corpora/texts/a.jsonl#{generation}")
    with pytest.raises(InputError, match=rf"a\.jsonl#17: the store gave generation {generation}, where 17 .* a sha256"):
        find("gs://corpora/texts/a.jsonl#17")


def test_other_bytes_than_the_store_says_are_refused(bucket: Any, reader: Reader) -> None:
    (found,) = find("gs://corpora/texts/a.jsonl")
    with pytest.raises(InputError, match="bytes have the md5"):
        reader.read(found.place, {"md5": "0" * 32})
    with pytest.raises(InputError, match="bytes have the crc32c"):
        reader.read(found.place, {"crc32c": "0" * 8})


# s3:// ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with servers.seaweedfs(tmp_path_factory.mktemp("weed")) as server:
        servers.make_s3_bucket(server, "corpora")
        yield server


@pytest.fixture
def s3(weed: servers.Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    set_environment(monkeypatch, environment_of("s3", weed.url))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    store = S3Store("corpora", endpoint=weed.url, client_options={"allow_http": True})
    for name in NAMES[:3]:
        obstore.put(store, name, DATA)
    return store


def test_an_object_of_s3_is_read_under_its_etag(s3: S3Store, reader: Reader) -> None:
    (found,) = find("s3://corpora/texts/a.jsonl")
    data, fetched = reader.read(found.place, found.expected)
    assert data == DATA
    assert fetched.state.facts["etag"] == obstore.head(s3, "texts/a.jsonl")["e_tag"]
    assert fetched.state.validator == fetched.state.facts["etag"]
    assert f'sha256="{fetched.sha256}"' in found.pin(fetched.state, fetched.sha256)
    versioned = State("", 1, {"version": "abc"})
    assert found.pin(versioned, "") == '"s3://corpora/texts/a.jsonl?versionId=abc"'


def test_an_object_of_s3_goes_on_by_range_or_begins_anew_when_it_changed(s3: S3Store, reader: Reader) -> None:
    (found,) = find("s3://corpora/texts/a.jsonl")
    whole = found.place.open(0, None)
    reply = found.place.open(1000, whole.state)
    assert (reply.start, b"".join(reply.blocks())) == (1000, DATA[1000:])
    # An attempt left parts of what was there before.
    small = Reader(reader.folder / "small", part=1000)
    assert small.read(found.place)[0] == DATA
    for item in small.work.items()[5:]:
        small.work.discard(item)
    obstore.put(s3, "texts/a.jsonl", OTHER)
    assert small.read(found.place)[0] == OTHER
    assert "was changed while it was read" in small.told[0]
    data, fetched = small.read(found.place)
    assert (data, fetched.kept, fetched.answers) == (OTHER, len(OTHER), 1)


def test_a_version_of_s3_is_read_only_from_a_server_that_has_versions(
    weed: servers.Server, s3: S3Store, reader: Reader
) -> None:
    url = "s3://versions/a.jsonl"
    servers.make_s3_bucket(weed, "versions")
    store = S3Store("versions", endpoint=weed.url, client_options={"allow_http": True})
    obstore.put(store, "a.jsonl", DATA)
    with pytest.raises(InputError, match=r"gave no version, where 0123abcd was asked for.*give the source a sha256"):
        read(reader, f"{url}?versionId=0123abcd")
    enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    asked = urllib.request.Request(f"{weed.url}/versions?versioning", data=enabled, method="PUT")
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200
    version = obstore.put(store, "a.jsonl", OTHER)["version"]
    obstore.put(store, "a.jsonl", DATA)
    assert read(reader, f"{url}?versionId={version}") == OTHER
    (found,) = find(f"{url}?versionId={version}")
    reply = found.place.open(1000, State(found.place.fixed, len(OTHER)))
    assert (reply.start, b"".join(reply.blocks())) == (1000, OTHER[1000:])


def test_a_pattern_names_objects_of_s3(s3: S3Store) -> None:
    assert [each.path for each in find("s3://corpora/texts/")] == ["a.jsonl", "b.jsonl.gz", "deep/c.jsonl"]
    assert [each.path for each in find("s3://corpora/**/?.jsonl")] == ["texts/a.jsonl", "texts/deep/c.jsonl"]


def test_a_folder_marker_of_s3_is_no_file_and_an_empty_object_is_one(weed: servers.Server, s3: S3Store) -> None:
    for marker in ("marked/", "marked/empty/", "marked/full/"):
        assert servers.answers_status(weed.url, f"/corpora/{marker}", "PUT") == 200
    obstore.put(s3, "marked/full/a", DATA)
    obstore.put(s3, "marked/nothing", b"")
    listed = [each["path"] for batch in s3.list("marked") for each in batch]
    assert "marked/empty" in listed
    assert [each.path for each in find("s3://corpora/marked/")] == ["full/a", "nothing"]


@pytest.mark.parametrize("url", ["s3://corpora/none", "s3://nowhere/none"])
def test_an_object_of_s3_that_is_not_there_is_told(s3: S3Store, reader: Reader, url: str) -> None:
    with pytest.raises(InputError, match="no such bucket, object or version; check the address"):
        read(reader, url)
    assert reader.told == []


def test_credentials_that_are_not_accepted_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    identity = {"name": "one", "credentials": [{"accessKey": "right", "secretKey": "right"}], "actions": ["Admin"]}
    identities = tmp_path / "identities.json"
    identities.write_text(json.dumps({"identities": [identity]}))
    with servers.seaweedfs(tmp_path, identities) as server:
        set_environment(monkeypatch, {**environment_of("s3", server.url), "AWS_ACCESS_KEY_ID": "wrong"})
        with pytest.raises(InputError, match="may not be read; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
            read(reader, "s3://corpora/texts/a.jsonl")
        with pytest.raises(InputError, match="may not be read"):
            find("s3://corpora/texts/*")
    assert reader.told == []


def test_a_store_that_is_not_there_is_tried_again_and_told(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> None:
    set_environment(monkeypatch, environment_of("s3", f"http://127.0.0.1:{servers.free_port()}"))
    (found,) = find("s3://corpora/a")
    with pytest.raises(InputError, match="no answer from the store; 2 tries in a row came to nothing"):
        reader.read(found.place, patience=Patience(tries=2, first_wait=0.0))


def test_an_object_that_is_stored_as_gzip_comes_as_it_is(bucket: Any, reader: Reader) -> None:
    stored = gzip.compress(DATA)
    bucket.pipe_file(
        "corpora/packed", stored, content_type="text/plain", fixed_key_metadata={"content_encoding": "gzip"}
    )
    assert read(reader, "gs://corpora/packed") == stored
