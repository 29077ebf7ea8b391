"""Connections whose answers come at a least pace: from the first byte of the headers on, a server that sends a byte now
and then is one that is silent.

What counts is what comes over the line while it is waited for, so that who reads slowly is no fault of the server.
"""

from __future__ import annotations

import functools
import http.client
import http.cookiejar
import io
import threading
import time
from typing import Any

import requests
import requests.adapters
import urllib3
import urllib3.connection

WINDOW = 60.0
"""Seconds that are waited for bytes, together, after which they are counted; as many as the silence that is allowed,
where that is longer.
"""


class _Paced(io.RawIOBase):
    """The bytes of a socket."""

    def __init__(self, raw: Any, least: float, window: float) -> None:
        self._raw = raw
        self._least = least
        self._window = window
        self._waited = 0.0
        self._came = 0
        self.in_headers = True
        """Whether all that comes must have come in one window."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        begun = time.monotonic()
        size = self._raw.readinto(buffer)
        self._waited += time.monotonic() - begun
        self._came += size or 0
        if size and self._waited >= self._window:
            if self.in_headers or self._came < self._least * self._window:
                raise TimeoutError(f"only {self._came} bytes in {self._waited:.0f} s")
            self._waited, self._came = 0.0, 0
        return size

    def begin_body(self) -> None:
        """The headers are there."""
        self.in_headers, self._waited, self._came = False, 0.0, 0

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    least = 0.0

    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        window = max(WINDOW, sock.gettimeout() or 0.0)
        # Nothing has been read yet, so nothing is lost with its buffer.
        self._paced = _Paced(self.fp.detach(), self.least, window)  # pyright: ignore[reportAttributeAccessIssue]
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        super().begin()
        self._paced.begin_body()


@functools.cache
def _pools(least: float) -> dict[str, Any]:
    """Kinds of connections by scheme."""
    response = type("Response", (_Response,), {"least": least})
    kinds: dict[str, Any] = {
        "http": (urllib3.connection.HTTPConnection, urllib3.HTTPConnectionPool),
        "https": (urllib3.connection.HTTPSConnection, urllib3.HTTPSConnectionPool),
    }
    return {
        scheme: type(
            "Pool", (pool,), {"ConnectionCls": type("Connection", (connection,), {"response_class": response})}
        )
        for scheme, (connection, pool) in kinds.items()
    }


class _Adapter(requests.adapters.HTTPAdapter):
    def __init__(self, least: float) -> None:
        self._pools = _pools(least)
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


_of_thread = threading.local()


def session(least: float) -> requests.Session:
    """This thread's connections. Cookies are not kept: an answer depends on nothing but what was asked.

    Args:
        least: bytes a second, over a window.
    """
    sessions: dict[float, requests.Session] = _of_thread.__dict__.setdefault("sessions", {})
    if least not in sessions:
        made = sessions[least] = requests.Session()
        made.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            made.mount(scheme, _Adapter(least))
    return sessions[least]
