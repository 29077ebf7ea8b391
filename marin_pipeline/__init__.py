"""The whole life of a language model as one graph of content-hashed steps.

The public names. They are loaded when first used: importing this package loads no jax, ray, pyarrow, fsspec or
datasets.
"""

from __future__ import annotations

import sys


def _interrupted() -> BaseException:
    """What Ctrl-C is while this is loaded: a program that has not begun yet ends without a word."""
    return KeyboardInterrupt() if hasattr(sys, "ps1") else SystemExit(130)


try:
    import importlib
    from typing import TYPE_CHECKING, Annotated, Any, TypeVar

    from marin_pipeline.core.marks import RuntimeMark, absent_when
except KeyboardInterrupt:
    raise _interrupted() from None

if TYPE_CHECKING:
    from marin_pipeline.cli import main
    from marin_pipeline.core.adopted import adopted
    from marin_pipeline.core.artifact import Artifact, File, LocalFile
    from marin_pipeline.core.context import Context, ShardContext, ShardResult
    from marin_pipeline.core.experiment import Experiment
    from marin_pipeline.core.grid import Grid, fixed, grid
    from marin_pipeline.core.key import Chain
    from marin_pipeline.core.resources import Resources
    from marin_pipeline.core.secrets import Secret
    from marin_pipeline.core.step import Step, step
    from marin_pipeline.data.schema import Documents, Tokenizer, Tokens
    from marin_pipeline.evaluate.scores import Scores
    from marin_pipeline.run.context import local_artifact, test_context
    from marin_pipeline.run.driver import RunResult, load, run
    from marin_pipeline.train.state import TrainState

_T = TypeVar("_T")

Runtime = Annotated[_T, RuntimeMark()]
"""`Runtime[int]` marks a parameter or a field that says where or how fast, never what: it is not in the key."""

_HOMES = {
    "core.adopted": ("adopted",),
    "core.artifact": ("Artifact", "File", "LocalFile"),
    "core.context": ("Context", "ShardContext", "ShardResult"),
    "core.experiment": ("Experiment",),
    "core.grid": ("Grid", "fixed", "grid"),
    "core.key": ("Chain",),
    "core.resources": ("Resources",),
    "core.secrets": ("Secret",),
    "core.step": ("Step", "step"),
    "data.schema": ("Documents", "Tokenizer", "Tokens"),
    "train.state": ("TrainState",),
    "evaluate.scores": ("Scores",),
    "run.driver": ("RunResult", "load", "run"),
    "run.context": ("local_artifact", "test_context"),
    "cli": ("main",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Artifact",
    "Chain",
    "Context",
    "Documents",
    "Experiment",
    "File",
    "Grid",
    "LocalFile",
    "Resources",
    "RunResult",
    "Runtime",
    "Scores",
    "Secret",
    "ShardContext",
    "ShardResult",
    "Step",
    "Tokenizer",
    "Tokens",
    "TrainState",
    "absent_when",
    "adopted",
    "fixed",
    "grid",
    "load",
    "local_artifact",
    "main",
    "run",
    "step",
    "test_context",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    except KeyboardInterrupt:
        raise _interrupted() from None


def __dir__() -> list[str]:
    return sorted(__all__)
