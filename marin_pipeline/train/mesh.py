"""Where arrays lie: mesh axes `replica`, `data` and `model`, and the names of array axes that each one splits.

Placement is never in a key. Parameters and optimizer state are split over `data` along `embed` (fully sharded data
parallelism), batches over `replica` and `data`; a name whose size a mesh axis does not divide stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marin_pipeline.core.errors import InputError

if TYPE_CHECKING:
    from haliax import Axis
    from jax.sharding import Mesh, NamedSharding

COMPUTE: Mapping[str, tuple[str, ...]] = {
    "batch": ("replica", "data"),
    "key_value_heads": ("model",),
    "feed_forward": ("model",),
    "vocabulary": ("model",),
}
"""Names of activation axes to mesh axes."""

STORAGE: Mapping[str, tuple[str, ...]] = {**COMPUTE, "embed": ("data",)}
"""Names of parameter and optimizer axes to mesh axes."""


@dataclass(frozen=True)
class MeshShape:
    """How the devices of a run are arranged."""

    replica: int = 1
    """Copies of the parameters, as slices joined by a slower network."""
    data: int = 0
    """Parts of batch and parameters; 0 takes all devices that remain."""
    model: int = 1
    """Parts of heads, feed-forward and vocabulary."""


def build(shape: MeshShape, batch_size: int) -> Mesh:
    """The mesh over all devices.

    Raises:
        InputError: when the shape does not use every device, or does not divide the batch.
    """
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    devices = jax.devices()
    if min(shape.replica, shape.model) < 1 or shape.data < 0:
        raise InputError(f"mesh is {shape}: give sizes of at least 1, or data=0 for all devices that remain")
    data = shape.data or len(devices) // (shape.replica * shape.model)
    if shape.replica * data * shape.model != len(devices):
        raise InputError(f"mesh is {shape} but there are {len(devices)} devices: choose sizes with that product")
    if batch_size % (shape.replica * data):
        raise InputError(
            f"batch_size={batch_size} is not divided by the {shape.replica * data} devices that share a batch: "
            "choose a multiple, or a mesh with a larger model axis"
        )
    grid = np.asarray(devices).reshape(shape.replica, data, shape.model)
    return Mesh(grid, ("replica", "data", "model"), axis_types=(AxisType.Auto,) * 3)


def sharding(mesh: Mesh, axes: tuple[Axis, ...], mapping: Mapping[str, tuple[str, ...]]) -> NamedSharding:
    """Where an array with these axes lies under `mapping`."""
    import math

    from jax.sharding import NamedSharding, PartitionSpec

    def place(axis: Axis) -> tuple[str, ...] | None:
        names = mapping.get(axis.name)
        return names if names and axis.size % math.prod(mesh.shape[name] for name in names) == 0 else None

    return NamedSharding(mesh, PartitionSpec(*(place(axis) for axis in axes)))
