"""The pool of threads that the host computes with, pinned before jax starts.

How a matrix product is split among threads decides the order of its sums, and by default there are as many threads as
cores or devices, whichever is more. With a fixed number the bits do not depend on either.
"""

from __future__ import annotations

import os
import sys

from marin_pipeline.core.errors import InputError

VARIABLE = "NPROC"
"""Read by XLA when it makes its pool; recorded in the fingerprint of every output."""

THREADS = 16
"""More than one process has devices of a CPU here. More threads than cores cost little: they take turns."""


def pin() -> None:
    """Fix the size of the pool of this process.

    Raises:
        InputError: when it is too late, or somebody has fixed another size.
    """
    found = os.environ.get(VARIABLE)
    if found == str(THREADS):
        return
    if found is not None:
        raise InputError(
            f"the environment has {VARIABLE}={found}, and numerics='invariant' computes with {THREADS} threads "
            f"everywhere: unset it, or set it to {THREADS}"
        )
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        raise InputError(
            f"jax has started in this process with as many threads as there are cores, and numerics='invariant' needs "
            f"{THREADS}: set {VARIABLE}={THREADS} before Python starts, or run with --backend local"
        )
    os.environ[VARIABLE] = str(THREADS)
