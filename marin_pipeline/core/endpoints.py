"""Addresses of servers, and credentials, as variables of the environment say them: looked at before any client gets
one, since clients take what they cannot use in their own ways.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from marin_pipeline.core.errors import UsageError

S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The first that says something counts."""

S3_TEXTS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
"""Variables that go into the headers of requests."""

GCS_VARIABLE = "STORAGE_EMULATOR_HOST"

_LONGEST = 200
_WRITTEN = "write it as in http://127.0.0.1:9000 or https://host"
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_~-]+(\.[A-Za-z0-9_~-]+)*\.?)(:[0-9]{1,5})?")


def s3_endpoint() -> str | None:
    """URL of an S3 server that is not Amazon's; None when no variable names one.

    Raises:
        UsageError: when one that is set holds no URL.
    """
    return _first(S3_VARIABLES)


def check_s3_texts() -> None:
    """See that the credentials and the region for S3 can be sent.

    Raises:
        UsageError: naming the variable that cannot, and not its value.
    """
    for name in S3_TEXTS:
        text = os.environ.get(name, "")
        if not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(
                f"{name}: has a space, a line break or another character that none has; set it again without"
            )


def gcs_emulator() -> str | None:
    """URL of the emulator of Google Cloud Storage; None when none is named.

    Raises:
        UsageError: when what is named is no address.
    """
    text = os.environ.get(GCS_VARIABLE, "").rstrip("/")
    if text in ("", "default"):
        return None
    url = checked(GCS_VARIABLE, text if "://" in text else f"http://{text}", text)
    if "://" not in text and urlsplit(url).port is None:
        raise UsageError(f"{GCS_VARIABLE} {text[:_LONGEST]!r}: is neither a URL nor host:port; {_WRITTEN}")
    return url


def _first(names: Sequence[str]) -> str | None:
    found = [(name, os.environ[name]) for name in names if name in os.environ]
    for name, text in found:
        if text:
            return checked(name, text)
    if found:
        raise UsageError(f"{found[0][0]}: is set, and empty; unset it, or write it as in http://127.0.0.1:9000")
    return None


def checked(name: str, url: str, given: str | None = None) -> str:
    """A URL of a server, when it is one.

    Args:
        name: the variable that holds it.
        given: what stands there, where that is not the URL itself.

    Raises:
        UsageError: naming the variable and its value, without what stands before an `@`.
    """
    problem = _problem(url)
    if not problem:
        return url
    given = url if given is None else given
    shown = re.sub(r"(?s)^(.*?://)?.*@", r"\1…@", given)[:_LONGEST]
    raise UsageError(f"{name} {shown!r}: {problem}; {_WRITTEN}")


def _problem(url: str) -> str:
    """Why a URL is none of a server; empty when it is one."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "has characters that no address has"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"is no address ({str(error)[:80]})"
    if parts.scheme not in ("http", "https") or "://" not in url:
        return "does not begin with http:// or https://"
    if "@" in parts.netloc:
        return "has something before '@'; credentials do not belong there, and are given in variables of their own"
    if not host:
        return "names no server"
    if not _SERVER.fullmatch(parts.netloc):
        return "names no server that there can be"
    if port == 0:
        return "has port 0, where nobody listens"
    if parts.query or parts.fragment:
        return "has more than a server and a path"
    return ""
