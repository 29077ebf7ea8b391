"""A run inline that stops itself (SIGSTOP) once, at one point of its conversation with the store.

Usage: pausing.py PREFIX KIND POINT: KIND of the chain of `small_steps`; POINT as `before create …/commits/1.json`, of
which the path may be its ending. Prints a JSON line: what came of the step in the middle.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from marin_pipeline.run.driver import Session
from marin_pipeline.run.options import Options
from tests.faults.dying import PointedObjects
from tests.faults.small_steps import chains


def main() -> None:
    prefix, kind, point = sys.argv[1:]
    when, _, ending = point.rpartition(" ")
    left = 1

    def reached(where: str) -> None:
        nonlocal left
        if left and where.startswith(f"{when} ") and f".{kind}/" in where and where.endswith(ending):
            left -= 1
            os.kill(os.getpid(), signal.SIGSTOP)

    session = Session.open([chains()[kind]], Options(prefix=prefix, backend="inline"), "tests/pausing")
    result = replace(session, objects=PointedObjects(Path(prefix), reached)).run()
    assert not left, f"{point} was not reached"
    (middle,) = [node for node in result.graph.nodes.values() if node.name == kind]
    print(json.dumps({"ok": result.ok, "outcome": result.settled[middle.key].outcome}))


if __name__ == "__main__":
    main()
