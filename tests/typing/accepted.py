# pyright: strict
"""What a strict type checker accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

from marin_pipeline import (
    Artifact,
    Context,
    Documents,
    Experiment,
    File,
    Grid,
    LocalFile,
    Resources,
    Runtime,
    Secret,
    ShardContext,
    Tokens,
    absent_when,
    fixed,
    grid,
    run,
    step,
)


@dataclass(frozen=True)
class Optimizer:
    rate: float = 0.1
    threads: Runtime[int] = 1


@step
def count_words(ctx: Context, text: str) -> int:
    (ctx.out / "words.txt").write_text("\n".join(text.split()))
    ctx.progress(1, 1, "texts", seconds=0.1)
    return len(text.split())


@step(version=2, exact="logical", resources=Resources(cpus=2))
def multiply(ctx: Context, count: Artifact[int], times: Annotated[int, absent_when(1)] = 1) -> int:
    print((count / "words.txt").read_text(), (ctx.out / "x").exists())
    return count.value * times


@step
def read(ctx: Context, files: dict[str, File | LocalFile], token: Secret | None = None) -> Documents:
    results = ctx.map(length, list(files.values()), limit=3)
    assert_type(results[0].value, int)
    raise NotImplementedError(results[0] / "part", ctx.work.items(), ctx.stopping)


def length(shard: ShardContext, file: File, limit: int) -> int:
    return file.size


@step
def tokenize(ctx: Context, documents: Artifact[Documents], workers: Runtime[int] = 0) -> Tokens:
    assert_type(documents.value.documents, int)
    raise NotImplementedError


def enough(arguments: Mapping[str, Any]) -> None:
    assert arguments["tokens"].value.tokens


@step(ready=enough)
def train(ctx: Context, tokens: Artifact[Tokens], optimizer: Optimizer = Optimizer()) -> float:
    return 1.0


words = count_words(text="a b c")
product = multiply(words, times=2).named("product").using(Resources(cpus=4))
documents = read(files={"words": words / "words.txt", "local": LocalFile("local.txt")}, token=Secret("HF_TOKEN"))
tokens = tokenize(documents=documents, workers=3)
loss = train(tokens=tokens, optimizer=Optimizer(rate=1))

assert_type(words, Artifact[int])
assert_type(product, Artifact[int])
assert_type(tokens, Artifact[Tokens])
a_file: File = words / "words.txt" / "more"
anything: Artifact[Any] = loss
sweep = grid(train, optimizer=[Optimizer(1.0), Optimizer(2.0)], tokens=tokens, at_most=2)
assert_type(sweep, Grid[float])
assert_type(sweep.artifacts, list[Artifact[float]])
doubled = sweep.named("sweep").map(lambda cell: multiply(count_words(text=cell.name), times=2))
assert_type(doubled, Grid[int])
shared: Grid[int] = grid(multiply, count=[words, product], times=fixed(2))
experiment = Experiment(title="t", targets=[product, loss, sweep], predictions={"loss": (1.0, 2.0)})


def unit_test(ctx: Context, count: Artifact[int]) -> int:
    return count_words.fn(ctx, text="a") + multiply.fn(ctx, count=count, times=2)


def runs_a_grid() -> float:
    assert_type(run(sweep), Grid[float])
    return run(sweep)[Optimizer(1.0)].value
