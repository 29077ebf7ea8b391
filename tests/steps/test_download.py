"""A download ends with the declared bytes or an error; its output says what they are, its records from where."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, LocalFile, Secret, step, test_context
from marin_pipeline.core.errors import InputError, Stopped
from marin_pipeline.run.context import RunContext
from steps.download import Downloaded, Source, download
from tests.faults.http_server import Act, Handler, HttpServer, http_server
from tests.faults.hub_server import Hub, Repository
from tests.run.sessions import Bench, failure, outcomes, step_folder, value

DATA = bytes(range(256)) * 100
SHA256 = hashlib.sha256(DATA).hexdigest()


@step
def lines(ctx: Context, files: Artifact[Downloaded]) -> int:
    return sum((files / each.path).read_bytes().count(b"\n") for each in files.value.files)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with http_server() as found:
        yield found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench.at(tmp_path, "inline", monkeypatch)


def made(tmp_path: Path, sources: Any, **options: Any) -> tuple[Downloaded, RunContext]:
    ctx = test_context(tmp_path)
    return download.fn(ctx, sources=sources, **options), ctx


def records(folder: Path) -> list[dict[str, Any]]:
    (found,) = folder.rglob("sources.json")
    return json.loads(found.read_text())


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_files_of_several_sources_in_their_order(
    server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    bench = Bench.at(tmp_path, backend, monkeypatch)
    (tmp_path / "here.txt").write_bytes(b"here")
    server.serve("/a/one.bin", DATA, Act(cut=1000))
    server.serve("/b/one.bin", b"other\n")
    target = download(
        [
            Source(f"{server.url}/b/one.bin", name="b/one.bin"),
            f"{server.url}/a/one.bin",
            (tmp_path / "here.txt").as_uri(),
            Source(LocalFile(tmp_path / "here.txt"), name="local.txt"),
        ]
    )
    result = bench.run(target)
    assert result.ok, failure(result)
    found = value(result, "download")
    assert [(each.path, each.size) for each in found.files] == [
        ("b/one.bin", 6),
        ("one.bin", len(DATA)),
        ("here.txt", 4),
        ("local.txt", 4),
    ]
    output = result.output(result.graph.nodes[target.key])
    assert output is not None
    assert {path: entry.sha256 for path, entry in output.files.items()} == {
        each.path: each.sha256 for each in found.files
    }
    rows = {row["path"]: row for row in records(step_folder(bench, target))}
    assert rows["one.bin"]["answers"] == 2
    assert rows["one.bin"]["etag"] == '"1"'
    assert rows["one.bin"]["pin"] == f'Source("{server.url}/a/one.bin", sha256="{SHA256}")'
    assert rows["local.txt"]["pin"] == ""
    log = "".join(each.read_text() for each in step_folder(bench, target).rglob("log.txt"))
    if backend == "local":
        assert f'unpinned: {server.url}/a/one.bin: what was read now is Source("{server.url}/a/one.bin"' in log


def test_the_output_does_not_depend_on_the_number_of_workers(server: HttpServer, tmp_path: Path) -> None:
    for number in range(20):
        server.serve(f"/{number}.txt", b"%d\n" % number * number, Act(drip=7) if number % 5 == 0 else Act())
    sources = [f"{server.url}/{number}.txt" for number in range(20)]
    found = {workers: made(tmp_path / str(workers), sources, workers=workers)[0] for workers in (1, 7, 32)}
    assert found[1] == found[7] == found[32]
    assert [each.path for each in found[1].files] == [f"{number}.txt" for number in range(20)]


def test_no_more_files_at_once_than_workers(server: HttpServer, tmp_path: Path) -> None:
    going, most, lock = set[int](), [0], threading.Lock()

    def answer(handler: Any) -> bool:
        with lock:
            going.add(threading.get_ident())
            most[0] = max(most[0], len(going))
        time.sleep(0.05)
        with lock:
            going.discard(threading.get_ident())
        return False

    server.answers["/"] = answer
    for number in range(12):
        server.serve(f"/{number}", b"x")
    made(tmp_path, [f"{server.url}/{number}" for number in range(12)], workers=3)
    assert 2 <= most[0] <= 3


def test_equal_bytes_are_an_equal_output_wherever_they_are_from(server: HttpServer, bench: Bench) -> None:
    """So that pinning a source, or taking a mirror, makes nothing again that rests on it."""
    server.serve("/file", DATA)
    server.serve("/mirror/file", DATA, etag='"other"')
    first = lines(download(f"{server.url}/file").named("files"))
    assert outcomes(bench.run(first)) == {"files": "done", "lines": "done"}
    for source in (
        Source(f"{server.url}/file", sha256=SHA256),
        Source(f"{server.url}/mirror/file", sha256=SHA256),
        Source(f"{server.elsewhere}/mirror/file", expected_bytes=len(DATA)),
    ):
        second = lines(download(source).named("files"))
        assert second.key != first.key
        assert outcomes(bench.run(second)) == {"files": "done", "lines": "cached"}


def test_what_says_where_or_how_fast_is_not_in_the_key(server: HttpServer) -> None:
    url = f"{server.url}/file"
    key = download(Source(url)).key
    assert (
        download(Source(url, expected_bytes=7, token=Secret("NAME")), workers=9, tries=1, stall_seconds=1.0).key == key
    )
    assert download(Source(url, sha256=SHA256)).key != key
    assert download(Source(url, name="other")).key != key


def test_what_is_not_pinned_is_named_and_what_is_known_to_come_is_counted(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(DATA)
    commit = "0123456789" * 4
    pinned = [
        Source("https://host/a", sha256=SHA256, expected_bytes=100),
        f"hf://datasets/some/texts@{commit}/b",
        "gs://bucket/c#17",
        "s3://bucket/d?versionId=x",
        Source(LocalFile(tmp_path / "here"), name="e"),
    ]
    declared = download(pinned).declaration
    assert declared is not None
    assert (declared.unpinned, declared.transfers) == ((), [100, None, None, None])
    here = download([(tmp_path / "here").as_uri(), Source(str(tmp_path / "here"), name="other")]).declaration
    assert here is not None
    assert list(here.transfers) == []  # it is here
    open_ones = ["https://host/a", "hf://datasets/some/texts@main/b", "gs://bucket/c", "s3://bucket/d", "/etc/hostname"]
    assert download([*pinned[1:1], *open_ones]).unpinned == tuple(open_ones)


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ("here.txt", r"a relative path says nothing to others.*LocalFile\('here.txt'\)"),
        ("https://user:secret-word@host/x", r"https://…: .*token=Secret"),
        ("https://user:secret-word/1@host/x", "an address with a user"),
        ("https://secret-word@host:x/", "an address with a user"),
        ("https:/user:secret-word@host/x", "an address with a user"),
        ("ftp://user:secret-word@host/x", "an address with a user"),
        ("s3://key:secret-word@bucket/x", "an address with a user"),
        ("s3://secret-word@bucket/x", "an address with a user"),
        ("hf://user:secret-word@datasets/a/b", "an address with a user"),
        ("https://host/x?X-Amz-Signature=secret-word", r"x\?X-Amz-Signature=…: the credential"),
        ("https://host/x?sig=secret-word", "the credential"),
        ("https://host/", "does not say what the file is called; give the source a name"),
        ("https://host/a b", "no spaces"),
        ("https://host/a#b", "leave it away"),
        ("ftp://host/x", "ftp:// is not known"),
        ("gs://bucket", "must name a bucket and an object"),
        ("hf://datasets/only", "an address of the hub is written"),
        ("file://x/y", "is written file:///path"),
        ("/a/../b", r"without '\.\.'"),
        ("https://host/value.json", "give the source another name"),
        ([], "there are none"),
        (["https://a/x", "https://b/x"], "both would be written to 'x'; give each source a name of its own"),
        (["https://a/x", Source("https://b/y", name="x/y")], "'x' would be a file and a folder"),
        (Source("https://a/x", name="../x"), "cannot be the path of a file"),
        (Source("https://a/x", sha256="ABC"), "is not 64 digits of 0-9 and a-f"),
        (Source("gs://b/*", sha256=SHA256), "names several files, and a sha256 is of one"),
        (Source("gs://b/o", token=Secret("A")), "a token is for https:// and hf://"),
    ],
)
def test_what_cannot_be_a_source_is_refused_when_it_is_declared(sources: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        download(sources)
    assert str(caught.value).startswith("step download (download.py:")
    assert "secret-word" not in str(caught.value)


def test_a_digest_that_differs_commits_nothing(server: HttpServer, bench: Bench) -> None:
    server.serve("/file", b"other")
    target = download(Source(f"{server.url}/file", sha256=SHA256))
    result = bench.run(target)
    assert outcomes(result) == {"download": "failed"}
    assert f"not {SHA256}" in failure(result)
    assert hashlib.sha256(b"other").hexdigest() in failure(result)
    server.serve("/file", DATA)
    assert outcomes(bench.run(target)) == {"download": "done"}


def test_one_file_that_cannot_be_had_ends_the_others_soon_and_keeps_what_they_have(
    server: HttpServer, bench: Bench
) -> None:
    server.serve("/long", DATA, Act(holds=2**14))
    server.serve("/done", DATA)
    server.serve("/none", DATA, Act(404))
    target = download([f"{server.url}/{name}" for name in ("done", "long", "none")], workers=2)
    begun = time.monotonic()
    result = bench.run(target)
    assert time.monotonic() - begun < 10
    assert "/none: 404 Not Found: is not there; check the address" in failure(result)
    server.asked.clear()
    assert outcomes(bench.run(target)) == {"download": "done"}
    assert sorted(each.path for each in server.asked) == ["/done", "/long", "/none"]
    kept = {each["path"]: each["kept"] for each in records(bench.prefix)}
    assert kept["done"] == len(DATA)


def test_addresses_that_differ_in_their_query_alone_are_told_apart(server: HttpServer, bench: Bench) -> None:
    found = {"id=1": b"one", "id=2": b""}

    def answer(handler: Handler) -> bool:
        query = handler.path.partition("?")[2]
        if found[query]:
            handler.reply(200, found[query], {"ETag": f'"{query}"'})
        return bool(found[query])

    server.answers["/get"] = answer
    sources = [Source(f"{server.url}/get?id={each}", name=f"{each}.txt") for each in (1, 2)]
    target = download([*sources], workers=1)
    assert f"{server.url}/get?… (2.txt): 404 Not Found" in failure(bench.run(target))
    found["id=2"] = b"two"
    result = bench.run(target)
    assert outcomes(result) == {"download": "done"}
    files = {each.path: each.sha256 for each in value(result, "download").files}
    assert files == {f"{each}.txt": hashlib.sha256(found[f"id={each}"]).hexdigest() for each in (1, 2)}


def test_a_token_is_read_where_the_step_runs_and_sent_to_its_host_alone(
    server: HttpServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = secrets.token_hex(16)  # not in this file, whose code is kept
    server.serve("/file", DATA, token=word)
    server.serve("/other", DATA)
    sources = [Source(f"{server.url}/file", token=Secret("DOWNLOAD_TOKEN")), f"{server.elsewhere}/other"]
    refused = bench.run(download(sources))
    assert "the secret DOWNLOAD_TOKEN is not set; export DOWNLOAD_TOKEN=" in failure(refused)
    monkeypatch.setenv("DOWNLOAD_TOKEN", word)
    assert outcomes(bench.run(download(sources))) == {"download": "done"}
    assert [each.headers.get("Authorization") for each in server.of("/other")] == [None]
    for file in bench.prefix.rglob("*"):
        assert not file.is_file() or word.encode() not in file.read_bytes(), file


def test_a_branch_of_the_hub_is_flagged_and_recorded_with_its_commit(
    server: HttpServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    commit = "a" * 40
    files = {"data/a.jsonl": b"1\n", "data/b.jsonl": b"2\n" * 2000, "README.md": b""}
    Hub(server).repositories["some/texts"] = Repository({commit: files}, {"main": commit})
    target = lines(download("hf://datasets/some/texts/data/").named("texts"))
    result = bench.run(target)
    assert result.ok, failure(result)
    assert value(result, "lines") == 2001
    unpinned = {node.name: node.unpinned for node in result.graph.nodes.values()}
    assert unpinned == dict.fromkeys(("texts", "lines"), ("hf://datasets/some/texts/data/",))
    declared = target.declaration
    assert declared is not None
    texts = declared.arguments["files"]
    rows = records(step_folder(bench, texts))
    assert {(row["revision"], row["pin"]) for row in rows} == {(commit, f'"hf://datasets/some/texts@{commit}/data/"')}
    pinned = lines(download(f"hf://datasets/some/texts@{commit}/data/").named("texts"))
    again = bench.run(pinned)
    assert outcomes(again) == {"texts": "done", "lines": "cached"}
    assert {node.unpinned for node in again.graph.nodes.values()} == {()}


def test_a_download_that_is_asked_to_stop_stops_soon(server: HttpServer, tmp_path: Path) -> None:
    server.serve("/file", DATA, Act(holds=2**14))

    class Stopping(type(test_context(tmp_path))):
        asked = 0

        @property
        def stopping(self) -> bool:
            self.asked += 1
            return self.asked > 3

    ctx = test_context(tmp_path / "ctx")
    ctx.__class__ = Stopping
    begun = time.monotonic()
    with pytest.raises(Stopped):
        download.fn(ctx, sources=f"{server.url}/file")
    assert time.monotonic() - begun < 10
    assert not list(ctx.out.iterdir())


def test_progress_is_told_in_bytes(server: HttpServer, bench: Bench) -> None:
    server.serve("/file", DATA, Act(drip=3000))
    bench.run(download(f"{server.url}/file"))
    told = [notice.data for notice in bench.notices if notice.verb == "progress"]
    assert {each["unit"] for each in told} == {"bytes"}
    assert (told[-1]["done"], told[-1]["total"]) == (len(DATA), len(DATA))


def test_a_file_that_is_written_while_it_is_copied_is_copied_anew(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(DATA)
    with pytest.raises(InputError, match="is not there; check the path, on the machine that runs the step"):
        made(tmp_path / "a", str(tmp_path / "none"))
    with pytest.raises(InputError, match="is no file"):
        made(tmp_path / "b", str(tmp_path))
    found, ctx = made(tmp_path / "c", str(file))
    assert (ctx.out / "file").read_bytes() == DATA
    assert found.files[0].sha256 == SHA256
