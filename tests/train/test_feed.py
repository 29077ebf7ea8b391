"""Rows become global arrays, the same for every mesh and number of processes; each process reads its own rows only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.loader import Loader
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.sequences import Rows, Sequences
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.train.feed import Layout, placed
from tests.conftest import ROOT
from tests.data.token_stores import opened, write_store

BATCH, LENGTH, STEPS = 16, 8, 3

MESHES: dict[str, tuple[tuple[int, int, int], str, str | None]] = {
    "replicas": ((8, 1, 1), "in order", None),
    "data": ((1, 8, 1), "in order", None),
    "model": ((1, 1, 8), "in order", None),
    "all three": ((2, 2, 2), "in order", None),
    "sequences split, too": ((2, 2, 2), "in order", "model"),
    "devices dealt in turns": ((2, 4, 1), "dealt", None),
    "a row on both processes": ((1, 4, 2), "dealt", None),
}
"""Shape of replica, data and model; how devices are arranged; what splits the sequences."""

PROGRAM = """
import json, sys
import jax, numpy as np
folder, processes, number, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if processes > 1:
    jax.distributed.initialize(f"localhost:{port}", processes, number)
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.train.test_feed import BATCH, MESHES, STEPS, loaded_arrays

found = {}
for name, (shape, dealt, sequence) in MESHES.items():
    devices = np.asarray(jax.devices())
    if dealt == "dealt":
        devices = devices.reshape(2, 4).T
    mesh = Mesh(devices.reshape(shape), ("replica", "data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec(("replica", "data"), sequence))
    needed, read, arrays = loaded_arrays(folder, sharding)
    assert all(array.sharding == sharding for step in arrays for array in step)
    gathered = [[process_allgather(array, tiled=True).tolist() for array in step] for step in arrays]
    found[name] = {"needed": needed.tolist(), "read": read, "arrays": gathered}
print(json.dumps(found))
"""


class _Counted(Sequences):
    """Counts the rows that are read."""

    rows = 0

    def read(self, ids: np.ndarray) -> Rows:
        self.rows += len(ids)
        return super().read(ids)


def order_and_source(folder: str) -> tuple[TrainingOrder, _Counted]:
    source = _Counted(TokenStore(opened(Path(folder))), LENGTH, separate=True)
    mixture = Mixture((Source("text"),), (Phase(0, {"text": 1}),))
    return TrainingOrder(Stream(mixture, LENGTH), {"text": len(source)}, BATCH, seed=3), source


def loaded_arrays(folder: str, sharding: NamedSharding) -> tuple[np.ndarray, int, list[tuple[Any, ...]]]:
    """The rows that this process needs, how many it read, and the arrays of each step."""
    order, source = order_and_source(folder)
    layout = Layout(sharding, (BATCH,))
    needed = layout.needed
    with Loader(order, [source], rows=needed, start=0, stop=STEPS) as loader:
        arrays = [placed(loaded.rows, needed, layout) for loaded in loader]
    return needed, source.rows, arrays


def ran(folder: Path, processes: int) -> list[dict[str, Any]]:
    """What each of the processes found; together they have 8 devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    variables = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // processes}",
        "PYTHONPATH": str(ROOT),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(processes), str(number), port],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * processes
    return [json.loads(text.splitlines()[-1]) for text in printed]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokens")
    write_store(made, [[np.append(np.arange(first, first + 20), 0) for first in range(1, 1000, 20)]])
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[Any]]:
    """The arrays of each step, read without any device."""
    order, source = order_and_source(str(folder))
    steps = [source.read(order.batch(step).sequences) for step in range(STEPS)]
    return [[np.asarray(values).tolist() for values in (rows.inputs, rows.targets, rows.documents)] for rows in steps]


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Any]:
    return ran(folder, 1)[0]


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    return ran(folder, 2)


@pytest.mark.parametrize("mesh", MESHES)
def test_one_process_of_eight_devices_has_each_row_in_its_place(
    one: dict[str, Any], expected: list[list[Any]], mesh: str
):
    assert one[mesh]["needed"] == list(range(BATCH))
    assert one[mesh]["read"] == BATCH * STEPS
    assert one[mesh]["arrays"] == expected


@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_have_the_same_global_arrays(two: list[dict[str, Any]], expected: list[list[Any]], mesh: str):
    assert two[0][mesh]["arrays"] == expected
    assert two[1][mesh]["arrays"] == expected


@pytest.mark.parametrize("mesh", MESHES)
def test_each_process_reads_the_rows_of_its_devices_only(two: list[dict[str, Any]], mesh: str):
    needed = [process[mesh]["needed"] for process in two]
    assert [process[mesh]["read"] for process in two] == [len(rows) * STEPS for rows in needed]
    assert needed == {
        "model": [list(range(16))] * 2,
        "devices dealt in turns": [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]],
        "a row on both processes": [list(range(16))] * 2,
    }.get(mesh, [list(range(8)), list(range(8, 16))])


def _layout(rows: int) -> Layout:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    return Layout(sharding, (rows,))


def test_rows_without_documents_have_none():
    rows = Rows(np.arange(8, dtype=np.int32).reshape(2, 4), np.zeros((2, 4), np.int32))
    inputs, targets, documents = placed(rows, np.arange(2), _layout(2))
    assert documents is None
    assert (inputs.shape, inputs.dtype, targets.shape) == ((2, 4), np.int32, (2, 4))


@pytest.mark.parametrize(
    ("needed", "message"), [([0, 1], "rows 0 to 2, and not all were read"), ([0, 1, 2], "2 rows were given for 3")]
)
def test_a_row_that_is_not_there_is_missed(needed: list[int], message: str):
    rows = Rows(np.zeros((2, 4), np.int32), np.zeros((2, 4), np.int32))
    with pytest.raises(InputError, match=message):
        placed(rows, np.array(needed), _layout(3))
