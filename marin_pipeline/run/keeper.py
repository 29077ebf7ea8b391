"""Renews the leases that a run holds, in a thread of its own, so that a busy loop loses none."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

from marin_pipeline.core.errors import MarinError
from marin_pipeline.store.lease import Lease
from marin_pipeline.store.objects import ObjectStore, together


class LeaseKeeper:
    """Renews leases four times in each life."""

    def __init__(self, objects: ObjectStore, life: float) -> None:
        self._objects = objects
        self._interval = life / 4
        self._leases: list[Lease] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def keep(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._leases.append(lease)

    def forget(self, lease: Lease) -> None:
        """Renew a lease no more."""
        with self._lock:
            if lease in self._leases:
                self._leases.remove(lease)

    def _renew(self) -> None:
        while not self._closed.wait(self._interval):
            with self._lock:
                leases = list(self._leases)
            together(self._objects, *(partial(_renewed, lease) for lease in leases))

    def close(self) -> None:
        """Stop renewing."""
        self._closed.set()
        self._thread.join()


def _renewed(lease: Lease) -> None:
    # A store that does not answer now may answer at the next beat; a lease that runs out is seen at the commit.
    with suppress(MarinError):
        lease.renew()
