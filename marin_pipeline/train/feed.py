"""From rows in host memory to arrays over all devices: each process reads and places the rows that its devices hold.

The array that comes out is the same however many processes take part and wherever its rows lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.sequences import Rows


@dataclass(frozen=True)
class Layout:
    """How the rows of a batch lie on the devices: an array `(*shape, sequence_length)` of rows in C order."""

    sharding: NamedSharding
    shape: tuple[int, ...]
    """Its product is the number of rows."""

    @property
    def batch_size(self) -> int:
        """Rows in all."""
        return math.prod(self.shape)

    @cached_property
    def needed(self) -> np.ndarray:
        """The rows that devices of this process hold: int64, ascending, each once."""
        spec = PartitionSpec(*self.sharding.spec[: len(self.shape)])
        held = np.zeros(self.shape, np.bool_)
        rows = NamedSharding(self.sharding.mesh, spec)
        for index in rows.addressable_devices_indices_map(self.shape).values():
            held[index] = True
        return np.flatnonzero(held).astype(np.int64)


def placed(rows: Rows, needed: np.ndarray, layout: Layout) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Inputs, targets and, where rows have them, documents: global int32 arrays `(*layout.shape, sequence_length)`.

    Every process calls this for the same step; each gives its own rows.

    Args:
        rows: the tokens of the rows of this process.
        needed: which rows of the batch these are, ascending; at least those that the layout needs.

    Raises:
        InputError: when there are not as many rows as positions, or a device needs a row that is not there.
    """
    if len(rows.inputs) != len(needed):
        raise InputError(f"{len(rows.inputs)} rows were given for {len(needed)} positions of the batch")
    numbers = np.arange(layout.batch_size).reshape(layout.shape)

    def array(values: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            wanted = numbers[index[:-1]]
            places = np.minimum(np.searchsorted(needed, wanted), len(needed) - 1)
            if not len(needed) or not np.array_equal(needed[places], wanted):
                raise InputError(
                    f"a device of this process holds rows {wanted.min()} to {wanted.max()}, and not all were read"
                )
            return values[places][..., index[-1]]

        return jax.make_array_from_callback((*layout.shape, values.shape[1]), layout.sharding, part, dtype=np.int32)

    documents = None if rows.documents is None else array(rows.documents)
    return array(rows.inputs), array(rows.targets), documents
