"""A checkpoint on disk: one zarr3 array a name, and a description with the digest of each.

Equal states give equal files, whoever wrote them and on whatever mesh. It names arrays and axes, no class of a library,
and holds all that the run needs to go on: arrays, step, metrics so far, data position, configuration and seeds. Every
read is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_pipeline.core.errors import CorruptOutput

if TYPE_CHECKING:
    import numpy as np
    from haliax import NamedArray

FORMAT = 1
DESCRIPTION = "checkpoint.json"
METRICS = "metrics.jsonl"
CHUNK_BYTES = 64 << 20
"""Bound on a chunk, so that large arrays are written and read in parallel."""


@dataclass(frozen=True)
class HostArray:
    """An array in host memory, in C order, with the names and sizes of its axes."""

    axes: tuple[tuple[str, int], ...]
    values: np.ndarray

    def digest(self) -> str:
        """sha256 of the little-endian bytes."""
        little = self.values.astype(self.values.dtype.newbyteorder("<"), copy=False)
        return hashlib.sha256(little.reshape(-1).view("uint8").data).hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """A state in host memory, with all that belongs to it."""

    step: int
    """Updates made."""
    arrays: Mapping[str, HostArray]
    metrics: bytes
    """The lines of the metrics file so far."""
    described: Mapping[str, Any]
    """What made the state, as JSON values: recipe up to `step`, seeds, data position."""
    kept: bytes = b""
    """Rows that were read, for the gap alarm. No part of the state: temporary checkpoints have it beside theirs."""


def take(arrays: Mapping[str, NamedArray]) -> dict[str, HostArray]:
    """Copies of device arrays in host memory; the devices' buffers may be used up afterwards.

    Where several processes hold parts, each gets all: every process calls this for the same arrays.
    """
    import numpy as np

    def whole(array: Any) -> np.ndarray:
        if array.is_fully_addressable:
            return np.array(array)
        from jax.experimental.multihost_utils import process_allgather

        return np.asarray(process_allgather(array, tiled=True))

    return {
        name: HostArray(tuple((axis.name, axis.size) for axis in array.axes), whole(array.array))
        for name, array in arrays.items()
    }


def named(arrays: Mapping[str, HostArray]) -> dict[str, NamedArray]:
    """Host arrays as named arrays, for a program to place on its mesh."""
    import haliax as hax

    return {
        name: hax.named(array.values, tuple(hax.Axis(axis, size) for axis, size in array.axes))
        for name, array in arrays.items()
    }


def state_digest(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    """sha256 over name, axes, dtype and digest of the bytes of each array, in order of names.

    Args:
        arrays: the entry `arrays` of a description, as `describe` makes it.
    """
    return hashlib.sha256(_json({name: dict(entry) for name, entry in arrays.items()})).hexdigest()


def describe(arrays: Mapping[str, HostArray]) -> dict[str, dict[str, Any]]:
    """For each array its axes, dtype and the sha256 of its bytes."""
    return {
        name: {
            "axes": [list(axis) for axis in array.axes],
            "dtype": array.values.dtype.name,
            "sha256": array.digest(),
        }
        for name, array in sorted(arrays.items())
    }


def save(folder: Path, snapshot: Snapshot) -> str:
    """Write a checkpoint into a folder that is empty or not there.

    Returns:
        The state digest.
    """
    import tensorstore

    folder.mkdir(parents=True, exist_ok=True)
    arrays = describe(snapshot.arrays)
    digest = state_digest(arrays)
    writes = []
    for name, array in snapshot.arrays.items():
        store = tensorstore.open(_spec(folder, name, array), create=True).result()
        writes.append(store.write(array.values))
    for write in writes:
        write.result()
    (folder / METRICS).write_bytes(snapshot.metrics)
    description = {
        "format": FORMAT,
        "step": snapshot.step,
        "state_digest": digest,
        "metrics_sha256": hashlib.sha256(snapshot.metrics).hexdigest(),
        "arrays": arrays,
        "described": dict(snapshot.described),
    }
    # Last, so that a folder without it was never finished.
    (folder / DESCRIPTION).write_bytes(_json({**description, "sha256": _own_digest(description)}, indent=1))
    return digest


def load(folder: Path, prefix: str = "") -> Snapshot:
    """Read a checkpoint and check every byte that is read.

    Args:
        folder: what `save` wrote.
        prefix: only arrays whose names start with it.

    Raises:
        CorruptOutput: naming the array or file that is missing or whose bytes are not those that were saved.
    """
    import tensorstore

    description = _description(folder)
    entries: dict[str, dict[str, Any]] = description["arrays"]
    reads: dict[str, Any] = {}
    for name in entries:
        if not name.startswith(prefix):
            continue
        try:
            store = tensorstore.open({"driver": "zarr3", "kvstore": _kvstore(folder, name)}, open=True).result()
            reads[name] = store.read(order="C")
        except Exception as error:  # TensorStore raises ValueError, KeyError and others for what it cannot open
            raise _unreadable(folder, name, error) from error
    arrays: dict[str, HostArray] = {}
    for name, read in reads.items():
        try:
            values = read.result()
        except Exception as error:
            raise _unreadable(folder, name, error) from error
        axes = tuple((axis, size) for axis, size in entries[name]["axes"])
        array = HostArray(axes, values)
        expected = [size for _, size in axes]
        if values.dtype.name != entries[name]["dtype"] or list(values.shape) != expected:
            raise _changed(folder, name)
        # TensorStore reads an absent chunk as zeros: only the digest tells.
        if array.digest() != entries[name]["sha256"]:
            raise _changed(folder, name)
        arrays[name] = array
    metrics = _metrics(folder, description["metrics_sha256"])
    return Snapshot(description["step"], arrays, metrics, description["described"])


def _description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_bytes())
        version = description["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptOutput(f"{path}: cannot be read ({error}); use another checkpoint") from error
    if version != FORMAT:
        raise CorruptOutput(f"{path}: format {version} is not known to this version, which reads {FORMAT}")
    if description.pop("sha256", None) != _own_digest(description):
        raise CorruptOutput(f"{path}: its content is not what was saved; use another checkpoint")
    return description


def _own_digest(description: Mapping[str, Any]) -> str:
    """What a description says of itself, so that a change of any part of it is seen."""
    return hashlib.sha256(_json(description)).hexdigest()


def _metrics(folder: Path, digest: str) -> bytes:
    path = folder / METRICS
    try:
        metrics = path.read_bytes()
    except OSError as error:
        raise CorruptOutput(f"{path}: cannot be read ({error}); use another checkpoint") from error
    if hashlib.sha256(metrics).hexdigest() != digest:
        raise CorruptOutput(f"{path}: its bytes are not those that were saved; use another checkpoint")
    return metrics


def _unreadable(folder: Path, name: str, error: Exception) -> CorruptOutput:
    reason = str(error).split("[source locations=")[0].strip()
    return CorruptOutput(f"{folder}: array {name!r} cannot be read ({reason}); use another checkpoint")


def _changed(folder: Path, name: str) -> CorruptOutput:
    return CorruptOutput(f"{folder}: array {name!r} is not the one that was saved; use another checkpoint")


def _kvstore(folder: Path, name: str) -> dict[str, str]:
    return {"driver": "file", "path": str(folder.absolute() / "arrays" / name)}


def _spec(folder: Path, name: str, array: HostArray) -> dict[str, Any]:
    chunk: list[int] = []
    held = array.values.dtype.itemsize
    for size in reversed(array.values.shape):
        kept = max(1, min(size, CHUNK_BYTES // held))
        chunk.insert(0, kept)
        held *= kept
    return {
        "driver": "zarr3",
        "kvstore": _kvstore(folder, name),
        "metadata": {
            "shape": list(array.values.shape),
            "data_type": array.values.dtype.name,
            "dimension_names": [axis for axis, _ in array.axes],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        },
    }


def _json(value: Any, indent: int | None = None) -> bytes:
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, indent=indent, separators=separators, allow_nan=False).encode() + b"\n"
