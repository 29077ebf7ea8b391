"""Makes a run known while it goes on, and keeps how it came out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from marin_pipeline.core.errors import MarinError, StoreError
from marin_pipeline.core.graph import Graph
from marin_pipeline.run.earlier import recipe_of
from marin_pipeline.run.history import HAVE_OUTPUT, RunRecord, begin_run, record_run, run_stem
from marin_pipeline.run.outcome import Notice, Settled
from marin_pipeline.store.clock import now
from marin_pipeline.store.lease import this_process
from marin_pipeline.store.names import owner
from marin_pipeline.store.objects import ObjectStore


class Recorder:
    """The records of one run: of its beginning, when its first step begins, and of its end."""

    def __init__(
        self, objects: ObjectStore, graph: Graph, experiment: str, title: str, notify: Callable[[Notice], None]
    ) -> None:
        self._objects = objects
        self._graph = graph
        self._notify = notify
        self._record = RunRecord(
            experiment=experiment,
            title=title,
            argv=sys.argv,
            owner=owner(),
            started=now(),
            finished="",
            ok=False,
            steps={name: (node.id, node.key) for node in graph.nodes.values() for name in node.names},
        )
        self._stem = run_stem(self._record.started)
        self._begun = False

    def notice(self, notice: Notice) -> None:
        """Pass on what happened."""
        if notice.verb in ("run", "fetch") and not self._begun:
            self._begun = True
            with suppress(StoreError):  # it lets others see the run, and decides nothing
                begin_run(self._objects, self._whole(self._record), self._stem)
        self._notify(notice)

    def end(self, settled: Mapping[str, Settled], ok: bool, stopped: bool) -> None:
        """Keep how the run came out.

        Raises:
            StoreError: when something was made, and the record of it cannot be written.
        """
        statuses: dict[str, str] = {}
        outputs: dict[str, str] = {}
        for node in self._graph.nodes.values():
            came = settled[node.key]
            statuses |= dict.fromkeys(node.names, came.outcome)
            if came.commit is not None and came.outcome in HAVE_OUTPUT:
                outputs |= dict.fromkeys(node.names, came.commit.output)
        ended = replace(self._record, finished=now(), ok=ok, stopped=stopped, statuses=statuses, outputs=outputs)
        try:
            record_run(self._objects, ended, self._stem, self._begun, self._whole)
        except MarinError:
            # The outputs are committed or not, whatever becomes of this record: a failure has been told already, and
            # who only looks at what somebody else has made need not be able to write there.
            if ok and "done" in statuses.values():
                raise

    def _whole(self, record: RunRecord) -> RunRecord:
        """A record with what only later explanations need, which takes a while to compute."""
        nodes = self._graph.nodes.values()
        names = {node.key: node.name for node in nodes}
        recipes = {name: recipe_of(node, names) for node in nodes for name in node.names if not node.loaded}
        return replace(record, recipes=recipes, process=this_process())
