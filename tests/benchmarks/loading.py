"""What `loader.py` measures of the loader of training data: its sides, a store that is far away, the quick start's
need, and Levanter's cache.

A store that is far away is a token store of which each read of an array is ready 50 ms after it was asked for, and not
before, whether the chunk is in the cache or not. Reads that were asked for meanwhile wait at the same time, as they
would for a remote store; opening an array is not delayed. A sequence is one read, or two where it lies in two parts.
The batches draw on three sources, which are one store under three names.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marin_pipeline.data.token_store import TokenStore

HERE = Path(__file__).parent
QUICKSTART = HERE.parents[1] / "experiments" / "quickstart.py"
FAR_SECONDS = 0.05
QUICKSTART_STEPS = 120

Figures = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A host's part of a batch, and how many are loaded."""

    rows: int
    sequence_length: int
    near_batches: int
    far_batches: int


LARGE = Shape(16, 4096, 400, 100)
SMALL = Shape(8, 128, 3000, 200)
"""That of the quick start: the smaller a batch, the more a wait for it costs."""
WEIGHTS = {"a": "0.6", "b": "0.3", "c": "0.1"}
MANY_WORKERS = 64


class _FarRead:
    """A read that is ready some time after it was asked for."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._ready = time.monotonic() + FAR_SECONDS

    def result(self) -> np.ndarray:
        time.sleep(max(0.0, self._ready - time.monotonic()))
        return self._read.result()


@dataclass(frozen=True)
class _FarArray:
    """An array, or a slice of one, that is read from far away."""

    array: Any

    def __getitem__(self, index: slice) -> _FarArray:
        return _FarArray(self.array[index])

    def read(self) -> _FarRead:
        return _FarRead(self.array.read())


class FarStore(TokenStore):
    """A token store whose every read takes 50 ms longer than it does."""

    def _open(self, part: int, name: str) -> Any:
        return _FarArray(super()._open(part, name))


def loads(store: TokenStore, shape: Shape, batches: int, workers: int = 2) -> Callable[[], Figures]:
    """Load batches, from the loader's first read to the last token."""
    from marin_pipeline.data.loader import Loader
    from marin_pipeline.data.mixture import Mixture, Phase, Source
    from marin_pipeline.data.order import TrainingOrder
    from marin_pipeline.data.sequences import Sequences
    from marin_pipeline.data.stream import Stream

    source = Sequences(store, shape.sequence_length)
    mixture = Mixture(tuple(map(Source, WEIGHTS)), (Phase(0, WEIGHTS),))
    stream = Stream(mixture, shape.sequence_length)
    order = TrainingOrder(stream, dict.fromkeys(WEIGHTS, len(source)), shape.rows, seed=0)
    rows = np.arange(shape.rows)
    store.read(0, 1)

    def load() -> Figures:
        tokens = total = 0
        with Loader(order, [source] * 3, rows=rows, start=0, stop=batches, workers=workers) as loader:
            for loaded in loader:
                tokens += loaded.rows.inputs.size
                total += int(loaded.rows.inputs[:, 7].sum())
        return {"tokens": tokens, "total": total, "waited": round(loader.waited, 3)}

    return load


def quickstart_rate(folder: Path) -> float:
    """Tokens a second that the quick start trains on: the median of what a short run of it says twice a second."""
    texts = folder / "texts"
    texts.mkdir()
    for number, path in enumerate(sorted((HERE.parents[1] / "marin_pipeline").rglob("*.py"))):
        (texts / f"{number}.txt").write_bytes(path.read_bytes())
    command = [sys.executable, str(QUICKSTART), "--documents", str(texts), "--held-out", "0.2", "--json"]
    done = subprocess.run(
        [*command, f"train.steps={QUICKSTART_STEPS}"],
        env={**os.environ, "MARIN_PREFIX": str(folder / "store"), "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    rates = [
        event["figures"]["tokens_per_second"]
        for event in events
        if event["event"] == "progress" and event["name"] == "train" and "tokens_per_second" in event["figures"]
    ]
    # The first is that of the compiler.
    if len(rates) < 3:
        raise SystemExit(f"the quick start ended with {done.returncode} and no rate:\n{done.stdout[-2000:]}")
    return statistics.median(rates[1:])


LEVANTER = """
import sys
import asyncio, json, time
import numpy as np
from levanter.store.cache import CacheLedger, SerialCacheWriter, TreeCache
from levanter.store.jagged_array import PreparedBatch

folder, starts, plain = sys.argv[1], np.load(sys.argv[2]), sys.argv[5]
length, at_once = int(sys.argv[3]), int(sys.argv[4])
exemplar = {"input_ids": np.zeros(0, np.int32)}
if plain:
    tokens = np.memmap(plain, "<u2", "r")
    piece = 2**24
    with SerialCacheWriter(folder, exemplar) as writer:
        for first in range(0, len(tokens), piece):
            ids = tokens[first : first + piece].astype(np.int32)
            ends = np.arange(1024, len(ids) + 1, 1024)
            writer._tree_store.extend_with_batch({"input_ids": PreparedBatch(ids, ends, None)})
    raise SystemExit
cache = TreeCache.load(folder, exemplar)

async def read():
    total = 0
    for place in range(0, len(starts), at_once):
        found = await cache.get_flat_field_batch("input_ids", starts[place : place + at_once], length)
        total += sum(int(tokens[7]) for tokens in found)
    return total

asyncio.run(cache.get_flat_field_batch("input_ids", [0], 1))
before, cpu = time.monotonic(), time.process_time()
total = asyncio.run(read())
seconds, cpu = time.monotonic() - before, time.process_time() - cpu
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"reads": len(starts), "total": total, "seconds": seconds, "cpu_seconds": cpu,
                  "rss_mib": int(peak.split()[1]) / 1024}))
"""
"""Writes a cache of the tokens of a `.bin`, or reads one that was written, as Levanter's datasets read theirs."""


def levanter(python: str, folder: Path, starts: np.ndarray, length: int, at_once: int, plain: str = "") -> Figures:
    """A read of Levanter's cache in the interpreter that has it; with `plain`, it is written instead."""
    np.save(folder.parent / "starts.npy", starts)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", LEVANTER, *map(str, (folder, folder.parent / "starts.npy", length, at_once)), plain],
        env={**variables, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{python}: levanter's cache ended with:\n{done.stderr[-2000:]}")
    return {} if plain else json.loads(done.stdout.splitlines()[-1])
