"""The answers of Google Cloud Storage that fake-gcs-server cannot give, as Google documents them: refusals, and uploads
in parts that go on where they were. (The emulator ends an upload when it is asked how far it has come.)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

UNIT = 256 * 1024
"""Bytes in whose multiples the store keeps what has arrived."""


class Store:
    """What the server knows, and how it is to behave."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[tuple[int, str]] = []
        """Status and body of the next answers; the last one is given again and again."""
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

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", f"{len(body.encode())}")
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.canned()

    def do_DELETE(self) -> None:
        self.canned()

    def canned(self) -> None:
        """The next of the answers that a test laid out."""
        store = self.store
        store.asked += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = store.answers.pop(0) if len(store.answers) > 1 else store.answers[0]
        self.answer(status, body, **{"X-Goog-Generation": "7"})

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
