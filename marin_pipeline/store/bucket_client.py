"""Objects of a bucket, as obstore asks for them, whatever cloud it is in; and what its errors have in common.

obstore's errors carry the whole answer of the server, and that of a refused signature repeats the request's headers,
a session's token among them: so they are chained to no error of ours. A panic of obstore, which is an error in it and
no `Exception` of Python, comes as `Panicked` like its other errors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from obstore.exceptions import BaseError

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.downloads import Opened
from marin_pipeline.store.objects import too_large

BLOCK = 2**18
"""Bytes of a block that is read. Room for larger ones is taken from the system and given back each time: with 1 MiB,
64 MiB cost 6,096 page faults, and 20 with this.
"""

BROKEN_WAITS = (0.1, 1.0, 3.0)
"""Seconds between the tries of a call whose answer breaks off."""

T = TypeVar("T")


class Panicked(Exception):
    """The client itself failed."""


class Stranger(Exception):
    """What answers is no store: a page to log in, as in a hotel, answers everything with 200 and HTML."""


Failed = (BaseError, ValueError, OSError, Panicked, Stranger)
"""What a client raises."""

_STATUS = re.compile(r"status code: (\d{3})")
_BODY = re.compile(r"status code: \d{3}[^:]*: (.*?)(?:\n\nDebug source|\Z)", re.DOTALL)
_STRANGE = (" Header missing", "Got invalid ", "non-partial response")
"""In the errors of obstore where an answer of success is none of a store."""


@contextmanager
def no_panic() -> Iterator[None]:
    """Raises Panicked in place of a panic."""
    try:
        yield
    except BaseException as error:
        # Its class is made with the first panic, and can be imported from nowhere.
        if type(error).__name__ != "PanicException":
            raise
        raise Panicked(str(error)) from None


def each_of(found: Any) -> Iterator[Any]:
    """What an iterator of obstore's gives."""
    iterator = iter(found)
    while True:
        with no_panic():
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


class Client:
    """Objects of a bucket below a prefix."""

    def __init__(self, store: Any, version: Literal["e_tag", "version"]) -> None:
        """Args:
        store: obstore's.
        version: what the store calls the version of an object.
        """
        self._store = store
        self._version = version
        self._pin = {"e_tag": "if_match", "version": "version"}[version]

    def _checked(self, meta: Any, attributes: Any = None) -> str:
        """The object's version.

        Raises:
            Stranger: when it has none, which a store always gives, or is a page for a browser, which no store here
                holds.
        """
        kind = str(attributes.get("Content-Type") or "") if attributes else ""
        if meta[self._version] is None or kind.lower().startswith("text/html"):
            raise Stranger(kind)
        return meta[self._version]

    def read(self, key: str, where: str, most: int) -> tuple[bytes, str]:
        """An object's bytes, and its version.

        Raises:
            CorruptOutput: when it has more than `most` bytes, which are not read; names it `where`.
        """
        with no_panic():
            found = self._store.get(key)
            version = self._checked(found.meta, found.attributes)
            if found.meta["size"] > most:
                raise too_large(where, most)
            return b"".join(_body(found)), version

    def opened(
        self, key: str, start: int, stop: int | None, version: str, explained: Callable[[BaseException], Exception]
    ) -> Opened:
        """The object's bytes from `start` to before `stop`, still to be read; `RemoteObjects.opened`.

        Args:
            version: the only one that is wanted; empty for the present one.
            explained: the error that a person should see, also while the bytes are read.
        """
        options: dict[str, Any] = {self._pin: version} if version else {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)
        try:
            with no_panic():
                found = self._store.get(key, options=options)
                meta = found.meta
                return Opened(self._checked(meta, found.attributes), meta["size"], _explained(found, explained))
        except Failed as error:
            if status_of(error) == 416 and not version:
                return Opened("", 0, iter(()))
            raise explained(error) from None

    def put(self, key: str, data: Any, **options: Any) -> str | None:
        """Write an object; its ETag."""
        with no_panic():
            return self._store.put(key, data, **options)["e_tag"]

    def list(self, key: str) -> list[Any]:
        """What the store says of the objects below a folder."""
        return _whole(lambda: [each for batch in each_of(self._store.list(key, chunk_size=1000)) for each in batch])

    def list_with_delimiter(self, key: str) -> Any:
        """Objects and folders in a folder."""
        return _whole(lambda: self._store.list_with_delimiter(key))

    def holds_any(self, key: str | None = None) -> bool:
        """Whether there is an object below a folder."""
        return _whole(lambda: any(each_of(self._store.list(key, chunk_size=1))))

    def head(self, key: str) -> Any:
        """What the store says of an object."""
        with no_panic():
            found = self._store.head(key)
            self._checked(found)
            return found

    def delete(self, keys: Any) -> None:
        """Delete an object, or a list of them."""
        with no_panic():
            self._store.delete(keys)


def _whole(call: Callable[[], T]) -> T:
    """What a call that only reads returns. It is made again where its answer broke off: obstore repeats calls that had
    no answer, and not those.
    """
    for wait in (*BROKEN_WAITS, None):
        try:
            with no_panic():
                return call()
        except Failed as error:
            if wait is None or not is_broken(error):
                raise
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _body(found: Any) -> Iterator[Any]:
    """The bytes of an answer. Only few are taken at once: obstore makes room for as many as are announced, and ends the
    process where there is none.
    """
    start, stop = found.range
    if stop - start <= BLOCK:
        yield found.bytes()
    else:
        yield from each_of(found.stream(min_chunk_size=BLOCK))


def _explained(found: Any, explained: Callable[[BaseException], Exception]) -> Iterator[Any]:
    try:
        with no_panic():
            yield from _body(found)
    except Failed as error:
        raise explained(error) from None


# Errors ---------------------------------------------------------------------------------------------------------------


def status_of(error: BaseException) -> int:
    """The HTTP status of an error, or 0 when there was no answer."""
    status = _STATUS.search(str(error))
    return int(status[1]) if status is not None else 0


def is_broken(error: BaseException) -> bool:
    """Whether an answer broke off; not when it stopped coming, for which was waited long enough."""
    return "response body error" in str(error) and "TimedOut" not in str(error)


def body_of(error: BaseException) -> str:
    """What the server said with it."""
    body = _BODY.search(str(error))
    return body[1] if body is not None else ""


def strange(error: BaseException, where: str, doing: str, server: str, kind: str, variables: str) -> StoreError | None:
    """The error that a person should see where the client or what answers is not what it should be; else None.

    Args:
        where: URL of the object.
        doing: what was tried, as in `read`.
        server: the endpoint, as it is shown.
        kind: of store.
        variables: that say where it is.
    """
    if isinstance(error, Panicked):
        said = next(iter(str(error).splitlines()), "")[:200]
        return StoreError(
            f"{where}: cannot {doing}: obstore, which asks {server}, failed in itself ({said}); check {variables} and "
            "HTTPS_PROXY, and try another version of obstore"
        )
    if isinstance(error, Stranger) or any(each in str(error) for each in _STRANGE):
        return StoreError(
            f"{where}: cannot {doing}: what answers at {server} is not {kind} (a page to log in to the network, a "
            f"proxy, another server?); check the network, {variables} and HTTPS_PROXY, and run again"
        )
    return None
