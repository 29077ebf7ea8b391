"""A panic of obstore, which is no Exception of Python, reaches nobody as one."""

from __future__ import annotations

from contextlib import suppress

import pytest
from obstore.store import S3Store

from marin_pipeline.core.endpoints import S3_TEXTS
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.data.remote.amazon import AmazonStorage
from marin_pipeline.store.bucket_client import Panicked, each_of, no_panic
from marin_pipeline.store.objects import open_objects
from marin_pipeline.store.s3_errors import explained
from tests import stores
from tests.servers import S3_ENVIRONMENT


def panic() -> None:
    """What obstore does with an endpoint that it cannot use."""
    S3Store("bucket", endpoint="", region="us-east-1", access_key_id="a", secret_access_key="b").put("a", b"")


def test_a_panic_becomes_an_error_that_says_whose_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException, match="RelativeUrlWithoutBase") as raised:
        panic()
    assert not isinstance(raised.value, Exception), "obstore has learnt it: this is needed no more"
    with pytest.raises(Panicked) as error, no_panic():
        panic()
    assert error.value.__cause__ is None
    with pytest.raises(Panicked):
        list(each_of(panic() for _ in range(3)))
    told = explained(error.value, "s3://b/a", "read", "http://x")
    assert isinstance(told, StoreError)
    assert str(told).startswith("s3://b/a: cannot read: obstore, which asks http://x, failed in itself (")


@pytest.mark.parametrize("url", ["localhost:9000", "", "http://", "http://127.0.0.1:99999", "http://[::1"])
def test_a_wrong_endpoint_is_told_when_the_store_is_opened(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stores.set_environment(monkeypatch, {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url})
    for opened in (lambda: open_objects("s3://bucket/a"), lambda: AmazonStorage("bucket", 1.0)):
        with pytest.raises(UsageError, match=r"^AWS_ENDPOINT_URL"):
            opened()
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "http://"])
def test_a_wrong_emulator_is_told_when_the_store_is_opened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from marin_pipeline.data.remote.google import GoogleStorage

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    for opened in (lambda: open_objects("gs://bucket/a"), lambda: GoogleStorage(1.0)):
        with pytest.raises(UsageError, match=r"^STORAGE_EMULATOR_HOST"):
            opened()


@pytest.mark.parametrize("name", S3_TEXTS)
@pytest.mark.parametrize("odd", ["\n", " ", "\x7f", "ü"])
def test_credentials_and_a_region_that_cannot_be_sent_are_told_by_their_variable(
    name: str, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.set_environment(monkeypatch, {**S3_ENVIRONMENT, name: f"hunter2{odd}secret"})
    for opened in (lambda: open_objects("s3://bucket/a"), lambda: AmazonStorage("bucket", 1.0)):
        with pytest.raises(UsageError, match=rf"^{name}: has a space, a line break") as error:
            opened()
        assert "hunter2" not in str(error.value)


def test_other_variables_that_obstore_cannot_use_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("HTTPS_PROXY", "http://[::1"), ("AWS_ALLOW_HTTP", "x"), ("AWS_SKIP_SIGNATURE", "x")):
        with monkeypatch.context() as patch:
            stores.set_environment(patch, {**S3_ENVIRONMENT, name: text})
            patch.delenv("AWS_ENDPOINT_URL", raising=False)
            with suppress(UsageError):  # it may be taken, but is no panic
                open_objects("s3://bucket/a")
