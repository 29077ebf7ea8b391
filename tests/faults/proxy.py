"""A line to a server that a test can hold up, cut, or have say something else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_BLOCK = 2**16


@dataclass
class Line:
    """Passes connections on to a server, byte by byte."""

    target: tuple[str, int]
    cuts: list[int] = field(default_factory=list[int])
    """The next connections that carry so many bytes of answers are cut there, one for each entry."""
    cuts_of_requests: list[int] = field(default_factory=list[int])
    """A connection is cut when so many bytes of requests have been passed on in all, one for each entry."""
    lost: list[bytes] = field(default_factory=list[bytes])
    """The answer to the next request that begins so is lost, one for each entry."""
    refusing: bool = False
    """Connections are closed when they are made, or used."""
    silent: bool = False
    """No answer is passed on."""
    hold_after: int | None = None
    """Bytes of requests after which nothing passes any more, as if the machine's line were down."""
    answers: Callable[[bytes], bytes] = lambda data: data
    """What becomes of a piece of an answer."""
    requests: Callable[[bytes], bytes] = lambda data: data
    """What becomes of a piece of a request."""
    canned: list[bytes] = field(default_factory=list[bytes])
    """Whole answers, each given to the next request in place of the server's."""
    sent: int = 0
    """Bytes of requests that were passed on."""
    received: int = 0
    """Bytes of answers."""
    connections: int = 0
    url: str = ""
    _held: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[socket.socket] = field(default_factory=list[socket.socket])

    def wait_until_held(self, seconds: float = 60.0) -> None:
        """Wait until nothing passes any more."""
        assert self._held.wait(seconds), f"only {self.sent} bytes came"

    def release(self) -> None:
        """Let everything pass again; the connections that were held up are gone."""
        with self._lock:
            self.hold_after = None
            held, self._open = self._open, []
        for each in held:
            _shut(each)

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.refusing:
                _shut(client)
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target)
        except OSError:
            _shut(client)
            return
        with self._lock:
            self._open += [client, server]
        losing = threading.Event()
        threading.Thread(target=self._requests, args=(client, server, losing), daemon=True).start()
        self._answers(server, client, losing)

    def _requests(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_BLOCK):
                with self._lock:
                    if self.lost and data.startswith(self.lost[0]):
                        self.lost.pop(0)
                        losing.set()
                    canned = self.canned.pop(0) if self.canned and data[:4] in (b"PUT ", b"GET ", b"POST") else None
                    self.sent += len(data)
                    held = self.hold_after is not None and self.sent > self.hold_after
                    cut = bool(self.cuts_of_requests) and self.sent > self.cuts_of_requests[0]
                    if cut:
                        self.cuts_of_requests.pop(0)
                if held:
                    self._held.set()
                    return  # what was sent is not passed on, and both sides wait
                if canned is not None:
                    client.sendall(canned)
                    break
                if cut or self.refusing:
                    break
                server.sendall(self.requests(data))
        _shut(client)
        _shut(server)

    def _answers(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        passed = 0
        with suppress(OSError):
            while data := server.recv(_BLOCK):
                passed += len(data)
                while self.silent:
                    time.sleep(0.01)
                if losing.is_set():
                    break
                with self._lock:
                    self.received += len(data)
                    cut = bool(self.cuts) and passed > self.cuts[0]
                    if cut:
                        self.cuts.pop(0)
                if cut:
                    break
                client.sendall(self.answers(data))
        with self._lock:
            held = self.hold_after is not None and self._held.is_set()
        if not held:
            _shut(client)
            _shut(server)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def line_to(url: str) -> Iterator[Line]:
    """A line to the server at `url` (`http://127.0.0.1:PORT`), under a URL of its own.

    The server's answers may name its own URL, as for an upload in parts; the line then names itself instead.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    line = Line((host, int(port)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = f"{listener.getsockname()[1]}"
        assert len(own) == len(port), "the length of an answer must stay"
        line.url = f"http://127.0.0.1:{own}"
        line.answers = lambda data: data.replace(f"127.0.0.1:{port}".encode(), f"127.0.0.1:{own}".encode())
        thread = threading.Thread(target=line.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield line
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            line.release()
    thread.join(5)
