"""Secrets: named where a step is declared, read where it runs, and written nowhere.

A process knows the secrets that it has declared or was given to run with. Whatever text leaves it passes `redacted`;
whatever a step that was given secrets makes is looked through before it is kept (`guarding`, `store/guard.py`).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from marin_pipeline.core.canonical import Reference, Tree, is_mapping, is_sequence
from marin_pipeline.core.errors import DeclarationError, InputError

if TYPE_CHECKING:
    from marin_pipeline.core.redaction import Redactor

T = TypeVar("T")

SHORTEST = 8
"""Characters of a value, at least: a shorter one stands in ordinary text by chance."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TOKEN = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9]).{20,}")
"""Names of variables are not so: a token that was given for one, such as those of Hugging Face or GitHub, is."""


def is_variable(name: object) -> bool:
    """Whether something can be the name of a secret's variable."""
    return isinstance(name, str) and _VARIABLE.fullmatch(name) is not None and not _TOKEN.fullmatch(name)


class Secret(Reference):
    """A value that only the environment knows. Its name is in the key; its value is never written.

    Raises:
        DeclarationError: for what cannot be a variable's name, such as a token itself; the message does not show it.
    """

    holds_content: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        if not is_variable(name):
            raise DeclarationError(
                'Secret(...) takes the name of an environment variable, as in Secret("HF_TOKEN"), and what was given '
                "cannot be one; export the value under a name"
            )
        self.name = name
        """Name of the environment variable."""
        _known.setdefault(name, set())

    @property
    def value(self) -> str:
        """The value, read from the environment of the running step.

        Raises:
            InputError: when the variable is not set, or is too short to be told from ordinary text.
        """
        self.refuse_short()
        found = os.environ.get(self.name)
        if not found:
            raise InputError(f"the secret {self.name} is not set; export {self.name}=... where the step runs")
        _look(self.name)
        return found

    def refuse_short(self) -> None:
        """Check that the value, when it is set, is long enough to be found in what a step writes.

        Raises:
            InputError: when it is not.
        """
        found = os.environ.get(self.name)
        if found and len(found.strip()) < SHORTEST:
            raise InputError(
                f"the secret {self.name} has a value of fewer than {SHORTEST} characters, which could not be told from "
                "ordinary text in logs and outputs; set a longer one, or pass it as a plain argument if it is no secret"
            )

    def canonical(self, path: str) -> Tree:
        return {"~secret": self.name}

    def __repr__(self) -> str:
        return f"<secret {self.name}>"


# What this process knows ----------------------------------------------------------------------------------------------

_known: dict[str, set[str]] = {}
"""Every value that a secret was seen to have here, by name: a step may change its environment."""
_redactors: dict[frozenset[tuple[str, str]], Redactor] = {}
"""By the names and values that they know: threads ask for them."""
_lock = threading.RLock()
"""Held while a value is added; a signal's handler may find its own thread in it."""


def know(*names: str) -> None:
    """Take variables of the environment for secrets that nobody declared, such as the credentials of a store."""
    for name in names:
        _known.setdefault(name, set())


def _look(name: str) -> None:
    value = os.environ.get(name, "").strip()
    if len(value) >= SHORTEST and value not in _known[name]:
        with _lock:
            _known[name] = _known[name] | {value}


def redactor(names: Iterable[str] | None = None) -> Redactor | None:
    """Finds the values of the secrets with these names (or of all that this process knows); None when none is set."""
    wanted = frozenset(_known if names is None else names)
    for name in wanted:
        _known.setdefault(name, set())
        _look(name)
    values = {name: _known[name] for name in wanted if _known[name]}
    if not values:
        return None
    pairs = frozenset((name, value) for name, each in values.items() for value in each)
    found = _redactors.get(pairs)
    if found is None:
        from marin_pipeline.core.redaction import Redactor  # most runs have no secrets

        found = _redactors[pairs] = Redactor(values)
    return found


@overload
def redacted(text: str) -> str: ...
@overload
def redacted(text: bytes) -> bytes: ...
def redacted(text: str | bytes) -> str | bytes:
    """A text that leaves this process, with `<secret NAME>` for the value of each secret that is known here."""
    found = redactor() if _known else None
    if found is None:
        return text
    if isinstance(text, bytes):
        return found.redacted(text)
    return found.redacted(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def redacted_tree(tree: T) -> T:
    """A JSON value with every text in it redacted, keys as well."""
    return tree if not _known or redactor() is None else _redacted_tree(tree)


def _redacted_tree(tree: Any) -> Any:
    if isinstance(tree, str):
        return redacted(tree)
    if is_mapping(tree):
        return {redacted(name) if isinstance(name, str) else name: _redacted_tree(each) for name, each in tree.items()}
    if is_sequence(tree):
        return [_redacted_tree(each) for each in tree]
    return tree


# What a task was given ------------------------------------------------------------------------------------------------


def secret_names(tree: Tree) -> tuple[str, ...]:
    """Names of the secrets in the tree of a call, sorted."""
    found: set[str] = set()
    todo = [tree]
    while todo:
        each = todo.pop()
        if is_mapping(each):
            if isinstance(each.get("~secret"), str):
                found.add(each["~secret"])
            todo.extend(each.values())
        elif is_sequence(each):
            todo.extend(each)
    return tuple(sorted(found))


_guarded: list[tuple[str, ...]] = []
"""Names of the secrets of the tasks that run in this process now."""


@contextmanager
def guarding(names: tuple[str, ...]) -> Generator[None]:
    """While a task runs that was given these secrets, what it writes is looked through for their values."""
    _guarded.append(names)
    try:
        yield
    finally:
        _guarded.remove(names)


def guard() -> Redactor | None:
    """Finds the secrets of the tasks that run in this process now; None when they have none."""
    names = {name for each in _guarded for name in each}
    return redactor(names) if names else None
