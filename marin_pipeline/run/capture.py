"""What a task prints, whoever prints it: Python, a library in C, a child process.

It goes to a file by descriptor. Of a task that was given secrets it goes through a pipe to a process that writes their
names for their values: not a thread, so that the last words of a process that ends itself are not lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from marin_pipeline.core import projects
from marin_pipeline.core.redaction import Redactor
from marin_pipeline.core.secrets import redactor
from marin_pipeline.run.task import Task
from marin_pipeline.store import layout

PATIENCE = 2.0
"""Seconds that what children print after the task has ended is waited for."""

_LIBC = ctypes.CDLL(None)
_PUMP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from marin_pipeline.run.pump import pump; pump(*map(int, sys.argv[2:]))"
)


def log_of(task: Task) -> str:
    """The object that holds what a task printed."""
    if task.kind == "step":
        return layout.attempt_log(task.id, task.key, task.attempt)
    return layout.shard_log(task.key, task.attempt)


@contextlib.contextmanager
def descriptors_to(
    path: Path, secrets: Sequence[str], screen: int | None = None, leave: bool = False
) -> Iterator[None]:
    """Send descriptors 1 and 2, and with them everything that is printed, to the end of a file.

    Args:
        secrets: names of those whose values are not written.
        screen: a descriptor that gets a copy; used with secrets.
        leave: what children print that outlive the task is still written; else it is lost after a while.
    """
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    kept = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    known = redactor(secrets) if secrets else None
    process = None
    try:
        target = log
        if known is not None:
            process, target = _start(known, log, screen)
        os.dup2(target, 1)
        os.dup2(target, 2)
        if target != log:
            os.close(target)
        # Streams of the task's own: it may close them, and a disk that is full fails them without harm to the next
        # task.
        sys.stdout, sys.stderr = own = _stream(1), _stream(2)
        try:
            yield
        finally:
            for stream in own:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            _LIBC.fflush(None)
    finally:
        sys.stdout, sys.stderr = streams
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (log, *kept):
            os.close(descriptor)
        if process is not None:
            _await(process, leave)


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _start(known: Redactor, log: int, screen: int | None) -> tuple[subprocess.Popen[bytes], int]:
    """The process that writes to the log, and the descriptor that it reads from."""
    source, target = os.pipe()
    passed = [source, log, *([] if screen is None else [screen])]
    process = subprocess.Popen(
        [sys.executable, "-ISB", "-c", _PUMP, projects.DISTRIBUTION, *map(str, passed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=passed,
        start_new_session=True,  # it outlives the task's process group, to write what that has printed
    )
    os.close(source)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as line:  # the values: never on its command line
        line.write(json.dumps(known.values).encode())
    return process, target


def _await(process: subprocess.Popen[bytes], leave: bool) -> None:
    """Wait until what was printed is written. A child that lives on may hold the pipe open."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        if not leave:
            process.terminate()
            process.wait()
