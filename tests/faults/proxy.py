"""A line to a server that breaks where a test says so."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

BLOCK = 2**16


class Proxy:
    """Passes connections on to a server. The switches may be set while it runs."""

    def __init__(self) -> None:
        self._listens = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listens.getsockname()[1]}"
        self.target = 0
        """Port of the server."""
        self.cut_up: int | None = None
        """A connection is cut when so many bytes have gone to the server since the switch was set."""
        self.cut_down: int | None = None
        """The same for bytes from the server."""
        self.cuts = 0
        """How many more connections are cut; each that is lowers it by one."""
        self.lost_reply: bytes | None = None
        """The reply to a request that begins so is lost, as long as there are cuts left."""
        self.silent = False
        """Nothing is passed on."""
        self.refusing = False
        """Connections are closed as they are made, and those that are there when they are used."""
        self.rewrite: Callable[[bytes], bytes] = bytes
        """What becomes of bytes on the way to the server."""
        self.up = self.down = 0
        """Bytes that were passed on."""
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *problem: object) -> None:
        self._listens.close()

    def cut_next(self, *, up: int | None = None, down: int | None = None, times: int = 1) -> None:
        """Cut connections after so many bytes from now on."""
        with self._lock:
            self.cut_up = None if up is None else self.up + up
            self.cut_down = None if down is None else self.down + down
            self._step = up or down or 0
            self.cuts = times

    def _accept(self) -> None:
        with suppress(OSError):  # the proxy has ended
            while True:
                client, _ = self._listens.accept()
                if self.refusing:
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self.target))
            request = bytearray()
            ends = (client, server)
            threading.Thread(target=self._pass, args=(*ends, request, True), daemon=True).start()
            self._pass(server, client, request, False)

    def _pass(self, source: socket.socket, sink: socket.socket, request: bytearray, is_up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(BLOCK):
                while self.silent:
                    time.sleep(0.01)
                if is_up:
                    if data.startswith((b"GET ", b"POST ", b"PUT ", b"DELETE ")):
                        request[:] = data[:2000]
                    data = self.rewrite(data)
                if self.refusing or self._is_cut(request, len(data), is_up):
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_cut(self, request: bytearray, size: int, is_up: bool) -> bool:
        with self._lock:
            if is_up:
                self.up += size
            else:
                self.down += size
            if self.cuts <= 0:
                return False
            limit, count = (self.cut_up, self.up) if is_up else (self.cut_down, self.down)
            lost = not is_up and self.lost_reply is not None and request.startswith(self.lost_reply)
            if not lost and (limit is None or count < limit):
                return False
            self.cuts -= 1
            if limit is not None:
                step = count + self._step
                self.cut_up, self.cut_down = (step, self.cut_down) if is_up else (self.cut_up, step)
            return True
