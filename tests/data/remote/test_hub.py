"""The hub: a revision is resolved once, and every file is checked against what the hub says of it. The real one was not
reached here: the server of the tests answers what `huggingface_hub` asks.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import parse
from marin_pipeline.data.remote.sources import Clients, Found, Wanted
from marin_pipeline.data.remote.transfer import Watch, patiently
from tests.data.remote.conftest import QUICK, Reader
from tests.faults.http_server import Act, HttpServer
from tests.faults.hub_server import Hub, Repository

SMALL = b'{"text": "a"}\n'
BIG = bytes(range(256)) * 8
FIRST, SECOND = "1" * 40, "2" * 40
FILES = {"README.md": b"read me", "data/a.jsonl": SMALL, "data/b.parquet": BIG, "data/deep/c.jsonl": SMALL * 2}


@pytest.fixture
def hub(server: HttpServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    hub = Hub(server)
    hub.repositories["some/texts"] = Repository(
        {FIRST: FILES, SECOND: {**FILES, "data/a.jsonl": b"new"}}, {"main": SECOND, "refs/convert/parquet": FIRST}
    )
    return hub


def find(url: str, told: list[str] | None = None) -> list[Found]:
    def asked(call, shown):  # pyright: ignore
        return patiently(call, shown, patience=QUICK, watch=Watch(), log=([] if told is None else told).append)

    return Clients(5.0, asked).find([Wanted(parse(url))])


def test_all_files_of_a_commit_with_their_digests(hub: Hub, reader: Reader) -> None:
    found = find(f"hf://datasets/some/texts@{FIRST}")
    assert [each.path for each in found] == sorted(FILES)
    for each in found:
        data, fetched = reader.read(each.place, each.expected)
        assert data == FILES[each.path]
        assert each.pin(fetched.state, fetched.sha256) == ""
    (large,) = [each for each in found if each.path == "data/b.parquet"]
    assert large.expected == {"sha256": hashlib.sha256(BIG).hexdigest()}
    assert {each.expected.keys() == {"git"} for each in found if each is not large} == {True}


@pytest.mark.parametrize(
    ("path", "paths"),
    [
        ("data/*.jsonl", ["a.jsonl"]),
        ("data/**/*.jsonl", ["a.jsonl", "deep/c.jsonl"]),
        ("data/", ["a.jsonl", "b.parquet", "deep/c.jsonl"]),
        ("data/a.jsonl", ["a.jsonl"]),
        ("*.md", ["README.md"]),
        ("data/?.parquet", ["b.parquet"]),
    ],
)
def test_a_pattern_names_files_below_its_folder(hub: Hub, path: str, paths: list[str]) -> None:
    assert [each.path for each in find(f"hf://datasets/some/texts@{FIRST}/{path}")] == paths


@pytest.mark.parametrize(
    ("url", "commit"),
    [
        ("hf://datasets/some/texts/data/a.jsonl", SECOND),
        ("hf://datasets/some/texts@main/data/a.jsonl", SECOND),
        ("hf://datasets/some/texts@refs/convert/parquet/data/a.jsonl", FIRST),
    ],
)
def test_a_branch_is_resolved_to_its_commit_which_pins_it(hub: Hub, reader: Reader, url: str, commit: str) -> None:
    (found,) = find(url)
    assert found.facts == {"revision": commit}
    data, fetched = reader.read(found.place, found.expected)
    assert data == hub.repositories["some/texts"].commits[commit]["data/a.jsonl"]
    pinned = f"hf://datasets/some/texts@{commit}/data/a.jsonl"
    assert found.pin(fetched.state, fetched.sha256) == f'"{pinned}"'
    assert parse(pinned).is_fixed
    assert not parse(url).is_fixed


def test_another_commit_than_was_asked_for_is_refused(hub: Hub) -> None:
    hub.repositories["some/texts"].branches[FIRST] = SECOND
    with pytest.raises(InputError, match=f"{FIRST}/data/: the hub gave the commit {SECOND}, where another one"):
        find(f"hf://datasets/some/texts@{FIRST}/data/")


def test_a_branch_that_moves_meanwhile_is_one_commit_for_all_sources(hub: Hub) -> None:
    def asked(call, shown):  # pyright: ignore
        found = call()
        hub.repositories["some/texts"].branches["main"] = FIRST
        return found

    urls = ["hf://datasets/some/texts/data/a.jsonl", "hf://datasets/some/texts/data/b.parquet"]
    found = Clients(5.0, asked).find([Wanted(parse(url)) for url in urls])
    assert [each.facts["revision"] for each in found] == [SECOND, SECOND]


def test_large_files_go_on_after_a_cut_and_the_token_stays_with_the_hub(
    hub: Hub, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    hub.repositories["some/texts"].token = "hf_sesame"
    digest = hashlib.sha256(BIG).hexdigest()
    hub.acts = {digest: [Act(cut=1000), Act(cut=500)]}
    (found,) = find(f"hf://datasets/some/texts@{FIRST}/data/b.parquet")
    data, fetched = reader.read(found.place, found.expected)
    assert data == BIG
    requests = hub.server.of(f"/lfs/{digest}")
    assert [each.range for each in requests] == ["", "bytes=1000-", "bytes=1500-"]
    assert {each.headers.get("Authorization") for each in requests} == {None}
    assert "secret-signature" not in str((fetched, reader.told))


@pytest.mark.parametrize(("path", "told"), [("data/a.jsonl", "git"), ("data/b.parquet", "sha256")])
def test_other_bytes_than_the_hub_says_are_refused(hub: Hub, reader: Reader, path: str, told: str) -> None:
    data = FILES[path]
    hub.repositories["some/texts"].wrong = {path: data[:-1] + b"x"}
    (found,) = find(f"hf://datasets/some/texts@{FIRST}/{path}")
    with pytest.raises(InputError, match=f"bytes have the {told} [0-9a-f]+, not [0-9a-f]+"):
        reader.read(found.place, found.expected)
    hub.repositories["some/texts"].wrong = {path: data + b"x"}
    with pytest.raises(InputError, match=r"are offered, where .* should be"):
        reader.read(found.place, found.expected)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("hf://datasets/some/other", "401: may not be read; set HF_TOKEN to a token that may read some/other"),
        ("hf://datasets/some/texts@v9", "no such revision; check what follows the '@'"),
        (f"hf://datasets/some/texts@{FIRST}/none", f"no such file at {FIRST}; check the path"),
        (f"hf://datasets/some/texts@{FIRST}/data", "is a folder; write 'hf://.*/data/' for all files below it"),
        (f"hf://datasets/some/texts@{FIRST}/*.csv", "no file fits; check the address and its wildcards"),
    ],
)
def test_what_is_not_there_is_told(hub: Hub, url: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        find(url)
    assert re.match(r"hf://datasets/some/", str(caught.value))
    assert len(hub.server.asked) <= 2


def test_a_hub_that_is_busy_is_asked_again(hub: Hub) -> None:
    hub.refusals = [(429, {"Retry-After": "0"}), (500, {})]
    told: list[str] = []
    assert len(find("hf://datasets/some/texts", told)) == 4
    assert ["429" in told[0], "500" in told[1]] == [True, True]
    hub.refusals = [(500, {})] * 10
    with pytest.raises(InputError, match="500 from the hub; 4 tries in a row"):
        find("hf://datasets/some/texts")
