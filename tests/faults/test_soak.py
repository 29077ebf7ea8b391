"""Random faults at every call, by many seeds: whatever fails meanwhile, nothing half-done is believed, and when the
faults have ended a rerun makes the bytes of a run that nothing disturbed.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from marin_pipeline.core.errors import MarinError
from marin_pipeline.core.graph import Graph
from marin_pipeline.run.plan import Policy
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.memory_objects import MemoryObjects
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.faults.faulty_objects import TRANSIENT, Fault, FaultyObjects, outages, sometimes
from tests.faults.small_steps import OUTER, wide
from tests.faults.truth import Truth, check
from tests.faults.turns import Driver
from tests.stores import counts_for, new_prefix

GRAPH = Graph(wide())
FORCED = Policy(force=frozenset(key for key, node in GRAPH.nodes.items() if node.name == "outer"))

KINDS: tuple[tuple[Fault, ...], ...] = (TRANSIENT, TRANSIENT, ("before", "after", "full"), ("torn", "zeroed", "before"))


@contextmanager
def local(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with tempfile.TemporaryDirectory() as folder:
        yield LocalObjects(Path(folder))


@contextmanager
def parallel(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """A store whose calls are worth making at the same time."""
    with local(request) as objects:
        objects.parallel = 8
        yield objects


@contextmanager
def memory(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    yield MemoryObjects("memory://soak")


@contextmanager
def gs(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    yield open_objects(new_prefix(request, "gs"))


@contextmanager
def s3(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    yield open_objects(new_prefix(request, "s3"))


def digests(truth: Truth) -> dict[str, str]:
    return {key: commit.output for (_, key), commit in truth.current.items()}


def disturbed(objects: ObjectStore, seed: int, policy: Policy) -> tuple[bool, Counter[Fault]]:
    """A run under faults; whether it came out well, and what went wrong."""
    chance = random.Random(seed)
    if chance.random() < 0.5:
        rule = sometimes(seed, chance.choice((0.02, 0.05, 0.15, 0.3)), chance.choice(KINDS))
    else:
        rule = outages(seed, chance.choice((0.02, 0.05)))
    faulty = FaultyObjects(objects, rule)
    try:
        # In most seeds the first look is spared, or few runs would come to do anything.
        seen = objects if chance.random() < 0.7 else faulty
        ok = Driver(GRAPH, faulty, seen=seen, policy=policy).run()
    except MarinError:
        ok = False  # it could not even look; anything else is an error of ours
    if chance.random() < 0.5:
        faulty.settle()
    return ok, faulty.counts


@pytest.mark.parametrize(
    ("store", "seeds"),
    [
        pytest.param(memory, range(60), id="memory"),
        pytest.param(local, range(1000, 1010), id="local"),
        pytest.param(parallel, range(2000, 2010), id="parallel"),
        pytest.param(gs, range(3000, 3004), id="gs"),
        pytest.param(s3, range(4000, 4004), id="s3"),
        pytest.param(memory, range(10_000, 12_000), id="memory for long", marks=pytest.mark.slow),
        pytest.param(parallel, range(20_000, 20_500), id="parallel for long", marks=pytest.mark.slow),
        pytest.param(gs, range(30_000, 30_100), id="gs for long", marks=pytest.mark.slow),
        pytest.param(s3, range(40_000, 40_100), id="s3 for long", marks=pytest.mark.slow),
    ],
)
def test_whatever_fails_the_rerun_makes_the_bytes_of_an_undisturbed_run(
    request: pytest.FixtureRequest,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    store: Callable[[pytest.FixtureRequest], AbstractContextManager[ObjectStore]],
    seeds: range,
) -> None:
    undisturbed: dict[str, dict[str, str]] = {}
    for value in ("1", "2"):
        monkeypatch.setenv(OUTER, value)
        with memory(request) as objects:
            assert Driver(GRAPH, objects).run()
            undisturbed[value] = digests(check(objects))
    assert len(undisturbed["1"]) == len(GRAPH.nodes)
    assert undisturbed["1"] != undisturbed["2"]
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            with store(request) as objects:
                monkeypatch.setenv(OUTER, "1")
                policy = Policy()
                if seed % 3 == 0:
                    assert Driver(GRAPH, objects).run()
                    monkeypatch.setenv(OUTER, "2")
                    policy = FORCED
                for run in range(2):
                    ok, faults = disturbed(objects, 10 * seed + run, policy)
                    check(objects)
                    happened += Counter(faults)
                    happened["went well"] += ok and bool(faults)
                    happened["failed"] += not ok
                last = Driver(GRAPH, objects, policy=policy)
                assert last.run(), last.failures
                assert digests(check(objects)) == undisturbed["2" if policy is FORCED else "1"]
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    print(f"{len(seeds)} seeds: {dict(happened)}")
    counts_for(request, "local" if store is parallel else store.__name__, len(seeds))
    kinds = (*TRANSIENT, "full", "torn", "zeroed", "went well", "failed")
    for kind in kinds if len(seeds) >= 50 else ("before", "after", "failed"):
        assert happened[kind] > 0, (kind, happened)
