"""The client of an S3 bucket: obstore's, with the endpoint and the credentials of the environment."""

from __future__ import annotations

import importlib
import importlib.util
import os
from datetime import timedelta
from typing import Any

from obstore.store import S3Store

from marin_pipeline.core.endpoints import check_s3_texts, s3_endpoint
from marin_pipeline.core.errors import UsageError
from marin_pipeline.store.bucket_client import Client, Failed, no_panic


def client_of(url: str, bucket: str, prefix: str, timeout: int, silence: int) -> Client:
    """A client of the objects of a bucket below a prefix.

    Args:
        url: of the prefix, for errors.
        timeout: seconds of one request at most.
        silence: seconds without an answer, or between two pieces of one.

    Raises:
        UsageError: when the bucket or what the environment says cannot be.
    """
    options = _options(url, timeout, silence)
    try:
        with no_panic():
            return Client(S3Store(bucket, prefix=prefix or None, **options), "e_tag")
    except Failed as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__).removeprefix("Generic S3 error: ")
        remedy = "correct it, or the AWS_ variables"
        if reason.startswith("Missing "):
            remedy = "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise UsageError(f"--prefix {url}: {reason}; {remedy}") from None


def _options(url: str, timeout: int, silence: int) -> dict[str, Any]:
    check_s3_texts()
    endpoint = s3_endpoint()
    options: dict[str, Any] = {
        "client_options": {
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=timeout),
            "read_timeout": timedelta(seconds=silence),
        },
        "retry_config": {
            "max_retries": 4,
            "retry_timeout": timedelta(seconds=30),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=3), "base": 2},
        },
    }
    if endpoint:
        options["endpoint"] = endpoint
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        options["region"] = region
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        options.update(_from_profile(url, region))
    elif not os.environ.get("AWS_SECRET_ACCESS_KEY"):
        raise UsageError(
            f"--prefix {url}: AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not; set both, or neither for the "
            "credentials of a profile or of the machine"
        )
    return options


def _from_profile(url: str, region: str | None) -> dict[str, Any]:
    """Credentials of AWS_PROFILE, of ~/.aws, or of a single sign-on, which boto3 knows how to get."""
    if importlib.util.find_spec("boto3") is None:
        if os.environ.get("AWS_PROFILE"):
            raise UsageError(
                f"--prefix {url}: AWS_PROFILE is set, and boto3 is not installed, which reads profiles; pip install "
                "boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return {}
    from obstore.auth.boto3 import Boto3CredentialProvider

    session: Any = importlib.import_module("boto3").Session()
    if session.get_credentials() is None:
        return {}  # what obstore finds: the machine's own, or a token of its cluster
    found = {"credential_provider": Boto3CredentialProvider(session)}
    return found if region or not session.region_name else {**found, "region": session.region_name}
