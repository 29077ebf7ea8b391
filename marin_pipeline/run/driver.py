"""Run and load from Python: `run(artifact)` makes what is missing, `load("name or key")` reads what was made.

The command line is a face on the same functions.
"""

from __future__ import annotations

import _thread
import copy
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from marin_pipeline.core import projects
from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.errors import CorruptOutput, MarinError, UsageError
from marin_pipeline.core.experiment import Experiment
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.core.grid import Grid, flattened
from marin_pipeline.core.secrets import any_secrets, redacted
from marin_pipeline.core.step import Step
from marin_pipeline.core.visible import say
from marin_pipeline.run.disclosure import refuse_disclosed
from marin_pipeline.run.earlier import EarlierResults
from marin_pipeline.run.interrupts import while_steps_stop
from marin_pipeline.run.options import Options, default_prefix, given_substitutes
from marin_pipeline.run.outcome import Notice, Settled
from marin_pipeline.run.plan import Plan, Policy, is_drifted, plan
from marin_pipeline.run.recorder import Recorder
from marin_pipeline.run.transfer import Budget, Transfers, transfers_of
from marin_pipeline.run.words import few
from marin_pipeline.store.commit import Look, look, look_many
from marin_pipeline.store.location import HERE, machine_region
from marin_pipeline.store.names import owner, resolve
from marin_pipeline.store.objects import ObjectStore, open_objects, shown_url
from marin_pipeline.store.output import CommittedOutput

if TYPE_CHECKING:
    from marin_pipeline.run.attempt import Failed
    from marin_pipeline.run.scheduler import Scheduler
    from marin_pipeline.run.screen import Screen
    from marin_pipeline.run.unset_secrets import UnsetSecret

T = TypeVar("T")


@dataclass(frozen=True)
class RunResult:
    """How a run came out."""

    graph: Graph
    objects: ObjectStore
    settled: Mapping[str, Settled]
    failures: Sequence[tuple[Node, Failed]]
    interrupted: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything is done."""
        return all(settled.outcome in ("cached", "done") for settled in self.settled.values())

    @property
    def stopped(self) -> list[str]:
        """Names of the steps that were at work when the run was stopped."""
        return [node.name for node in self.graph.nodes.values() if self.settled[node.key].stopped]

    @property
    def exit_code(self) -> int:
        """0 done, 1 a step failed or is blocked, 130 interrupted."""
        return 130 if self.interrupted else 0 if self.ok else 1

    def output(self, node: Node) -> CommittedOutput | None:
        """The output of a step that is done."""
        settled = self.settled[node.key]
        objects = self.objects if settled.left is None else settled.left.objects
        return None if settled.known is None else CommittedOutput(objects, node.id, node.key, settled.known)

    def bound(self, key: str) -> Artifact[Any]:
        """An artifact of the graph with its output."""
        node = self.graph.nodes[key]
        output = self.output(node)
        return node.artifact if output is None else node.artifact.bound(output)

    @property
    def artifacts(self) -> dict[str, Artifact[Any]]:
        """What is done, by name."""
        return {
            name: self.bound(node.key)
            for node in self.graph.nodes.values()
            if self.settled[node.key].known is not None
            for name in node.names
        }


@dataclass(frozen=True)
class Session:
    """A graph, its store, and what is asked for: what planning and running share."""

    graph: Graph
    objects: ObjectStore
    policy: Policy
    options: Options
    experiment: str
    title: str

    @classmethod
    def open(cls, targets: Sequence[Artifact[Any]], options: Options, experiment: str, title: str = "") -> Session:
        """Check what was asked for against the graph.

        Raises:
            UsageError: for a name that no step bears, a prefix of an unknown kind, a backend that does not exist.
        """
        if not targets:
            raise UsageError("nothing to run: main() was given no artifact")
        options = options.checked()
        owner()  # refused here, and not when all is done
        graph = Graph(targets)
        selected = frozenset(graph.select(name).key for name in options.only) if options.only else None
        force = frozenset(graph.select(name).key for name in options.force)
        ends = [graph.select(name).key for name in options.until] or graph.targets
        if selected is not None:
            within = graph.ancestors(ends)
            ends = [key for key in selected if key in within]
        part = _restricted(graph, ends)
        for key in [*force, *(selected or ())]:
            if key not in part.nodes:
                name = graph.nodes[key].name
                raise UsageError(f"{name} is asked for, and left out by --until or --only; leave one of them away")
        for node in part.nodes.values():
            _refuse_redefined(node)
        refuse_disclosed(graph)
        objects = open_objects(options.prefix or default_prefix())
        if options.backend not in ("local", "inline"):
            raise UsageError(f"--backend {options.backend}: there are local and inline")
        if options.backend == "local" and not objects.shared:
            raise UsageError(
                f"--prefix {objects.url}: a store in memory is seen by this process only; add --backend inline"
            )
        policy = Policy(force, options.code, selected)
        return cls(part, objects, policy, options, experiment, redacted(title or experiment))

    def looks(self) -> dict[str, Look]:
        """One look at the store for the whole graph."""
        found = look_many(self.objects, [(node.id, node.key) for node in self.graph.nodes.values()])
        prefixes = (*self.options.substitutes, *given_substitutes())
        if prefixes and any(each.commit is None for each in found.values()):
            from marin_pipeline.run.substitutes import with_elsewhere

            found = with_elsewhere(self.graph, self.objects, found, prefixes)
        drifted = [node for node in self.graph.nodes.values() if is_drifted(node, found[node.key])]
        if drifted:
            from marin_pipeline.run.code_lock import with_accepted

            found.update({node.key: with_accepted(self.objects, node, found[node.key]) for node in drifted})
        return found

    def plan(self, looks: Mapping[str, Look] | None = None) -> Plan:
        """What would be done, and why."""
        return plan(self.graph, looks or self.looks(), self.policy, self.earlier())

    def transfers(self, plan: Plan) -> Transfers:
        """What a plan brings from afar. Where things lie is asked only when something is read."""
        reads = any(planned.node.depends_on for planned in plan.running)
        region = self.objects.location() if reads else HERE
        here = machine_region() if region != HERE else ""
        return transfers_of(plan, shown_url(self.objects.url), region, here, self.options.limit)

    def unset_secrets(self, plan: Plan) -> Sequence[UnsetSecret]:
        """Secrets that steps which would run are given, and that this environment, which is theirs, has not got."""
        if not any_secrets():
            return ()
        from marin_pipeline.run.unset_secrets import unset_secrets

        return unset_secrets(plan)

    def earlier(self) -> EarlierResults:
        """Finds the results that new ones are compared with."""
        return EarlierResults(self.objects, self.experiment)

    def show(self, screen: Screen, plan: Plan, looks: Mapping[str, Look]) -> RunResult:
        """Run what is not done yet, with a screen that shows the plan, what happens, and how it ended.

        Raises:
            UsageError: when a step that would run is given a secret that is not set; nothing was started.
        """
        if unset := self.unset_secrets(plan):
            raise UsageError("\n".join([*map(str, unset), "nothing was started"]))
        screen.planned(plan, self.title, self.objects.url, self.transfers(plan))
        try:
            result = self.run(screen.notice, looks, plan)
        except BaseException:
            screen.abandon()
            raise
        screen.finished(result)
        return result

    def run(
        self,
        notify: Callable[[Notice], None] = lambda notice: None,
        looks: Mapping[str, Look] | None = None,
        plan: Plan | None = None,
    ) -> RunResult:
        """Run what is not done yet, and record the run.

        Args:
            plan: what was planned from `looks`, where that is at hand.

        Raises:
            StoreError: when the prefix cannot be written.
        """
        clock = time.monotonic()
        recorder = Recorder(self.objects, self.graph, self.experiment, self.title, notify)
        looks = looks or self.looks()
        if plan is None and (self.options.limit is not None or any(each.elsewhere for each in looks.values())):
            plan = self.plan(looks)
        transfers = Transfers()
        if plan is not None and self.options.limit is not None:
            transfers = self.transfers(plan)
            if transfers.refusal():
                raise UsageError(transfers.refusal())
        settled = None if plan is None else self._all_done(plan)
        if settled is not None:
            for node in self.graph.nodes.values():
                recorder.notice(Notice("cached", node))
            result = RunResult(self.graph, self.objects, settled, (), False, time.monotonic() - clock)
        else:
            result = self._scheduled(recorder, looks, clock, plan.left if plan else frozenset(), Budget(transfers))
        recorder.end(result.settled, result.ok, result.interrupted and not result.ok and not result.failures)
        return result

    def _all_done(self, plan: Plan) -> dict[str, Settled] | None:
        """How every step came out, when nothing is left to do or to decide."""
        if plan.has_work or any(is_drifted(planned.node, planned.look) for planned in plan.nodes.values()):
            return None
        return {
            key: Settled("cached", planned.look.commit, message=planned.reason, left=planned.taken)
            for key, planned in plan.nodes.items()
        }

    def _scheduled(
        self, recorder: Recorder, looks: Mapping[str, Look], clock: float, left: frozenset[str], budget: Budget
    ) -> RunResult:
        # Imported here: a run that finds everything done starts in half the time without them.
        from marin_pipeline.run.backends.inline import InlineBackend
        from marin_pipeline.run.backends.local import LocalBackend
        from marin_pipeline.run.origin import RunOrigin
        from marin_pipeline.run.scheduler import STOP_PATIENCE, Scheduler
        from marin_pipeline.store.conditions import writable

        objects = self.objects
        if self.policy.force or any(each.commit is None for each in looks.values()):
            objects = writable(objects, single_writer=self.options.single_writer)
        origin = RunOrigin(objects, self.graph)
        is_inline = self.options.backend == "inline"
        backend = InlineBackend(objects) if is_inline else LocalBackend(self.options.max_parallel)
        scheduler = Scheduler(
            self.graph,
            objects,
            backend,
            looks=looks,
            policy=self.policy,
            reason=self.options.reason,
            fail_fast=self.options.fail_fast,
            max_parallel=self.options.max_parallel,
            lease_life=self.options.lease_life,
            notify=recorder.notice,
            origin=origin,
            left=left,
            budget=budget,
        )
        # A step in this process goes on for as long as it likes.
        limit = "for as long as they take" if is_inline else f"{STOP_PATIENCE:.0f} s at most"
        try:
            with while_steps_stop(), _interruptible(scheduler, limit):
                settled = scheduler.run()
        finally:
            origin.close()
        seconds = time.monotonic() - clock
        return RunResult(self.graph, self.objects, settled, scheduler.failures, scheduler.interrupted, seconds)


def _refuse_redefined(node: Node) -> None:
    """A worker finds a step by its name: another step that took the name since would run in its place.

    Raises:
        UsageError: naming both.
    """
    if node.loaded:
        return
    step = node.declaration.step
    module = sys.modules.get(step.fn.__module__)
    found = getattr(module, step.fn.__qualname__, step)
    if isinstance(found, Step) and found is not step:
        raise UsageError(
            f"{step.where} was defined again as {found.where}; give one of them another name "
            "(after a reload, declare the artifact again)"
        )


def _restricted(graph: Graph, ends: Sequence[str]) -> Graph:
    """The part of a graph that `ends` need. Its nodes keep the names that they have in the whole."""
    needed = graph.ancestors(ends)
    part = copy.copy(graph)
    part.targets = list(ends)
    part.nodes = {key: node for key, node in graph.nodes.items() if key in needed}
    return part


@contextmanager
def _interruptible(scheduler: Scheduler, limit: str) -> Generator[None]:
    """Ctrl-C and SIGTERM ask the run to stop, which is told; the second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    screen = sys.stderr  # a step that runs in this process has another one meanwhile
    shown = threading.Event()

    def show(text: str) -> None:
        with suppress(OSError, ValueError):  # whoever looked at it has gone
            say(text, screen)
        shown.set()

    def ask(number: int, frame: FrameType | None) -> None:
        if not scheduler.interrupted:
            names = scheduler.at_work
            text = f"stopping: waiting {limit} for {few(names)} to save what can be saved" if names else "stopping"
            # In a thread, since this one may be in the middle of writing there.
            _thread.start_new_thread(show, (f"{text}; a second Ctrl-C ends all at once",))
        scheduler.interrupt()

    kept = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
        if scheduler.interrupted:
            shown.wait(1.0)


class RunFailed(MarinError):
    """A run from Python did not come to its end; carries how it came out."""

    def __init__(self, result: RunResult) -> None:
        parts = [f"{node.name}: {failed.message}\n{failed.traceback}".rstrip() for node, failed in result.failures]
        failed_names = {node.name for node, _ in result.failures}
        parts += [
            f"{node.name}: {settled.message}"
            for node in result.graph.nodes.values()
            if (settled := result.settled[node.key]).outcome == "blocked" and node.name not in failed_names
        ]
        super().__init__("\n".join(parts))
        self.result = result


def experiment_id() -> str:
    """Names the experiment by the program that runs: its file's path in its project; `python` in a session."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return projects.module_id(Path(file).absolute()) if file else "python"


@overload
def run(target: Artifact[T], /, *, quiet: bool = False, **options: Any) -> Artifact[T]: ...
@overload
def run(target: Grid[T], /, *, quiet: bool = False, **options: Any) -> Grid[T]: ...
@overload
def run(
    target: Sequence[Artifact[Any] | Grid[Any]] | Experiment, /, *, quiet: bool = False, **options: Any
) -> list[Artifact[Any]]: ...
def run(
    target: Artifact[Any] | Grid[Any] | Sequence[Artifact[Any] | Grid[Any]] | Experiment,
    /,
    *,
    quiet: bool = False,
    **options: Any,
) -> Any:
    """Make what is missing, and return the artifacts with their outputs.

    Args:
        target: an artifact, a grid, a list of these, or an experiment; of a list and of an experiment a list of
            artifacts comes back, with the cells of each grid in its place.
        quiet: print nothing; by default a run that has something to do shows on stderr how far it is.
        options: fields of `Options`: `prefix`, `backend`, `force`, …

    Raises:
        RunFailed: when a step failed or is blocked; its message has the first failure's traceback first.
        UsageError: for an option that does not exist.
    """
    from marin_pipeline.run.screen import choose_screen

    targets = [target] if isinstance(target, Artifact) else flattened(_asked(target))
    unknown = sorted(set(options) - set(Options.__dataclass_fields__))
    if unknown:
        raise UsageError(f"run(): no option {', '.join(unknown)}; there are {', '.join(Options.__dataclass_fields__)}")
    worker = sys.modules.get("marin_pipeline.run.worker")
    if worker is not None and worker.is_worker():
        raise UsageError(
            "run(...) was reached in a worker process: either a file calls it when it is imported "
            '(put it under `if __name__ == "__main__":`), or a step calls it (take the artifact as an argument)'
        )
    session = Session.open(targets, Options(**options), experiment_id())
    looks = session.looks()
    plan = session.plan(looks)
    screen = choose_screen(-1 if quiet or not plan.has_work else 0, sys.stderr)
    result = session.show(screen, plan, looks)
    if not result.ok:
        raise RunFailed(result)

    def bound(artifact: Artifact[Any]) -> Artifact[Any]:
        return result.bound(artifact.key) if artifact.key in result.graph.nodes else artifact

    if isinstance(target, Grid):
        return target.map(bound)
    found = [bound(each) for each in targets]
    return found[0] if isinstance(target, Artifact) else found


def _asked(target: Grid[Any] | Sequence[Any] | Experiment) -> Sequence[Any]:
    if isinstance(target, Grid):
        return target.artifacts
    return target.targets if isinstance(target, Experiment) else target


def load(selector: str, *, prefix: str | None = None) -> Artifact[Any]:
    """The artifact that a name (`train`, `train@2`) or a prefix of a key (6 hex digits or more) stands for, with its
    output.

    Raises:
        UsageError: when nothing, or more than one key, fits, or what fits has no output.
        CorruptOutput: when the record of the output is damaged.
    """
    objects = open_objects(prefix or default_prefix())
    id, key = resolve(objects, selector)
    found = look(objects, id, key)
    if found.damage:
        raise CorruptOutput(found.damage)
    if found.commit is None:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has no output in {objects.url}; run it first")
    return Artifact.loaded(CommittedOutput(objects, id, key, found.commit))
