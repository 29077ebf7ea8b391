"""A record is read by the types of its fields, or refused with the field's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from marin_pipeline.store.records import parsed, typed


class Pair(NamedTuple):
    left: str
    right: int = 0


@dataclass(frozen=True)
class Whole:
    name: str
    size: float
    pair: Pair | None = None
    steps: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    words: tuple[str, ...] = ()
    any: Any = None


def test_a_record_is_made_with_its_parts() -> None:
    tree = {"name": "a", "size": 1, "pair": {"left": "x"}, "steps": {"s": ["i", "k"]}, "words": ["w"], "any": [None]}
    assert typed(tree, Whole) == Whole("a", 1, Pair("x"), {"s": ("i", "k")}, ("w",), [None])
    assert typed({"name": "a", "size": 1.5}, Whole) == Whole("a", 1.5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": 5}, "it.name is 5"),
        ({"size": True}, "it.size is True"),
        ({"size": "1"}, "it.size is '1'"),
        ({"pair": {"left": "x", "right": 1.5}}, "it.pair.right is 1.5"),
        ({"steps": {"s": ["i"]}}, "it.steps.s has 1 parts instead of 2"),
        ({"steps": []}, "it.steps is a list"),
        ({"words": ["w", None]}, r"it.words\[1\] is None"),
        ({"other": 1}, "it has an unknown field 'other'"),
    ],
)
def test_a_field_of_another_type_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        typed({"name": "a", "size": 1, **change}, Whole)


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b"1" * 5000, b"\xff", b"{"])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(data)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match="it has no size"):
        typed({"name": "a"}, Whole)
