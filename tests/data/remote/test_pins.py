"""What a download says of how to pin a source, pasted into the file, brings the same files under the same paths."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store

from marin_pipeline import Secret, test_context
from marin_pipeline.data.remote.pins import at_object
from marin_pipeline.data.remote.place import State
from steps.download import Downloaded, Source, download
from tests.data.remote.test_objects import DATA, bucket, gcs, s3, weed
from tests.faults.http_server import HttpServer
from tests.faults.hub_server import Hub, Repository

__all__ = ["bucket", "gcs", "s3", "weed"]

MANY = ["texts/**", "texts/*.jsonl", "other/", "texts/a.jsonl"]
WAYS: list[dict[str, Any]] = [{}, {"name": "called/so"}, {"expected_bytes": 10**6}]


def made(folder: Path, sources: Any) -> tuple[Downloaded, list[str]]:
    """What comes out, and how each file is pinned."""
    ctx = test_context(folder)
    found = download.fn(ctx, sources=sources)
    rows = json.loads((ctx.records / "sources.json").read_text())
    assert {path.relative_to(ctx.out).as_posix() for path in ctx.out.rglob("*") if path.is_file()} == {
        each.path for each in found.files
    }
    return found, [row["pin"] for row in rows]


def pasted_back(folder: Path, source: Source) -> list[str]:
    """Downloads a source, and what it was said to be pinned as; the texts."""
    before, pins = made(folder / "before", source)
    assert all(pins)
    texts = list(dict.fromkeys(pins))
    written: Any = eval(f"[{', '.join(texts)}]", {"Source": Source, "Secret": Secret})
    after, none = made(folder / "after", written)
    assert after == before
    assert set(none) == {""}
    assert download(written).unpinned == ()
    return texts


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("path", MANY)
def test_objects_of_gs(bucket: Any, tmp_path: Path, path: str, options: dict[str, Any]) -> None:
    texts = pasted_back(tmp_path, Source(f"gs://corpora/{path}", **options))
    known = str(10**6 if path == "texts/a.jsonl" else len(DATA))
    assert all((f"expected_bytes={known}" in each) == ("expected_bytes" in options) for each in texts)


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("path", ["texts/**", "texts/a.jsonl"])
def test_objects_of_s3(s3: S3Store, tmp_path: Path, path: str, options: dict[str, Any]) -> None:
    pasted_back(tmp_path, Source(f"s3://corpora/{path}", **options))


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_files_of_the_web_and_of_the_hub_with_their_token(
    server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("SOURCE_TOKEN", secrets.token_hex(16))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.serve("/a/one.bin", DATA)
    files = {"data/a.jsonl": b"1\n", "data/deep/b.jsonl": b"2\n"}
    Hub(server).repositories["some/texts"] = Repository({"a" * 40: files}, {"main": "a" * 40})
    urls = [
        f"{server.url}/a/one.bin",
        *(f"hf://datasets/some/texts{path}" for path in ("", "/data/", "/data/*.jsonl", "/data/a.jsonl")),
    ]
    for number, url in enumerate(urls):
        (text,) = pasted_back(tmp_path / str(number), Source(url, token=Secret("SOURCE_TOKEN"), **options))
        assert 'token=Secret("SOURCE_TOKEN")' in text


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_file_of_the_machine(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "a b.txt").write_bytes(DATA)
    for number, url in enumerate((str(tmp_path / "a b.txt"), (tmp_path / "a b.txt").as_uri())):
        pasted_back(tmp_path / str(number), Source(url, **options))


def test_an_object_that_no_address_names_alone_is_said_to_be_one() -> None:
    assert "no source can name alone" in at_object("gs://b/a*.txt", "a*.txt", {}, True, "17")(State("", 1), "")
