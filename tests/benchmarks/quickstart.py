"""The quick start from an empty store, and again: time, memory of all its processes, and how good the model is.

    python tests/benchmarks/quickstart.py --json       the last line is one JSON object

Times are of one run on a machine that may be busy; CPU seconds are the steadier figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.py"
SAMPLE_SECONDS = 0.2


def measured(arguments: list[str], prefix: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the quick start; its wall and CPU seconds and the peak of its processes' memory (MiB), and its summary.

    `rss_mib` adds up the processes' resident memory, shared pages once for each; `pss_mib` counts them once in all.
    """
    started, before = time.monotonic(), os.times()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, str(QUICKSTART), "--json", *arguments],
            stdout=out,
            env={**os.environ, "MARIN_PREFIX": str(prefix)},
        )
        peak_rss = peak_pss = 0
        while process.poll() is None:
            rss, pss = memory_of(psutil.Process(process.pid))
            peak_rss, peak_pss = max(peak_rss, rss), max(peak_pss, pss)
            try:
                process.wait(SAMPLE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        out.seek(0)
        summary = json.loads(out.read().splitlines()[-1])
    after = os.times()
    figures = {
        "seconds": round(time.monotonic() - started, 2),
        "cpu_seconds": round(
            after.children_user - before.children_user + after.children_system - before.children_system, 2
        ),
        "rss_mib": round(peak_rss / 2**20),
        "pss_mib": round(peak_pss / 2**20),
    }
    if process.returncode != 0:
        raise SystemExit(f"the quick start ended with {process.returncode}: {summary}")
    return figures, summary


def memory_of(root: psutil.Process) -> tuple[int, int]:
    """Resident and proportional memory of a process and all below it, bytes."""
    rss = pss = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0
    for process in processes:
        try:
            information = process.memory_full_info()
        except psutil.Error:
            continue
        rss += information.rss
        pss += information.pss
    return rss, pss


def value(summary: dict[str, Any], name: str) -> dict[str, Any]:
    """The value of a step, as it is written."""
    (path,) = [step["path"] for step in summary["steps"] if step["name"] == name]
    return json.loads((Path(path) / "value.json").read_text())["fields"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("overrides", nargs="*", help="of the quick start, such as train.steps=30")
    parsed = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(prefix="marin-benchmark-") as folder:
        first, summary = measured(parsed.overrides, Path(folder))
        again, cached = measured(parsed.overrides, Path(folder))
        simple = value(summary, "baselines")
        figures = {
            "first": first,
            "again": again,
            "again_cached": sum(step["status"] == "cached" for step in cached["steps"]),
            "steps": len(summary["steps"]),
            "seconds_by_step": {step["name"]: round(step["seconds"], 2) for step in summary["steps"]},
            "bits_per_byte": {
                "model": value(summary, "evaluate")["overall"]["fields"]["bits_per_byte"],
                **{
                    f"{each['fields']['order']}-gram": each["fields"]["scores"]["fields"]["overall"]["fields"][
                        "bits_per_byte"
                    ]
                    for each in simple["ngrams"]
                },
                "zstd": simple["zstd"]["fields"]["bits_per_byte"],
            },
        }
    print(json.dumps(figures) if parsed.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
