"""How well the order of training data is mixed, and what an id costs, beside numpy's shuffle and Levanter's.

    python tests/benchmarks/permutation.py --json                   the last line is one JSON object
    python tests/benchmarks/permutation.py --levanter PYTHON        PYTHON is an interpreter that has levanter

Each order is looked at whole: whether each id is there once, and the statistics of tests/data/shuffles.py, in standard
deviations from what is expected of a true shuffle; where there are too few ids for those, how often each possible order
occurs over many seeds. Beyond 5 standard deviations is no shuffle. `blocks` is the permutation in two levels, whose
residues are held against batches drawn from its windows; by design neighbours of a block meet in one window, so that
its jumps are off, and its correlation strays as that of as many ids as it has blocks.

Nanoseconds are CPU time, one thread, of all ids of an order in pieces of a million, and of a batch of 512; for numpy,
which cannot tell one id without all, of the shuffle by its length. Levanter's runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics as middle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from marin_pipeline.data.permutation import BlockPermutation, Permutation  # noqa: E402 - found by the line above
from tests.data.shuffles import (  # noqa: E402 - likewise
    BATCH,
    SHORTEST,
    commonest_jump,
    even_shares,
    is_bijection,
    orders,
    statistics,
)

LENGTHS = (1, 2, 3, 1000, 2**18, 1_000_003, 50_000_000)
BLOCK, WINDOW = 64, 256
SEEDS = 600
"""Of the orders of few ids."""
PIECE = 1_000_000
BATCHES = 200
BEYOND = 5.0
"""Standard deviations that a true shuffle does not stray."""
BY_DESIGN = {"jumps", "equal jumps", "correlation"}
"""Figures in which the permutation in two levels is no true shuffle."""

LEVANTER = """
import sys, json, time
import numpy as np, jax
from levanter.data._prp import Permutation
length, seeds, piece, batch, batches = map(int, sys.argv[2:])
made = [Permutation.make("feistel", length, jax.random.PRNGKey(seed)) for seed in range(seeds)]
ids = np.empty((seeds, length), np.int64)
before = time.process_time()
for row, order in zip(ids, made):
    for first in range(0, length, piece):
        row[first : first + piece] = order(np.arange(first, min(length, first + piece)))
spent = time.process_time() - before
np.save(sys.argv[1], ids)
wanted = np.arange(min(batch, length))
each = []
for _ in range(batches):
    before = time.process_time()
    made[0](wanted)
    each.append(time.process_time() - before)
print(json.dumps({"all": spent / ids.size * 1e9, "batch": sorted(each)[batches // 2] / len(wanted) * 1e9}))
"""

Figures = dict[str, Any]
Side = Callable[[int, int], tuple[np.ndarray, Figures]]
"""Orders of a length by so many seeds, `(seeds, length)`, and nanoseconds an id."""


# Who is measured -----------------------------------------------------------------------------------------------------


def ours(make: Callable[[int, int], Permutation | BlockPermutation]) -> Side:
    """A permutation of ours, made of length and seed."""

    def drawn(length: int, seeds: int) -> tuple[np.ndarray, Figures]:
        made = [make(length, seed) for seed in range(seeds)]
        ids = np.empty((seeds, length), np.int64)
        before = time.process_time()
        for row, order in zip(ids, made, strict=True):
            for first in range(0, length, PIECE):
                row[first : first + PIECE] = order(np.arange(first, min(length, first + PIECE)))
        spent = time.process_time() - before
        wanted = np.arange(min(BATCH, length))
        each = []
        for _ in range(BATCHES):
            before = time.process_time()
            made[0](wanted)
            each.append(time.process_time() - before)
        return ids, {"all": spent / ids.size * 1e9, "batch": middle.median(each) / len(wanted) * 1e9}

    return drawn


def numpy(length: int, seeds: int) -> tuple[np.ndarray, Figures]:
    """numpy's shuffle."""
    before = time.process_time()
    ids = np.stack([np.random.default_rng(seed).permutation(length) for seed in range(seeds)])
    return ids, {"all": (time.process_time() - before) / ids.size * 1e9, "batch": None}


def levanter(python: str) -> Side:
    """Levanter's Feistel permutation, its default, in the interpreter that has it."""

    def drawn(length: int, seeds: int) -> tuple[np.ndarray, Figures]:
        with tempfile.TemporaryDirectory(prefix="marin-benchmark-") as folder:
            arguments = [length, seeds, PIECE, BATCH, BATCHES]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run(
                [python, "-c", LEVANTER, f"{folder}/ids.npy", *map(str, arguments)],
                env={**environment, "JAX_PLATFORMS": "cpu"},
                capture_output=True,
                check=False,
                text=True,
            )
            if done.returncode:
                raise SystemExit(f"{python}: levanter's permutation of {length} ended with:\n{done.stderr[-2000:]}")
            return np.load(f"{folder}/ids.npy"), json.loads(done.stdout.splitlines()[-1])

    return drawn


# What is looked at ---------------------------------------------------------------------------------------------------


def looked_at(who: str, side: Side, length: int) -> Figures:
    """The figures of one side's order of a length."""
    drawn, nanoseconds = side(length, 1 if length >= SHORTEST else SEEDS)
    found: Figures = {
        "bijection": all(is_bijection(ids) for ids in drawn),
        "nanoseconds": {name: value and round(value, 1) for name, value in nanoseconds.items()},
    }
    if length < SHORTEST:
        figures = {"orders": orders(drawn)} if length > 1 else {}
    else:
        figures = statistics(drawn[0], BLOCK * WINDOW if who == "blocks" else None)
        shares = even_shares(drawn[0])
        found["even_share"] = {
            "least": round(float(shares.min()), 3),
            "most": round(float(shares.max()), 3),
            "beyond_0.4_to_0.6": round(float(np.mean(np.abs(shares - 0.5) > 0.1)), 4),
        }
        found["commonest_jump"] = commonest_jump(drawn[0])
    found["figures"] = {
        name: {"value": round(each.value, 5), "expected": round(each.expected, 5), "off": round(each.off, 1)}
        for name, each in figures.items()
    }
    return found


def held_against_targets(figures: Mapping[str, Mapping[str, Figures]]) -> dict[str, Figures]:
    """By length: whether ours have each id once, and how far the farthest figure strays."""
    found: dict[str, Figures] = {}
    for length, sides in figures.items():
        for who in ("ours", "blocks"):
            left_out = BY_DESIGN if who == "blocks" else set()
            off = [abs(each["off"]) for name, each in sides[who]["figures"].items() if name not in left_out]
            found[f"{who} {length}"] = {
                "measured": max(off, default=0.0),
                "at_most": BEYOND,
                "ok": sides[who]["bijection"] and max(off, default=0.0) <= BEYOND,
            }
    return found


def show(figures: Mapping[str, Any]) -> None:
    """The figures as a table a length."""
    for length, sides in figures["lengths"].items():
        print(f"{int(length):,} ids".ljust(40), *(f"{who:>12}" for who in sides), sep="")

        def row(title: str, values: list[Any]) -> None:
            print(f"  {title:<38}", *(f"{value!s:>12}" for value in values), sep="")

        row("each id once", ["yes" if each["bijection"] else "no" for each in sides.values()])
        for name in sides["ours"]["figures"]:
            row(f"{name}, off", [each["figures"][name]["off"] for each in sides.values()])
        if "even_share" in sides["ours"]:
            for name in sides["ours"]["even_share"]:
                row(
                    f"even ids a batch: {name.replace('_', ' ')}", [each["even_share"][name] for each in sides.values()]
                )
            row("commonest jump", [each["commonest_jump"] for each in sides.values()])
        for name in ("all", "batch"):
            row(f"ns an id, {name}", [each["nanoseconds"][name] or "" for each in sides.values()])
    missed = [name for name, each in figures["targets"].items() if not each["ok"]]
    print(f"targets: {len(figures['targets']) - len(missed)} met", *(f"missed: {name}" for name in missed), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--levanter", metavar="PYTHON", help="an interpreter that has levanter; else it is left out")
    parser.add_argument("--length", type=int, action="append", help="this length only; may be repeated")
    parsed = parser.parse_args()
    sides: dict[str, Side] = {
        "ours": ours(Permutation),
        "blocks": ours(lambda length, seed: BlockPermutation(length, seed, BLOCK, WINDOW)),
        "numpy": numpy,
    }
    if parsed.levanter:
        sides["levanter"] = levanter(parsed.levanter)
    figures: Figures = {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "names": {"ours": Permutation.NAME, "blocks": BlockPermutation.NAME},
        "block": BLOCK,
        "window": WINDOW,
        "lengths": {},
    }
    for length in parsed.length or LENGTHS:
        figures["lengths"][str(length)] = {}
        for who, side in sides.items():
            figures["lengths"][str(length)][who] = looked_at(who, side, length)
            print(f"{who}, {length:,} ids: {figures['lengths'][str(length)][who]}", file=sys.stderr, flush=True)
    figures["targets"] = held_against_targets(figures["lengths"])
    if parsed.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
