"""What a person or a program sees of a run: a table on a terminal, one line an event elsewhere, JSON lines for
programs.

On a terminal the plan comes first, then one live table with progress bars, then where each output lies. Verbs are
fixed, so that lines can be searched for.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from marin_pipeline.core.errors import CorruptOutput, MarinError
from marin_pipeline.core.graph import Node
from marin_pipeline.core.visible import say, visible
from marin_pipeline.run.cones import FEW, Cones, cones_of
from marin_pipeline.run.driver import RunResult
from marin_pipeline.run.outcome import Notice
from marin_pipeline.run.plan import ACCEPT_OR_RERUN, Plan, PlannedNode, few, summary_line
from marin_pipeline.run.transfer import Transfers, bytes_text
from marin_pipeline.store.output import CommittedOutput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

VALUE_WIDTH = 80
"""Characters of a returned value that is shown; longer ones are not."""

QUIET_LINES = 16
"""Cached steps that are shown one by one; more are counted."""


class Screen(Protocol):
    """Shows a run as it goes."""

    def planned(self, plan: Plan, title: str, store: str, transfers: Transfers) -> None:
        """The plan, before anything runs."""
        ...

    def notice(self, notice: Notice) -> None:
        """Something happened."""
        ...

    def finished(self, result: RunResult) -> None:
        """The run has ended."""
        ...

    def abandon(self) -> None:
        """The run ends with an error that is shown next."""
        ...


def plan_lines(plan: Plan, title: str, store: str, whole: bool = False, undone: bool = False) -> list[str]:
    """The plan as text, one line a step.

    Args:
        whole: name every step; else many that are cached are counted in a line, and many that only hang on another one
            are counted at that one.
        undone: nothing but the steps that are not done.
    """
    lines = [] if undone else [summary_line(title, plan, store)]
    cones = cones_of(plan)
    if whole or len(cones.roots) <= FEW:
        cones = Cones()
    shown = [planned for key, planned in plan.nodes.items() if key not in cones.roots]
    cached = sum(planned.status == "cached" for planned in shown)
    hidden = undone or (0 if whole or cached <= QUIET_LINES else cached)
    fetched = [] if whole or len(plan.fetches) <= QUIET_LINES else plan.fetches
    if hidden and not undone:
        lines.append(f"{'cached':<9}({hidden} steps)")
    for place, sizes in _by_place(fetched).items():
        lines.append(f"{'run':<9}({len(sizes)} steps)  from {place}, {bytes_text(sum(sizes))}")
    counted = {planned.node.key for planned in fetched}
    for planned in shown:
        if planned.node.key not in counted and (planned.status != "cached" or not hidden):
            cone = cones.by_root.get(planned.node.key)
            lines.append(_plan_line(planned) + ("" if cone is None else f"  {cone}"))
    return lines


def _by_place(fetched: Sequence[PlannedNode]) -> Mapping[str, list[int]]:
    """Bytes of what is taken from each other store."""
    found: dict[str, list[int]] = {}
    for planned in fetched:
        if planned.taken is not None:
            found.setdefault(str(planned.taken), []).append(planned.taken.commit.bytes)
    return found


def _planned_lines(plan: Plan, title: str, store: str, transfers: Transfers, verbosity: int) -> list[str]:
    """What a run shows of its plan."""
    if not plan.has_work:
        return [summary_line(title, plan, store)]
    return plan_lines(plan, title, store, whole=verbosity > 0) + transfers.lines()


def _plan_line(planned: PlannedNode) -> str:
    told = planned.told.removeprefix(f"{planned.status}: ")
    reason = f"  {told}" if told else ""
    unpinned = f"  {unpinned_text(planned.node)}" if planned.node.unpinned else ""
    return f"{planned.status:<9}{planned.node.key[:8]}  {planned.node.name}{reason}{unpinned}".rstrip()


def unpinned_text(node: Node) -> str:
    """That a step is unpinned, with the names of what it reads itself."""
    own = node.artifact.unpinned
    return f"unpinned: {few(list(own))}" if own else "unpinned"


def summary_tree(result: RunResult) -> dict[str, Any]:
    """The last line of `run --json`."""
    steps: list[dict[str, Any]] = []
    for node in result.graph.nodes.values():
        settled, output = result.settled[node.key], result.output(node)
        source = None if output is None else output.commit.adopted_from
        copied = "" if output is None or settled.left else output.commit.copied_from
        steps.append(
            {
                "name": node.name,
                "key": node.key,
                "status": settled.outcome,
                "seconds": round(settled.seconds, 3),
                "path": None if output is None else f"{output.objects.url}/{output.folder}",
                "bytes": None if output is None else output.commit.bytes,
                "digest": None if output is None else output.digest,
                **({"message": settled.message} if settled.message else {}),
                **({"drifted": True} if settled.drifted else {}),
                **({"adopted_from": source.named()} if source is not None else {}),
                **({"copied_from": copied, "fetched": settled.fetched} if copied else {}),
                **({"left": True} if settled.left else {}),
                **({"unpinned": list(node.unpinned)} if node.unpinned else {}),
            }
        )
    return {"event": "summary", "ok": result.ok, "steps": steps}


class JsonScreen:
    """JSON lines, and nothing else between them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def planned(self, plan: Plan, title: str, store: str, transfers: Transfers) -> None:
        for planned in plan.nodes.values():
            self._print({"event": "plan", **planned.tree()})
        if tree := transfers.tree():
            self._print({"event": "transfer", **tree})

    def notice(self, notice: Notice) -> None:
        tree: dict[str, Any] = {"event": notice.verb, "name": notice.node.name, "key": notice.node.key}
        if notice.text:
            tree["text"] = notice.text
        data = {name: value for name, value in notice.data.items() if name not in ("event", "task")}
        if "figures" in data:  # JSON has no NaN
            data["figures"] = {name: value if math.isfinite(value) else None for name, value in data["figures"].items()}
        self._print({**tree, **data})

    def finished(self, result: RunResult) -> None:
        self._print(summary_tree(result))

    def abandon(self) -> None:
        """Nothing is open."""

    def _print(self, tree: Mapping[str, Any]) -> None:
        say(json.dumps(tree), self._stream)


class LineScreen:
    """One line an event."""

    def __init__(self, verbosity: int = 0, stream: TextIO | None = None) -> None:
        self._verbosity = verbosity
        self._stream = stream or sys.stdout
        self._tenths: dict[str, int] = {}

    def planned(self, plan: Plan, title: str, store: str, transfers: Transfers) -> None:
        if self._verbosity >= 0:
            for line in _planned_lines(plan, title, store, transfers, self._verbosity):
                say(line, self._stream)

    def notice(self, notice: Notice) -> None:
        if notice.verb == "fail":
            self._fail(notice)
        elif self._verbosity < 0 or (notice.verb in ("cached", "blocked") and self._verbosity < 1):
            return
        elif notice.verb == "progress":
            self._progress(notice)
        else:
            self._line(notice.verb, notice.node, _detail(notice))

    def _progress(self, notice: Notice) -> None:
        """A line each tenth, so that a log of a long run stays short."""
        done, total = notice.data["done"], notice.data["total"]
        tenth = 10 * done // total if total else 0
        if tenth != self._tenths.get(notice.node.key, 0):
            self._tenths[notice.node.key] = tenth
            self._line(
                "progress", notice.node, f"{done}/{total} {notice.data['unit']}{_figures(notice.data['figures'])}"
            )

    def _fail(self, notice: Notice) -> None:
        say(failure_text(notice), sys.stderr)

    def _line(self, verb: str, node: Node, detail: str) -> None:
        say(_event_line(verb, node, detail), self._stream)

    def finished(self, result: RunResult) -> None:
        if self._verbosity >= 0:
            for line in output_lines(result):
                say(line, self._stream)
        else:
            _print_problems(result)

    def abandon(self) -> None:
        """Nothing is open."""


def _event_line(verb: str, node: Node, detail: str) -> str:
    return f"{verb:<9}{node.key[:8]}  {node.name}  {detail.removeprefix(f'{verb}: ')}".rstrip()


def _detail(notice: Notice) -> str:
    if notice.verb == "fetched":
        return f"{notice.data['seconds']:.1f} s  {notice.text}"
    if notice.verb == "done":
        return f"{notice.data['seconds']:.1f} s  {bytes_text(notice.data['bytes'])}"
    return notice.text


def _figures(figures: Mapping[str, float]) -> str:
    shown = {name.replace("_per_second", "/s").replace("_", " "): value for name, value in figures.items()}
    return "".join(
        f"  {name} {value:,.0f}" if value >= 1000 else f"  {name} {value:.4g}" for name, value in shown.items()
    )


def failure_text(notice: Notice) -> str:
    """A failure for people: the step's own traceback first, then what to know."""
    parts = [notice.data["traceback"]] if notice.data.get("traceback") else []
    parts.append(f"{'fail':<9}{notice.node.key[:8]}  {notice.node.name}  {notice.text}")
    if notice.data["log"]:
        parts.append(f"{'':<9}log: {notice.data['log']}")
    return "\n".join(parts)


def output_lines(result: RunResult) -> list[str]:
    """How each step came out and where its output lies, what the asked ones returned, and the whole in a line."""
    outcomes = Counter("fetched" if each.fetched else each.outcome for each in result.settled.values())
    hidden = outcomes["cached"] if outcomes["cached"] > QUIET_LINES else 0
    shown = [
        node
        for node in result.graph.nodes.values()
        if not hidden
        or result.settled[node.key].outcome != "cached"
        or result.settled[node.key].fetched
        or result.settled[node.key].drifted
        or node.key in result.graph.targets
    ]
    width = max((len(node.name) for node in shown), default=0)
    lines: list[str] = []
    for node in shown:
        settled, output = result.settled[node.key], result.output(node)
        what = settled.message.partition("\n")[0] if output is None else _where(result, output)
        word = "fetched" if settled.fetched else settled.outcome
        lines.append(f"{word:<9}{node.key[:8]}  {node.name:<{width}}  {what}".rstrip())
        if output is not None and node.key in result.graph.targets:
            word, problem = _problem(output)
            value = "" if problem else _value_text(output)
            lines += [f"{word:<9}{node.key[:8]}  {node.name:<{width}}  {problem}"] if problem else []
            lines += [f"{'':<19}{value}"] if value else []
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    drifted = sum(settled.drifted for settled in result.settled.values())
    lines += _unpinned_lines(result)
    remedy = f"; {drifted} drifted, made by other code: say {ACCEPT_OR_RERUN}" if drifted else ""
    return [*lines, f"{counts} in {result.seconds:.1f} s{remedy}"]


def _unpinned_lines(result: RunResult) -> list[str]:
    """What no key fixes, with where it is said how to fix it."""
    # What did not come to its end says nothing of how to pin what it read.
    nodes = [node for node in result.graph.nodes.values() if result.output(node) is not None]
    found = dict.fromkeys((name for node in nodes for name in node.unpinned), "")
    for node in nodes:
        if not node.loaded:
            found.update(dict.fromkeys(node.artifact.unpinned, node.declaration.step.pinning))
    hints = dict.fromkeys(found.values())
    named = {hint: few([name for name, each in found.items() if each == hint]) for hint in hints}
    return [f"unpinned {names}{f': {hint}' if hint else ''}" for hint, names in named.items()]


def _problem(output: CommittedOutput) -> tuple[str, str]:
    """Why a value cannot be shown: that it is damaged, or that it cannot be read now; empty for one that can."""
    try:
        _ = output.value_tree
    except CorruptOutput as error:
        return "damaged", str(error)
    except MarinError as error:
        return "unread", str(error)
    return "", ""


def _print_problems(result: RunResult) -> None:
    """Of a run that prints failures only, which of the asked values cannot be read."""
    for node in map(result.graph.nodes.__getitem__, result.graph.targets):
        output = result.output(node)
        word, problem = ("", "") if output is None else _problem(output)
        if problem:
            say(f"{word:<9}{node.key[:8]}  {node.name}  {problem}", sys.stderr)


def _where(result: RunResult, output: CommittedOutput) -> str:
    """Where the files lie, relative to the working directory where they lie below it, and what to know of them."""
    where = f"{output.objects.url}/{output.folder}"
    here = os.getcwd()
    shown = os.path.relpath(where, here) if where.startswith(here + os.sep) else where
    source = output.commit.adopted_from
    adopted = "" if source is None else f"  adopted from {source.key[:8]}"
    settled = result.settled[output.key]
    left = "  not needed here" if settled.left else ""
    return f"{shown}{adopted}{left}{'  drifted' if settled.drifted else ''}"


def _value_text(output: CommittedOutput) -> str:
    """The returned value, when it is short; empty for one that needs a table of its own."""
    text = json.dumps(output.value_tree, ensure_ascii=False)
    return f"= {text}" if text != "null" and len(text) <= VALUE_WIDTH and "~" not in text else ""


class TerminalScreen:
    """The plan, one live table with progress bars, then where each output lies."""

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        self._console = console
        self._verbosity = verbosity
        self._live: Live | None = None
        self._running: dict[str, tuple[Node, float, Mapping[str, Any]]] = {}
        self._counts: dict[str, int] = {}
        self._total = 0

    def planned(self, plan: Plan, title: str, store: str, transfers: Transfers) -> None:
        self._total = len(plan.nodes)
        if self._verbosity >= 0:
            for line in _planned_lines(plan, title, store, transfers, self._verbosity):
                self._say(line, _STYLES.get(line.split(" ")[0], ""))
        if plan.has_work:
            from rich.live import Live

            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for node, since, progress in list(self._running.values()):
            done, total = progress.get("done", 0), progress.get("total", 0)
            bar = ProgressBar(total=total or None, completed=done, width=24, pulse=not total)
            what = f"{done}/{total} {progress['unit']}{_figures(progress['figures'])}" if progress else ""
            name, what = Text(visible(node.name)), Text(visible(what))
            table.add_row(Text("run", "cyan"), node.key[:8], name, bar, f"{time.monotonic() - since:.0f} s", what)
        counts = self._counts.copy()  # this runs in a thread of its own, while notices come
        told = "  ".join(f"{count} {verb}" for verb, count in counts.items())
        table.add_row("", "", Text(f"{sum(counts.values())}/{self._total}  {told}", "dim"))
        return table

    def notice(self, notice: Notice) -> None:
        key = notice.node.key
        if notice.verb == "progress":
            node, since, _ = self._running.get(key, (notice.node, time.monotonic(), {}))
            self._running[key] = (node, since, notice.data)
            return
        if notice.verb in ("run", "fetch"):
            self._running[key] = (notice.node, time.monotonic(), {})
            return
        self._running.pop(key, None)
        if notice.verb in ("cached", "adopt", "done", "fetched", "fail", "blocked"):
            self._counts[notice.verb] = self._counts.get(notice.verb, 0) + 1
        if notice.verb == "fail":
            self._say(failure_text(notice), "red")
        elif notice.verb != "cached" and self._verbosity >= 0:
            line = _event_line(notice.verb, notice.node, _detail(notice))
            self._say(line, _STYLES.get(notice.verb, ""))

    def _say(self, text: str, style: str) -> None:
        self._console.print(visible(text), style=style, highlight=False, soft_wrap=True, markup=False)

    def abandon(self) -> None:
        if self._live is not None:
            self._live.stop()

    def finished(self, result: RunResult) -> None:
        self.abandon()
        if self._verbosity >= 0:
            for line in output_lines(result):
                self._say(line, _STYLES.get(line.split(" ")[0], ""))
        else:
            _print_problems(result)


_STYLES = {
    "cached": "dim",
    "adopt": "dim",
    "fetched": "green",
    "damaged": "red",
    "unread": "red",
    "done": "green",
    "failed": "red",
    "blocked": "yellow",
    "drift": "yellow",
    "stale": "yellow",
    "retry": "yellow",
}


def choose_screen(verbosity: int, stream: TextIO | None = None) -> Screen:
    """The screen for people, for where the output goes: by default stdout."""
    where = sys.stdout if stream is None else stream
    if where.isatty():
        from rich.console import Console

        return TerminalScreen(Console(file=_apart(where)), verbosity)
    return LineScreen(verbosity, where)


def _apart(stream: TextIO) -> TextIO:
    """A stream to the same place under a descriptor of its own: a step in this process may have the other one moved."""
    try:
        return open(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors="replace")
    except OSError:  # a stream without a descriptor
        return stream
