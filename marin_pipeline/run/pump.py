"""The process that writes a log without the values of secrets. It imports little, since it starts with a task."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence

from marin_pipeline.core.redaction import Redactor

_BLOCK = 2**16


def pump(source: int, *targets: int) -> None:
    """Write what comes from a pipe to files, redacted, until its last writer has ended; after a SIGTERM, what has been
    written into it by then. What to redact is read from stdin: values by name, as JSON.
    """
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.set_wakeup_fd(ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    known = Redactor(json.loads(sys.stdin.buffer.read()))
    rest = b""
    for data in _blocks(source, asked):
        written, rest = known.split(rest + data)
        _write(targets, written)
    _write(targets, known.redacted(rest))


def _blocks(source: int, asked: int) -> Iterator[bytes]:
    os.set_blocking(source, False)  # the other end, which is the task's, is not concerned
    ending = False
    while True:
        if not ending:
            ready, _, _ = select.select([source, asked], [], [])
            ending = asked in ready
        try:
            data = os.read(source, _BLOCK)
        except BlockingIOError:
            if ending:
                return
            continue
        if not data:
            return
        yield data


def _write(targets: Sequence[int], data: bytes) -> None:
    for target in targets:
        left = memoryview(data)
        with contextlib.suppress(OSError):  # a disk that is full, a terminal that has gone: the others still get it
            while left:
                left = left[os.write(target, left) :]
