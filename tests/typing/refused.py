# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a strict type checker refuses: every comment that silences it here must be needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marin_pipeline import Artifact, Context, Documents, Tokens, step


@step
def count_words(ctx: Context, text: str) -> int:
    return len(text.split())


@step(version=2)
def multiply(ctx: Context, count: Artifact[int], times: int) -> int:
    return count.value * times


@step
def read(ctx: Context) -> Documents:
    raise NotImplementedError


@step
def train(ctx: Context, tokens: Artifact[Tokens]) -> float:
    return 1.0


def documents_where_tokens_are_expected() -> None:
    train(tokens=read())  # pyright: ignore[reportArgumentType]


def wrong_arguments(ctx: Context) -> None:
    count_words(text=3)  # pyright: ignore[reportArgumentType]
    count_words()  # pyright: ignore[reportCallIssue]
    count_words(words="a")  # pyright: ignore[reportCallIssue]
    multiply(count=3, times=2)  # pyright: ignore[reportArgumentType]
    multiply(count=count_words, times=2)  # pyright: ignore[reportArgumentType]
    multiply(count=count_words(text="a"), times="2")  # pyright: ignore[reportArgumentType]
    multiply.fn(ctx, count=3, times=2)  # pyright: ignore[reportArgumentType]


def a_context_where_a_step_is_declared(ctx: Context) -> None:
    count_words(ctx, text="a")  # pyright: ignore[reportCallIssue]


def a_value_of_the_wrong_type(counted: Artifact[int]) -> str:
    return counted.value  # pyright: ignore[reportReturnType]


@step  # pyright: ignore[reportArgumentType]
def without_context(text: str) -> int:
    return 1


def says_whether(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments)


@step(ready=says_whether)  # pyright: ignore[reportArgumentType]
def with_a_check_that_raises_nothing(ctx: Context) -> int:
    return 1
