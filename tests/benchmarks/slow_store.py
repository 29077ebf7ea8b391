"""The layered graph on a store whose every call takes a while: how long a run takes that finds nothing to do, and how
many calls one commit waits for, one after the other.

    python tests/benchmarks/slow_store.py nothing --prefix STORE     STORE holds the outputs of layered.py
    python tests/benchmarks/slow_store.py commit --prefix EMPTY      one step without inputs, then one with two

The last line is one JSON object. Steps run in this process (`inline`), so that every call is seen.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from layered import layered, node

from marin_pipeline import Artifact
from marin_pipeline.core.source import unchanging
from marin_pipeline.run.driver import RunResult, Session
from marin_pipeline.run.options import Options
from marin_pipeline.run.screen import JsonScreen
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.objects import ObjectStore

HERE = {"folder"}
"""Calls that only make a local folder: no store is asked."""

OF_A_COMMIT = ("steps/", "resolved/", "shards/", "chains/", "work")
"""Begins of the paths of a step's own records; names, the record of the run and the write probe are once a run."""


@dataclass(frozen=True)
class Call:
    """One call to the store."""

    operation: str
    path: str
    began: float
    ended: float


class SlowObjects(Forwarding):
    """Another store, each of whose calls takes longer, and is noted."""

    def __init__(self, objects: ObjectStore, delay: float) -> None:
        super().__init__(objects)
        self.parallel = ObjectStore.parallel  # of a store over a network, which these delays stand for
        self._delay = delay
        self.calls: list[Call] = []

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Wait, and pass a call on."""
        asked = getattr(self._objects, operation)
        began = time.monotonic()
        time.sleep(self._delay)
        try:
            return asked(*arguments)
        finally:
            first = arguments[0]  # `fetch` gets what is wanted
            path = first if isinstance(first, str) else first[0].path
            self.calls.append(Call(operation, path, began, time.monotonic()))


def _passed_on(operation: str) -> Any:
    def call(self: SlowObjects, *arguments: Any) -> Any:
        return self.ask(operation, *arguments)

    return call


for _operation in {*ObjectStore.__abstractmethods__, "info"} - HERE:
    setattr(SlowObjects, _operation, _passed_on(_operation))


def run(targets: Sequence[Artifact[Any]], prefix: str, delay: float) -> tuple[RunResult, list[Call]]:
    """Plan and run as the command line does; the result, and the calls since planning ended."""
    with unchanging():
        session = Session.open(targets, Options(prefix=prefix, backend="inline"), "tests/benchmarks/layered")
        slow = SlowObjects(session.objects, delay)
        session = replace(session, objects=slow)
        looks = session.looks()
        plan = session.plan(looks)
    planned = len(slow.calls)
    result = session.show(JsonScreen(io.StringIO()), plan, looks)
    return result, slow.calls[planned:]


def longest_chain(calls: Sequence[Call]) -> int:
    """The largest number of calls of which each began when the one before had ended."""
    count, ended = 0, float("-inf")
    for call in sorted(calls, key=lambda call: call.ended):
        if call.began >= ended:
            count, ended = count + 1, call.ended
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("nothing", "commit"))
    parser.add_argument("--prefix", required=True, help="root of the store: a local folder")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that each call to the store takes longer")
    parsed = parser.parse_args()
    if parsed.what == "nothing":
        result, calls = run(layered(), parsed.prefix, parsed.delay)
        outcomes = {settled.outcome for settled in result.settled.values()}
        if outcomes != {"cached"}:
            raise SystemExit(f"{parsed.prefix} does not hold the whole graph: there were steps {', '.join(outcomes)}")
        print(json.dumps({"calls_of_the_run": len(calls)}))
        return
    parents = [node(name, []) for name in ("one", "two")]
    found: dict[str, Any] = {}
    for name, target in (("without_inputs", parents[0]), ("other", parents[1]), ("two_inputs", node("three", parents))):
        result, calls = run([target], parsed.prefix, parsed.delay)
        if not result.ok or result.settled[target.key].outcome != "done":
            raise SystemExit(f"the step did not run in {parsed.prefix}: it must be an empty store")
        calls = [call for call in calls if call.path.startswith(OF_A_COMMIT)]
        first = min(call.began for call in calls)
        found[name] = {
            "sequential": longest_chain(calls),
            "calls": [
                f"{call.began - first:.3f} to {call.ended - first:.3f} s  {call.operation:<8}{call.path}"
                for call in sorted(calls, key=lambda call: call.began)
            ],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
