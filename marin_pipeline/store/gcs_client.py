"""Requests to Google Cloud Storage. gcsfs says who we are and where the server is; how often something is asked, for
how long, and what an answer means to a person is decided here.

Objects are read by obstore, over the XML API, in the thread that wants them; all else goes over the JSON API and the
connections of gcsfs, in the thread of fsspec's event loop, and any thread may wait for it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import html
import os
import random
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, urlencode
from urllib.request import getproxies

from obstore.store import GCSStore

from marin_pipeline.core.endpoints import GCS_VARIABLE
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store.bucket_client import Client as Reader
from marin_pipeline.store.bucket_client import Failed, Stranger, body_of, no_panic, status_of, strange
from marin_pipeline.store.downloads import replaced
from marin_pipeline.store.objects import NoAnswer
from marin_pipeline.store.records import parsed

# Else gcsfs takes a class that asks each bucket for its kind over gRPC, which stalls for a minute on an emulator.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import aiohttp
import fsspec.config
import google.auth.exceptions
from fsspec.asyn import get_loop
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from yarl import URL

T = TypeVar("T")

CALL_WAITS = (0.1, 0.3, 1.0, 2.0)
"""Seconds between the tries of a call that got no answer; with those who make the call again (`objects.WAITS`) a store
that refuses connections is given up after 20 s.
"""

CALL_SECONDS = 60.0
"""How long a call may take with all its tries."""

READ_RETRIES: dict[str, Any] = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=3), "base": 2},
}
"""When an object is asked for again, whose store did not answer."""

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 30.0
"""How long a connection may be silent while an answer is waited for."""

BYTES_SECONDS = 900.0
"""How long one answer with a part of a large object may take."""

NUMBER = re.compile(r"[0-9]{1,18}")
"""A number of bytes, as a header tells it."""

RETRIED = (408, 429, 500, 502, 503, 504)
"""Answers that say: not now."""

_DETAILS = re.compile(r"<Details>(.*?)</Details>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
"""What a refusal says where it is XML."""

_PROBLEM = re.compile(r'(?:message: "|error: "|kind: |source: )(\w[^",({]*)')
"""What went wrong, in an error of obstore without an answer; the last is the cause."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def tree(self) -> dict[str, Any] | None:
        """The body as an object of JSON; None when it is none."""
        try:
            found = parsed(self.body)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


class Place(NamedTuple):
    """Where an object lies."""

    client: Client
    bucket: str
    name: str
    store: str
    """URL of the prefix."""
    path: str
    """Relative to the prefix."""

    @property
    def where(self) -> str:
        """Its URL, for errors."""
        return f"{self.store}/{self.path}"


class Silence(Exception):
    """There was no answer, or one that says: not now. What was asked for may have been done or not."""


class Client:
    """Makes requests to one server with one set of credentials."""

    def __init__(self, endpoint: str | None) -> None:
        """Args:
        endpoint: URL of an emulator, which is not told who we are.
        """
        self.loop = get_loop()
        self.no_credentials = ""
        """Why requests are anonymous, where that was not chosen."""
        self.emulator = endpoint
        self._fs = self._file_system(endpoint)
        if getproxies():
            self._fs.session_kwargs.setdefault("trust_env", True)  # as obstore does

    def _file_system(self, endpoint: str | None) -> GCSFileSystem:
        options: dict[str, Any] = {
            "endpoint_url": endpoint,
            "use_listings_cache": False,
            "skip_instance_cache": True,
        }
        if endpoint:
            return GCSFileSystem(token="anon", **options)
        if any("token" in fsspec.config.conf.get(scheme, {}) for scheme in GCSFileSystem.protocol):
            return GCSFileSystem(**options)
        try:
            return GCSFileSystem(token="google_default", **options)
        except (google.auth.exceptions.GoogleAuthError, ValueError, OSError) as error:
            self.no_credentials = _first_line(str(error)) or type(error).__name__
            return GCSFileSystem(token="anon", **options)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread; its result. Not to be called from that thread."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    # URLs ------------------------------------------------------------------------------------------------------------

    def object_url(self, bucket: str, name: str, **parameters: str) -> str:
        """Of an object's metadata."""
        return self._with(f"{self._fs.base}b/{bucket}/o/{quote(name, safe='')}", parameters)

    def bucket_url(self, bucket: str, **parameters: str) -> str:
        """Of a bucket's properties."""
        return self._with(f"{self._fs.base}b/{quote(bucket, safe='')}", parameters)

    def list_url(self, bucket: str, **parameters: str) -> str:
        """Of a page of objects."""
        return self._with(f"{self._fs.base}b/{bucket}/o", parameters)

    def upload_url(self, bucket: str, **parameters: str) -> str:
        """For the bytes of a new object."""
        return self._with(f"{self._fs._location}/upload/storage/v1/b/{bucket}/o", parameters)

    def _with(self, url: str, parameters: Mapping[str, str]) -> str:
        return f"{url}?{urlencode(self._fs._get_params(dict(parameters)))}"

    # Requests --------------------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        url: str,
        where: str,
        doing: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expected: tuple[int, ...] = (),
    ) -> Reply:
        """Make a request, and again while there is no answer; whatever it asks for may then be done twice.

        Args:
            where: what it is about, for errors.
            doing: `read`, `write`, …, for errors.
            expected: answers besides success that are returned.

        Raises:
            NoAnswer: when the last try got none.
            StoreError: for any other answer.
        """
        silence = "no answer"
        try:
            async with asyncio.timeout(CALL_SECONDS):
                for wait in (*CALL_WAITS, None):
                    try:
                        return await self.once(method, url, where, doing, data=data, headers=headers, expected=expected)
                    except Silence as error:
                        silence = str(error)
                        if wait is not None:
                            await asyncio.sleep(wait * random.uniform(0.7, 1.3))
        except TimeoutError:
            silence = f"no answer in {CALL_SECONDS:.0f} s ({silence})"
        raise unanswered(where, doing, silence)

    async def once(
        self,
        method: str,
        url: str,
        where: str,
        doing: str,
        *,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        expected: tuple[int, ...] = (),
    ) -> Reply:
        """Make a request a single time.

        Raises:
            Silence: when there is no answer.
            StoreError: when it is not as expected.
        """
        async with self.answer(method, url, where, doing, data=data, headers=headers) as answer:
            reply = Reply(answer.status, answer.headers, await answer.read())
        if not (200 <= reply.status < 300 or reply.status in expected):
            self.refuse(reply, where, doing)
        return reply

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        url: str,
        where: str,
        doing: str,
        *,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request once; its answer, whose body is read inside.

        Raises:
            Silence: when the connection is not made, breaks or says nothing, also while the body is read.
            StoreError: when trying again cannot help.
        """
        with self._explained(where, doing):
            if self._fs.credentials.credentials is not None:
                await asyncio.to_thread(self._fs.credentials.maybe_refresh)  # it may ask a server, and wait
            session = await self._fs._set_session()
            async with session.request(
                method,
                URL(url, encoded=True),
                headers=self._fs._get_headers(headers),
                data=data,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
            ) as reply:
                yield reply

    def tree(self, reply: Reply, where: str, doing: str) -> dict[str, Any]:
        """What an answer of success says.

        Raises:
            StoreError: when it is none of the store's.
        """
        found = reply.tree()
        if found is None:
            raise self.not_gcs(where, doing)
        return found

    def not_gcs(self, where: str, doing: str) -> StoreError:
        """The error of an answer that the store would not give."""
        stranger = strange(Stranger(), where, doing, self._fs._location, "GCS", GCS_VARIABLE)
        assert stranger is not None, "it is told"
        return stranger

    # Reading ---------------------------------------------------------------------------------------------------------

    @functools.lru_cache  # noqa: B019 - clients stay for as long as the process does
    def reader(self, bucket: str, seconds: float) -> Reader:
        """Reads the objects of a bucket, each answer in so many seconds.

        Raises:
            UsageError: when what the environment says cannot be.
        """
        pays, proxy = self._fs._get_params({}).get("userProject"), self._fs.session_kwargs.get("proxy")
        location, folder = self._fs._location, bucket
        if self.emulator:
            # fake-gcs-server answers to the XML API only under the host that it was told is its own, and else that
            # nothing is there; downloads of the JSON API, for which a URL of this form stands, are found under any.
            location, folder = f"{location}/download/storage/v1/b/{bucket}", "o"
        options: dict[str, Any] = {
            "base_url": location,
            "credential_provider": self._token,
            "skip_signature": self._fs.credentials.credentials is None,
            "client_options": {
                "allow_http": location.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "timeout": timedelta(seconds=seconds),
                "read_timeout": timedelta(seconds=SILENCE_SECONDS),
                **({"default_headers": {"x-goog-user-project": pays}} if pays else {}),
                **({"proxy_url": f"{proxy}"} if proxy else {}),
            },
            "retry_config": READ_RETRIES,
        }
        try:
            with no_panic():
                return Reader(GCSStore(folder, **options), "version")
        except Failed as error:
            reason = _first_line(str(error)) or type(error).__name__
            raise UsageError(f"--prefix gs://{bucket}: {reason}; correct it, or the GOOGLE_ variables") from None

    def _token(self) -> Any:
        """Who we are, as obstore wants it."""
        self._fs.credentials.maybe_refresh()
        found = self._fs.credentials.credentials
        if found is None:
            return {"token": "", "expires_at": None}
        expiry = found.expiry
        return {"token": found.token or "", "expires_at": expiry and expiry.replace(tzinfo=expiry.tzinfo or UTC)}

    def renew(self, where: str) -> None:
        """See that the credentials are good for a while, before something is read.

        Raises:
            NoAnswer: when who gives them does not answer.
            StoreError: when they cannot be renewed.
        """
        try:
            with self._explained(where, "read"):
                self._fs.credentials.maybe_refresh()
        except Silence as error:
            raise unanswered(where, "read", str(error)) from error

    def unread(self, place: Place, version: str, error: BaseException) -> Exception:
        """The error that a person should see when an object, of that version, cannot be read."""
        stranger = strange(error, place.where, "read", self._fs._location, "GCS", GCS_VARIABLE)
        if stranger is not None:
            return stranger
        text, status = str(error), status_of(error)
        reply = Reply(status, {}, body_of(error).encode())
        if "InvalidCertificate" in text:
            return self._untrusted(place.where, "read", "InvalidCertificate")
        if status == 404 and not self.is_about_the_bucket(reply):
            missing = FileNotFoundError(errno.ENOENT, "no such object", place.path)
            return replaced(place.where) if version else missing
        if not status:
            *_, problem = ("no answer", *(each for each in _PROBLEM.findall(text) if "::" not in each))
            return unanswered(place.where, "read", self._plain(problem))
        try:
            self.refuse(reply, place.where, "read")
        except Silence as silence:
            return unanswered(place.where, "read", str(silence))
        except StoreError as refused:
            return refused

    # Errors ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _explained(self, where: str, doing: str) -> Iterator[None]:
        """Tell what helps from what does not.

        Raises:
            Silence: when the connection was not made, or broke, or said nothing.
            StoreError: when trying again cannot help.
        """
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(where, doing, str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Silence(self._plain(reason)) from error
        except google.auth.exceptions.TransportError as error:
            raise Silence(f"the credentials cannot be renewed: {self._plain(str(error))}") from error
        except (HttpError, NonRetryableError, google.auth.exceptions.GoogleAuthError) as error:
            cause = error.__cause__ or error
            if getattr(cause, "retryable", False):
                raise Silence(f"the credentials cannot be renewed: {self._plain(str(cause))}") from error
            reason = f"the credentials have expired and cannot be renewed ({self._plain(str(cause))})"
            raise StoreError(f"{where}: cannot {doing}: {reason}; {LOGIN}") from error

    def _untrusted(self, where: str, doing: str, reason: str) -> StoreError:
        problem = f"the server's certificate is not trusted ({_first_line(reason)})"
        return StoreError(f"{where}: cannot {doing}: {problem}; check the network and SSL_CERT_FILE")

    def is_about_the_bucket(self, reply: Reply) -> bool:
        """Whether what is missing is the bucket. (The emulator does not tell.)"""
        return b"bucket does not exist" in reply.body

    def refuse(self, reply: Reply, where: str, doing: str) -> NoReturn:
        """Raise the error that a person should see for an answer.

        Raises:
            Silence: for one that says: not now.
            StoreError: for any other, with what helps.
        """
        said = self._plain(_said(reply))
        if reply.status in RETRIED or (reply.status == 403 and b"ateLimitExceeded" in reply.body):
            raise Silence(f"it answered {reply.status}{said and f', {said}'}")
        bucket = where.removeprefix("gs://").partition("/")[0]
        remedy = f"it answered {reply.status}{said and f', {said}'}"
        if reply.status == 404:
            make = f"`gcloud storage buckets create gs://{bucket}`"
            raise StoreError(f"gs://{bucket}: there is no such bucket; check the name, or make it with {make}")
        if reply.status == 400 and "requester pays" in said.lower():
            remedy = "the bucket is requester pays; say who pays with `export FSSPEC_GS_REQUESTER_PAYS=PROJECT`"
        elif reply.status in (401, 403) and self.no_credentials:
            remedy = f"not allowed without credentials, and none were found ({self.no_credentials}); {LOGIN}"
        elif reply.status == 401:
            remedy = f"the credentials are refused{said and f' ({said})'}; {LOGIN}"
        elif reply.status == 403:
            remedy = (
                f"permission denied{said and f' ({said})'}; ask the bucket's owner for the role "
                f"Storage Object User (roles/storage.objectUser) on gs://{bucket}, or use another account"
            )
        raise StoreError(f"{where}: cannot {doing}: {remedy}")

    def _plain(self, text: str) -> str:
        """One line without a token that somebody might have put into a message."""
        token = getattr(self._fs.credentials.credentials, "token", None)
        return _first_line(text.replace(token, "…") if token else text)


LOGIN = (
    "run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name the file of a service "
    "account's key"
)


def unanswered(where: str, doing: str, silence: str) -> NoAnswer:
    """The error when all tries got no answer."""
    return NoAnswer(f"{where}: cannot {doing}: the store does not answer ({silence}); check the network, and run again")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time; when one fails the others are ended, and its error is raised."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _said(reply: Reply) -> str:
    """What an answer says in words."""
    error = (reply.tree() or {}).get("error")
    if isinstance(error, dict):
        return str(error.get("message") or "")
    text = reply.body.decode(errors="replace")
    told = _DETAILS.search(text) or _MESSAGE.search(text)
    return str(error) if error else html.unescape(told[1]) if told else text[:300]


def _first_line(text: str) -> str:
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "")


@functools.cache
def client_of(endpoint: str | None) -> Client:
    """The client of an emulator (its URL), or of Google: one for all stores of this process."""
    return Client(endpoint)
