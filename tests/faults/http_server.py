"""An HTTP server of the tests, on the loopback: it keeps to the protocol of ranges, or breaks its word as it is told.

Each request takes the next of a file's acts; without one the server is honest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OLD = "Mon, 01 Jan 2024 00:00:00 GMT"


@dataclass(frozen=True)
class Act:
    """What the server does instead of what it should."""

    status: int | None = None
    """Answered with, and no body of the file."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the answer, or in place of its own."""
    cut: int | None = None
    """Bytes of the body after which the connection ends."""
    silent: float = 0.0
    """Seconds before the first byte of the body."""
    holds: int | None = None
    """Bytes of the body after which nothing comes for a minute, or until the client has gone."""
    drip: int | None = None
    """Bytes of each piece of the body, with a pause after it."""
    changes: Callable[[Served], None] | None = None
    """Called with the file before it is answered."""
    ignores_range: bool = False
    """Answers 200 with the whole."""
    ignores_if_range: bool = False
    """Answers 206 though the file has changed."""
    starts: int | None = None
    """Where each range begins that it answers, and says so."""
    shift: int = 0
    """Of the bytes that are sent in a range, whatever the headers say."""
    says_shift: int = 0
    """Of the offsets in Content-Range, whatever is sent."""
    says_total: int | None = None
    """In Content-Range."""
    says_length: int | None = None
    """In Content-Length."""
    framing: str = "length"
    """How the end of a body is told: `length`, `chunked`, or `close` (by the end of the connection)."""


@dataclass
class Served:
    """A file of the server."""

    data: bytes
    etag: str = '"1"'
    modified: str = OLD
    acts: list[Act] = field(default_factory=list[Act])
    then: Act = Act()
    """When the acts are over."""
    token: str = ""
    """What a request must bear."""


@dataclass(frozen=True)
class Asked:
    """A request, as it came."""

    path: str
    headers: Mapping[str, str]
    status: int = 0

    @property
    def range(self) -> str:
        return self.headers.get("Range", "")


class HttpServer:
    """Files by path, and what was asked."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.asked: list[Asked] = []
        self.answers: dict[str, Callable[[Handler], bool]] = {}
        """By the beginning of a path: what answers instead; returns whether it did."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.owner = self  # pyright: ignore[reportAttributeAccessIssue] - read by the handler
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.elsewhere = f"http://localhost:{self.port}"
        """The same server as another host."""
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def serve(self, path: str, data: bytes, *acts: Act, **options: Any) -> Served:
        """Have a file."""
        self.files[path] = Served(data, acts=list(acts), **options)
        return self.files[path]

    def of(self, path: str) -> list[Asked]:
        """The requests for a path."""
        return [each for each in self.asked if each.path.partition("?")[0] == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def http_server() -> Iterator[HttpServer]:
    """A server that is there for the time of a block."""
    server = HttpServer()
    try:
        yield server
    finally:
        server.close()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def owner(self) -> HttpServer:
        return self.server.owner  # pyright: ignore[reportAttributeAccessIssue]

    def log_message(self, format: str, *args: Any) -> None:
        """The log is `asked`."""

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the client has gone
            super().handle()

    def do_POST(self) -> None:
        self.do_GET()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for beginning, answer in self.owner.answers.items():
            if path.startswith(beginning) and answer(self):
                return
        served = self.owner.files.get(path)
        if served is None:
            self.reply(404, b"none")
            return
        act = served.acts.pop(0) if served.acts else served.then
        if act.changes is not None:
            act.changes(served)
        if served.token and self.headers.get("Authorization") != f"Bearer {served.token}":
            self.reply(401, b"who?")
        elif act.status is not None:
            self.reply(act.status, b"no", act.headers)
        else:
            self._file(served, act)

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A small answer."""
        self._note(status)
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _note(self, status: int) -> None:
        self.owner.asked.append(Asked(self.path, dict(self.headers.items()), status))

    def _file(self, served: Served, act: Act) -> None:
        start = self._start(served, act)
        total = len(served.data)
        if start is not None and start >= total:
            self.reply(416, b"", {"Content-Range": f"bytes */{total}"})
            return
        body = served.data if start is None else served.data[start + act.shift :]
        headers = {"ETag": served.etag, "Last-Modified": served.modified}
        if start is not None:
            first, last = start + act.says_shift, total - 1 + act.says_shift
            headers["Content-Range"] = f"bytes {first}-{last}/{act.says_total or total}"
        if act.framing == "length":
            headers["Content-Length"] = str(len(body) if act.says_length is None else act.says_length)
        elif act.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        headers = {name: text for name, text in {**headers, **act.headers}.items() if text}
        status = 200 if start is None else 206
        self._note(status)
        self.send_response_only(status)
        self.send_header("Date", headers.pop("Date", formatdate(usegmt=True)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        time.sleep(act.silent)
        self._send(body if act.cut is None else body[: act.cut], act)
        if act.framing == "chunked" and act.cut is None:
            self.wfile.write(b"0\r\n\r\n")
        if act.cut is not None or act.framing == "close" or act.says_length is not None:
            self.close_connection = True

    def _start(self, served: Served, act: Act) -> int | None:
        """Where a range begins that is to be answered."""
        text = self.headers.get("Range", "")
        if not text.startswith("bytes=") or act.ignores_range:
            return None
        condition = self.headers.get("If-Range")
        if condition is not None and not act.ignores_if_range:
            is_strong = not served.etag.startswith("W/")
            fits = condition == served.etag and is_strong
            if not condition.startswith('"'):
                fits = parsedate_to_datetime(condition) == parsedate_to_datetime(served.modified)
            if not fits:
                return None
        if act.starts is not None:
            return act.starts
        return int(text.removeprefix("bytes=").partition("-")[0])

    def _send(self, body: bytes, act: Act) -> None:
        step = act.drip or 2**16
        for place in range(0, len(body), step):
            piece = body[place : place + step]
            if act.framing == "chunked":
                piece = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
            if act.holds is not None and place + len(piece) > act.holds:
                self.wfile.write(piece[: act.holds - place])
                self.connection.settimeout(60)
                self.connection.recv(1)
                return
            self.wfile.write(piece)
            if act.drip:
                self.wfile.flush()
                time.sleep(0.05)
