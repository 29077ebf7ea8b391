"""Two drivers at one store, call by call in 150 orders, and in 4,850 more in the slow tests: one commit counts, the
other driver uses it, and whoever comes second with other bytes is told of. In memory and on local files; on servers in
fewer orders.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.graph import Graph
from marin_pipeline.core.step import Step
from marin_pipeline.run.plan import Policy
from marin_pipeline.run.shards import StoredShard
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.memory_objects import MemoryObjects
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput, FileSet
from tests.faults.faulty_objects import FaultyObjects, sometimes
from tests.faults.small_steps import chains, twins
from tests.faults.truth import Truth, bytes_of, check
from tests.faults.turns import Driver, TakingTurns, Turns, bursts
from tests.stores import counts_for, new_prefix

SEEDS = 150
MANY = 500


@pytest.fixture(autouse=True)
def _free_of_locks(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python 3.11 computes a cached property of all objects of a class under one lock: a driver that waits for its turn
    # in there would hold up the other one.
    for kind in (CommittedOutput, FileSet, StoredShard, Artifact, Step):
        for each in vars(kind).values():
            if isinstance(each, functools.cached_property) and hasattr(each, "lock"):
                monkeypatch.setattr(each, "lock", contextlib.nullcontext())


GRAPHS = {**{name: Graph([artifact]) for name, artifact in chains().items()}, "twins": Graph(twins())}
FORCED = {kind: next(key for key, node in graph.nodes.items() if node.depends_on) for kind, graph in GRAPHS.items()}
"""The step after the first, which some seeds force."""


def in_memory() -> ObjectStore:
    return MemoryObjects("memory://interleaved")


@dataclass
class Interleaving:
    """One order of the calls of two drivers, and what came of it."""

    seed: int
    objects: ObjectStore
    """An empty store."""
    taking: type[TakingTurns] = TakingTurns

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.kind = chance.choice(("noisy", "noisy", "worked", "mapped", "twins"))
        self.lossy = chance.random() < 0.3
        self.forced = chance.random() < 0.15
        self.life = chance.choice((1.0, 2.0, 1e6))
        graph = GRAPHS[self.kind]
        if self.forced:
            assert Driver(graph, self.objects).run()
        self.stores: dict[str, TakingTurns] = {}
        self.faulty: list[FaultyObjects] = []
        self.turns = Turns(["a", "b"], bursts(chance))
        self.drivers = {name: self._driver(name, graph, random.Random(f"{self.seed} {name}")) for name in ("a", "b")}

    def _driver(self, name: str, graph: Graph, chance: random.Random) -> Driver:
        def take(operation: str, path: str) -> None:
            self.turns.take(name, operation, path)
            # Now and then a driver's clock goes on while the other one waits for its turn.
            driver.clock.now += chance.choice((0, 0, 0, 0.1, 0.5))

        objects: ObjectStore = self.taking(self.objects, take)
        self.stores[name] = objects
        if self.lossy:
            lost = sometimes(chance.randrange(10**9), 0.1, ("after", "denied after"))
            objects = FaultyObjects(objects, lambda *asked: lost(*asked) if asked[0] in ("create", "swap") else None)
            self.faulty.append(objects)
        policy = Policy(force=frozenset({FORCED[self.kind]})) if self.forced else Policy()
        driver = Driver(graph, objects, self.life, policy=policy, polls=lambda: chance.choice((0, 0, 1, 3)))
        return driver

    def run(self) -> None:
        def work(name: str) -> None:
            driver = self.drivers[name]
            try:
                driver.ok = driver.run()
            except BaseException as error:  # noqa: BLE001 - told in the test's own thread
                driver.error = error
            finally:
                self.turns.leave(name)

        threads = [threading.Thread(target=work, args=(name,)) for name in self.drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), f"seed {self.seed} has come to a standstill"

    def check(self) -> Counter[str]:
        """Hold the store and the drivers to what they promise; what kinds of thing happened."""
        for name, driver in self.drivers.items():
            assert driver.error is None, f"{name}: {driver.error!r}"
            assert driver.ok, (name, driver.failures, driver.settled)
        truth = check(self.objects)
        assert truth.held == ()
        assert set(truth.current) == {(node.id, node.key) for node in GRAPHS[self.kind].nodes.values()}
        self._check_settled(truth)
        losers = self._check_losers(truth)
        retries = [notice.text for driver in self.drivers.values() for notice in driver.verbs("retry")]
        outcomes = [settled.outcome for driver in self.drivers.values() for settled in driver.settled.values()]
        return Counter(
            takeover=any(commit.fence > 1 for commit in truth.current.values()) and not self.forced,
            lost=any("taken over" in text for text in retries),
            waited=any(driver.verbs("wait") for driver in self.drivers.values()),
            divergence=len(truth.divergences) > 0,
            loser=len(losers) > 0,
            cached="cached" in outcomes,
            lossy=self.lossy and any(faulty.faults for faulty in self.faulty),
            forced=self.forced,
            adopted=any(commit.adopted_from for commit in truth.current.values()),
        )

    def _check_settled(self, truth: Truth) -> None:
        """What a driver says that it has is what the store has under that number; without a force there is one only."""
        for driver in self.drivers.values():
            for key, settled in driver.settled.items():
                node, commit = driver.graph.nodes[key], settled.commit
                assert commit is not None
                stored = self.objects.read(layout.commit(node.id, key, commit.number))
                assert stored is not None
                assert stored.data == commit.dumps()
                assert self.forced or truth.current[node.id, key] == commit
        assert self.forced or truth.commits == len(GRAPHS[self.kind].nodes)

    def _check_losers(self, truth: Truth) -> set[str]:
        """Attempts that were to be committed when another one was already. A divergence is recorded where its bytes are
        other ones, and nowhere else.
        """
        losers, differ = set[str](), set[str]()
        for store in self.stores.values():
            for path, commit in store.commits:
                winner = Commit.loads(bytes_of(self.objects, path), path)
                if winner.attempt != commit.attempt:
                    losers.add(commit.attempt)
                    if winner.output != commit.output:
                        differ.add(commit.attempt)
        assert truth.divergences == differ
        told = sum(len(driver.verbs("diverged")) for driver in self.drivers.values())
        assert told == len(differ)
        return losers


def explored(
    seeds: range, taking: type[TakingTurns] = TakingTurns, empty: Callable[[], ObjectStore] = in_memory
) -> Counter[str]:
    """In how many of the orders each kind of thing happened.

    Args:
        empty: makes the store of a seed.
    """
    found: Counter[str] = Counter()
    for seed in seeds:
        interleaving = Interleaving(seed, empty(), taking)
        interleaving.run()
        try:
            found += interleaving.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return found


def empties(request: pytest.FixtureRequest, kind: str) -> Callable[[], ObjectStore]:
    return in_memory if kind == "memory" else lambda: open_objects(new_prefix(request, kind))


ALL = ("takeover", "lost", "waited", "divergence", "loser", "cached", "lossy", "forced", "adopted")
"""Kinds of thing that must have happened."""


@pytest.mark.parametrize(("kind", "seeds"), [("memory", SEEDS), ("local", 20), ("gs", 10), ("s3", 10)])
def test_in_every_order_of_their_calls_two_drivers_agree_on_one_true_commit(
    request: pytest.FixtureRequest, kind: str, seeds: int
) -> None:
    found = explored(range(seeds), empty=empties(request, kind))
    print(f"{kind}, {seeds} orders: {dict(found)}")
    counts_for(request, kind, seeds)
    # Were one of them rare, the test would pass without having seen it.
    for each in ALL:
        assert found[each] > seeds / 20 or seeds < SEEDS, (each, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seeds"), [("memory", 10 * MANY - SEEDS), ("local", MANY), ("gs", MANY), ("s3", MANY)]
)
def test_in_many_more_orders_they_agree_too(request: pytest.FixtureRequest, kind: str, seeds: int) -> None:
    found = explored(range(SEEDS, SEEDS + seeds), empty=empties(request, kind))
    counts_for(request, kind, seeds)
    for each in ALL:
        assert found[each] > seeds / 20, (each, found)


def test_the_same_seed_gives_the_same_calls_in_the_same_order() -> None:
    for seed in range(20):
        first, second, other = (Interleaving(each, in_memory()) for each in (seed, seed, seed + 1000))
        for each in (first, second, other):
            each.run()
        assert first.turns.calls == second.turns.calls
        assert first.turns.calls != other.turns.calls
        assert {name for name, _, _ in first.turns.calls} == {"a", "b"}


class ChecksThenWrites(TakingTurns):
    """A store whose `create` looks first and writes then, as fsspec's local files do."""

    def create(self, path: str, data: bytes) -> str | None:
        is_there = self.read(path) is not None
        self._take("create", path)
        if "/commits/" in path:
            self.commits.append((path, Commit.loads(data, path)))
        if is_there:
            return None
        self._objects.delete(path)
        return self._objects.create(path, data)


class BelievesTheLast(TakingTurns):
    """A store whose `create` replaces what is there."""

    def create(self, path: str, data: bytes) -> str | None:
        if "/commits/" in path:
            self._objects.delete(path)
        return super().create(path, data)


@pytest.mark.parametrize("broken", [ChecksThenWrites, BelievesTheLast])
def test_a_store_that_is_not_create_only_is_found_out(broken: type[TakingTurns]) -> None:
    with pytest.raises(AssertionError, match="seed"):
        explored(range(SEEDS), broken)
