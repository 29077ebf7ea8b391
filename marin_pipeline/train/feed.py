"""From rows in host memory to arrays over all devices: each process reads and places the rows that its devices hold.

The array that comes out is the same however many processes take part and wherever its rows lie.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.sequences import Rows


def needed_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """The positions along the batch axis that devices of this process hold: int64, ascending, each once.

    Args:
        sharding: of an array `(batch_size, sequence_length)`.
    """
    rows = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    held = np.zeros(batch_size, np.bool_)
    for index in rows.addressable_devices_indices_map((batch_size,)).values():
        held[index] = True
    return np.flatnonzero(held).astype(np.int64)


def placed(
    rows: Rows, needed: np.ndarray, sharding: NamedSharding, batch_size: int
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Inputs, targets and, where rows have them, documents: global int32 arrays `(batch_size, sequence_length)`.

    Every process calls this for the same step; each gives its own rows.

    Args:
        rows: the tokens of the rows of this process.
        needed: their positions along the batch axis, ascending; at least those of `needed_rows`.

    Raises:
        InputError: when there are not as many rows as positions, or a device needs a row that is not there.
    """
    if len(rows.inputs) != len(needed):
        raise InputError(f"{len(rows.inputs)} rows were given for {len(needed)} positions of the batch")

    def array(values: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(batch_size)
            place = int(np.searchsorted(needed, first))
            found = needed[place : place + last - first]
            if not np.array_equal(found, np.arange(first, last)):
                raise InputError(f"a device of this process holds rows {first} to {last - 1}, and not all were read")
            return values[place : place + last - first, index[1]]

        shape = (batch_size, values.shape[1])
        return jax.make_array_from_callback(shape, sharding, part, dtype=np.int32)

    documents = None if rows.documents is None else array(rows.documents)
    return array(rows.inputs), array(rows.targets), documents
