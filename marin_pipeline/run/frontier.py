"""How far a run has come in its graph: which steps are settled, and which can be looked at next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping

from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.run.outcome import Settled


class Frontier:
    """A step comes next when all of its dependencies are settled. Each is settled once, but for what is recalled."""

    def __init__(self, graph: Graph, is_held: Callable[[str], bool]) -> None:
        """Args:
        is_held: whether a step, by key, is dealt with already and does not come next now.
        """
        self._graph = graph
        self._is_held = is_held
        self._dependents = graph.dependents()
        self._unsettled = {key: len(node.depends_on) for key, node in graph.nodes.items()}
        self._next = deque(node for node in graph.nodes.values() if not node.depends_on)
        self.settled: dict[str, Settled] = {}
        """How each step came out, by key."""

    @property
    def complete(self) -> bool:
        """Whether every step is settled."""
        return len(self.settled) == len(self._graph.nodes)

    @property
    def waits(self) -> bool:
        """Whether a step is to be looked at."""
        return bool(self._next)

    def take(self) -> Iterator[Node]:
        """The steps to look at now, and those that come to be while they are."""
        while self._next:
            yield self._next.popleft()

    def settle(self, node: Node, settled: Settled) -> None:
        """Fix how a step came out. What waits for it comes next, and is not looked at here: a chain may be long."""
        self.settled[node.key] = settled
        for key in self._dependents[node.key]:
            self._unsettled[key] -= 1
            if not self._unsettled[key] and key not in self.settled and not self._is_held(key):
                self._next.append(self._graph.nodes[key])

    def again(self, node: Node) -> None:
        """Look at a step once more, when what it depends on is settled."""
        if not self._unsettled[node.key]:
            self._next.append(node)

    def recall(self, keys: Collection[str]) -> None:
        """Look at settled steps once more; then again at what depends on them and is not settled."""
        for key in keys:
            del self.settled[key]
            for each in self._dependents[key]:
                self._unsettled[each] += 1
            self._next.append(self._graph.nodes[key])

    def ended(self, at_work: Collection[str]) -> Mapping[str, Settled]:
        """How every step came out, in the order of the graph, when the run ends here.

        Args:
            at_work: keys of the steps that were at work.
        """
        for key in self._graph.nodes.keys() - self.settled.keys():
            message = "stopped at once" if key in at_work else "stopped before it began"
            self.settled[key] = Settled("blocked", message=message, stopped=key in at_work)
        return {key: self.settled[key] for key in self._graph.nodes}
