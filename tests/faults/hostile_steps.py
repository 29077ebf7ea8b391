"""Steps that do what no step should."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from marin_pipeline import Context, ShardContext, step


class Abort(BaseException):
    """Not an Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unspeakable(Exception):
    """Raises another error whatever it is asked."""

    @property
    def errno(self) -> int:
        raise RuntimeError("no number")

    __str__ = __repr__ = Unprintable.__str__


class Numberless(OSError):
    @property
    def errno(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - that is the fault
        raise RuntimeError("no number")


@step
def prints_binary(ctx: Context) -> int:
    sys.stdout.buffer.write(b"\xff\x00binary\n")
    sys.stdout.flush()
    print("\udcff surrogate")
    return 1


@step
def closes_stdout(ctx: Context) -> int:
    print("before")
    sys.stdout.close()
    return 1


@step
def prints(ctx: Context, text: str) -> int:
    print(text)
    subprocess.run(["sh", "-c", f"echo child {text}; echo child error {text} >&2"], check=True)
    return 1


@step
def exits(ctx: Context, code: int, hard: bool) -> int:
    if hard:
        os._exit(code)
    sys.exit(code)


@step
def aborts(ctx: Context) -> int:
    raise Abort("no")


@step
def interrupts(ctx: Context) -> int:
    raise KeyboardInterrupt


@step
def raises_unprintable(ctx: Context) -> int:
    raise Unprintable


@step
def raises_unspeakable(ctx: Context) -> int:
    raise Unspeakable


@step
def raises_numberless(ctx: Context) -> int:
    raise Numberless("no room in here")


@step
def stops_unasked(ctx: Context) -> int:
    raise ctx.stop()


@step
def returns_wrong(ctx: Context) -> int:
    answer: Any = "seven"
    return answer


@step
def returns_unkeyable(ctx: Context) -> Any:
    return lambda: 1


@step
def writes_link(ctx: Context) -> int:
    (ctx.out / "link").symlink_to("/etc/hostname")
    return 1


@step
def writes_value(ctx: Context) -> int:
    (ctx.out / "value.json").write_text("{}")
    return 1


@step
def writes_odd_names(ctx: Context) -> int:
    for name in ("a b", "A B", "quote\"'", "ünï", "-rf", "a\\b"):
        (ctx.out / name).write_text(name)
    return 1


@step
def removes_its_folder(ctx: Context) -> int:
    ctx.out.rmdir()
    return 1


@step
def leaves_a_child(ctx: Context) -> int:
    child = subprocess.Popen(["sleep", "60"])
    (ctx.records / "child").write_text(str(child.pid))
    return child.pid


@step
def fills_the_disk(ctx: Context) -> int:
    (ctx.out / "half").write_bytes(b"x" * 1000)
    with open("/dev/full", "wb") as full:
        full.write(b"x" * 100_000)
    return 1


@step
def fills_the_disk_in_words(ctx: Context) -> int:
    """As libraries in C say it: with the text of the error only."""
    (ctx.out / "half").write_bytes(b"x" * 1000)
    raise RuntimeError("INTERNAL: write failed: No space left on device")


@step
def fills_the_disk_inside(ctx: Context) -> int:
    (ctx.out / "half").write_bytes(b"x" * 1000)
    try:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere/file")
    except OSError as error:
        raise ValueError("could not save") from error


def _chained(count: int) -> Exception:
    error: Exception = ValueError("error 0")
    for index in range(1, count):
        after = ValueError(f"error {index}")
        after.__cause__ = error
        error = after
    return error


@step
def raises_a_cycle(ctx: Context) -> int:
    error = _chained(2)
    assert error.__cause__ is not None
    error.__cause__.__context__ = error
    raise error


@step
def raises_a_long_chain(ctx: Context, count: int) -> int:
    raise _chained(count)


def _raises_a_cycle(shard: ShardContext, item: int) -> int:
    error = _chained(2)
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    raise error


@step
def maps_a_cycle(ctx: Context) -> int:
    return len(ctx.map(_raises_a_cycle, [1]))


@step
def removes_its_key(ctx: Context, whole: bool, remakes: bool) -> int:
    """Removes its key's folder, or the store."""
    (key,) = (each for each in ctx.out.parents if each.name == "attempts")
    (store,) = (each.parent for each in ctx.out.parents if each.name == "steps")
    shutil.rmtree(store if whole else key.parent)
    if remakes:
        ctx.out.mkdir(parents=True)
    return 1


@step
def closes_descriptors(ctx: Context, how: str) -> int:
    os.closerange(3, 256)
    if how == "reused":
        for _ in range(100):
            os.open("/dev/null", os.O_RDWR)
    elif how == "sockets":
        for _ in range(50):
            socket.socketpair()[0].detach()
    elif how == "maps":
        ctx.map(_raises_a_cycle, [1])
    elif how == "raises":
        raise ValueError("no")
    return 1


@step
def links_its_folder(ctx: Context, parent: bool) -> int:
    """Its output, or the folder of its attempt, lies elsewhere afterwards."""
    moved = ctx.out.parent if parent else ctx.out
    elsewhere = moved.with_name("elsewhere")
    moved.rename(elsewhere)
    moved.symlink_to(elsewhere)
    return 1


@step
def writes_part(ctx: Context, item: str) -> int:
    with ctx.work.writing(item) as folder:
        (folder / "file").write_text("")
    return 1


@step
def digs_deep(ctx: Context) -> int:
    """Makes folders whose whole path is longer than the kernel takes."""
    where = os.open(ctx.out, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 100, dir_fd=where)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=where)
        os.close(where)
        where = below
    os.close(where)
    return 1


@step
def lowers_the_limit_of_files(ctx: Context) -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    return 1


@step
def uses_up_its_files(ctx: Context) -> int:
    """Leaves as many files open as it may."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with suppress(OSError):
        while True:
            os.open("/dev/null", os.O_RDONLY)
    return 1
