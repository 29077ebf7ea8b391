"""Arguments against annotations: coerced or refused by name, a snapshot, and read back as they were."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import json
import pickle
import random
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, Protocol, TypeVar, Union

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline import Artifact, File, LocalFile, Runtime, Secret, absent_when
from marin_pipeline.core.arguments import (
    Record,
    check,
    checked_annotations,
    classes_in,
    references,
    roles,
    transform,
)
from marin_pipeline.core.canonical import Form, dumps, encode, same
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.reading import decode

T = TypeVar("T")
Seed = NewType("Seed", int)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Level(enum.IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Schedule:
    warmup: int = 0
    kind: Literal["cosine", "linear"] = "cosine"


@dataclass(frozen=True)
class Optimizer:
    rate: float
    schedule: Schedule = Schedule()
    betas: tuple[float, float] = (0.9, 0.95)
    groups: dict[str, float] = field(default_factory=dict[str, float])
    nesterov: Annotated[bool, absent_when(False)] = False
    threads: Runtime[int] = 1
    label: str = field(init=False)

    def __post_init__(self) -> None:
        if self.betas[0] >= 1:
            raise ValueError("betas must be below 1")
        object.__setattr__(self, "label", f"rate {self.rate}")


@dataclass(frozen=True)
class Special(Optimizer):
    extra: int = 0


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T
    others: tuple[T, ...] = ()


@dataclass(frozen=True)
class Tree:
    left: Tree | None = None


class Named(NamedTuple):
    x: int


class Shape(Protocol):
    area: float


class Typed(typing.TypedDict):
    x: int


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1.0),
        (np.int64(3), int, 3),
        (np.int64(3), float, 3.0),
        (np.float32(0.5), float, 0.5),
        (np.float64(0.1), float, 0.1),
        (np.bool_(True), bool, True),
        (ml_dtypes.bfloat16(1.5), float, 1.5),
        (np.str_("a"), str, "a"),
        (np.int64(3), Any, 3),
        ([1, 2], tuple[int, ...], (1, 2)),
        ((1, 2), list[float], [1.0, 2.0]),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([], tuple[()], ()),
        ((1,), Sequence[int], (1,)),
        ({"b": 1, "a": 2}, Mapping[str, float], {"a": 2.0, "b": 1.0}),
        ({1, 2}, frozenset[int], frozenset({1, 2})),
        (frozenset({1}), set[float], {1.0}),
        (None, Optional[int], None),  # noqa: UP045 - both spellings are the same to the reader
        (1, Union[float, None], 1.0),  # noqa: UP007
        (1, float | int, 1),
        (True, int | bool, True),
        ([1], list[float] | list[int], [1.0]),
        ([1], list[int] | list[float], [1]),
        ({(1, 2)}, set[list[int]], {(1, 2)}),
        ({frozenset({1})}, frozenset[set[int]], frozenset({frozenset({1})})),
        ({frozenset({1})}, Any, frozenset({frozenset({1})})),
        (np.int64(3), int | str, 3),
        (collections.OrderedDict(b=1, a=2), dict[str, int], {"a": 2, "b": 1}),
        (collections.defaultdict(int, a=1), Any, {"a": 1}),
        (collections.UserDict(a=1), Any, {"a": 1}),
        ("a", Literal["a", 1], "a"),
        (1, Literal["a", 1], 1),
        (Colour.RED, Colour, Colour.RED),
        (Mode.FAST, Mode | str, Mode.FAST),
        (5, Seed, 5),
        (1, Annotated[float, "a note"], 1.0),
        ((1, [2, (3,)]), Any, [1, [2, [3]]]),
        (np.float32, np.dtype, np.dtype("float32")),
        (np.float32, Any, np.dtype("float32")),
        (b"a", bytes, b"a"),
        (Box(1), Box[float], Box(1.0)),
        (Box(1, (2,)), Box[float] | None, Box(1.0, (2.0,))),
        (Special(1), Optimizer, Special(1.0)),
        (Optimizer(1, betas=[0, 0]), Optimizer, Optimizer(1.0, betas=(0.0, 0.0))),  # pyright: ignore[reportArgumentType]
    ],
    ids=str,
)
def test_a_value_becomes_what_its_annotation_says(value: Any, annotation: Any, expected: Any) -> None:
    checked = check(value, annotation, "x")
    assert checked == expected
    assert type(checked) is type(expected)
    assert dumps(encode(checked, "x")) == dumps(encode(expected, "x"))
    again = check(checked, annotation, "x")
    assert again == checked
    assert type(again) is type(checked)


@pytest.mark.parametrize(
    ("value", "annotation", "said"),
    [
        ("3", int, "x: expected int, got '3' of type str"),
        (3.0, int, "expected int, got 3.0 of type float"),
        (True, int, "expected int, got True of type bool"),
        (True, float, "expected float, got True"),
        (True, str, "expected str, got True"),
        (1, bool, "expected bool, got 1"),
        (1, str, "expected str, got 1"),
        (None, int, "expected int, got None"),
        (10**400, float, "expected float, got 1000"),
        (Level.LOW, int, "expected int, got <Level.LOW: 1>"),
        (Mode.FAST, str, "expected str, got <Mode.FAST: 'fast'>"),
        ("RED", Colour, "expected Colour (one of RED, BLUE), got 'RED'"),
        ("c", Literal["a", "b"], "expected one of 'a', 'b', got 'c'"),
        (True, Literal[1, 2], "expected one of 1, 2, got True"),
        ("abc", Sequence[str], "expected Sequence[str], got 'abc'"),
        ([1, "2"], list[int], "x[1]: expected int"),
        ([1], tuple[int, int], "expected tuple[int, int], got 1 items"),
        ({"a": {"b": "c"}}, dict[str, dict[str, int]], "x[a][b]: expected int"),
        ({1: 1}, dict[int, int], "keys must be strings"),
        ([1], set[int], "expected set[int], got [1]"),
        ("a", int | None, "expected int | None, got 'a'"),
        ({"a": "b"}, dict[str, int] | None, "x[a]: expected int, got 'b'"),
        (datetime.datetime(2024, 1, 1), datetime.date, "expected date, got"),
        (Optimizer("1"), Optimizer, "x.rate: expected float, got '1'"),  # pyright: ignore[reportArgumentType]
        (Optimizer(1, Schedule(kind="step")), Optimizer, "x.schedule.kind: expected one of"),  # pyright: ignore[reportArgumentType]
        (Schedule(), Optimizer, "expected Optimizer, got Schedule("),
        (lambda: 1, str, "expected str, got a function: a lambda has no stable identity"),
        (Path("a"), str, "use LocalFile('a')"),
        (np.zeros(2), list[float], "got a ndarray: an array"),
        (lambda: 1, typing.Callable[[], int], "a lambda has no stable identity"),
        ({"\ud800": 1}, dict[str, int], "unpaired surrogate U+D800"),
        ({Box((1, 2))}, frozenset[Box[Any]], "x: holds what no set can hold (unhashable type: 'list')"),
        ({(1, frozenset({"a"}))}, frozenset[tuple[int, frozenset[int]]], "x{}[1]{}: expected int, got 'a'"),
        (complex(1), complex, "pass its two parts as floats"),
        (Named(1), Named, "the named tuple Named would lose its names"),
        ({"x": 1}, Typed, "the annotation Typed is not one that a step can take"),
        (1, Shape, "the annotation Shape is not one that a step can take"),
        ([1], collections.abc.Iterable[int], "use list, tuple, Sequence"),
        (Secret("TOKEN"), str, "expected str, got <secret TOKEN>"),
        (dataclasses.make_dataclass("Loose", [("x", int)])(1), Any, "Loose is not frozen"),
        (print, Artifact[int], "call the step, so that it declares its artifact"),
        ("a.txt", File, "expected File, got 'a.txt'"),
        (Artifact("0" * 64, name="made"), File, "choose one of its files with `artifact / 'path'`"),
        (
            Artifact("0" * 64, name="made", kind=int),
            Artifact[str],
            "expected Artifact[str], got made, an artifact of int",
        ),
        (
            Artifact("0" * 64, name="made", kind=int),
            Artifact[str] | None,
            "expected Artifact[str] | None, got made, an artifact of int",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_by_name(value: Any, annotation: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        check(value, annotation, "x")
    assert said in str(caught.value)
    assert str(caught.value).startswith("x")
    assert len(str(caught.value)) < 300


def test_derived_fields_follow_the_coerced_ones() -> None:
    assert check(Optimizer(1), Optimizer, "x").label == "rate 1.0"
    assert same(check(Optimizer(1), Optimizer, "x"), check(Optimizer(1.0), Optimizer, "x"))


def test_a_class_that_refuses_its_own_fields_says_where() -> None:
    wrong = Optimizer(1.0)
    object.__setattr__(wrong, "betas", [2, 0])
    with pytest.raises(DeclarationError, match="x: Optimizer cannot be made from its fields: betas must be below 1"):
        check(wrong, Optimizer, "x")


def test_a_checked_value_is_a_snapshot() -> None:
    groups = {"b": 1.0, "a": 2.0}
    given = [Optimizer(1.0, groups=groups)]
    checked = check(given, list[Optimizer], "x")
    groups["c"] = 3.0
    given.clear()
    assert checked == [Optimizer(1.0, groups={"a": 2.0, "b": 1.0})]


def test_a_step_sees_dicts_in_one_order_however_they_were_written() -> None:
    for annotation in (dict[str, Any], Any):
        checked = check({"b": {"z": 1, "y": 2}, "a": 1}, annotation, "x")
        assert list(checked) == ["a", "b"]
        assert list(checked["b"]) == ["y", "z"]


def test_the_keys_of_a_dict_are_plain_text_where_the_step_runs() -> None:
    class Loud(str):
        def __lt__(self, other: object) -> bool:
            return False

    for annotation in (dict[str, int], Any):
        checked = check({Loud("b"): 1, np.str_("a"): 2, "c": 3}, annotation, "x")
        assert list(checked.items()) == [("a", 2), ("b", 1), ("c", 3)]
        assert {type(key) for key in checked} == {str}


def test_deep_and_recursive_values_are_checked_or_refused() -> None:
    deep: Tree | None = None
    for _ in range(99):
        deep = Tree(deep)
    assert decode(encode(check(deep, Tree, "x"), "x"), Tree, "x") == deep
    value: list[Any] = []
    for _ in range(1000):
        value = [value]
    with pytest.raises(DeclarationError, match="x: is nested more than 100 deep"):
        check(value, Any, "x")


# Marks


def inside(x: list[Runtime[int]]) -> None: ...


def in_union(x: Runtime[int] | None) -> None: ...


def never(x: Annotated[float, absent_when(0)] = 0.0) -> None: ...


def unseen(x: Runtime[Artifact[int]]) -> None: ...


def unseen_files(x: Runtime[list[LocalFile]]) -> None: ...


def fine(x: Runtime[list[int]], y: Annotated[float | None, absent_when(None)], z: Runtime[Secret]) -> None: ...


@dataclass(frozen=True)
class Misplaced:
    x: dict[str, Runtime[int]] = field(default_factory=dict[str, int])


def test_misplaced_marks_of_a_field_are_refused_with_its_path() -> None:
    with pytest.raises(DeclarationError, match=r"^model: Misplaced.x: Runtime and absent_when mark"):
        check(Misplaced(), Misplaced, "model")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (inside, r"write Runtime\[list\[int\]\]"),
        (in_union, "mark a whole parameter or field"),
        (never, r"the literal of absent_when\(0\) is no float"),
        (unseen, "what an artifact or a file holds is never Runtime"),
        (unseen_files, "what an artifact or a file holds is never Runtime"),
    ],
)
def test_marks_that_would_not_be_seen_are_refused(function: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=f"^x: .*{said}"):
        checked_annotations(function)


def test_marks_that_are_seen_are_taken() -> None:
    assert set(checked_annotations(fine)) == {"x", "y", "z", "return"}


# Walking


def test_references_are_found_by_role_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    artifact, local = Artifact[Any]("0" * 64), LocalFile(tmp_path / "a")
    value = [Box(artifact, (artifact,)), {"k": [artifact / "f", local]}, Secret("T")]
    roles = [role for role, _ in references(value, "x")]
    assert roles == ["x[0].content", "x[0].others[0]", "x[1][k][0]", "x[1][k][1]", "x[2]"]


def test_each_item_of_a_set_has_a_role_of_its_own_in_one_order() -> None:
    artifacts = [Artifact[Any](f"{digit}" * 64) for digit in range(5)]
    for items in (artifacts, artifacts[::-1]):
        found = list(roles({"k": {Box(item) for item in items}}, "x"))
        assert found == [(f"x[k]{{{number}}}.content", artifact) for number, artifact in enumerate(artifacts)]


def test_transform_replaces_references_and_keeps_the_rest() -> None:
    old, new = Secret("OLD"), Secret("NEW")
    kept = Optimizer(1.0)
    value = {"a": [Box(old), kept], "b": (old,), "c": {old}}
    changed = transform(value, lambda reference: new)
    assert [reference for _, reference in references(changed, "x")] == [new, new, new]
    assert changed["a"][1] is kept
    assert transform(value, lambda reference: reference) is not None
    assert transform([kept], lambda reference: new)[0] is kept
    items = frozenset({1, 2})
    assert transform(items, lambda reference: new) is items


def test_classes_of_values_are_found_at_any_depth() -> None:
    assert set(classes_in([{"a": Box((Colour.RED, Optimizer(1.0)))}])) == {Box, Colour, Optimizer, Schedule}


# Reading back

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
leaves: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)),
    (bool, st.booleans()),
    (str, plain_text),
    (type(None), st.none()),
    (bytes, st.binary(max_size=5)),
    (datetime.date, st.dates()),
    (datetime.datetime, st.datetimes() | st.datetimes(timezones=st.just(datetime.UTC))),
    (datetime.time, st.times()),
    (datetime.timedelta, st.timedeltas()),
    (Colour, st.sampled_from(Colour)),
    (Mode, st.sampled_from(Mode)),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Schedule, st.builds(Schedule, st.integers(), st.sampled_from(["cosine", "linear"]))),
    (
        Optimizer,
        st.builds(
            Optimizer,
            st.integers(0, 9) | st.floats(0, 1),
            betas=st.tuples(st.floats(0, 0.5), st.floats(0, 1)),
            groups=st.dictionaries(plain_text, st.floats(0, 1), max_size=2),
            nesterov=st.booleans(),
            threads=st.integers(),
        ),
    ),
]
Typing = tuple[Any, st.SearchStrategy[Any]]


def containers(inner: st.SearchStrategy[Typing]) -> st.SearchStrategy[Typing]:
    return st.one_of(
        inner.map(lambda each: (list[each[0]], st.lists(each[1], max_size=3))),
        inner.map(lambda each: (tuple[each[0], ...], st.lists(each[1], max_size=3))),
        inner.map(lambda each: (dict[str, each[0]], st.dictionaries(plain_text, each[1], max_size=3))),
        inner.map(lambda each: (each[0] | None, st.none() | each[1])),
        inner.map(lambda each: (Box[each[0]], st.builds(Box, each[1], st.lists(each[1], max_size=2)))),
        st.tuples(inner, inner).map(lambda both: (tuple[both[0][0], both[1][0]], st.tuples(both[0][1], both[1][1]))),
        st.tuples(inner, inner).map(lambda both: (both[0][0] | both[1][0], both[0][1] | both[1][1])),
    )


sets = [
    (frozenset[int], st.frozensets(st.integers())),
    (set[tuple[str, int]], st.sets(st.tuples(plain_text, st.integers()))),
]
typings = st.recursive(st.sampled_from([*leaves, *sets]), containers, max_leaves=4)


@settings(max_examples=300, deadline=None)
@given(typings.flatmap(lambda each: each[1].map(lambda value: (each[0], value))))
def test_what_was_written_is_read_back_equal(case: tuple[Any, Any]) -> None:
    annotation, value = case
    checked = check(value, annotation, "x")
    assert check(checked, annotation, "x") == checked
    call = Form(runtime=True)
    written = dumps(encode(checked, "x", call))
    read = decode(json.loads(written), annotation, "x")
    assert read == checked
    assert type(read) is type(checked)
    assert dumps(encode(read, "x", call)) == written
    untyped = check(value, Any, "x")
    assert decode(json.loads(dumps(encode(untyped, "x", call))), Any, "x") == untyped


hashables = st.recursive(
    st.one_of(
        *(strategy for kind, strategy in leaves if kind not in (Optimizer, datetime.datetime)),
        st.floats(),
        st.just(np.dtype("int8")),
        st.just(Secret("TOKEN")),
    ),
    lambda inner: st.frozensets(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
untyped_values = st.recursive(
    hashables,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(plain_text | st.just("~data"), inner, max_size=3),
        st.sets(hashables, max_size=3),
        st.builds(Box, inner),
    ),
    max_leaves=8,
)


def copied(value: Any, random: random.Random) -> Any:
    """The same value, made of other objects, its dicts and sets filled in another order."""
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item, random) for item in value)
    if isinstance(value, dict):
        entries = [(copied(key, random), copied(item, random)) for key, item in value.items()]
        random.shuffle(entries)
        return dict(entries)
    if isinstance(value, (set, frozenset)):
        items = [copied(item, random) for item in value]
        random.shuffle(items)
        return type(value)(items)
    if isinstance(value, Box):
        return Box(copied(value.content, random))
    return pickle.loads(pickle.dumps(value))


@settings(max_examples=300, deadline=None)
@given(untyped_values, st.randoms(use_true_random=False))
def test_equal_values_have_one_spec_however_they_were_made(value: Any, random: random.Random) -> None:
    written = dumps(encode(check(value, Any, "x"), "x"))
    assert dumps(encode(check(copied(value, random), Any, "x"), "x")) == written
    assert dumps(encode(value, "x")) == written
    shared = dumps(encode([value, value], "x"))
    assert dumps(encode([value, copied(value, random)], "x")) == shared


@settings(max_examples=300, deadline=None)
@given(untyped_values)
def test_what_was_read_back_without_a_type_has_the_same_spec(value: Any) -> None:
    checked = check(value, Any, "x")
    written = dumps(encode(checked, "x"))
    read = decode(json.loads(written), Any, "x", lambda tree, path: Secret(tree["~secret"]))
    assert dumps(encode(read, "x")) == written
    assert type(read) is type(checked)


def test_an_absent_field_is_read_back_as_its_literal() -> None:
    tree = encode(Optimizer(1.0), "x")
    assert "nesterov" not in tree["fields"]
    assert decode(tree, Optimizer, "x") == Optimizer(1.0)
    assert decode(tree, Any, "x") == Optimizer(1.0)


def test_dtypes_and_non_finite_floats_are_read_back() -> None:
    assert decode({"~dtype": "bfloat16"}, Any, "x") == np.dtype(ml_dtypes.bfloat16)
    assert decode({"~float": "-inf"}, float, "x") == float("-inf")


def test_a_set_of_what_is_not_here_is_read_as_records() -> None:
    tree = {"~set": [{"~enum": "gone:Kind", "name": name} for name in "AB"]}
    assert {record.name for record in decode(tree, Any, "x")} == {"A", "B"}


def test_a_class_that_is_not_here_is_read_as_a_record() -> None:
    tree = {"~data": "nowhere/at_all:Thing", "fields": {"size": 3, "kind": {"~enum": "gone:Kind", "name": "A"}}}
    record = decode([tree], Any, "x")[0]
    assert isinstance(record, Record)
    assert (record.size, record.kind.name) == (3, "A")
    with pytest.raises(AttributeError, match="nowhere/at_all:Thing has no field 'colour'"):
        _ = record.colour
    with pytest.raises(
        DeclarationError, match="expected Optimizer, got a nowhere/at_all:Thing, which is not known here"
    ):
        decode(tree, Optimizer, "x")


@pytest.mark.parametrize(
    "identity", ["os:system", "json:JSONDecodeError", "sys:", "subprocess:Popen", "a b/c:D", ".:x", ":x"]
)
def test_only_dataclasses_and_enums_are_ever_made(identity: str) -> None:
    assert isinstance(decode({"~data": identity, "fields": {}}, Any, "x"), Record)


def test_unknown_tags_are_refused() -> None:
    with pytest.raises(DeclarationError, match="x: holds a ~future"):
        decode({"~future": 1}, Any, "x")


class Longer(list[int]):
    def __iter__(self) -> Any:
        return iter([1, 2, 3])


@pytest.mark.parametrize("annotation", [tuple[int, ...], list[int], tuple[int, int]])
def test_a_list_that_gives_other_items_than_it_says_is_refused(annotation: Any) -> None:
    with pytest.raises(DeclarationError, match="x: the Longer says that it has 2 items and gives 3; pass a plain list"):
        check(Longer([1, 2]), annotation, "x")


@dataclass(frozen=True)
class Doubling:
    x: int
    y: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", 2 * self.x)


@dataclass(frozen=True)
class Clamping:
    x: float
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", min(self.x, 1.0))
        object.__setattr__(self, "tags", tuple(sorted(self.tags)))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Doubling(1), Doubling),
        (Doubling(1, 2), Doubling),
        (Doubling(1), Any),
        ({"a": [Doubling(3)]}, dict[str, list[Doubling]]),
    ],
)
def test_a_dataclass_that_changes_when_it_is_made_again_is_refused(value: Any, annotation: Any) -> None:
    with pytest.raises(DeclarationError, match=r"x: is \d+, and \d+ when the Doubling is made from its fields again"):
        check(value, annotation, "config")


def test_a_dataclass_that_brings_its_fields_into_a_form_is_taken() -> None:
    given = Clamping(3, ("b", "a"))
    value = check(given, Clamping, "config")
    assert value == Clamping(1.0, ("a", "b"))
    assert decode(encode(value, "config"), Clamping, "config") == value
