"""The right to try: one holder a key, renewed while it works, taken over when it is gone.

A lease only saves money: two holders would do work twice, and the create-only commit still admits one winner. No clocks of two machines are
compared: an observer takes over after it has seen the same (fence, beat) for a whole life by its own monotonic clock, or at once when the
holder was a process of this boot of this machine that no longer exists.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store.objects import ObjectStore


@dataclass(frozen=True)
class Holder:
    """Who holds a lease."""

    uuid: str
    user: str
    host: str
    machine: str
    """Names this boot of this machine and its process namespace, so that a process id means something; empty when unknown."""
    pid: int
    started: str
    """When the process started, in the kernel's ticks: tells it from a later one with the same id."""


@dataclass(frozen=True)
class LeaseRecord:
    """What `lease.json` holds."""

    fence: int
    """Grows at each acquisition."""
    beat: int
    """Grows at each renewal."""
    owner: Holder | None
    """None when it is free."""

    def dumps(self) -> bytes:
        return dumps(asdict(self))

    @classmethod
    def loads(cls, data: bytes, where: str) -> LeaseRecord:
        """Read a lease back.

        Raises:
            CorruptOutput: when it is not one.
        """
        try:
            tree = json.loads(data)
            return cls(tree["fence"], tree["beat"], None if tree["owner"] is None else Holder(**tree["owner"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptOutput(f"{where}: not a lease ({error}); delete it if no run is going on") from error


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """When a process started, or None when it does not exist (or has ended and only waits to be reaped)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def this_process() -> Holder:
    """This process as a holder."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Holder(uuid.uuid4().hex, user, socket.gethostname(), _machine(), os.getpid(), _start_of(os.getpid()) or "")


def is_dead(holder: Holder) -> bool:
    """Whether the holder is certainly gone: a process of this boot of this machine that no longer exists."""
    return bool(holder.machine) and holder.machine == _machine() and _start_of(holder.pid) != holder.started


class Lease:
    """A lease that this process holds."""

    def __init__(self, objects: ObjectStore, path: str, record: LeaseRecord, version: str) -> None:
        self._objects = objects
        self._path = path
        self._record = record
        self._version = version
        self._lock = threading.Lock()
        self.lost = False
        """True once somebody else has it."""

    @property
    def fence(self) -> int:
        """Number of this acquisition."""
        return self._record.fence

    def renew(self) -> bool:
        """Write the next beat. False when the lease is lost."""
        return self._swap(replace(self._record, beat=self._record.beat + 1))

    def release(self) -> None:
        """Free the lease, if it is still ours."""
        self._swap(replace(self._record, owner=None))

    def _swap(self, record: LeaseRecord) -> bool:
        with self._lock:
            if self.lost:
                return False
            data = record.dumps()
            self._objects.swap(self._path, data, self._version)
            # Read back in either case: a reply can be lost after the write was done, and then what is there is what we wrote.
            found = self._objects.read(self._path)
            if found is None or found.data != data:
                self.lost = True
                return False
            self._version = found.version
            self._record = record
            return True


class Waiting:
    """Tries to get one lease, again and again; remembers what it saw in between."""

    def __init__(self, objects: ObjectStore, path: str, life: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._path = path
        self._life = life
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._since = 0.0
        self.holder: Holder | None = None
        """Who holds it, after a try that did not succeed."""

    def attempt(self) -> Lease | None:
        """The lease, or None when somebody else has it."""
        found = self._objects.read(self._path)
        if found is None:
            record = LeaseRecord(1, 0, this_process())
            if self._objects.create(self._path, record.dumps()):
                return self._held(record)
            found = self._objects.read(self._path)
            if found is None:
                raise StoreError(f"{self._objects.url}/{self._path}: is there and is not; the store contradicts itself")
        seen = LeaseRecord.loads(found.data, f"{self._objects.url}/{self._path}")
        if seen.owner is not None and not is_dead(seen.owner) and not self._expired(seen):
            self.holder = seen.owner
            return None
        record = LeaseRecord(seen.fence + 1, 0, this_process())
        if self._objects.swap(self._path, record.dumps(), found.version):
            return self._held(record)
        self.holder = seen.owner
        return None

    def _expired(self, seen: LeaseRecord) -> bool:
        mark = (seen.fence, seen.beat)
        if mark != self._seen:
            self._seen, self._since = mark, self._clock()
        return self._clock() - self._since >= self._life

    def _held(self, record: LeaseRecord) -> Lease | None:
        found = self._objects.read(self._path)
        return Lease(self._objects, self._path, record, found.version) if found and found.data == record.dumps() else None


def read_lease(objects: ObjectStore, path: str) -> Holder | None:
    """Who holds a lease now, as far as can be told at one look; None when it is free or its holder is certainly gone."""
    found = objects.read(path)
    if found is None:
        return None
    owner = LeaseRecord.loads(found.data, f"{objects.url}/{path}").owner
    return None if owner is None or is_dead(owner) else owner
