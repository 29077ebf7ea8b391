"""What a step says of itself by its arguments (`exact=`, `chain=`, `unpinned=`, `transfers=`, `ready=`): a function of
one mapping, from the name of each parameter to what it was given. What does not fit is told with the step's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from marin_pipeline.core.canonical import is_sequence
from marin_pipeline.core.errors import DeclarationError, MarinError

Hook = Callable[[Mapping[str, Any]], Any]

GIVES = {
    "exact": ("how exact it is", '"bitwise"'),
    "chain": ("a Chain", "Chain(...)"),
    "unpinned": ("a list of names (str)", '[arguments["url"]]'),
    "transfers": ("a list of numbers of bytes (int, or None where they are not known)", '[arguments["size"]]'),
    "ready": ("None, or raises an InputError", 'refuse_empty(arguments["tokens"].value)'),
}
"""What each returns, and how that is written."""


def checked_hook(where: str, name: str, hook: Hook | None) -> Hook | None:
    """`hook`, when it can be called with one mapping.

    Raises:
        DeclarationError: naming the step and what is expected.
    """
    if hook is None:
        return None
    try:
        inspect.signature(hook).bind({})
    except TypeError as error:
        raise _misfit(where, name, f"cannot be called so ({error})") from None
    except ValueError:  # a function in C, which does not tell
        pass
    return hook


def ask(where: str, name: str, hook: Hook, arguments: Mapping[str, Any]) -> Any:
    """What a hook says of these arguments.

    Raises:
        DeclarationError: naming the step, when the hook fails otherwise than by refusing the arguments.
    """
    try:
        return hook(arguments)
    except MarinError:
        raise
    except Exception as error:
        raise _misfit(where, name, f"raised {type(error).__name__}: {error}") from error


def ask_list(where: str, name: str, hook: Hook, arguments: Mapping[str, Any]) -> list[Any]:
    """The names that `unpinned=` gives, or the numbers of bytes that `transfers=` gives.

    Raises:
        DeclarationError: naming the step, and what was given instead of a list of these.
    """
    found = ask(where, name, hook, arguments)
    if not is_sequence(found):
        raise _misfit(where, name, f"returned a {type(found).__name__}")
    fits = _is_name if name == "unpinned" else _is_size
    for each in found:
        if not fits(each):
            raise _misfit(where, name, f"returned a list with a {type(each).__name__} in it, {str(each)[:60]!r}")
    return list(found)


def ask_ready(where: str, hook: Hook, arguments: Mapping[str, Any]) -> None:
    """Return when `ready=` finds nothing wrong with these arguments, whose artifacts have their values.

    Raises:
        MarinError: what it refused them with.
        DeclarationError: naming the step, when it failed otherwise, or returned what might be meant for a refusal.
    """
    found = ask(where, "ready", hook, arguments)
    if found is not None:
        raise _misfit(where, "ready", f"returned a {type(found).__name__}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _misfit(where: str, name: str, what: str) -> DeclarationError:
    gives, example = GIVES[name]
    return DeclarationError(
        f"{where}: {name}= {what}; it is a function of one argument, the step's arguments by name, that returns "
        f"{gives}, as in `{name}=lambda arguments: {example}`"
    )
