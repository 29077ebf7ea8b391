"""The right to try: one holder a key, renewed while it works, taken over when it is gone.

A lease only saves money: two holders would do work twice, and the create-only commit still admits one winner. No clocks
of two machines are compared: an observer takes over after it has seen the same (fence, beat) for a whole life by its
own monotonic clock, or at once when the holder was a process of this boot of this machine that no longer exists.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store.objects import Found, NoAnswer, ObjectStore
from marin_pipeline.store.records import parsed, typed

LIFE = 30.0
"""Seconds without a beat after which a lease may be taken over."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease."""

    uuid: str
    user: str
    host: str
    machine: str
    """Names this boot of this machine and its process namespace, so that a process id means something; empty when
    unknown.
    """
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
        return dumps({**vars(self), "owner": None if self.owner is None else vars(self.owner)})

    @classmethod
    def loads(cls, data: bytes, where: str) -> LeaseRecord:
        """Read a lease back.

        Raises:
            CorruptOutput: when it is not one.
        """
        try:
            record = typed(parsed(data), cls)
            if record.fence < 0 or record.beat < 0:
                raise ValueError(f"it has fence {record.fence} and beat {record.beat}")
            return record
        except ValueError as error:
            raise CorruptOutput(
                f"{where}: not a lease ({error}); delete this file when no run is at work on the step"
            ) from error


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
    return replace(_process(os.getpid()), uuid=os.urandom(16).hex())


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> Holder:
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Holder("", user, socket.gethostname(), _machine(), pid, _start_of(pid) or "")


def is_dead(holder: Holder) -> bool:
    """Whether the holder is certainly gone: a process of this boot of this machine that no longer exists."""
    return _is_here(holder) and _start_of(holder.pid) != holder.started


def is_alive(holder: Holder) -> bool:
    """Whether the holder is certainly there: a process of this boot of this machine, by its start the same one."""
    return _is_here(holder) and _start_of(holder.pid) == holder.started


def _is_here(holder: Holder) -> bool:
    return bool(holder.machine) and holder.machine == _machine()


class Lease:
    """A lease that this process holds."""

    def __init__(self, objects: ObjectStore, path: str, record: LeaseRecord, version: str) -> None:
        self._objects = objects
        self._path = path
        self._record = record
        self._version = version
        self._lock = threading.Lock()
        self.lost = False
        """True once it is not ours any more."""
        self.gone = ""
        """Set when it was lost because its record is not there: nobody has taken it over, something removed it."""
        self._released = False

    @property
    def fence(self) -> int:
        """Number of this acquisition."""
        return self._record.fence

    def renew(self) -> bool:
        """Write the next beat. False when the lease is lost.

        Raises:
            StoreError: when the store does not answer; whether the lease is lost is not known then.
        """
        with self._lock:
            return not self._released and self._swap(beat=self._record.beat + 1, owner=self._record.owner)

    def release(self) -> None:
        """Free the lease, if it is still ours. A store that cannot be written now is no error: the lease runs out by
        itself. One that does not answer is asked once more, so that a lost reply leaves no lease behind.
        """
        with self._lock:
            if self._released:
                return
            self._released = True
            for _ in range(2):
                try:
                    self._swap(beat=self._record.beat, owner=None)
                except NoAnswer:
                    continue
                except StoreError:
                    return
                return

    def is_ours(self) -> bool:
        """Whether nobody has taken it over, by a look at the store.

        Raises:
            StoreError: when the store does not answer.
        """
        with self._lock:
            if not self.lost and not self._released:
                found = self._objects.read(self._path)
                self._lose(found)
                if found is not None and not self.lost:
                    self._version = found.version  # the reply to a renewal may have been lost
            return not self.lost and not self._released

    def _swap(self, beat: int, owner: Holder | None) -> bool:
        record = replace(self._record, beat=beat, owner=owner)
        data = record.dumps()
        while not self.lost:
            version = self._objects.swap(self._path, data, self._version)
            if version is not None:
                self._version, self._record = version, record
                return True
            # A reply can be lost after the write was done and the client try again: then what is there is what we
            # wrote.
            found = self._objects.read(self._path)
            if found is not None and found.data == data:
                self._version, self._record = found.version, record
                return True
            self._lose(found)
            if found is not None and not self.lost:
                if found.version == self._version:
                    self.lost = True
                self._version = found.version  # an earlier write of ours whose reply was lost
        return False

    def _lose(self, found: Found | None) -> None:
        """See by what is there whether it is lost."""
        self.lost = found is None or not self._wrote(found.data)
        if found is None:
            self.gone = (
                f"{self._objects.url}/{self._path}: was removed while the step ran, so that what it made cannot be "
                "kept; see that neither the step nor anything beside the run removes files of the store, and run again"
            )

    def _wrote(self, data: bytes) -> bool:
        """Whether a record is one of this holder."""
        with suppress(CorruptOutput):
            record = LeaseRecord.loads(data, self._path)
            return record.fence == self._record.fence and record.owner == self._record.owner
        return False


class Waiting:
    """Tries to get one lease, again and again; remembers what it saw in between, and knows what it wrote itself."""

    def __init__(
        self, objects: ObjectStore, path: str, life: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects = objects
        self._path = path
        self._life = life
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._since = 0.0
        self._me = this_process()
        self.holder: Holder | None = None
        """Who holds it, after a try that did not succeed."""
        self.lease: Lease | None = None
        """What it has got."""

    def attempt(self) -> Lease | None:
        """The lease, or None when somebody else has it."""
        self.lease = self._attempt()
        return self.lease

    def _attempt(self) -> Lease | None:
        found = self._objects.read(self._path) if self._seen else None
        if found is None:  # most keys have never been leased, and then this is the only call
            record = LeaseRecord(1, 0, self._me)
            lease, found = self._written(record, lambda: self._objects.create(self._path, record.dumps()))
            if lease is not None:
                return lease
        seen = LeaseRecord.loads(found.data, f"{self._objects.url}/{self._path}")
        # One of our own is an earlier try, or its release, that the store has not answered.
        mine = seen.owner == self._me
        if seen.owner is not None and not mine and not is_dead(seen.owner) and not self._expired(seen):
            self.holder = seen.owner
            return None
        record, version = LeaseRecord(seen.fence + 1, 0, self._me), found.version
        lease, found = self._written(record, lambda: self._objects.swap(self._path, record.dumps(), version))
        if lease is None:
            self.holder = LeaseRecord.loads(found.data, f"{self._objects.url}/{self._path}").owner
        return lease

    def _expired(self, seen: LeaseRecord) -> bool:
        mark = (seen.fence, seen.beat)
        if mark != self._seen:
            self._seen, self._since = mark, self._clock()
        return self._clock() - self._since >= self._life

    def _written(self, record: LeaseRecord, write: Callable[[], str | None]) -> tuple[Lease | None, Found]:
        """The lease, if what we wrote is what is there: whoever came first has it, whatever the write answered. Else
        what is there.
        """
        silence: NoAnswer | None = None
        try:
            version = write()
        except NoAnswer as error:
            silence, version = error, None
        if version is not None:
            return Lease(self._objects, self._path, record, version), Found(record.dumps(), version)
        found = self._objects.read(self._path)
        if found is None:
            raise silence or StoreError(
                f"{self._objects.url}/{self._path}: is there and is not; the store contradicts itself, run again"
            )
        if found.data == record.dumps():
            return Lease(self._objects, self._path, record, found.version), found
        return None, found


def read_lease(objects: ObjectStore, path: str) -> Holder | None:
    """Who holds a lease now, as far as one look can tell; None when it is free or its holder is certainly gone."""
    found = objects.read(path)
    if found is None:
        return None
    owner = LeaseRecord.loads(found.data, f"{objects.url}/{path}").owner
    return None if owner is None or is_dead(owner) else owner
