"""Files over HTTP: the bytes as they are stored, by ranges where a connection broke.

A token goes to the host that it was given for, and to no other that a redirect names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import without_query
from marin_pipeline.data.remote.place import BLOCK, LEAST, Broken, Mistaken, Reply, State

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS = 20.0
REDIRECTS = 10
AGAIN = (408, 425, 429)
"""Answers below 500 after which another try may go better."""

LONGEST_WAIT = 1e9
"""Seconds that `Retry-After` is taken for when it asks for more, which nobody waits."""

_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_ETAG = re.compile(r'"[\x20\x21\x23-\x7e]{0,1000}"')
NO_DATE = (TypeError, ValueError, OverflowError, IndexError)
"""What is raised for a text that is no date."""

_REDIRECTS = (301, 302, 303, 307, 308)

Headers = Callable[[], Mapping[str, str]]


def no_headers() -> Mapping[str, str]:
    """None are needed."""
    return {}


class HttpFile:
    """A file at an address."""

    def __init__(
        self,
        url: str,
        *,
        stall: float,
        least: float = LEAST,
        shown: str = "",
        account: str = "",
        headers: Headers = no_headers,
        to_set: str = "",
        digests: Mapping[str, str] | None = None,
        size: int | None = None,
        fixed: str = "",
        encoding: str = "identity",
        must_have_length: bool = True,
        may_leave_tls: bool = False,
    ) -> None:
        """Args:
        stall: seconds without a byte after which a connection counts as broken.
        least: bytes a second, below which a connection counts as broken, too.
        account: name of what authorizes; under another one the address may have other bytes.
        headers: gives what authorizes a request, for the host of `url` only.
        to_set: what to do after a 401 or 403.
        encoding: what is accepted: `gzip` where the bytes are stored so, and would be unpacked on the way.
        must_have_length: whether a body that ends with its connection, which may have been cut, is refused.
        may_leave_tls: whether a redirect from https to http is followed.
        """
        self.url = url
        self.shown = shown or without_query(url)
        self.identity = f"{account} {url}"
        self.digests = digests or {}
        self.size = size
        self.fixed = fixed
        self._stall = stall
        self._least = least
        self._headers = headers
        self._to_set = to_set or 'give the source token=Secret("NAME"), the variable that holds a token'
        self._encoding = encoding
        self._must_have_length = must_have_length
        self._may_leave_tls = may_leave_tls

    def open(self, start: int, state: State | None) -> Reply:
        wanted = {"Accept-Encoding": self._encoding, "User-Agent": "marin_pipeline"}
        if start and state is not None and state.validator:
            wanted["Range"] = f"bytes={start}-"
            if not self.fixed:
                wanted["If-Range"] = state.validator
        response = self._asked(wanted)
        try:
            if response.status_code == 206:
                return self._continued(response, start, state, "Range" in wanted)
            return self._begun(response)
        except BaseException:
            response.close()
            raise

    def _asked(self, wanted: Mapping[str, str]) -> requests.Response:
        """The answer to a GET, redirects followed."""
        import requests

        from marin_pipeline.data.remote.pace import session as paced

        session, url = paced(self._least), self.url
        for _ in range(REDIRECTS + 1):
            private = self._headers() if _origin(url) == _origin(self.url) else {}
            try:
                response = session.get(
                    url,
                    headers={**wanted, **private},
                    stream=True,
                    allow_redirects=False,
                    timeout=(CONNECT_SECONDS, self._stall),
                    auth=_as_it_is,
                )
            except requests.exceptions.SSLError as error:
                if "Cert" in _kind(error):
                    raise InputError(
                        f"{self.shown}: the certificate of {_origin(url)[1]} cannot be trusted; check the address, or "
                        "name the authority's file in REQUESTS_CA_BUNDLE"
                    ) from None
                raise Broken(f"no answer from {_origin(url)[1]} ({_kind(error)})") from None
            except (requests.ConnectionError, requests.Timeout) as error:
                raise Broken(f"no answer from {_origin(url)[1]} ({_kind(error)})") from None
            except requests.exceptions.ChunkedEncodingError as error:
                raise Broken(f"a broken answer from {_origin(url)[1]} ({_kind(error)})") from None
            except (requests.RequestException, ValueError) as error:
                if "Content-Length" in str(error):
                    raise InputError(
                        f"{self.shown}: the server's Content-Length is no length; check the address"
                    ) from None
                raise InputError(f"{self.shown}: cannot be asked for ({_kind(error)})") from None
            if response.status_code not in _REDIRECTS:
                self._refuse(response)
                return response
            target = urljoin(url, response.headers.get("Location", ""))
            response.close()
            self._check_redirect(url, target)
            url = target
        raise InputError(f"{self.shown}: was redirected more than {REDIRECTS} times; check the address")

    def _check_redirect(self, url: str, target: str) -> None:
        try:
            scheme = urlsplit(target).scheme
            _origin(target)
        except ValueError:
            scheme = ""
        if scheme not in ("http", "https") or target == url:
            raise InputError(f"{self.shown}: is redirected to what is no other address of the web")
        if scheme == "http" and urlsplit(url).scheme == "https" and not self._may_leave_tls:
            raise InputError(
                f"{self.shown}: is redirected to {without_query(target)}, which nothing protects on the way; give the "
                "source a sha256, or another address"
            )

    def _refuse(self, response: requests.Response) -> None:
        """Raise what an answer without a body to read means."""
        status = response.status_code
        if status in (200, 206):
            return
        response.close()
        where = without_query(response.url)
        from_there = "" if _origin(response.url) == _origin(self.url) else f" (from {where})"
        told = f"{self.shown}: {status} {response.reason or ''}".rstrip() + from_there
        if status == 416:
            raise Mistaken("416: the server has not so many bytes")
        if status in AGAIN or status >= 500:
            raise Broken(f"{status} {response.reason or ''}".rstrip(), seconds_until(response.headers))
        if status in (401, 403):
            raise InputError(f"{told}: may not be read; {self._to_set}")
        if status in (404, 410):
            raise InputError(f"{told}: is not there{' any more' if status == 410 else ''}; check the address")
        raise InputError(f"{told}; check the address")

    def _begun(self, response: requests.Response) -> Reply:
        """A whole body, from its first byte."""
        headers = response.headers
        length = self._length(headers)
        if length is None and self._must_have_length and self.size is None and not _is_chunked(response):
            raise InputError(
                f"{self.shown}: the server does not say how long it is, so nothing would tell a whole file from a cut "
                "one; give the source a sha256"
            )
        if length is not None and self.size is not None and length != self.size:
            raise Broken(f"{length:,} bytes are offered, where {self.size:,} should be")
        size = length if self.size is None else self.size
        return _Body(response, State(self.fixed or _validator(headers), size, _facts(response)), 0)

    def _continued(self, response: requests.Response, start: int, state: State | None, asked: bool) -> Reply:
        """The rest of a body, if it is what was asked for; else the next try begins anew."""
        headers = response.headers
        text = headers.get("Content-Range", "").strip()
        found = _RANGE.fullmatch(text)
        if not asked or state is None:
            raise Mistaken("a range that was not asked for")
        if found is None:
            raise Mistaken(f"a range that does not say what it is (Content-Range {_few(text)})")
        first, last = int(found[1]), int(found[2])
        total = state.size if found[3] == "*" else int(found[3])
        length = self._length(headers)
        if first != start or last < first or (state.size is not None and total != state.size):
            raise Mistaken(f"Content-Range {found[0]}, where {start}- of {state.size} was asked for")
        if total is None or last != total - 1 or (length is not None and length != last - first + 1):
            raise Mistaken(f"Content-Range {found[0]} and Content-Length {length}, where all of the rest was asked for")
        if not self.fixed:
            _check_version(_facts(response), state.facts)
        return _Body(response, State(state.validator, total, state.facts), start)

    def _length(self, headers: Mapping[str, str]) -> int | None:
        """What `Content-Length` says; it may say so several times.

        Raises:
            InputError: when that is no number.
        """
        text = headers.get("Content-Length")
        said = set() if text is None else {each.strip() for each in text.split(",")}
        if not said:
            return None
        number = said.pop()
        if said or not _NUMBER.fullmatch(number):
            said_so = f"the server's Content-Length {_few(text or '')} is no length"
            raise InputError(f"{self.shown}: {said_so}; check the address, or take it from another server")
        return int(number)


class _Body:
    """A body that is read as it is sent, not unpacked."""

    def __init__(self, response: requests.Response, state: State, start: int) -> None:
        self.state = state
        self.start = start
        self._response = response

    def blocks(self) -> Iterator[bytes]:
        import urllib3

        raw: Any = self._response.raw
        try:
            while block := raw.read1(BLOCK, decode_content=False):
                yield block
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Broken(f"the connection broke ({_kind(error)})") from None

    def interrupt(self) -> None:
        with suppress(ValueError, RuntimeError, OSError):  # there may be no connection any more
            self._response.raw.shutdown()

    def close(self) -> None:
        self._response.close()


def _as_it_is(request: Any) -> Any:
    """In place of what ~/.netrc would add: what authorizes is declared."""
    return request


def bearer(token: str) -> Headers:
    """The header of a token."""
    return lambda: {"Authorization": f"Bearer {token}"}


def _origin(url: str) -> tuple[str, str]:
    """Scheme, and host with port: what a token is given for."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return parts.scheme, f"{(parts.hostname or '').lower()}:{port}"


def _kind(error: BaseException) -> str:
    """What went wrong, in a word or two; the texts of the libraries repeat addresses, with signatures in them."""
    inner: Any = error
    for _ in range(5):
        told = (getattr(inner, "reason", None), *inner.args, inner.__cause__)
        reason = next((each for each in told if isinstance(each, BaseException)), None)
        if not isinstance(reason, BaseException):
            break
        inner = reason
    return type(inner).__name__


def _few(text: str) -> str:
    """The beginning of a header, for an error."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _is_chunked(response: requests.Response) -> bool:
    return response.headers.get("Transfer-Encoding", "").strip().lower().endswith("chunked")


def _is_strong(etag: str) -> bool:
    return bool(_ETAG.fullmatch(etag))


def _validator(headers: Mapping[str, str]) -> str:
    """What `If-Range` may be asked with: a strong ETag, or a time of change that is surely over (RFC 9110, 8.8.2.2)."""
    etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if _is_strong(etag):
        return etag
    try:
        age = parsedate_to_datetime(headers.get("Date", "")) - parsedate_to_datetime(modified)
        return modified if age.total_seconds() >= 1 else ""
    except NO_DATE:
        return ""


def _check_version(said: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Raise when a range is of another version than the bytes before it: a server may not look at `If-Range`.

    A range has the ETag that the whole has; the time of change may be left out of it (RFC 9110, 15.3.7).
    """
    for name, now in (
        ("etag", said.get("etag")),
        ("last_modified", said.get("last_modified", before.get("last_modified"))),
    ):
        then = before.get(name)
        if now != then:
            raise Mistaken(f"bytes of {name} {_few(now or '')}, where those of {_few(then or '')} were asked for")


def _facts(response: requests.Response) -> dict[str, str]:
    names = {"etag": "ETag", "last_modified": "Last-Modified", "content_encoding": "Content-Encoding"}
    found = {name: response.headers[header][:1000] for name, header in names.items() if header in response.headers}
    return {"from": without_query(response.url), **found}


def seconds_until(headers: Mapping[str, str]) -> float | None:
    """What `Retry-After` says, as seconds or as a date: seconds from now."""
    import time

    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(LONGEST_WAIT, float(text))
    try:
        return min(LONGEST_WAIT, max(0.0, parsedate_to_datetime(text).timestamp() - time.time()))
    except NO_DATE:
        return None
