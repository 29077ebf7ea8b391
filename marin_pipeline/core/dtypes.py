"""The dtypes of numpy and jax by name. Asking loads neither: a dtype is only there when its library is."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def dtype_named(name: str) -> Any:
    """The dtype with this name."""
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        importlib.import_module("ml_dtypes")  # makes bfloat16 and the like known to numpy
        return numpy.dtype(name)


def dtype_name(value: Any) -> str | None:
    """The name of a numpy or jax dtype (`float32`, `bfloat16`) or of its scalar class, or None for anything else.

    None too for a dtype that its name does not give back: with fields, a length or a foreign byte order. Loads no
    numpy.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    found: Any = value
    if isinstance(value, type):
        # Other classes and objects have a `dtype` too, and say more than it does.
        is_of_jax = type(value).__module__.partition(".")[0] == "jax"
        is_of_numpy = issubclass(value, numpy.generic)
        found = _dtype(value) if is_of_numpy else getattr(value, "dtype", None) if is_of_jax else None
    if not isinstance(found, numpy.dtype):
        return None
    return str(found.name) if found.kind != "O" and _dtype(found.name) == found else None


def _dtype(what: Any) -> Any:
    """`numpy.dtype(what)`; None for an abstract class, or a name that numpy does not know."""
    try:
        return sys.modules["numpy"].dtype(what)
    except TypeError:
        return None
