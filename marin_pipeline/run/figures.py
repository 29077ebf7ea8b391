"""The numbers inside a value or a record, by path, so that two or many can be set side by side."""

from __future__ import annotations

from collections.abc import Iterator

from marin_pipeline.core.canonical import TAG, Tree

MOST = 10_000
"""Leaves of one tree that are looked at, at most."""


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """What a canonical tree holds, by path: plain values, and what stands for one thing (files, artifacts, enums)."""
    count = 0
    stack = [(path, tree)]
    while stack and count < MOST:
        where, item = stack.pop()
        inner: list[tuple[str, Tree]] | None = None
        if isinstance(item, dict) and "~data" in item:
            inner = [(name, each) for name, each in item["fields"].items()]
        elif isinstance(item, dict) and not any(_is_tag(name) for name in item):
            inner = list(item.items())
        if inner is not None:
            stack.extend((f"{where}.{name}" if where else name, each) for name, each in reversed(inner))
        elif isinstance(item, list):
            stack.extend((f"{where}[{index}]", each) for index, each in reversed(list(enumerate(item))))
        else:
            count += 1
            yield where, item


def _is_tag(name: str) -> bool:
    return name.startswith(TAG) and not name.startswith(TAG + TAG)


def figures(tree: Tree) -> dict[str, float]:
    """The numbers in a returned value, by path; `value` where it is one itself."""
    found: dict[str, float] = {}
    for path, leaf in leaves(tree):
        if isinstance(leaf, dict) and "~float" in leaf:
            found[path or "value"] = float(leaf["~float"])
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            found[path or "value"] = leaf
    return found


def figure_text(value: float | None) -> str:
    """A number for people; empty for none."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
