"""Steps that give a secret away in every way that a step has, and the experiment that runs them."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import subprocess
import sys
import urllib.parse
import warnings
from typing import Any

from marin_pipeline import Context, Secret, ShardContext, main, step

TOKEN = Secret("LEAK_TOKEN")
BLOCK = 2**20


class Odd(Exception):
    """Shows what it knows whatever it is asked."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __str__(self) -> str:
        return f"odd {self.token}"

    __repr__ = __str__


@step
def prints(ctx: Context, text: str = "fine", token: Secret = TOKEN) -> int:
    value = token.value
    print("python", value)
    print(value, file=sys.stderr)
    sys.stdout.write(value[:5])
    sys.stdout.flush()
    sys.stdout.write(value[5:] + "\n")
    os.write(1, b"descriptor 1 " + os.fsencode(value) + b"\n")
    os.write(2, b"descriptor 2 " + os.fsencode(value) + b"\n")
    child = "import os, sys; print('child', os.environ['LEAK_TOKEN']); print(os.environ['LEAK_TOKEN'], file=sys.stderr)"
    subprocess.run([sys.executable, "-c", child], check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    ctx.log(f"log {value}")
    logging.basicConfig()
    logging.error("logging %s", value)
    warnings.warn(f"warning {value}", stacklevel=1)
    print(json.dumps({"token": value}), repr(value), [value], urllib.parse.quote(value, safe=""), value.encode())
    for user in ("", "u:", "us:", "use:"):
        print("Authorization: Basic", base64.b64encode(f"{user}{value}".encode()).decode())
    print("x" * BLOCK + value + "y" * BLOCK)
    ctx.progress(1, 1, f"items of {value}", **{f"loss {value}": 1.0})
    print("the end")
    return 1


@step
def raises(ctx: Context, how: str, token: Secret = TOKEN) -> int:
    value = token.value
    (ctx.out / "left").write_text(f"left behind: {value}")
    (ctx.records / value.encode().hex()).write_text("left behind")
    if how == "message":
        raise ValueError(f"bad token {value}")
    if how == "chained":
        try:
            raise KeyError(value)
        except KeyError as error:
            raise RuntimeError("no answer") from error
    if how == "context":
        try:
            raise OSError(5, value, value)
        except OSError:
            raise RuntimeError("no answer")  # noqa: B904 - the context is what is tried
    if how == "note":
        error = ValueError("bad token")
        error.add_note(f"it was {value}")
        raise error
    if how == "group":
        raise ExceptionGroup("several", [ValueError(value), Odd(value)])
    if how == "odd":
        raise Odd(value)
    if how == "exit":
        sys.exit(value)
    if how == "syntax":
        exec(compile(f"a = {value!r} b", value, "exec"))
    print("last words", value)
    if how == "ends":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


@step
def keeps(ctx: Context, how: str, token: Secret = TOKEN) -> Any:
    value = token.value
    (ctx.out / "fine.txt").write_text("nothing to see")
    if how == "value":
        return {"token": [value]}
    if how == "key":
        return {value: 1}
    if how == "file":
        (ctx.out / "deep").mkdir()
        (ctx.out / "deep" / "file.txt").write_text(f"token: {value}")
    if how == "border":
        (ctx.out / "border.bin").write_bytes(b"x" * (BLOCK - 7) + value.encode() + b"y" * BLOCK)
    if how == "wide":
        (ctx.out / "wide.txt").write_text(f"token: {value}", encoding="utf-16")
    if how == "header":
        (ctx.out / "header").write_text(base64.b64encode(f"user:{value}".encode()).decode())
    if how == "name":
        (ctx.out / urllib.parse.quote(value, safe="")).write_text("")
    if how == "folder":
        folder = ctx.out / urllib.parse.quote(value, safe="")
        folder.mkdir()
        (folder / "file").write_text("")
    if how == "empty":
        (ctx.out / "deep" / f"d-{urllib.parse.quote(value, safe='')}" / "empty").mkdir(parents=True)
    if how == "empty_record":
        (ctx.records / f"d-{urllib.parse.quote(value, safe='')}").mkdir()
    if how == "beside":
        (ctx.out.parent / "leak.txt").write_text(value)
    if how == "beside_name":
        (ctx.out.parent / "other" / urllib.parse.quote(value, safe="")).mkdir(parents=True)
    if how == "log":
        (ctx.out.parent / "log").mkdir(exist_ok=True)
        (ctx.out.parent / "log" / "other.txt").write_text(value)
    if how == "link":
        (ctx.out / "link").symlink_to(value.replace("/", "_") + "/" + value)
    if how == "record":
        (ctx.records / "log.txt").write_text(f"token: {value}")
    if how == "part":
        with ctx.work.writing("one") as folder:
            (folder / "file").write_text(f"token: {value}")
    if how == "stream":
        with ctx.stream("streamed") as file:
            file.write(b"x" * (BLOCK - 3))
            for byte in value.encode():
                file.write(bytes([byte]))
    return 1


def gives_away(shard: ShardContext, item: str, token: Secret | None = None, text: str = "") -> str:
    value = os.environ["LEAK_TOKEN"]
    print("shard", value)
    os.write(2, b"shard " + os.fsencode(value) + b"\n")
    if item == "raises":
        (shard.out / "left").write_text(value)
        raise ValueError(f"bad {value}")
    if item == "file":
        (shard.out / "file").write_text(value)
    return value if item == "value" else "ok"


@step
def maps(ctx: Context, how: str, token: Secret = TOKEN) -> list[str]:
    if how == "argument":
        return [each.value for each in ctx.map(gives_away, ["fine"], text=token.value)]
    if how == "item":
        return [each.value for each in ctx.map(gives_away, [token.value])]
    return [each.value for each in ctx.map(gives_away, ["fine", how], token=token)]


RAISES = ("message", "chained", "context", "note", "group", "odd", "exit", "syntax", "ends", "killed")
KEEPS = (
    "value",
    "key",
    "file",
    "border",
    "wide",
    "header",
    "name",
    "folder",
    "link",
    "record",
    "part",
    "stream",
    "empty",
    "empty_record",
    "beside",
    "beside_name",
    "log",
)
MAPS = ("fine", "raises", "file", "value", "argument", "item")


def all_of(ending: bool = True) -> list[Any]:
    """Args:
    ending: whether some end the process that they run in.
    """
    ends = () if ending else ("ends", "killed")
    return [
        prints(),
        *(raises(how=how).named(f"raises/{how}") for how in RAISES if how not in ends),
        *(keeps(how=how).named(f"keeps/{how}") for how in KEEPS),
        *(maps(how=how).named(f"maps/{how}") for how in MAPS),
    ]


if __name__ == "__main__":
    main(all_of)
