"""Connections over which objects are read: a thread takes what comes straight into its memory, which costs half of what
it does in an event loop.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

IDLE = 32
"""Connections that are kept open for the next request, at most."""


class Connections:
    """To one server; any thread may use them."""

    def __init__(
        self,
        location: str,
        context: Callable[[], ssl.SSLContext],
        connect_seconds: float,
        silence_seconds: Callable[[], float],
    ) -> None:
        """Args:
        location: the server, `https://HOST` or `http://HOST:PORT`.
        context: makes what the server's certificate is checked by.
        """
        self._server = urlsplit(location)
        self._make_context = context
        self._connect_seconds = connect_seconds
        self._silence_seconds = silence_seconds
        self._idle: deque[HTTPConnection] = deque(maxlen=IDLE)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return self._make_context()

    def get(self, url: str, headers: Mapping[str, str]) -> tuple[HTTPConnection, HTTPResponse]:
        """Ask for something; the answer, whose body is still to be read.

        Raises:
            HTTPException, OSError: when the server cannot be reached, or does not answer.
        """
        target = url.removeprefix(f"{self._server.scheme}://{self._server.netloc}")
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection, is_new = self._new(), True
            try:
                connection.sock.settimeout(self._silence_seconds())
                connection.request("GET", target, headers=dict(headers))
                return connection, connection.getresponse()
            except (HTTPException, OSError):
                connection.close()
                if is_new:  # else the server has closed it meanwhile
                    raise

    def _new(self) -> HTTPConnection:
        host, port = self._server.hostname or "", self._server.port
        if self._server.scheme == "https":
            connection = HTTPSConnection(host, port, timeout=self._connect_seconds, context=self._context)
        else:
            connection = HTTPConnection(host, port, timeout=self._connect_seconds)
        connection.connect()
        return connection

    def give_back(self, connection: HTTPConnection) -> None:
        """The answer was read to its end: the next one may come over the same connection."""
        self._idle.append(connection)
