"""Overrides: text becomes a value of the declared type or is refused by name; keys move with their descendants."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import pytest

from marin_pipeline import Artifact, Context, File, LocalFile, Runtime, step
from marin_pipeline.core.errors import UsageError
from marin_pipeline.run.overrides import Override, apply, read

T = TypeVar("T")


class Switch(enum.Enum):
    off = 0
    on = 1
    null = 2


@dataclass(frozen=True)
class Schedule:
    warmup: int = 10
    kind: Literal["cosine", "on", "off"] = "cosine"


@dataclass(frozen=True)
class Model:
    width: int = 64
    heads: int = 4
    schedule: Schedule | None = None
    shape: tuple[int, float] = (1, 1.0)
    per_head: int = field(init=False)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        object.__setattr__(self, "per_head", self.width // self.heads)


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@step(version=1)
def count(ctx: Context, text: str = "a") -> int:
    return len(text)


@step(version=1)
def prompts(ctx: Context, texts: tuple[str, ...] = ("a",)) -> int:
    return len(texts)


@step(version=1)
def train(
    ctx: Context,
    tokens: Artifact[int],
    model: Model = Model(),
    rate: float = 0.1,
    steps: int = 10,
    shuffle: bool = True,
    weights: dict[str, float] | None = None,
    models: dict[str, Model] = {"small": Model()},  # noqa: B006
    sizes: Sequence[int] = (1, 2),
    note: str | None = None,
    switch: Switch = Switch.off,
    box: Box[float] = Box(1.0),
    day: datetime.date = datetime.date(2024, 1, 1),
    anything: Any = None,
    files: dict[str, File | LocalFile] = {},  # noqa: B006
    workers: Runtime[int] = 1,
) -> int:
    return steps


def overridden(*texts: str, target: Artifact[Any] | None = None) -> dict[str, Any]:
    (made,) = apply([target or train(tokens=count())], [Override.parse(text) for text in texts])
    assert made.declaration is not None
    return dict(made.declaration.arguments)


@pytest.mark.parametrize(
    ("text", "argument", "expected"),
    [
        ("train.steps=20", "steps", 20),
        ("train.rate=1", "rate", 1.0),
        ("train.rate=1e-4", "rate", 0.0001),
        ("train.rate=inf", "rate", float("inf")),
        ("train.shuffle=false", "shuffle", False),
        ("train.shuffle=off", "shuffle", False),
        ("train.weights={web: 1, books: 0.5}", "weights", {"books": 0.5, "web": 1.0}),
        ("train.weights=null", "weights", None),
        ("train.model.width=128", "model", Model(128)),
        ("train.model.shape[1]=2", "model", Model(shape=(1, 2.0))),
        ("train.model.schedule={warmup: 3}", "model", Model(schedule=Schedule(3))),
        ("train.models[small].heads=2", "models", {"small": Model(heads=2)}),
        ("train.sizes=[3, 4, 5]", "sizes", (3, 4, 5)),
        ("train.sizes[0]=9", "sizes", (9, 2)),
        ("train.note=12", "note", "12"),
        ("train.note=on", "note", "on"),
        ("train.note=null", "note", None),
        ("train.note=a=b.c", "note", "a=b.c"),
        ("train.note=", "note", ""),
        ("train.switch=on", "switch", Switch.on),
        ("train.switch=null", "switch", Switch.null),
        ("train.box.content=2", "box", Box(2.0)),
        ("train.day=2024-02-29", "day", datetime.date(2024, 2, 29)),
        ("train.anything=[1, a]", "anything", [1, "a"]),
        ("train.workers=4", "workers", 4),
        ("marin_pipeline/train.steps=3", "steps", 3),
    ],
)
def test_a_text_becomes_a_value_of_the_declared_type(text: str, argument: str, expected: Any) -> None:
    value = overridden(text)[argument]
    assert value == expected
    assert type(value) is type(expected)


def test_an_override_gives_the_key_of_the_declaration_that_says_the_same() -> None:
    target = train(tokens=count(text="abc"), model=Model(128), rate=3)
    (made,) = apply(
        [train(tokens=count())],
        [Override.parse(text) for text in ("train.model.width=128", "train.rate=3", "count.text=abc")],
    )
    assert made.key == target.key


def test_a_runtime_override_is_taken_and_moves_no_key() -> None:
    target = train(tokens=count())
    (made,) = apply([target], [Override.parse("train.workers=5")])
    assert made.key == target.key
    assert made.declaration is not None
    assert made.declaration.arguments["workers"] == 5


def test_a_named_step_is_overridden_by_its_name_and_keeps_it() -> None:
    small, large = count(text="a").named("text/small"), count(text="b").named("text/large")
    both = [train(tokens=small).named("one"), train(tokens=large).named("two")]
    made = apply(both, [Override.parse("text/small.text=c")])
    assert [artifact.name for artifact in made] == ["one", "two"]
    assert made[1] is both[1]
    assert made[0].key == train(tokens=count(text="c")).key


def test_derived_fields_are_derived_again() -> None:
    assert overridden("train.model.width=256")["model"].per_head == 64


@pytest.mark.parametrize(
    "second", ["train.steps=2", "train.steps=1", "train.model={width: 128, heads: 2}", "train.model.width=128"]
)
def test_an_override_that_undoes_another_is_refused(second: str) -> None:
    with pytest.raises(UsageError, match=r"undoes 'train.*leave one of them away"):
        overridden("train.steps=1", "train.model.width=256", second)


def test_a_part_of_what_is_overridden_may_be_overridden_after_it() -> None:
    assert overridden("train.model={width: 128, heads: 2}", "train.model.heads=4")["model"].heads == 4


def test_an_entry_of_a_dict_is_replaced_or_added() -> None:
    target = train(tokens=count(), weights={"web.en": 1.0})
    assert overridden("train.weights[web.en]=2", target=target)["weights"] == {"web.en": 2.0}
    assert overridden("train.weights[books=x]=1", target=target)["weights"] == {"books=x": 1.0, "web.en": 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train.steps=on", "train.steps: expected int, got 'on'"),
        ("train.steps=1.5", "train.steps: expected int, got '1.5'"),
        ("train.steps=null", "train.steps: expected int, got 'null'"),
        ("train.rate=yes", "train.rate: expected float, got 'yes'"),
        ("train.rate=fast", "train.rate: expected float, got 'fast'"),
        ("train.shuffle=1", "train.shuffle: expected bool, got '1'"),
        ("train.sizes=[1, on]", "train.sizes: expected Sequence[int], got '[1, on]'"),
        ("train.sizes[2]=1", "train.sizes has 2 items, counted from 0; '2' is none of them"),
        ("train.weights={a: on}", "train.weights: expected dict[str, float] | None"),
        ("train.model.depth=2", "train.model has no field 'depth'; it has width, heads, schedule, shape"),
        ("train.model.per_head=2", "train.model has no field 'per_head'"),
        ("train.model.width=65", "train.model: width 65 is no multiple of heads 4"),
        ("train.model.schedule.warmup=2", "train.model.schedule is None and has nothing inside"),
        ("train.models[large].width=2", "train.models has no entry 'large'; it has small"),
        ("train.switch=yes", "train.switch: expected Switch (one of off, on, null), got 'yes'"),
        ("train.model={width: many}", "train.model: expected Model, got '{width: many}'"),
        ("train.model.schedule={kind: square}", "expected Schedule | None, got '{kind: square}'"),
        ("train.tokens=3", "override the arguments of the step that makes it"),
        ("train.tokens.text=3", "override the arguments of the step that makes it"),
        ("train.missing=3", "train has no argument 'missing'; it has tokens, model, rate"),
        ("trian.steps=3", "no step is called 'trian' here (did you mean 'train'?); there are: count, train"),
        ("train.anything=[", "train.anything: cannot read '['"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        overridden(text)
    assert said in str(caught.value)
    assert repr(text) in str(caught.value) or "no step is called" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["train.steps", "steps=3", "=3", ".steps=3", "train.=3", "train[a]=3", "train.a[=3", "train..a=3"]
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"an override is written name\.argument=value"):
        Override.parse(text)


def test_an_override_is_read_whole() -> None:
    found = Override.parse("text/wiki[0123abcd].mixture[a.b=c].weight=x=y\nz")
    assert (found.name, found.path, found.value) == ("text/wiki[0123abcd]", ("mixture", "a.b=c", "weight"), "x=y\nz")


def test_files_cannot_be_written_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    target = train(tokens=count(), files={"a": LocalFile(tmp_path / "a")})
    with pytest.raises(UsageError, match=r"train.files\[a\] is <local file a"):
        overridden("train.files[a]=b", target=target)


def test_an_option_of_an_experiment_is_read_the_same_way() -> None:
    assert read("on", Literal["on", "off"], "--switch") == "on"
    assert read("3", int | str, "--either") == 3
    assert read("three", int | str, "--either") == "three"


def test_a_text_for_a_list_of_texts_is_refused_with_the_form_of_a_list() -> None:
    with pytest.raises(UsageError, match=r"write a list as \[a, b\]"):
        overridden("prompts.texts=abc", target=prompts())
    assert overridden("prompts.texts=[abc, d]", target=prompts())["texts"] == ("abc", "d")
