"""Digests of one trained state on many arrangements of devices, in invariant and in fast numerics.

python tests/benchmarks/invariance.py --json [--quick]: the last line is one JSON object of figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.train.invariant_cells import run
from tests.train.invariant_worker import STEPS, Cell


def arrangements() -> Iterator[tuple[str, Cell]]:
    """The possible ones of {copies, sharded} x devices {1, 2, 4, 8} x processes {1, 2}, and both at once."""
    for devices, processes in itertools.product((1, 2, 4, 8), (1, 2)):
        if processes > devices:
            continue
        kinds = {"fsdp": 1, "dp": devices, "dp 2 x fsdp": 2}
        for kind, replicas in kinds.items():
            if (devices > 1 or kind == "fsdp") and not (kind == "dp 2 x fsdp" and devices < 4):
                yield f"{kind:12} {devices} devices {processes} processes", Cell(devices, replicas, processes)


def table(precision: str, numerics: str, cells: dict[str, Cell], folder: Path) -> dict[str, dict[str, str]]:
    """By arrangement: the digest of the last state of an undisturbed run, and of one that was begun elsewhere."""
    begun = folder / f"{numerics}-{precision}"
    base = Cell(compute=precision, numerics=numerics)
    run(replace(base, devices=4, replicas=2, steps=1, save=str(begun)))
    found: dict[str, dict[str, str]] = {}
    for name, cell in cells.items():
        cell = replace(cell, compute=precision, numerics=numerics)
        found[name] = {
            "undisturbed": run(cell)["digests"][-1],
            "resumed": run(replace(cell, start=str(begun)))["digests"][-1],
        }
        print(f"{numerics:9} {precision:8} {name}  {found[name]['undisturbed']}  {found[name]['resumed']}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print figures as the last line")
    parser.add_argument("--quick", action="store_true", help="every third arrangement")
    parsed = parser.parse_args()
    cells = dict(arrangements())
    if parsed.quick:
        cells = dict(itertools.islice(cells.items(), None, None, 3))
    print(f"digest after {STEPS} steps: undisturbed, and from a checkpoint of 2 copies of 2 parts after the first")
    figures: dict[str, object] = {"arrangements": len(cells)}
    met = True
    with tempfile.TemporaryDirectory() as folder:
        for numerics, precision in itertools.product(("invariant", "fast"), ("float32", "bfloat16")):
            found = table(precision, numerics, cells, Path(folder))
            digests = {digest for row in found.values() for digest in row.values()}
            figures[f"{numerics}_{precision}_digests"] = len(digests)
            met = met and (numerics == "fast" or len(digests) == 1)
    for remedy in ("sums", "passes", "loops", "pool"):
        pair = [run(Cell(devices=devices, without=(remedy,)))["digests"][-1] for devices in (1, 8)]
        figures[f"without_{remedy}_digests"] = len({*pair, run(Cell())["digests"][-1]})
    figures["met"] = met
    for name, value in figures.items():
        print(f"{name}: {value}")
    if parsed.json:
        print(json.dumps(figures))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
