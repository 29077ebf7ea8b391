"""One process of a run whose state should not depend on the machines: prints the digest of the state after each step.

Run as a program, with a JSON object of a `Cell` and the number of the process; see `test_invariant.py`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STEPS = 2
BATCH = 16


@dataclass(frozen=True)
class Cell:
    """On what a run is made."""

    devices: int = 1
    replicas: int = 1
    """Of the devices, as copies of all parameters; the rest share them (fully sharded)."""
    processes: int = 1
    compute: str = "float32"
    optimizer: str = "muon"
    numerics: str = "invariant"
    without: tuple[str, ...] = field(default=())
    """What is left out to show that it is needed: `passes`, `pool`, `loops`, `sums`."""
    packed: bool = False
    start: str = ""
    """Folder of a checkpoint to go on from."""
    save: str = ""
    """Folder of the checkpoint after the last step."""
    length: int = 128
    """Tokens a sequence."""
    width: int = 128
    steps: int = STEPS
    port: int = 0

    def environment(self) -> dict[str, str]:
        """Of a process of this cell: no more devices than it needs."""
        local = self.devices // self.processes
        return {
            **{name: value for name, value in os.environ.items() if name != "NPROC"},
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={local}",
        }

    def arguments(self) -> str:
        return json.dumps(asdict(self))


def control(without: tuple[str, ...]) -> None:
    """Leave out a remedy."""
    import jax

    from marin_pipeline.train import host_threads, invariant

    if "passes" in without:
        invariant.PASSES = "builtin.module(inline)"
    if "sums" in without:
        invariant.OPTIONS.clear()
    if "pool" in without:
        host_threads.THREADS = 2
    if "loops" in without:

        def known(body: Any, shards: Any, trips: Any) -> Any:
            count = jax.tree.leaves(shards)[0].shape[0]
            values = [body(jax.tree.map(lambda x, at=at: x[at], shards)) for at in range(count)]
            while len(values) > 1:
                values = [
                    jax.tree.map(lambda a, b: a + b, *pair) for pair in zip(values[::2], values[1::2], strict=True)
                ]
            return values[0]

        invariant.sum_of_shards = known


def main() -> None:
    given = json.loads(sys.argv[1])
    cell, number = Cell(**{**given, "without": tuple(given["without"])}), int(sys.argv[2])
    import jax
    import numpy as np

    if cell.processes > 1:
        from marin_pipeline.train import host_threads

        host_threads.pin()
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{cell.port}", cell.processes, number)
    from marin_pipeline.data.sequences import NO_TARGET, Rows
    from marin_pipeline.models.config import LlamaConfig
    from marin_pipeline.train import checkpoint
    from marin_pipeline.train.feed import placed
    from marin_pipeline.train.mesh import MeshShape
    from marin_pipeline.train.programs import program_for
    from marin_pipeline.train.recipe import lower

    control(cell.without)
    model = LlamaConfig(
        vocabulary=512, width=cell.width, layers=2, heads=4, key_value_heads=2, feed_forward=2 * cell.width
    )
    recipe = lower(
        tokens="test", packing="test" if cell.packed else None, model=model, steps=8, learning_rate=1e-2,
        muon_learning_rate=0.02, optimizer=cell.optimizer,  # pyright: ignore[reportArgumentType]
        schedule="cosine", warmup=2, final_fraction=0.1,
        weight_decay=0.1, clip=1.0, batch_size=BATCH, sequence_length=cell.length, seed=0, data_seed=0,
        numerics=cell.numerics, compute=cell.compute,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    program = program_for(recipe, MeshShape(cell.replicas, cell.devices // cell.replicas))
    first, state = 0, program.initial()
    if cell.start:
        loaded = checkpoint.load(Path(cell.start))
        first, state = loaded.step, program.place(checkpoint.named(loaded.arrays))
    digests, losses = [], []
    for step in range(first, cell.steps):
        random = np.random.default_rng(step)
        tokens = (random.zipf(1.3, (BATCH, cell.length + 1)) % model.vocabulary).astype(np.int32)
        targets, documents = tokens[:, 1:].copy(), None
        if cell.packed:
            documents = np.cumsum(random.random((BATCH, cell.length)) < 0.02, axis=1).astype(np.int32)
            targets[:, -random.integers(1, 40) :] = NO_TARGET
        rows = Rows(tokens[:, :-1], targets, documents)
        needed = program.layout.needed
        mine = Rows(rows.inputs[needed], rows.targets[needed], None if documents is None else documents[needed])
        state, measured = program.update(state, placed(mine, needed, program.layout), step)
        arrays = checkpoint.take(state)
        digests.append(checkpoint.state_digest(checkpoint.describe(arrays))[:16])
        losses.append(np.asarray(measured).tolist())
    if cell.save and number == 0:
        checkpoint.save(Path(cell.save), checkpoint.Snapshot(cell.steps, checkpoint.take(state), b"", {}))
    if number == 0:
        print(json.dumps({"digests": digests, "losses": losses, "devices": jax.device_count()}))


if __name__ == "__main__":
    main()
