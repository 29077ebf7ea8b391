"""Steps that change what is around them: their process, their inputs, and the processes that they leave.

What happens at the first attempt only is noted in the folder `$MARIN_TEST_COUNTS`, outside of every key.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from marin_pipeline import Artifact, Context, LocalFile, ShardContext, step


def _folder() -> Path:
    return Path(os.environ["MARIN_TEST_COUNTS"])


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} did not appear")
        time.sleep(0.01)


def _rewritten(file: LocalFile) -> str:
    """What a file holds; it is written anew afterwards, as an editor beside the run would do."""
    text = file.read_text()
    if text == "before":
        file.path.write_text("after!")
    return text


@step
def reads_what_is_rewritten(ctx: Context, file: LocalFile) -> str:
    return _rewritten(file)


def _reads_shard(shard: ShardContext, item: int, file: LocalFile) -> str:
    return _rewritten(file)


@step
def maps_over_what_is_rewritten(ctx: Context, file: LocalFile) -> list[str]:
    return [result.value for result in ctx.map(_reads_shard, [0], file=file)]


@step
def sees(ctx: Context, after: Artifact[int] | None = None) -> str:
    """What a step finds around it, and in which process."""
    mask = os.umask(0)
    os.umask(mask)
    found = {
        "process": os.getpid(),
        "folder": os.getcwd(),
        "environment": dict(sorted(os.environ.items())),
        "path": sys.path,
        "limit": sys.getrecursionlimit(),
        "mask": mask,
        "handlers": [repr(signal.getsignal(each)) for each in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1)],
        "alarm": signal.getitimer(signal.ITIMER_REAL),
    }
    return json.dumps(found)


@step
def disturbs(ctx: Context, before: Artifact[str]) -> int:
    """Changes all that a process has of its own."""
    os.chdir("/")
    os.environ["MARIN_TEST_LEFT"] = "1"
    os.environ.pop("HOME", None)
    os.umask(0o777)
    sys.path.insert(0, "/nowhere")
    sys.setrecursionlimit(sys.getrecursionlimit() + 77)
    for each in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, _raise)
    signal.alarm(600)
    return 1


def _raise(number: int, frame: object) -> None:
    raise RuntimeError(f"signal {number} of a step that has ended")


@step
def dies_beside_a_child_that_lives(ctx: Context) -> int:
    """At the first attempt it leaves a child with every open file of its worker, out of the worker's reach, and is
    killed.
    """
    pid = _folder() / "child"
    if pid.exists():
        return 1
    # As a library in C forks: no hook of Python's runs, so the child keeps the worker's line to the driver open.
    if ctypes.PyDLL(None).fork() == 0:
        os.setsid()
        (_folder() / "child.new").write_text(str(os.getpid()))
        (_folder() / "child.new").rename(pid)
        while True:
            signal.pause()
    _wait_for(pid)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@step
def leaves_a_daemon(ctx: Context) -> int:
    """Forks twice, with a session of its own between."""
    pid = ctx.records / "daemon"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (ctx.records / "new").write_text(str(os.getpid()))
            (ctx.records / "new").rename(pid)
            while True:
                signal.pause()
        os._exit(0)
    os.wait()
    _wait_for(pid)
    return int(pid.read_text())
