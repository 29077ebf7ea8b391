"""The spec and the key of an artifact.

`spec` is the canonical bytes of {schema, step, code, arguments}; `key` is sha256 of them. The format is described, with
test vectors, in docs/keys.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from marin_pipeline.core.canonical import Tree, dumps, encode, is_absent
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.marks import marks_of

SCHEMA = 1


@dataclass(frozen=True)
class Chain:
    """The recipe of a state that is reached step by step, so that a longer run can go on from a shorter one.

    A step that declares a chain is keyed by these three instead of by its arguments as they were written.
    """

    initial: Any
    """What the state at step 0 is made from."""
    step: int
    """The absolute step of the state that is asked for."""
    recipe: Callable[[int], Any]
    """The recipe restricted to steps [0, n): equal for two runs whose first n steps are the same."""


def arguments_tree(arguments: Mapping[str, Any], annotations: Mapping[str, Any]) -> Tree:
    """The canonical tree of the arguments that are in the key: without `Runtime` ones and without absent literals."""
    tree: dict[str, Tree] = {}
    for name, value in arguments.items():
        marks = marks_of(annotations.get(name))
        if not marks.runtime and not is_absent(value, marks):
            tree[name] = encode(value, name)
    return tree


def chain_tree(chain: Chain, step: int) -> Tree:
    """The canonical tree that stands for the arguments of the state at `step` of a chain.

    Raises:
        DeclarationError: when the step is no number of steps, or the recipe holds what cannot be keyed.
    """
    if type(step) is not int or step < 0:
        raise DeclarationError(f"the chain's step is {step!r}; it must be an int from 0 on")
    return {
        "initial": encode(chain.initial, "initial"),
        "recipe": encode(chain.recipe(step), "recipe"),
        "step": step,
    }


def spec_bytes(step: str, code: Tree, arguments: Tree) -> bytes:
    """The exact bytes that the key hashes.

    Args:
        step: the step's id.
        code: `{"version": N}`, or `{"source": <64 hex>}` for a step that follows its source.
        arguments: the canonical tree of the arguments.
    """
    return dumps({"schema": SCHEMA, "step": step, "code": code, "arguments": arguments})


def key_of(spec: bytes) -> str:
    """The key of a spec: sha256, 64 hex."""
    return hashlib.sha256(spec).hexdigest()


def artifact_keys(tree: Tree) -> set[str]:
    """Keys of the artifacts inside a canonical tree."""
    return tagged(tree, "~artifact")


def tagged(tree: Tree, tag: str) -> set[str]:
    """What the references of one tag inside a canonical tree hold."""
    found: set[str] = set()
    todo: list[Tree] = [tree]
    while todo:
        each = todo.pop()
        if isinstance(each, list):
            todo += cast("list[Tree]", each)
        elif isinstance(each, dict):
            record = cast("dict[str, Tree]", each)
            if isinstance(record.get(tag), str):
                found.add(record[tag])
            else:
                todo += record.values()
    return found
