"""Connections over which objects are read, in the threads that want them: that costs half of what it does in an event
loop or through `http.client`, and a plan reads thousands of records.
"""

from __future__ import annotations

import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from http.client import HTTPConnection, HTTPSConnection
from io import BufferedReader
from typing import cast
from urllib.parse import urlsplit

IDLE = 128
"""Connections that are kept open for the next request, at most."""

_LINE = 2**16
"""Bytes of a line of an answer's head, at most."""

_STATUS = re.compile(r"[0-9]{3}")
_LENGTH = re.compile(r"[0-9]{1,18}")


class BadAnswer(OSError):
    """What came is no answer of HTTP/1.1, or has no end that is told before."""


class Connection:
    """To a server, for one request after the other."""

    def __init__(self, opened: HTTPConnection) -> None:
        opened.connect()
        self._socket = opened.sock
        self._host = f"{opened.host}:{opened.port}"
        self._file = cast(BufferedReader, self._socket.makefile("rb", 2**16))
        self.status = 0
        self.headers: dict[str, str] = {}
        """Of the present answer; names in lower case."""
        self._left = 0

    def get(self, target: str, headers: Mapping[str, str], silence_seconds: float) -> None:
        """Ask for something, and read the head of the answer.

        Raises:
            OSError: when the server does not answer.
        """
        self._socket.settimeout(silence_seconds)
        lines = [f"GET {target} HTTP/1.1", f"Host: {self._host}", *(f"{name}: {headers[name]}" for name in headers)]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        version, _, rest = self._line().partition(" ")
        if not version.startswith("HTTP/1.") or not _STATUS.fullmatch(rest[:3]):
            raise BadAnswer(f"it does not answer as HTTP/1.1 does: {version} {rest}"[:200])
        self.status = int(rest[:3])
        self.headers = {}
        while line := self._line():
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        length = self.headers.get("content-length", "")
        self._left = int(length) if _LENGTH.fullmatch(length) else -1

    def _line(self) -> str:
        line = self._file.readline(_LINE)
        if not line.endswith(b"\n"):
            raise BadAnswer("the connection was closed")
        return line.rstrip(b"\r\n").decode("latin-1")

    def readinto(self, buffer: memoryview) -> int:
        """Take bytes of the body; how many, which is as many as there is room for while there are more.

        Raises:
            OSError: when the connection breaks.
        """
        if self._left < 0:
            raise BadAnswer("the answer does not tell how long it is")
        if not self._left:
            return 0
        size = self._file.readinto(buffer[: self._left] if self._left < len(buffer) else buffer)
        self._left -= size
        return size

    def body(self) -> bytes:
        """All of the body; of one whose end is not told, as of a refusal, some of it.

        Raises:
            OSError: when the connection breaks.
        """
        if self._left < 0:
            return self._file.read1(_LINE)
        data = self._file.read(self._left)
        self._left -= len(data)
        if self._left:
            raise BadAnswer("it sent too few bytes")
        return data

    @property
    def is_free(self) -> bool:
        """Whether the answer was read to its end, and the server takes another request."""
        return not self._left and self.headers.get("connection", "").lower() != "close"

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._socket.close()


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
        self._origin = f"{self._server.scheme}://{self._server.netloc}"
        self._make_context = context
        self._connect_seconds = connect_seconds
        self._silence_seconds = silence_seconds
        self._idle: deque[Connection] = deque(maxlen=IDLE)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return self._make_context()

    def get(self, url: str, headers: Mapping[str, str]) -> Connection:
        """Ask for something; the connection, over which the answer's body is still to be read.

        Raises:
            OSError: when the server cannot be reached, or does not answer.
        """
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection, is_new = self._new(), True
            try:
                connection.get(url.removeprefix(self._origin), headers, self._silence_seconds())
                return connection
            except OSError:
                connection.close()
                if is_new:  # else the server has closed it meanwhile
                    raise
            except BaseException:
                connection.close()
                raise

    def _new(self) -> Connection:
        host, port = self._server.hostname or "", self._server.port
        if self._server.scheme == "https":
            return Connection(HTTPSConnection(host, port, timeout=self._connect_seconds, context=self._context))
        return Connection(HTTPConnection(host, port, timeout=self._connect_seconds))

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request, if it is good for one."""
        if connection.is_free and len(self._idle) < IDLE:
            self._idle.append(connection)
        else:
            connection.close()
