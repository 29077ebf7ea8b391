"""The parameters of the function that builds an experiment, as options of its command line.

Each is an option of its own, next to those of the run: no parameter has the name of one of these.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from marin_pipeline.core.errors import DeclarationError, UsageError
from marin_pipeline.core.marks import annotations_of

_PREFIX = "option "
"""Begins what a parameter is called among what was parsed, so that it is told from the options of the run."""


def add_parameters(parser: argparse.ArgumentParser, builder: Callable[..., Any]) -> None:
    """An option for each parameter; the options of the run are there already.

    Raises:
        UsageError: for a parameter with the name of one of them.
    """
    group = parser.add_argument_group("options of this experiment")
    for parameter in inspect.signature(builder).parameters.values():
        required = parameter.default is parameter.empty
        try:
            group.add_argument(
                _flag(parameter.name),
                dest=f"{_PREFIX}{parameter.name}",
                metavar="VALUE",
                required=required,
                help="required" if required else f"default: {parameter.default}",
            )
        except argparse.ArgumentError:  # the only reason that there is for a flag that is one string
            raise UsageError(
                f"parameter {parameter.name!r} of {_told(builder)} is the name of an option of the command line; "
                "rename it"
            ) from None


def texts_given(parsed: argparse.Namespace) -> dict[str, str]:
    """The options that were given, by parameter."""
    given = {name: text for name, text in vars(parsed).items() if name.startswith(_PREFIX) and text is not None}
    return {name.removeprefix(_PREFIX): text for name, text in given.items()}


def arguments(builder: Callable[..., Any], parsed: argparse.Namespace) -> dict[str, Any]:
    """The options that were given as arguments of the builder.

    Raises:
        UsageError: for a text that cannot be what its parameter is annotated with.
    """
    texts = texts_given(parsed)
    if not texts:
        return {}
    from marin_pipeline.run.overrides import read

    annotations = annotations_of(builder)
    found: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            found[name] = read(text, annotations.get(name, str), _flag(name))
        except DeclarationError as error:
            raise UsageError(str(error)) from error
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _told(builder: Callable[..., Any]) -> str:
    """What a builder is called, and where it is where that is known."""
    name = getattr(builder, "__name__", None) or repr(builder)
    code = getattr(inspect.unwrap(builder), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name
