"""Arguments of another type than they should be, refused where they are given: later they would fail, or be rounded,
far from whoever gave them.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from marin_pipeline.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np


def check_whole(where: str, /, *, or_none: bool = False, **values: object) -> None:
    """Refuse what is no whole number; those of numpy are, and True is none.

    Args:
        where: what the values are of; it opens the error message.
        or_none: whether None stands for something.
        values: by the name of the field.

    Raises:
        InputError: naming the field.
    """
    for name, value in values.items():
        if type(value) is int or (or_none and value is None):
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            more = ", or None" if or_none else ""
            raise InputError(f"{where}: {name} is {_shown(value)}: give a whole number{more}")


def check_seeds(**values: int) -> None:
    """Refuse seeds outside of [0, 2**32): those of JAX are no larger, and beyond 64 bits different ones give one order.

    Args:
        values: whole numbers, by the name of the field.

    Raises:
        InputError: naming the field.
    """
    for name, value in values.items():
        if not 0 <= value < 2**32:
            raise InputError(f"{name} is {value}: give a number in [0, 2**32)")


def whole_numbers(what: str, given: object) -> np.ndarray:
    """A list of whole numbers as an array of int64, of shape `(n,)`; what would be rounded is refused.

    Args:
        what: the numbers' name in the plural; it opens the error message.

    Raises:
        InputError: for an array of another type, or of more dimensions.
    """
    import numpy as np

    found = np.asarray(given)
    if found.size and found.dtype.kind not in "iu":
        raise InputError(f"{what} must be whole numbers, and the array is of {found.dtype}")
    if found.ndim != 1:
        raise InputError(f"{what} must be a list, and the array has the shape {found.shape}")
    return found.astype(np.int64)


def check_kind(where: str, kind: type | tuple[type, ...], what: str, /, **values: object) -> None:
    """Refuse what is not of a kind.

    Args:
        where: as for `check_whole`.
        what: what to give instead, such as "a Mixture".
        values: by the name of the field.

    Raises:
        InputError: naming the field.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            raise InputError(f"{where}: {name} is {_shown(value)}: give {what}")


def _shown(value: object) -> str:
    text = repr(value)
    return "None" if value is None else f"{text if len(text) <= 60 else f'{text[:60]}…'} ({type(value).__name__})"
