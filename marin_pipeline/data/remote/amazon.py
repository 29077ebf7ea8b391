"""Objects of S3 and of servers that speak its language: each is read under one ETag, or at one version.

Credentials, region and endpoint are those of the environment: AWS_ACCESS_KEY_ID, …, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from marin_pipeline.core.endpoints import check_s3_texts, s3_endpoint
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import Address
from marin_pipeline.data.remote.place import BLOCK, Broken, Mistaken, Reply, State

if TYPE_CHECKING:
    from obstore.store import S3Store

REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) of somebody who may read the bucket, and "
    "AWS_REGION; or AWS_SKIP_SIGNATURE=true for one that is open to all"
)
AT_ONCE = 16
"""Questions to the store at the same time."""
LONGEST = timedelta(days=7)
"""Of one answer; a stall ends it before."""

_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})")


class AmazonStorage:
    """One bucket."""

    def __init__(self, bucket: str, stall: float) -> None:
        self._bucket = bucket
        self._root = f"{s3_endpoint() or 's3:/'}/{bucket}"
        self._store = _store(bucket, stall)

    def objects(self, address: Address) -> list[tuple[str, S3File]]:
        """The objects that an address names, by their names, sorted.

        Raises:
            Broken: when the store does not answer.
            InputError: when there is no such object, or it may not be read.
        """
        if not address.is_many:
            return [(address.path, self._file(address.url, address.path, address.version))]
        listed: list[Any] = _asked(
            address.url, lambda: [each for batch in self._store.list(address.folder or None) for each in batch]
        )
        sizes: dict[str, int] = {}
        for each in listed:
            if address.matches(each["path"]):
                sizes[each["path"]] = max(each["size"], sizes.get(each["path"], 0))
        empty = [name for name, size in sizes.items() if not size]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = list(pool.map(lambda name: _asked(address.url, lambda: self._has(name)), empty))
        markers = {name for name, is_there in zip(empty, there, strict=True) if not is_there}
        names = sorted(sizes.keys() - markers)
        return [(name, self._file(f"s3://{self._bucket}/{name}", name, "")) for name in names]

    def _file(self, shown: str, name: str, version: str) -> S3File:
        return S3File(self._store, shown, f"{self._root}/{name}", name, version)

    def _has(self, name: str) -> bool:
        """Whether there is an object of this name. A console marks a folder with an empty object `name/`, which obstore
        lists as `name`.
        """
        from obstore.exceptions import NotFoundError

        try:
            self._store.head(name)
        except (NotFoundError, FileNotFoundError):
            return False
        return True


class S3File:
    """An object."""

    def __init__(self, store: S3Store, shown: str, identity: str, name: str, version: str) -> None:
        self.shown = shown
        self.identity = identity
        self.digests: Mapping[str, str] = {}
        self.size: int | None = None
        self.fixed = version
        self._store = store
        self._name = name

    def open(self, start: int, state: State | None) -> Reply:
        from obstore.exceptions import PreconditionError

        options: Any = {"version": self.fixed} if self.fixed else {}
        goes_on = bool(start and state is not None and state.validator)
        if goes_on and state is not None:
            options |= {"range": {"offset": start}} | ({} if self.fixed else {"if_match": state.validator})
        try:
            return _asked(self.shown, lambda: _Object(self._store.get(self._name, options=options), self, state))
        except PreconditionError:
            raise Mistaken("was changed while it was read") from None


class _Object:
    """An object that is being read."""

    def __init__(self, found: Any, file: S3File, state: State | None) -> None:
        meta = found.meta
        self._shown = file.shown
        self.start, stop = found.range
        if file.fixed and meta["version"] != file.fixed:
            raise InputError(
                f"{file.shown}: the server gave {_version(meta['version'])}, where {file.fixed} was asked for; leave "
                "the ?versionId= away, and give the source a sha256"
            )
        etag = meta["e_tag"] or ""
        facts = {"etag": etag, "version": meta["version"] or "", "last_modified": meta["last_modified"].isoformat()}
        validator = file.fixed or ("" if etag.startswith("W/") else etag)
        self.state = State(validator, meta["size"], {name: text for name, text in facts.items() if text})
        if stop != meta["size"] or (self.start and (state is None or not self.state.is_same(state))):
            raise Mistaken("other bytes than those that were asked for")
        self._stream: Any = found.stream(min_chunk_size=BLOCK)

    def blocks(self) -> Iterator[bytes]:
        stream = iter(self._stream)
        while True:
            block = _asked(self._shown, lambda: next(stream, None))
            if block is None:
                return
            yield bytes(block)

    def interrupt(self) -> None:
        """The stream ends at its stall."""

    def close(self) -> None:
        self._stream = None


def _version(version: str | None) -> str:
    """For an error: servers without versions give any bytes that they have, whichever version is asked for."""
    return f"version {version}" if version else "no version"


def _asked(shown: str, call: Callable[[], Any]) -> Any:
    """What the store says. obstore's errors repeat the whole answer, so only the status is taken over.

    Raises:
        PreconditionError: when the object is another one.
        Broken: when it does not answer, or not now.
        InputError: when it says no, or gives another version.
    """
    from obstore.exceptions import (
        BaseError,
        NotFoundError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )

    try:
        return call()
    except (PreconditionError, InputError):
        raise
    except (NotFoundError, FileNotFoundError):
        raise InputError(f"{shown}: there is no such bucket, object or version; check the address") from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError):
        raise InputError(f"{shown}: may not be read; {REMEDY}") from None
    except (BaseError, OSError, ValueError) as error:
        text = str(error)
        found = _STATUS.search(text)
        status = int(found[1] or found[2]) if found else 0
        if "169.254.169.254" in text or "/latest/" in text:
            raise InputError(f"{shown}: no credentials were found; {REMEDY}") from None
        if status in (401, 403):
            raise InputError(f"{shown}: {status}: may not be read; {REMEDY}") from None
        if status == 416:
            raise Mistaken("416: the store has not so many bytes") from None
        if 300 <= status < 500 and status not in (408, 429):
            raise InputError(f"{shown}: {status}; check the address, AWS_REGION and AWS_ENDPOINT_URL") from None
        raise Broken(f"{status} from the store" if status else "no answer from the store") from None
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise InputError(
            f"{shown}: obstore, which asks the store, failed in itself; check the AWS_ variables, and try another "
            "version of obstore"
        ) from None


def _store(bucket: str, stall: float) -> S3Store:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    check_s3_texts()
    endpoint = s3_endpoint()
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    options: dict[str, Any] = {
        "client_options": {
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
            "connect_timeout": timedelta(seconds=20),
            "read_timeout": timedelta(seconds=stall),
            "timeout": LONGEST,
        },
        # Tried again by the loop that reads, which counts, waits and tells.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        **({"endpoint": endpoint} if endpoint else {}),
        **({"region": region} if region else {}),
        **_credentials(),
    }
    try:
        return S3Store(bucket, **options)
    except BaseException as error:
        if not isinstance(error, (BaseError, ValueError)) and not _is_panic(error):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"s3://{bucket}: {reason}; correct it, or the AWS_ variables") from None


def _is_panic(error: BaseException) -> bool:
    """Whether obstore failed in itself: that is no `Exception`, and its class can be imported from nowhere."""
    return type(error).__name__ == "PanicException"


def _credentials() -> dict[str, Any]:
    """Of a profile of ~/.aws or a single sign-on, where boto3 is installed and the environment says nothing."""
    import importlib.util

    if os.environ.get("AWS_ACCESS_KEY_ID") or importlib.util.find_spec("boto3") is None:
        return {}
    import boto3  # pyright: ignore[reportMissingImports]
    from obstore.auth.boto3 import Boto3CredentialProvider

    session: Any = boto3.Session()
    if session.get_credentials() is None:
        return {}
    return {"credential_provider": Boto3CredentialProvider(session)}
