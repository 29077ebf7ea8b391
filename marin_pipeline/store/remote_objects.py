"""What all stores have in common that are reached over a network: scratch folders to write in, and a local cache of
what is read.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store.cache import fetched, is_cached
from marin_pipeline.store.downloads import Opened, blocks, download
from marin_pipeline.store.location import HERE, is_loopback
from marin_pipeline.store.objects import ObjectStore, Wanted, explain_os_error
from marin_pipeline.store.own_folder import scratch_folder

LONGEST_NAME = 1024
"""Bytes of an object's name in a bucket, with GCS and S3."""


def refuse_parts(url: str, prefix: str) -> None:
    """Check the folder that a prefix names in its bucket.

    Raises:
        UsageError: when one of its parts is none.
    """
    if {"", ".", ".."} & set(prefix.split("/") if prefix else ()):
        raise UsageError(f"--prefix {url}: its folder has an empty part, '.' or '..'; write it without")


class RemoteObjects(ObjectStore):
    """Objects of a bucket below a prefix."""

    shared = True

    def __init__(self, url: str) -> None:
        self.url = url
        above = url.partition("://")[2].partition("/")[2].strip("/")
        self.longest = LONGEST_NAME - len(f"{above}/".encode() if above else b"")

    def checked(self, path: str) -> str:
        """`path`, when it stays inside the prefix.

        Raises:
            StoreError: when it would lead out of the store.
        """
        parts = path.split("/")
        outside = ".." in parts or "." in parts or "" in parts or "\0" in path
        if outside or not (path.isascii() or _is_text(path)):
            raise StoreError(f"{self.url}: {path!a} is no path inside the store; whatever it was made of is damaged")
        if self.longest is not None and len(path) * 4 > self.longest and len(path.encode()) > self.longest:
            raise StoreError(f"{self.url}/{path}: has a name of more than {LONGEST_NAME} bytes, which no bucket takes")
        return path

    def location(self) -> str:
        return self._location

    @functools.cached_property
    def _location(self) -> str:
        endpoint = self.endpoint
        if endpoint is not None and is_loopback(endpoint):
            return HERE
        try:
            return self.region().lower()
        except StoreError:  # it is only said; whoever may read the objects need not be allowed to ask
            return ""

    @property
    def endpoint(self) -> str | None:
        """URL of the server, if it is not the cloud's own."""
        return None

    def region(self) -> str:
        """Where the server says that the bucket lies; empty when it does not say.

        Raises:
            StoreError: when it does not answer, or refuses to.
        """
        return ""

    def _scratch(self, path: str) -> Path:
        return scratch_folder() / hashlib.sha256(self.url.encode()).hexdigest()[:16] / self.checked(path)

    def folder(self, path: str) -> Path:
        target = self._scratch(path)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, target, "write") from error
        return target

    def forget(self, path: str) -> None:
        shutil.rmtree(self._scratch(path), ignore_errors=True)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Path]:
        for each in wanted:
            self.checked(each.path)
        return fetched(self, wanted)

    def is_at_hand(self, wanted: Wanted) -> bool:
        return is_cached(self, wanted)

    @abstractmethod
    def opened(self, path: str, start: int, stop: int | None, version: str) -> Opened:
        """Ask for the object's bytes from `start` to before `stop`, which come when they are read; where there are
        none from that byte on, none.

        Args:
            version: the only one that is wanted; empty for the present one.

        Raises:
            FileNotFoundError: when there is no such object.
            NoAnswer: when the store does not answer; so do the blocks when the connection breaks.
            StoreError: when it has another version, or refuses.
        """

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return blocks(self, path, start, stop)

    def download(self, path: str, target: Path) -> str:
        """Write the object's bytes to a new local file; their digest, as `content_digest` gives it, taken on the way.

        Raises:
            FileNotFoundError: when there is no such object; `filename` is its path.
            OSError: when the file cannot be made or written.
        """
        return download(self, path, target)


def _is_text(path: str) -> bool:
    """Whether a path has a form in UTF-8; halves of characters have none."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
