"""What a run writes down of where its outputs come from: once, while its first steps are at work, and before the first
commit that names it.
"""

from __future__ import annotations

import platform
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from marin_pipeline.core.errors import MarinError
from marin_pipeline.core.graph import Graph
from marin_pipeline.run.fingerprint import fingerprint
from marin_pipeline.run.git_state import SECONDS, git_state
from marin_pipeline.run.installed import packages
from marin_pipeline.run.sources import Sources
from marin_pipeline.run.task import Target
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.objects import ObjectStore, together
from marin_pipeline.store.origins import Origin, keep_origin
from marin_pipeline.store.snapshots import Snapshot, keep_snapshot


class RunOrigin:
    """Where the outputs of one run come from.

    The state of the code is taken here; the rest is put together by a thread when the first step begins.

    Raises:
        InputError: when a file of code was edited after it was digested.
    """

    def __init__(self, objects: ObjectStore, graph: Graph) -> None:
        self._objects = objects
        self._sources = Sources(graph)
        self._found: tuple[Origin, Snapshot] | None = None
        self._kept = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Put the record together and write it, in a thread, if that has not begun. Whoever asks has a lease, so that
        `gc` takes away nothing that is found to be there.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="origin", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        with suppress(MarinError):  # the first who commits tries again, and is told
            self._record()

    def _record(self) -> Origin:
        """The record, which is in the store by then."""
        with self._lock:
            if self._found is None:
                self._found = self._put_together()
            origin, snapshot = self._found
            if not self._kept:
                together(
                    self._objects,
                    partial(keep_snapshot, self._objects, snapshot),
                    partial(keep_origin, self._objects, origin),
                )
                self._kept = True
        return origin

    def _put_together(self) -> tuple[Origin, Snapshot]:
        snapshot = self._sources.snapshot()
        files = [path.removeprefix("project/") for path in snapshot.files if path.startswith("project/")]
        return Origin(
            snapshot=snapshot.digest,
            git=git_state(Path(self._sources.root), files),
            python=platform.python_version(),
            packages=packages(),
            fingerprint=fingerprint(devices=False),
        ), snapshot

    def completed(self, commit: Commit, target: Target) -> Commit:
        """A commit of this run that names where it comes from; what it names is in the store by then.

        Args:
            target: where the step's function is found.

        Raises:
            StoreError: when that cannot be written.
            InputError: when the code cannot be kept.
        """
        found = {**vars(target), "file": self._sources.relative(target.file)}
        return replace(commit, origin=self._record().digest, target=found)

    def close(self) -> None:
        """Wait for what is being written."""
        if self._thread is not None:
            self._thread.join(SECONDS)
