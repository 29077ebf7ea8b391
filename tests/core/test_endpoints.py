"""A variable that names no server is told by its name, before a client gets it."""

from __future__ import annotations

import pytest

from marin_pipeline.core.endpoints import GCS_VARIABLE, S3_VARIABLES, gcs_emulator, s3_endpoint
from marin_pipeline.core.errors import UsageError


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*S3_VARIABLES, GCS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


WRONG = [
    "localhost:9000",
    "http://",
    "http:///path",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:-1",
    "http://127.0.0.1:x",
    "http://127.0.0.1:",
    "http://127.0.0.1:0",
    "http://127.0.0.1:9000٠",
    "http://[::1",
    "http://[::1]x:1",
    "http://a b",
    "http://a\nb",
    "http://a..b",
    "http://a/?b=c",
    "http://a/#b",
    "http:a",
    "http//a",
    "ftp://a",
    "//a",
    "http://ä",
]


@pytest.mark.parametrize("url", [*WRONG, ""])
def test_a_wrong_address_of_an_s3_server_is_told_with_its_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(UsageError) as error:
        s3_endpoint()
    assert str(error.value).startswith("AWS_ENDPOINT_URL")
    assert "write it as in http://127.0.0.1:9000" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["x", "host", "host/", "host:", "host:x", "[::1]"])
def test_a_word_is_no_emulator(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GCS_VARIABLE, text)
    with pytest.raises(UsageError, match=r"^STORAGE_EMULATOR_HOST '.*; write it as in"):
        gcs_emulator()


@pytest.mark.parametrize("url", [url for url in WRONG if "://" in url])
def test_a_wrong_address_of_an_emulator_is_told_with_its_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GCS_VARIABLE, url)
    with pytest.raises(UsageError, match=r"^STORAGE_EMULATOR_HOST '.*; write it as in"):
        gcs_emulator()


def test_what_stands_before_an_at_sign_is_neither_taken_nor_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://me:pass@host:9000", "http://me:pass@host:99999", "me:pass@host", "http://a@pass@host"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(UsageError) as error:
            s3_endpoint()
        assert "pass" not in str(error.value)


def test_addresses_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_endpoint() is None
    assert gcs_emulator() is None
    for url in ("http://127.0.0.1:9000", "https://minio.example.org/", "http://[::1]:9000", "http://my_host/path"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert s3_endpoint() == url
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://first")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    assert s3_endpoint() == "http://first"
    for text, url in (("default", None), ("", None), ("host:1/", "http://host:1"), ("https://h", "https://h")):
        monkeypatch.setenv(GCS_VARIABLE, text)
        assert gcs_emulator() == url
