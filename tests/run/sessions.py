"""Runs of the engine from a test: one store, and what ran in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact
from marin_pipeline.run.driver import RunResult, Session
from marin_pipeline.run.options import Options
from marin_pipeline.run.outcome import Notice
from marin_pipeline.run.plan import Plan
from marin_pipeline.store.objects import ObjectStore, open_objects

Target = Artifact[Any] | list[Artifact[Any]]


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What `condition` returns as soon as it is true; fails at the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true within {seconds} s"
        time.sleep(0.01)
    return found


@dataclass
class Bench:
    """One store, one backend."""

    prefix: Path
    counts: Path
    backend: str
    wrap: Callable[[ObjectStore], ObjectStore] = lambda objects: objects
    """Puts faults between the engine and the store."""
    notices: list[Notice] = field(default_factory=list[Notice])
    url: str = ""
    """Where the store is, when it is not a folder: then there is none at `prefix`."""

    @classmethod
    def at(cls, folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
        counts = folder / "counts"
        counts.mkdir()
        monkeypatch.setenv("MARIN_TEST_COUNTS", str(counts))
        return cls(folder / "store", counts, backend)

    @property
    def objects(self) -> ObjectStore:
        """The store, without faults."""
        return open_objects(self.url or str(self.prefix))

    def session(self, target: Target, **options: Any) -> Session:
        targets = target if isinstance(target, list) else [target]
        session = Session.open(
            targets, Options(prefix=self.url or str(self.prefix), backend=self.backend, **options), "tests/bench"
        )
        return replace(session, objects=self.wrap(session.objects))

    def plan(self, target: Target, **options: Any) -> Plan:
        return self.session(target, **options).plan()

    def statuses(self, target: Target, **options: Any) -> dict[str, str]:
        """What a plan says, by name."""
        return {planned.node.name: planned.status for planned in self.plan(target, **options).nodes.values()}

    def reasons(self, target: Target, **options: Any) -> dict[str, str]:
        """Why, by name."""
        return {planned.node.name: planned.reason for planned in self.plan(target, **options).nodes.values()}

    def run(self, target: Target, **options: Any) -> RunResult:
        return self.session(target, **options).run(self.notices.append)

    def outcomes(self, target: Target, **options: Any) -> dict[str, str]:
        """How a run came out, by name."""
        return outcomes(self.run(target, **options))

    def ran(self) -> Counter[str]:
        """How often each step has run since the last call."""
        found: Counter[str] = Counter()
        for file in self.counts.glob("*.*"):
            found[file.name.partition(".")[0]] += 1
            file.unlink()
        return found


def outcomes(result: RunResult) -> dict[str, str]:
    return {node.name: result.settled[node.key].outcome for node in result.graph.nodes.values()}


def digests(result: RunResult) -> dict[str, str]:
    """Output digests by name."""
    found = {node.name: result.output(node) for node in result.graph.nodes.values()}
    return {name: output.digest for name, output in found.items() if output is not None}


def value(result: RunResult, name: str) -> Any:
    return result.artifacts[name].value


def step_folder(bench: Bench, artifact: Artifact[Any]) -> Path:
    """Where everything about a key lies."""
    assert artifact.declaration is not None
    return bench.prefix / "steps" / artifact.declaration.step.id / artifact.key[:16]


def failure(result: RunResult) -> str:
    """Message and traceback of the first failure."""
    _, failed = result.failures[0]
    return f"{failed.message}\n{failed.traceback}"
