"""What the executor itself costs: 1,000 small steps (layered.py) here, with Hamilton's cache, and in a plain loop.

    python tests/benchmarks/executor.py --json         the last line is one JSON object
    python tests/benchmarks/executor.py --only commit --verbose

Everything measured is a process of its own, in a new folder. Ours and Hamilton's runs take turns, and a ratio is the
median of the ratios of the rounds, so that a machine that is busy for a while slows both. CPU seconds are the steadier
figure. A target that is missed is said, and fails nothing; what did not work at all ends the benchmark with an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
LAYERS, WIDTH = 20, 50
CHANGED = (10, 25)
"""Layer and place of the step whose argument is changed."""
COLD_ROUNDS, ROUNDS = 3, 5
SAMPLE_SECONDS = 0.05
FILL_SECONDS = 120.0
"""How long the 10,000 steps may take to make, before they are planned once more; else that figure is left out."""
SLOW_SECONDS = 240.0
"""How long the slow store is waited for."""

MEMORY = "/dev/shm"
"""Where everybody's files lie by default. On ext4 a new file takes up to ten times as long for minutes after many were
deleted, as this benchmark and tests do: its search for a free inode passes over those that were deleted lately."""

TARGETS: tuple[tuple[str, str, float], ...] = (
    ("noop_beyond_start", "at most", 0.5),
    ("noop_times_faster_than_hamilton", "at least", 8),
    ("cold_ms_per_step", "at most", 3),
    ("cold_times_faster_than_hamilton", "at least", 2),
    ("change_missed_or_needless", "at most", 0),
    ("plan_seconds", "at most", 5),
    ("slow_noop_seconds", "at most", 3),
    ("calls_per_commit_sequential", "at most", 8),
)

Run = dict[str, float]
"""`seconds`, `cpu_seconds` and `rss_mib` of one process with all its children."""

HAMILTON = """
import os, sys
os.environ["HAMILTON_TELEMETRY_ENABLED"] = "false"
sys.path.insert(0, os.getcwd())
from hamilton import driver
import nodes
if __name__ == "__main__":
    os.makedirs("out", exist_ok=True)
    built = driver.Builder().with_modules(nodes).with_cache(path="cache").build()
    built.execute(nodes.LAST)
"""

LOOP = """
import hashlib, json, os
os.makedirs("out", exist_ok=True)
for name, salt, parents in json.load(open("graph.json")):
    texts = [open(f"out/{parent}").read() for parent in parents]
    text = hashlib.sha256("|".join([name, salt, *texts]).encode()).hexdigest()
    with open(f"out/{name}", "w") as file:
        file.write(f"{text}\\n")
"""


class TookTooLong(Exception):
    """A process did not end in its time."""


def measured(program: Sequence[str], folder: Path, limit: float | None = None) -> tuple[Run, str]:
    """Run a Python program in a folder; what it and all its children cost, and what it printed.

    Memory is the largest sum of the processes' resident memory, looked at every 5 to 50 ms. (The kernel's own maximum
    would hold that of the process that started it, too.)

    Raises:
        TookTooLong: after `limit` seconds.
    """
    with tempfile.TemporaryFile("w+") as out:
        started = time.monotonic()
        # As for everybody: bytecode is kept. Where it is not, as some build machines ask, each start compiles anew.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            [sys.executable, *program], stdout=out, cwd=folder, env=environment, start_new_session=True
        )
        peak = 0
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            peak = max(peak, resident(process.pid))
            if limit is not None and time.monotonic() - started > limit:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise TookTooLong(f"{' '.join(program)}: not done after {limit:.0f} s")
            time.sleep(min(SAMPLE_SECONDS, 0.005 + (time.monotonic() - started) / 50))
        seconds = time.monotonic() - started
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(program)} ended with {process.returncode}: {printed[-2000:]}")
    cost = {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "rss_mib": round(peak / 2**20, 1),
    }
    return cost, printed


def resident(pid: int) -> int:
    """Resident memory of a process and all below it, bytes."""
    total = 0
    try:
        processes = [root := psutil.Process(pid), *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


# The graph, once more ------------------------------------------------------------------------------------------------


def graph(salt: str = "0") -> list[tuple[str, str, list[str]]]:
    """Name, salt and parents of each step, in order; `salt` is that of the step that is changed."""
    return [
        (
            f"n-{layer:02d}-{place:03d}",
            salt if (layer, place) == CHANGED else "0",
            [f"n-{layer - 1:02d}-{each:03d}" for each in (place, (place + 1) % WIDTH)] if layer else [],
        )
        for layer in range(LAYERS)
        for place in range(WIDTH)
    ]


def cone() -> set[str]:
    """Names of the steps that a change of the one step reaches, itself included."""
    reached = {f"n-{CHANGED[0]:02d}-{CHANGED[1]:03d}"}
    for name, _, parents in graph():
        if reached.intersection(parents):
            reached.add(name)
    return reached


def expected(salt: str = "0") -> dict[str, str]:
    """What each step must write."""
    texts: dict[str, str] = {}
    for name, each, parents in graph(salt):
        joined = "|".join([name, each, *(texts[parent] for parent in parents)])
        texts[name] = f"{hashlib.sha256(joined.encode()).hexdigest()}\n"
    return texts


def check(who: str, written: Mapping[str, Path], salt: str = "0") -> None:
    """Hold the files against what must be in them."""
    for name, text in expected(salt).items():
        if written[name].read_text() != text:
            raise SystemExit(f"{who}: {written[name]} does not hold what {name} must write")


# Who is measured -----------------------------------------------------------------------------------------------------


class Ours:
    """layered.py as a program, on the local backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._made: dict[str, Path] = {}
        """Where each step's file lies; each attempt has a folder of its own."""

    def run(self, salt: str = "0") -> tuple[Run, set[str]]:
        """Run it, with the changed step's salt as an override; the cost, and the names of the steps that ran."""
        override = [] if salt == "0" else [f"n-{CHANGED[0]:02d}-{CHANGED[1]:03d}.salt={salt}"]
        program = [str(HERE / "layered.py"), "--prefix", str(self.folder / "store"), *override]
        cost, _ = measured([*program, "-q"], self.folder)
        steps = json.loads(measured([*program, "--json"], self.folder)[1].splitlines()[-1])["steps"]
        if again := [step["name"] for step in steps if step["status"] != "cached"]:
            raise SystemExit(f"layered.py: {len(again)} steps were left to run after a run, {again[0]} among them")
        before, self._made = self._made, {step["name"]: Path(step["path"]) / "text.txt" for step in steps}
        check("layered.py", self._made, salt)
        return cost, {name for name, file in self._made.items() if before.get(name) != file}


class Hamilton:
    """The same graph as functions of a module, in Hamilton's shape: the parameters' names are the parents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "program.py").write_text(HAMILTON)
        self._write("0")

    def _write(self, salt: str) -> None:
        lines = ["import hashlib", ""]
        for name, each, parents in graph(salt):
            function, read = name.replace("-", "_"), [parent.replace("-", "_") for parent in parents]
            lines += [
                f"def {function}({', '.join(f'{parent}: str' for parent in read)}) -> str:",
                f"    joined = '|'.join([{', '.join([repr(name), repr(each), *read])}])",
                "    text = hashlib.sha256(joined.encode()).hexdigest() + '\\n'",
                f"    with open('out/{name}', 'w') as file:",
                "        file.write(text)",
                "    return text",
                "",
            ]
        last = [name.replace("-", "_") for name, _, _ in graph()[-WIDTH:]]
        (self.folder / "nodes.py").write_text("\n".join([*lines, f"LAST = {last}", ""]))
        self._salt = salt

    def run(self, salt: str = "0") -> tuple[Run, int]:
        """Run it, with the changed node's salt in its source; the cost, and how many nodes ran."""
        if salt != self._salt:
            self._write(salt)
        written = {name: self.folder / "out" / name for name, _, _ in graph()}
        before = {name: file.stat().st_mtime_ns if file.exists() else 0 for name, file in written.items()}
        cost, _ = measured(["program.py"], self.folder)
        check("Hamilton", written, salt)
        return cost, sum(file.stat().st_mtime_ns != before[name] for name, file in written.items())


def median(runs: Sequence[Run]) -> Run:
    """The median of each figure."""
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def times_faster(ours: Sequence[Run], theirs: Sequence[Run], figure: str) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(b[figure] / a[figure] for a, b in zip(ours, theirs, strict=True)), 2)


# The parts -----------------------------------------------------------------------------------------------------------


def paired(folder: Path) -> dict[str, Any]:
    """Ours and Hamilton's, in turns: everything new, nothing to do, one step changed; and a plain loop."""
    start = median([measured(["-c", "pass"], folder)[0] for _ in range(7)])
    (folder / "loop").mkdir()
    (folder / "loop" / "graph.json").write_text(json.dumps(graph()))
    (folder / "loop" / "loop.py").write_text(LOOP)
    loop = median([measured(["loop.py"], folder / "loop")[0] for _ in range(COLD_ROUNDS)])
    check("the loop", {name: folder / "loop" / "out" / name for name, _, _ in graph()})

    everything, dirty = {name for name, _, _ in graph()}, cone()
    ours: dict[str, list[Run]] = {"cold": [], "noop": [], "change": []}
    hamilton: dict[str, list[Run]] = {"cold": [], "noop": [], "change": []}

    def turn(kind: str, sides: tuple[Ours, Hamilton], salt: str = "0") -> tuple[set[str], int]:
        cost, ran = sides[0].run(salt)
        peer_cost, peer_ran = sides[1].run(salt)
        ours[kind].append(cost)
        hamilton[kind].append(peer_cost)
        return ran, peer_ran

    def must_run(kind: str, ran: set[str], peer_ran: int, expected: set[str]) -> None:
        if ran != expected or peer_ran != len(expected):
            raise SystemExit(
                f"{kind}: {len(expected)} steps were to run; {len(ran)} of ours and {peer_ran} of Hamilton's did"
            )

    pairs = [(Ours(folder / f"ours-{each}"), Hamilton(folder / f"hamilton-{each}")) for each in range(COLD_ROUNDS)]
    for pair in pairs:
        must_run("cold", *turn("cold", pair), everything)
    for _ in range(ROUNDS):
        must_run("noop", *turn("noop", pairs[-1]), set())
    changes = [turn("change", pairs[-1], salt=str(number + 1)) for number in range(COLD_ROUNDS)]
    changed = [ran for ran, _ in changes]
    mine = {kind: median(runs) for kind, runs in ours.items()}
    ratios = {
        f"{kind}_{word}times_faster_than_hamilton": times_faster(ours[kind], hamilton[kind], figure)
        for kind in ("cold", "noop")
        for word, figure in (("", "seconds"), ("cpu_", "cpu_seconds"))
    }
    return {
        "start": start,
        "loop": loop,
        "ours": mine,
        "hamilton": {kind: median(runs) for kind, runs in hamilton.items()},
        "steps": len(everything),
        "cold_ms_per_step": round(mine["cold"]["seconds"] / len(everything) * 1000, 3),
        "noop_beyond_start": round(mine["noop"]["seconds"] - start["seconds"], 3),
        "noop_cpu_beyond_start": round(mine["noop"]["cpu_seconds"] - start["cpu_seconds"], 3),
        **ratios,
        "change_ran": round(statistics.median(len(ran) for ran in changed)),
        "change_expected": len(dirty),
        "change_missed_or_needless": sum(len(ran ^ dirty) for ran in changed),
        "hamilton_change_ran": round(statistics.median(count for _, count in changes)),
    }


def planning(folder: Path) -> dict[str, Any]:
    """`plan` of 10,000 steps, in an empty store and in a full one."""
    program = [str(HERE / "layered.py"), "--json", "--layers", "100", "--width", "100", "--prefix"]

    def planned(store: str, status: str) -> Run:
        cost, printed = measured([*program[:1], "plan", *program[1:], str(folder / store)], folder)
        found = [json.loads(line)["status"] for line in printed.splitlines()]
        if found != [status] * 10_000:
            raise SystemExit(f"the plan of 10,000 steps has {len(found)}, {found.count(status)} of them to be {status}")
        return cost

    empty = median([planned("empty", "run") for _ in range(COLD_ROUNDS)])
    figures: dict[str, Any] = {"plan": empty, "plan_seconds": empty["seconds"]}
    try:
        figures["cold_of_10000"], _ = measured([*program, str(folder / "full")], folder, FILL_SECONDS)
        figures["plan_full"] = median([planned("full", "cached") for _ in range(COLD_ROUNDS)])
    except TookTooLong as error:
        print(f"left out, the plan of 10,000 steps in a full store: {error}", file=sys.stderr)
        figures["plan_full"] = None
    return figures


def slow(folder: Path) -> dict[str, Any]:
    """Nothing to do in a store whose every call takes 50 ms longer."""
    measured([str(HERE / "layered.py"), "--prefix", str(folder / "store"), "--json"], folder)
    try:
        program = [str(HERE / "slow_store.py"), "nothing", "--prefix", str(folder / "store")]
        cost, printed = measured(program, folder, SLOW_SECONDS)
    except TookTooLong as error:
        print(error, file=sys.stderr)
        return {"slow_noop_seconds": None}
    return {"slow_noop_seconds": cost["seconds"], "slow_noop": cost, "slow_noop_calls": json.loads(printed)}


def commit(folder: Path) -> dict[str, Any]:
    """Calls to the store that a commit waits for, one after the other."""
    _, printed = measured([str(HERE / "slow_store.py"), "commit", "--prefix", str(folder / "store")], folder)
    found = json.loads(printed)
    return {
        "calls_per_commit_sequential": found["without_inputs"]["sequential"],
        "calls_per_commit_sequential_two_inputs": found["two_inputs"]["sequential"],
        "calls": {name: found[name]["calls"] for name in ("without_inputs", "two_inputs")},
    }


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "paired": paired,
    "planning": planning,
    "slow": slow,
    "commit": commit,
}


def held_against_targets(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each target that was measured, and whether it is met."""
    found: dict[str, dict[str, Any]] = {}
    for name, bound, limit in TARGETS:
        if name in figures:
            value = figures[name]
            ok = value is not None and (value <= limit if bound == "at most" else value >= limit)
            found[name] = {"measured": value, bound.replace(" ", "_"): limit, "ok": ok}
    return found


def show(figures: Mapping[str, Any]) -> None:
    """The figures as tables."""
    runs = [(f"{who}, {kind}", run) for who in ("ours", "hamilton") for kind, run in figures.get(who, {}).items()]
    runs += [
        (name, figures[name])
        for name in ("start", "loop", "plan", "plan_full", "cold_of_10000", "slow_noop")
        if figures.get(name)
    ]
    if runs:
        print(f"{'':<20}{'seconds':>10}{'CPU':>10}{'MiB':>10}")
    for name, run in runs:
        print(f"{name:<20}{run['seconds']:>10.3f}{run['cpu_seconds']:>10.3f}{run['rss_mib']:>10.1f}")
    print(f"\n{'':<42}{'measured':>10}   target")
    for name, each in figures["targets"].items():
        bound = next(key for key in each if key.startswith("at_"))
        value = "too long" if each["measured"] is None else each["measured"]
        verdict = "met" if each["ok"] else "missed"
        print(f"{name:<42}{value:>10}   {bound.replace('_', ' ')} {each[bound]:g}: {verdict}")
    shown = {name for name, _ in runs} | set(figures["targets"]) | {"ours", "hamilton", "targets", "calls"}
    for name, value in figures.items():
        if name not in shown:
            print(f"{name:<42}{value!s:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part only; may be repeated")
    parser.add_argument("--folder", help="where the stores lie (default: in memory, where there is /dev/shm)")
    parser.add_argument("--verbose", action="store_true", help="list the calls of a commit, on stderr")
    parsed = parser.parse_args()
    figures: dict[str, Any] = {"python": sys.version.split()[0], "cpus": len(os.sched_getaffinity(0))}
    above = parsed.folder or (MEMORY if os.access(MEMORY, os.W_OK) else None)
    figures["folder"] = above or tempfile.gettempdir()
    for name in parsed.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="marin-benchmark-", dir=above) as folder:
            figures |= PARTS[name](Path(folder))
    calls = figures.pop("calls", {})
    if parsed.verbose:
        for name, lines in calls.items():
            print(f"\ncalls of a commit, {name.replace('_', ' ')}:", *lines, sep="\n  ", file=sys.stderr)
    figures["targets"] = held_against_targets(figures)
    if parsed.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
