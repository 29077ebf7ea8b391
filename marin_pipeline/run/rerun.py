"""A process that runs recorded steps again: a request on stdin, JSON events on stdout, nothing else there.

It is started as `python -m marin_pipeline.run.rerun` with the code of the record alone on its path, so that engine and
steps are those that made what is recorded. Other versions ask it, and read what it answers: a field that is there keeps
its meaning.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.errors import CorruptOutput, MarinError
from marin_pipeline.core.source import unchanging
from marin_pipeline.core.visible import say
from marin_pipeline.run.driver import Session
from marin_pipeline.run.options import Options
from marin_pipeline.run.rebuilt import Rebuilder, RecordedStep
from marin_pipeline.run.screen import JsonScreen, Screen
from marin_pipeline.run.task import Target
from marin_pipeline.run.worker import die_with
from marin_pipeline.store.commit import look
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput

SCHEMA = 1
"""Of the request."""

EXPERIMENT = "reproduce"
"""Under which such a run is recorded in the store that it writes."""


@dataclass(frozen=True)
class Request:
    """What is to be run again, and where."""

    prefix: str
    """Of the store that is written; it holds the inputs."""
    files: str
    """Folder of the local files: `<sha256>/<name>`."""
    steps: tuple[RecordedStep, ...]
    """In topological order."""
    inputs: tuple[tuple[str, str], ...] = ()
    """Id and key of what is in the store already and is read by the steps."""
    max_parallel: int | None = None
    """Steps at once, at most."""
    parent: int = 0
    """The process that asks; this one ends with it."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """What steps and inputs are called, by key, where that is not what their id tells; no two are called the same."""

    def dumps(self) -> str:
        """The request as it is written."""
        steps = [{**vars(step), "target": vars(step.target)} for step in self.steps]
        tree = {"schema": SCHEMA, **vars(self), "steps": steps}
        # What is not needed is not said to a version that may not know it.
        return json.dumps({name: value for name, value in tree.items() if value or name != "names"})

    @classmethod
    def loads(cls, text: str) -> Request:
        """Read a request back.

        Raises:
            MarinError: when it was written for another version.
        """
        tree = json.loads(text)
        if tree.pop("schema", None) != SCHEMA:
            raise MarinError("the request is of a schema that the recorded version of marin_pipeline does not know")
        steps = tuple(RecordedStep(**{**step, "target": Target(**step["target"])}) for step in tree["steps"])
        return cls(**{**tree, "steps": steps, "inputs": tuple((id, key) for id, key in tree["inputs"])})


def run_again(request: Request, screen: Screen) -> int:
    """Declare the steps again and run them all: what the store has of earlier attempts is not used.

    Returns:
        0 when all are done, 1 when a step failed or is blocked, 130 when the run was interrupted.

    Raises:
        MarinError: when a step cannot be declared as it was recorded; nothing has run then.
    """
    objects = open_objects(request.prefix)
    given = {key: _given(objects, id, key, request.names.get(key)) for id, key in request.inputs}
    with unchanging():
        artifacts = Rebuilder(given, Path(request.files), request.names).declare(request.steps)
        options = Options(prefix=request.prefix, reason="reproduce", max_parallel=request.max_parallel)
        session = Session.open(artifacts, options, EXPERIMENT)
        session = replace(session, policy=replace(session.policy, force=frozenset(each.key for each in artifacts)))
        looks = session.looks()
        plan = session.plan(looks)
    return session.show(screen, plan, looks).exit_code


def _given(objects: ObjectStore, id: str, key: str, name: str | None) -> Artifact[Any]:
    found = look(objects, id, key)
    if found.commit is None:
        raise CorruptOutput(found.damage or f"{objects.url}: has no output of {id} {key[:8]}, which is an input")
    return Artifact(key, name=name or step_name(id), output=CommittedOutput(objects, id, key, found.commit))


def step_name(id: str) -> str:
    """The name on screen of a step with this id, as far as the id tells."""
    return id.rpartition("/")[2].rpartition(".")[2].lower()


def main() -> None:
    """Answer the request on stdin; exits with the code of the run."""
    out = open(os.dup(1), "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - it stays open until the end
    os.dup2(2, 1)  # whatever else is printed, by whom ever
    sys.stdout = sys.stderr

    try:
        request = Request.loads(sys.stdin.read())
        if request.parent:
            die_with(request.parent)
        code = run_again(request, JsonScreen(out))
    except MarinError as error:
        say(json.dumps({"event": "refused", "kind": type(error).__name__, "message": str(error)}), out)
        code = error.exit_code
    out.flush()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
