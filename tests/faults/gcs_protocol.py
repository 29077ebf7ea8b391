"""The answers of Google Cloud Storage that fake-gcs-server cannot give, as Google documents them: refusals, and uploads
in parts that go on where they were. (The emulator ends an upload when it is asked how far it has come.)
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

UNIT = 256 * 1024
"""Bytes in whose multiples the store keeps what has arrived."""

GENERATION = "7"
"""Of every object."""

OBJECT = {
    "ETag": '"5d41402abc4b2a76b9719d911017c592"',
    "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
    "X-Goog-Generation": GENERATION,
}
"""What the store says of an object beside its bytes."""


EMPTY = (200, json.dumps({"kind": "storage#objects"}))
"""The listing of an empty folder."""


class Store:
    """What the server knows, and how it is to behave."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[tuple[int, str]] = []
        """Status and body of the next answers; the last one is given again and again."""
        self.page: tuple[str, dict[str, str]] | None = None
        """Body and headers of all answers, as of something that is no store."""
        self.project: str | None = None
        """Who pays for what was read last."""
        self.authorization: str | None = None
        """Of who read it."""
        self.asked = 0
        """Requests so far."""
        self.objects: dict[str, bytes] = {}
        self.sessions: dict[str, bytearray] = {}
        self.break_after: list[int] = []
        """Of each of the next uploads of parts, after how many bytes its connection breaks."""
        self.received = 0
        """Bytes of parts that arrived, those that were not kept among them."""
        self.forget = 0
        """How many sessions are forgotten when they are asked about."""


def refusal(status: int, message: str, reason: str = "") -> tuple[int, str]:
    """An answer as the JSON API gives it."""
    error = {"code": status, "message": message, "errors": [{"message": message, "reason": reason}]}
    return status, json.dumps({"error": error})


def _as_xml(body: str) -> str:
    """A refusal as the XML API gives it; else what it is."""
    try:
        error = json.loads(body)["error"]
        return f"<Error><Code>{error['errors'][0]['reason']}</Code><Message>{error['message']}</Message></Error>"
    except (ValueError, TypeError, LookupError):
        return body


@contextmanager
def gcs_protocol() -> Iterator[Store]:
    """A server on the loopback."""
    store = Store()

    class Handler(_Handler):
        def __init__(self, *arguments: Any) -> None:
            self.store = store
            super().__init__(*arguments)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def parse_request(self) -> bool:
        """Whether there is a request that is to be dealt with as a store does."""
        parsed = super().parse_request()
        if not parsed or self.store.page is None:
            return parsed
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(200, self.store.page[0], **self.store.page[1])
        self.wfile.flush()
        return False

    def answer(self, status: int, body: str | bytes = "", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", f"{len(data)}")
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if "/storage/v1/b/" in self.path and not self.path.startswith("/download/"):
            self.canned()
        elif self.store.answers:
            self.canned(_as_xml)
        else:
            self._object()

    def _object(self) -> None:
        """An object as the XML API gives it."""
        self.store.asked += 1
        self.store.project = self.headers.get("x-goog-user-project")
        self.store.authorization = self.headers.get("Authorization")
        path, _, query = self.path.partition("?")
        name = unquote(re.sub(r"^(/download/storage/v1/b/[^/]+/o|/[^/]+)/", "", path))
        data = self.store.objects.get(name)
        wanted = parse_qs(query).get("generation", [GENERATION])
        if data is None or wanted != [GENERATION]:
            self.answer(404, _as_xml(refusal(404, "The specified key does not exist.", "NoSuchKey")[1]))
            return
        span = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        start, stop = int(span[0] or 0), int(span[2] or len(data) - 1) + 1
        if span[0] and start >= len(data):
            self.answer(416, _as_xml(refusal(416, "The requested range cannot be satisfied.", "InvalidRange")[1]))
            return
        there = {"Content-Range": f"bytes {start}-{min(stop, len(data)) - 1}/{len(data)}"} if span[0] else {}
        self.answer(206 if span[0] else 200, data[start:stop], **there, **OBJECT)

    def do_DELETE(self) -> None:
        self.canned()

    def canned(self, written: Callable[[str], str] = str) -> None:
        """The next of the answers that a test laid out."""
        store = self.store
        store.asked += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = store.answers.pop(0) if len(store.answers) > 1 else store.answers[0]
        self.answer(status, written(body), **(OBJECT if self.command == "GET" else {}))

    def do_POST(self) -> None:
        if "uploadType=resumable" not in self.path:
            self.canned()
            return
        name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["name"]
        self.store.sessions[name] = bytearray()
        self.answer(200, Location=f"{self.store.url}/session/{name}")

    def do_PUT(self) -> None:
        name = self.path.removeprefix("/session/")
        held = self.store.sessions.get(name)
        span, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if held is None:
            self.answer(404)
            return
        if span != "*":
            self._receive(held, *map(int, span.split("-")), ends=total != "*")
        elif self.store.forget:
            self.store.forget -= 1
            del self.store.sessions[name]
            self.answer(410)
            return
        if self.close_connection:
            return
        if total == f"{len(held)}":
            self.store.objects[name] = bytes(held)
            self.answer(200, json.dumps({"name": name, "size": f"{len(held)}"}))
        else:
            self.answer(308, **({"Range": f"bytes=0-{len(held) - 1}"} if held else {}))

    def _receive(self, held: bytearray, start: int, last: int, *, ends: bool) -> None:
        limit = self.store.break_after.pop(0) if self.store.break_after else None
        arrived = bytearray()
        while len(arrived) < last + 1 - start and (limit is None or len(arrived) < limit):
            data = self.rfile.read1(min(2**16, last + 1 - start - len(arrived)))
            if not data:
                break
            arrived += data
        self.store.received += len(arrived)
        whole = len(arrived) == last + 1 - start and ends
        kept = start + len(arrived) if whole else (start + len(arrived)) // UNIT * UNIT
        held[start:] = arrived[: max(kept - start, 0)]
        if limit is not None and not whole:
            self.close_connection = True
            self.connection.close()
