"""What the loop holds, it gives back, however it ends."""

from __future__ import annotations

import threading
from pathlib import Path

from marin_pipeline.core.graph import Graph
from marin_pipeline.run.backends.inline import InlineBackend
from marin_pipeline.run.plan import Policy
from marin_pipeline.run.scheduler import Scheduler
from marin_pipeline.store import layout
from marin_pipeline.store.commit import look_many
from marin_pipeline.store.lease import read_lease
from marin_pipeline.store.local_objects import LocalObjects
from tests.faults.turns import TakingTurns
from tests.run.sample_steps import number


class Closing(InlineBackend):
    """Says when the loop has ended."""

    def __init__(self, objects: LocalObjects) -> None:
        super().__init__(objects)
        self.closed = threading.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_a_lease_that_is_given_when_the_run_was_ended_at_once_is_given_back(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)
    backend = Closing(store)
    graph = Graph([number(value=1)])
    (node,) = graph.nodes.values()

    def take(operation: str, path: str) -> None:
        if operation == "create" and path == layout.lease(node.id, node.key):
            scheduler.interrupt()
            scheduler.interrupt()
            assert backend.closed.wait(30)

    slow = TakingTurns(store, take)
    slow.parallel = 2
    looks = look_many(store, [(node.id, node.key)])
    scheduler = Scheduler(graph, slow, backend, looks=looks, policy=Policy())
    settled = scheduler.run()
    assert settled[node.key].outcome == "blocked"
    assert store.read(layout.lease(node.id, node.key)) is not None
    assert read_lease(store, layout.lease(node.id, node.key)) is None
