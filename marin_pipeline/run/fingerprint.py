"""What may change bytes without changing a key: versions, instruction set, chip, flags. Recorded with each commit,
never in a key.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin_pipeline.core.secrets import redacted

LIBRARIES = (
    "datasets",
    "draccus",
    "equinox",
    "fsspec",
    "haliax",
    "jax",
    "jaxlib",
    "marin_pipeline",
    "numpy",
    "optax",
    "pyarrow",
    "tensorstore",
    "tokenizers",
    "xxhash",
    "zstandard",
)
"""Distributions whose versions may change the bytes that the steps write."""

_INSTRUCTION_SETS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2")


@functools.cache
def _machine() -> dict[str, Any]:
    versions: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    flags: set[str] = set()
    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            label, _, rest = line.partition(":")
            if label.strip() in ("flags", "Features") and not flags:
                flags = set(rest.split())
            if label.strip() == "model name":
                model = rest.strip()
    except OSError:
        pass
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "instructions": [name for name in _INSTRUCTION_SETS if name in flags],
        "processor": model,
        "versions": versions,
    }


def fingerprint(devices: bool = True) -> Mapping[str, Any]:
    """What this process computes with.

    Args:
        devices: name the devices of jax where this process has taken them. To ask jax itself would take them, and fail
            where there are none.
    """
    found = dict(_machine())
    found["processors"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = {name: os.environ[name] for name in ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS") if name in os.environ}
    found["flags"] = {name: redacted(value) for name, value in flags.items()}
    bridge = sys.modules.get("jax._src.xla_bridge")
    are_taken = getattr(bridge, "backends_are_initialized", None)
    if devices and bridge is not None and are_taken is not None and are_taken():
        found["devices"] = [f"{device.platform}:{device.device_kind}" for device in bridge.devices()]
    return found
