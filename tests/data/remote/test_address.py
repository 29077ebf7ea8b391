"""What an address names is known without asking any server, and without loading a client."""

from __future__ import annotations

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import Address, parse, without_query
from tests.test_import import modules_after

COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    ("url", "root", "path", "version", "is_fixed", "is_many"),
    [
        ("gs://b/a/c.txt", "b", "a/c.txt", "", False, False),
        ("gs://b/a/c#1.txt#17", "b", "a/c#1.txt", "17", True, False),
        ("gs://b/a#x", "b", "a#x", "", False, False),
        ("gs://b/a/", "b", "a/", "", False, True),
        ("s3://b/a?versionId=x.Y_1", "b", "a", "x.Y_1", True, False),
        ("s3://b/a/*.gz", "b", "a/*.gz", "", False, True),
        ("hf://datasets/o/n", "o/n", "", "", False, True),
        (f"hf://datasets/o/n@{COMMIT}", "o/n", "", COMMIT, True, True),
        (f"hf://datasets/o/n@{COMMIT[:8]}/a", "o/n", "a", COMMIT[:8], False, False),
        ("hf://o/n@v1.0/a/b", "o/n", "a/b", "v1.0", False, False),
        ("hf://datasets/o/n@refs/pr/3/a", "o/n", "a", "refs/pr/3", False, False),
        ("hf://datasets/o/n@a%2Fb/c", "o/n", "c", "a/b", False, False),
        ("file:///a/b%20c", "", "/a/b c", "", False, False),
        ("/a/b%20c", "", "/a/b%20c", "", False, False),
        ("https://h/a?b=c", "", "", "", False, False),
    ],
)
def test_what_an_address_names(url: str, root: str, path: str, version: str, is_fixed: bool, is_many: bool) -> None:
    found = parse(url)
    assert (found.root, found.path, found.version) == (root, path, version)
    assert (found.is_fixed, found.is_many) == (is_fixed, is_many)


@pytest.mark.parametrize(
    ("url", "name"),
    [("https://h/a/b%20c.txt?x=1", "b c.txt"), ("gs://b/a/b%20c", "b%20c"), ("https://h", ""), ("/a/b", "b")],
)
def test_what_the_file_is_called(url: str, name: str) -> None:
    assert parse(url).name == name


@pytest.mark.parametrize(
    ("pattern", "fits", "not_fits"),
    [
        ("a/*.txt", ["a/b.txt", "a/.txt"], ["a/b/c.txt", "a/b.txt.gz", "b.txt"]),
        ("a/**/*.txt", ["a/b.txt", "a/b/c.txt", "a/b/c/d.txt"], ["b/a/b.txt"]),
        ("**", ["a", "a/b"], []),
        ("a/**", ["a/b", "a/b/c"], ["b"]),
        ("a?/", ["a1/b", "a1/b/c"], ["a/b", "a12/b"]),
        ("a+(b)/", ["a+(b)/c"], ["aab/c"]),
        ("a[1]*", ["a[1]b"], ["a1b"]),
        ("", ["a", "a/b"], []),
    ],
)
def test_what_fits_a_pattern(pattern: str, fits: list[str], not_fits: list[str]) -> None:
    address = Address("", "hf", path=pattern)
    assert address.is_many
    assert [path for path in [*fits, *not_fits] if address.matches(path)] == fits
    assert all(path.startswith(address.folder) for path in fits)


@pytest.mark.parametrize(
    "url", ["hf://datasets/n", "hf://spaces/o", "hf://datasets/o/n@", "gs:///a", "s3://b/", "https://[", "https:///a"]
)
def test_what_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"written|must name|names no host|cannot be an address"):
        parse(url)


def test_the_version_of_what_may_be_overwritten_pins_nothing() -> None:
    with pytest.raises(
        InputError, match=r"'null' is the version of what may be overwritten.* give the source a sha256"
    ):
        parse("s3://b/a?versionId=null")


@pytest.mark.parametrize(
    "url",
    [
        "https://host:80/a:b@c",
        "http://[::1]:80/a@b",
        "https://host/a:b@c?d=e:f@g",
        "https://host?a=b@c",
        "s3://b/c:d@e",
        "gs://b/c@d",
        "hf://datasets/o/n@main/a:b@c",
        "file:///a:b@c",
        "/a:b@c",
    ],
)
def test_an_at_sign_after_the_host_is_no_login(url: str) -> None:
    assert parse(url).url == url


def test_an_address_for_people_has_no_credentials() -> None:
    assert without_query("https://u:p@host:81/a?sig=b") == "https://host:81/a?…"


def test_declaring_a_download_loads_no_client() -> None:
    loaded = modules_after("from steps.download import download; download('https://host/file')")
    assert "marin_pipeline.data.remote.address" in loaded
    clients = {"requests", "urllib3", "huggingface_hub", "gcsfs", "aiohttp", "obstore", "fsspec", "numpy"}
    assert not loaded & clients
