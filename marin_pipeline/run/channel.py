"""Messages between the driver and its workers: JSON objects, each after its length, over a socket."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct(">I")


class Channel:
    """One end of the line. Sending is safe from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lock = threading.Lock()
        self._received = bytearray()
        self._number = connection.fileno()
        self._file = os.fstat(self._number).st_ino

    def is_open(self) -> bool:
        """Whether the descriptor is the line's still: a step may close descriptors that it has not opened, and another
        file may have the number since.
        """
        try:
            return os.fstat(self._number).st_ino == self._file
        except OSError:
            return False

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. False when the other end is gone."""
        data = json.dumps(message, separators=(",", ":")).encode("ascii")
        try:
            with self._lock:
                if not self.is_open():
                    return False
                self.socket.sendall(_LENGTH.pack(len(data)) + data)
        except (BrokenPipeError, ConnectionResetError, OSError):
            return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for bytes and return the messages that are whole; None when the other end is gone."""
        try:
            data = self.socket.recv(2**16)
        except (ConnectionResetError, OSError):
            return None
        if not data:
            return None
        self._received += data
        return list(self._whole())

    def _whole(self) -> Iterator[dict[str, Any]]:
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            yield json.loads(bytes(self._received[_LENGTH.size : end]))
            del self._received[:end]

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
