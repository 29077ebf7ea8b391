"""One, two and four devices: the same run within tolerance, split as the mesh says, resumed across meshes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = """
import json, sys
from pathlib import Path
import jax, numpy as np
from marin_pipeline.data.sequences import Rows
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train import checkpoint
from marin_pipeline.train.feed import placed
from marin_pipeline.train.mesh import MeshShape, build
from marin_pipeline.train.program import Program
from marin_pipeline.train.recipe import lower

folder, shape, start = Path(sys.argv[1]), MeshShape(*json.loads(sys.argv[2])), sys.argv[3:]
model = LlamaConfig(vocabulary=64, width=16, layers=1, heads=4, key_value_heads=2, feed_forward=32)
recipe = lower(
    tokens="test", model=model, steps=8, learning_rate=1e-2, muon_learning_rate=0.02, optimizer="muon",
    schedule="cosine", warmup=2, final_fraction=0.1, weight_decay=0.1, clip=1.0, batch_size=4, sequence_length=16,
    seed=0, data_seed=0, numerics="fast",
)
program = Program(recipe, build(shape, 4))
random = np.random.default_rng(0)
batches = random.integers(0, 64, (6, 4, 17)).astype(np.int32)
first, state = 0, program.initial()
if start:
    loaded = checkpoint.load(Path(start[0]))
    first, state = loaded.step, program.place(checkpoint.named(loaded.arrays))
losses = []
for step in range(first, 6):
    rows = Rows(batches[step][:, :-1], batches[step][:, 1:])
    arrays = placed(rows, np.arange(4), program.layout)
    state, measured = program.update(state, arrays, step)
    losses.append(measured.tolist())
    snapshot = checkpoint.Snapshot(step + 1, checkpoint.take(state), b"", {})
    checkpoint.save(folder / str(step + 1), snapshot)
query = state["parameters/blocks.attention.query"].array
print(json.dumps({
    "losses": losses, "devices": jax.device_count(),
    "part": list(query.sharding.shard_shape(query.shape)),
}))
"""


def run(folder: Path, devices: int, shape: list[int], start: Path | None = None) -> dict[str, Any]:
    """Six updates, or those that are left after `start`; every state is saved in `folder`, under its step."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(shape), *([str(start)] if start else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {"folder": folder, **json.loads(done.stdout)}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("one"), 1, [1, 1, 1])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("two"), 2, [1, 2, 1])


def test_two_devices_split_the_state_and_agree(one: dict[str, Any], two: dict[str, Any]):
    assert (one["devices"], two["devices"]) == (1, 2)
    assert (one["part"], two["part"]) == ([1, 2, 2, 4, 16], [1, 2, 2, 4, 8])
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=2e-3)


def test_four_devices_split_the_state_and_agree(one: dict[str, Any], tmp_path: Path):
    four = run(tmp_path, 4, [1, 4, 1])
    assert four["part"] == [1, 2, 2, 4, 4]
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=2e-3)


def test_a_checkpoint_of_one_mesh_goes_on_on_another(one: dict[str, Any], two: dict[str, Any], tmp_path: Path):
    """From two devices to four, as replicas of a model in two parts."""
    rest = run(tmp_path, 4, [2, 1, 2], start=two["folder"] / "3")
    assert rest["part"] == [1, 1, 2, 4, 16]
    np.testing.assert_allclose(rest["losses"], one["losses"][3:], rtol=2e-3)


def test_on_one_mesh_another_process_makes_equal_files(
    one: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that compiles anew, too."""
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    run(tmp_path, 1, [1, 1, 1])
    files = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert Path("6/checkpoint.json") in files
    for file in files:
        assert (tmp_path / file).read_bytes() == (one["folder"] / file).read_bytes(), file
