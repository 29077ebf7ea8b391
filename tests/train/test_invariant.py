"""One state, bit for bit, for any number of devices and processes; and what it would be without each remedy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin_pipeline.train.host_threads import THREADS, VARIABLE
from tests.conftest import ROOT
from tests.train.invariant_cells import digests
from tests.train.invariant_worker import STEPS, Cell

ELSEWHERE = {
    "eight devices, each with its part": Cell(devices=8),
    "two copies": Cell(devices=2, replicas=2),
    "two copies of two parts, in two processes": Cell(devices=4, replicas=2, processes=2),
    "eight copies": Cell(devices=8, replicas=8),
    "bfloat16, packed documents, four devices": Cell(devices=4, compute="bfloat16", packed=True),
    "bfloat16, packed documents, two copies": Cell(devices=2, replicas=2, compute="bfloat16", packed=True),
    "AdamW on two devices": Cell(devices=2, optimizer="adamw"),
    "AdamW in two processes": Cell(devices=8, processes=2, optimizer="adamw"),
}
"""Cells, each to be compared with one device."""

_ALONE: dict[tuple[str, str, bool], list[str]] = {}


def alone(cell: Cell) -> list[str]:
    """The digests of the same run on one device."""
    known = cell.compute, cell.optimizer, cell.packed
    if known not in _ALONE:
        _ALONE[known] = digests(Cell(compute=cell.compute, optimizer=cell.optimizer, packed=cell.packed))
    return _ALONE[known]


IN_MINUTES = {
    "two copies",
    "eight copies",
    "bfloat16, packed documents, two copies",
    "AdamW on two devices",
    "AdamW in two processes",
}
"""Cells of the slow tests: others show the same, and more."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in IN_MINUTES)) for name in ELSEWHERE]
)
def test_the_state_after_every_step_is_that_of_one_device(name: str) -> None:
    expected = alone(ELSEWHERE[name])
    assert len(set(expected)) == STEPS
    assert digests(ELSEWHERE[name]) == expected


def test_a_run_goes_on_elsewhere_with_the_bits_that_it_would_have_had(tmp_path: Path) -> None:
    digests(Cell(devices=4, replicas=2, steps=1, save=str(tmp_path / "one step")))
    assert digests(Cell(devices=8, start=str(tmp_path / "one step"))) == alone(Cell())[1:]


@pytest.mark.slow
def test_fast_numerics_give_other_bits_elsewhere() -> None:
    """The same comparison can fail."""
    one, two = (digests(Cell(devices=devices, numerics="fast", steps=1)) for devices in (1, 2))
    assert one != two


def test_sums_of_the_library_of_kernels_give_other_bits_elsewhere() -> None:
    one, two = (digests(Cell(devices=devices, steps=1, without=("sums",))) for devices in (1, 2))
    assert one != two


DIVISIONS = """
import hashlib, sys
import jax, numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from marin_pipeline.train import host_threads, invariant

remedy = sys.argv[1] == "with"
if not remedy:
    invariant.PASSES = "builtin.module(inline)"
mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
rows = PartitionSpec("data")

def divided(x, c, s):
    return x / s[:, None], c / s[:, None]

random = np.random.default_rng(0)
x, c, s = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 32), (64, 32), (64,)))
step = jax.jit(jax.shard_map(divided, mesh=mesh, in_specs=(rows, rows, rows), out_specs=rows))
found = invariant.compile_invariant(step.lower(x, c, s))(x, c, s)
print(hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in found)).hexdigest())
"""

PRODUCTS = """
import hashlib
import jax, numpy as np
random = np.random.default_rng(0)
a, b = (random.standard_normal((1024, 128)).astype(np.float32) for _ in range(2))
found = jax.jit(lambda a, b: jax.lax.dot_general(a, b, (((0,), (0,)), ((), ()))))(a, b)
print(hashlib.sha256(np.asarray(found).tobytes()).hexdigest())
"""


def printed(program: str, *arguments: str, devices: int = 1, threads: int = THREADS) -> str:
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": str(ROOT),
        VARIABLE: str(threads),
    }
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_division_is_one_for_any_number_of_partitions_after_the_passes_alone() -> None:
    assert printed(DIVISIONS, "with") == printed(DIVISIONS, "with", devices=2)
    assert printed(DIVISIONS, "without") != printed(DIVISIONS, "without", devices=2)


def test_a_matrix_product_has_other_bits_with_another_pool() -> None:
    """So the pool is pinned."""
    two, pinned = (printed(PRODUCTS, threads=threads) for threads in (2, THREADS))
    assert two != pinned
    assert pinned == printed(PRODUCTS, devices=THREADS)


EXPERIMENT = """
import numpy as np
from marin_pipeline import Context, Tokens, main, step
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger
from marin_pipeline.data.token_writer import write_token_part
from marin_pipeline.models.config import LlamaConfig
from steps.train import train

@step
def tokens(ctx: Context) -> Tokens:
    documents = [np.random.default_rng(0).zipf(1.5, 40_000) % 64]
    part = write_token_part(ctx.out / "part", documents, 64, 9)
    (ctx.out / LEDGER_FILE).write_text(Ledger((part,), "uint16", 64, 0, "0" * 64).to_json())
    return Tokens(LEDGER_FILE, part.tokens, 1, 9, 64, 0)

if __name__ == "__main__":
    model = LlamaConfig(vocabulary=64, width=32, layers=2, heads=2, feed_forward=64)
    main(train(tokens(), model=model, steps=60, sequence_length=64, numerics="invariant", checkpoint_every="3 steps"))
"""


def start(file: Path, prefix: Path, devices: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(file), "--prefix", str(prefix), "--json"]
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def trained(file: Path, prefix: Path, devices: int) -> str:
    """The output digest of the training step."""
    process = start(file, prefix, devices)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return next(each["digest"] for each in json.loads(out.splitlines()[-1])["steps"] if each["name"] == "train")


@pytest.mark.slow
def test_killed_and_gone_on_with_other_devices_the_output_is_equal(tmp_path: Path) -> None:
    file = tmp_path / "experiment.py"
    file.write_text(EXPERIMENT)
    process = start(file, tmp_path / "killed", 4)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "progress" and event.get("unit") == "steps" and event["done"] >= 4:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert trained(file, tmp_path / "killed", 2) == trained(file, tmp_path / "straight", 1)
