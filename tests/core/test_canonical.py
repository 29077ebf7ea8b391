"""The canonical form: one meaning, one byte string; what has no stable identity is refused by name."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import re
import sys
import time
import types
import weakref
import zoneinfo
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline import LocalFile, Runtime, Secret, absent_when
from marin_pipeline.core import canonical
from marin_pipeline.core.arguments import check
from marin_pipeline.core.canonical import MAX_DEPTH, class_id, dumps, encode, same
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.marks import annotations_of, marks_of

T = TypeVar("T")
Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = "r"
    ALSO_RED = "r"
    BLUE = "b"


class Mode(enum.StrEnum):
    FAST = "fast"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Inner:
    sizes: list[int] = field(default_factory=list[int])
    scale: Annotated[float, absent_when(1.0)] = 1.0
    threads: Runtime[int] = 1


@dataclass(frozen=True, kw_only=True)
class Outer(Inner):
    inner: Inner = Inner()
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", len(self.sizes))


@dataclass(frozen=True, slots=True)
class Box(Generic[T]):
    content: T


@dataclass
class Loose:
    x: int = 1


@dataclass(frozen=True)
class Unset:
    x: int = field(init=False)


@dataclass(frozen=True)
class Forgetful:
    given: dataclasses.InitVar[int]
    kept: int = 0


@dataclass(frozen=True)
class Label(str):
    extra: int = 0


@dataclass(frozen=True)
class Table(collections.UserDict[str, int]):
    data: Any = field(default_factory=dict[str, int])


class Settings:
    dtype = np.dtype("float32")

    def method(self) -> None: ...


class Bytes(bytes): ...


class Whole(int):
    def __int__(self) -> int:
        return 99

    __index__ = __int__


class Real(float):
    def __float__(self) -> float:
        return 99.0


def local_class() -> Any:
    @dataclass(frozen=True)
    class Local:
        x: int = 1

    return Local()


def text(value: Any) -> str:
    return dumps(encode(value, "x")).decode()


HERE = "tests/core/test_canonical"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.0, "0.0"),
        (1e16, "1e+16"),
        (123456789012345.0, "123456789012345.0"),
        (1e-5, "1e-05"),
        (0.0001, "0.0001"),
        (float("nan"), '{"~float":"nan"}'),
        (float("-inf"), '{"~float":"-inf"}'),
        (2**200, str(2**200)),
        (np.float64(0.1), "0.1"),
        ("é\n\x7f😀", '"\\u00e9\\n\\u007f\\ud83d\\ude00"'),
        ([1, (2, [3])], "[1,[2,[3]]]"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (collections.defaultdict(list, a=[1]), '{"a":[1]}'),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        ({np.str_("b"): 1, "a": 2}, '{"a":2,"b":1}'),
        (Whole(3), "3"),
        (Real(0.5), "0.5"),
        ({"~a": 1, "~~": 2, "~": 3}, '{"~~":3,"~~a":1,"~~~":2}'),
        ({"b", "a"}, '{"~set":["a","b"]}'),
        (frozenset({(1, 2), (0, 9)}), '{"~set":[[0,9],[1,2]]}'),
        (b"\x00\xff", '{"~bytes":"AP8="}'),
        (datetime.datetime(2024, 1, 2, 3, 4), '{"~datetime":"2024-01-02T03:04:00"}'),
        (datetime.date(2024, 1, 2), '{"~date":"2024-01-02"}'),
        (datetime.time(3, 4), '{"~time":"03:04:00"}'),
        (datetime.timedelta(seconds=-1), '{"~timedelta":[-1,86399,0]}'),
        (Colour.BLUE, f'{{"name":"BLUE","~enum":"{HERE}:Colour"}}'),
        (Colour.ALSO_RED, f'{{"name":"RED","~enum":"{HERE}:Colour"}}'),
        (Mode.FAST, f'{{"name":"FAST","~enum":"{HERE}:Mode"}}'),
        (Level.LOW, f'{{"name":"LOW","~enum":"{HERE}:Level"}}'),
        (Right.READ, f'{{"name":"READ","~enum":"{HERE}:Right"}}'),
        (Box(1), f'{{"fields":{{"content":1}},"~data":"{HERE}:Box"}}'),
        (Inner(threads=9), f'{{"fields":{{"sizes":[]}},"~data":"{HERE}:Inner"}}'),
        (Inner([1], 2.0), f'{{"fields":{{"scale":2.0,"sizes":[1]}},"~data":"{HERE}:Inner"}}'),
        (
            Outer(sizes=[5]),
            f'{{"fields":{{"inner":{{"fields":{{"sizes":[]}},"~data":"{HERE}:Inner"}},"sizes":[5],"total":1}},'
            f'"~data":"{HERE}:Outer"}}',
        ),
        (np.float32, '{"~dtype":"float32"}'),
        (np.dtype("float32"), '{"~dtype":"float32"}'),
        (ml_dtypes.bfloat16, '{"~dtype":"bfloat16"}'),
        (Secret("HF_TOKEN"), '{"~secret":"HF_TOKEN"}'),
    ],
)
def test_each_kind_of_value_has_one_form(value: Any, written: str) -> None:
    assert text(value) == written


def test_the_dtypes_of_jax_are_those_of_numpy() -> None:
    import jax.numpy as jnp

    assert text(jnp.bfloat16) == text(ml_dtypes.bfloat16) == text(np.dtype(ml_dtypes.bfloat16))
    assert text(jnp.float32) == text(np.float32)


def named() -> None: ...


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda: 1, "x: a lambda has no stable identity"),
        (named, "x: the function named has no stable identity"),
        (len, "x: the function len has no stable identity"),
        (Colour, "x: the class Colour has no stable identity"),
        (Path("a/b"), "use LocalFile('a/b')"),
        (sys.stdout, "x: an open file"),
        (np.zeros(3), "x: an array (numpy.ndarray) cannot be keyed"),
        (np.dtype(">i4"), "foreign byte order"),
        (np.dtype("U5"), "a length"),
        (np.dtype([("a", int)]), "has fields"),
        (np.floating, "x: the class floating"),
        (complex(1, 2), "pass its two parts as floats"),
        (Loose(), "the dataclass Loose is not frozen"),
        (Unset(), "x.x: the field has no value"),
        (Forgetful(1), "does not keep its InitVar 'given'"),
        (Point(1, 2), "the named tuple Point would lose its names"),
        (Right.READ | Right.WRITE, "pass a set of members of Right"),
        (object(), "x: a builtins.object cannot be keyed"),
        (bytearray(b"a"), "x: a builtins.bytearray cannot be keyed"),
        ({1: 2}, "the dict key 1 is a int; keys must be strings"),
        ({Mode.FAST: 2}, "keys must be strings"),
        ("a\ud800", "unpaired surrogate U+D800"),
        ("\ud83d\ude00", "unpaired surrogate U+D83D"),
        ({"\udc80": 1}, "unpaired surrogate U+DC80"),
        (2**5000, "an integer of 5001 bits"),
        ([1, {"a": [lambda: 1]}], "x[1][a][0]: a lambda"),
        (Box([1, named]), "x.content[1]: the function named"),
        (Settings, "x: the class Settings"),
        (Settings(), f"a {Settings.__module__}.Settings cannot be keyed"),
        (Settings().method, "x: the function Settings.method"),
        ("a".upper, "x: the function str.upper"),
        (functools.partial(named), "x: a functools.partial"),
        (np.finfo(np.float32), "x: a numpy.finfo"),
        (list[int], "x: the type list[int]"),
        (int | str, "x: the type int | str"),
        (sys, "x: a builtins.module"),
        (weakref.ref(Settings), "x: a weakref.ReferenceType"),
        (io.BytesIO(), "x: an open file (_io.BytesIO)"),
        ((i for i in [1]), "x: a builtins.generator"),
        (iter([1]), "x: a builtins.list_iterator"),
        (range(3), "x: a builtins.range"),
        ({"a": 1}.keys(), "x: a builtins.dict_keys"),
        (collections.deque([1]), "x: a collections.deque"),
        (collections.UserList([1]), "x: a collections.UserList"),
        (decimal.Decimal(1), "x: a decimal.Decimal"),
        (fractions.Fraction(1, 2), "x: a fractions.Fraction"),
        (re.compile("a"), "x: a re.Pattern"),
        (memoryview(b"a"), "x: a builtins.memoryview"),
        (Bytes(b"a"), ".Bytes cannot be keyed"),
        (np.bytes_(b"a"), "x: an array (numpy.bytes_)"),
        (np.datetime64("2024-01-01"), "x: an array (numpy.datetime64)"),
        (ValueError("a"), "x: a builtins.ValueError"),
        (..., "x: a builtins.ellipsis"),
        (types.SimpleNamespace(a=1), "x: a types.SimpleNamespace"),
        (datetime.UTC, "x: a datetime.timezone"),
        (time.gmtime(0), "the named tuple struct_time would lose its names"),
        (datetime.time(6, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")), "the zone Europe/Paris has no offset from UTC"),
        (Label("a"), "the dataclass Label is also a str"),  # pyright: ignore[reportArgumentType]
        (Table({"a": 1}), "the dataclass Table is also a Mapping"),
        (local_class(), "the class local_class.<locals>.Local is not what"),
        (dataclasses.make_dataclass("Made", [("x", int)], frozen=True)(1), "the class Made is not what"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "value",
)
def test_what_has_no_stable_identity_is_refused_with_its_path(value: Any, said: str) -> None:
    def refused(write: Callable[[Any, str], Any], value: Any) -> str:
        with pytest.raises(DeclarationError) as caught:
            write(value, "x")
        assert " at 0x" not in str(caught.value)
        return str(caught.value)

    for refusal in (refused(encode, value), refused(as_declared, value)):
        assert said in refusal
        assert refusal.startswith("x")
        for deep in (encode, as_declared):
            inside = refused(deep, [{"a": (Box(value),)}])
            assert inside.startswith("x[0][a][0].content")


def test_the_item_of_an_array_is_refused_where_nothing_makes_it_a_number() -> None:
    with pytest.raises(DeclarationError, match=r"x: an array \(numpy.float32\) cannot be keyed"):
        encode(np.float32(1), "x")


def as_declared(value: Any, path: str) -> Any:
    return encode(check(value, Any, path), path)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_deep_values_are_refused_and_never_crash() -> None:
    assert text(nested(MAX_DEPTH)) == "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH
    endless: list[Any] = []
    endless.append(endless)
    for value in (nested(MAX_DEPTH + 1), nested(100_000), endless):
        with pytest.raises(DeclarationError, match="x: is nested more than 100 deep"):
            encode(value, "x")


def test_a_value_whose_parts_stand_in_many_places_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "MAX_VALUES", 1000)
    value: Any = 1
    for _ in range(60):
        value = [value, value]
    with pytest.raises(DeclarationError, match="x: holds more than 1,000 values; write them to a file"):
        encode(value, "x")
    assert encode([1] * 999, "x")


def test_subclasses_of_plain_types_are_written_as_what_they_are() -> None:
    class Loud(str):
        def __str__(self) -> str:
            return "LOUD"

    class Stamp(datetime.datetime):
        """As pandas has one: it may hold more than a datetime."""

    assert text(Loud("quiet")) == '"quiet"'
    with pytest.raises(DeclarationError, match="Stamp cannot be keyed"):
        encode(Stamp(2024, 1, 1), "x")


def test_true_one_and_one_point_zero_are_three_values() -> None:
    assert len({text(value) for value in (True, 1, 1.0, "1", [1], {"~float": 1})}) == 6
    assert not same(True, 1)
    assert not same(1, 1.0)
    assert not same(0.0, -0.0)
    assert same((1, [2]), [1, (2,)])
    assert same(float("nan"), float("nan"))


def test_equal_items_of_a_set_are_written_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("the same content")
    one, other = LocalFile(tmp_path / "a"), LocalFile(tmp_path / "b")
    assert text({one, other}) == text({one})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=12,
)


@given(json_values)
def test_the_bytes_are_json_that_reads_back_as_the_tree(value: Any) -> None:
    tree = encode(value, "x")
    written = dumps(tree)
    assert written.isascii()
    assert dumps(json.loads(written)) == written


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers()), st.randoms())
def test_the_order_of_a_dict_does_not_count(value: dict[str, int], random: Any) -> None:
    entries = list(value.items())
    random.shuffle(entries)
    assert text(dict(entries)) == text(value)


def test_marks_are_found_through_each_other() -> None:
    marks = marks_of(Annotated[Runtime[int], absent_when(3)])
    assert (marks.runtime, marks.absent) == (True, 3)
    assert marks_of(int) == marks_of(None)


def test_literals_that_python_takes_for_equal_are_kept_apart() -> None:
    literals = [marks_of(Annotated[int, absent_when(literal)]).absent for literal in (0, 0.0, False)]
    assert [type(literal) for literal in literals] == [int, float, bool]


def test_a_class_is_named_by_its_file_in_the_project() -> None:
    assert class_id(Inner) == f"{HERE}:Inner"
    assert class_id(datetime.date) == "datetime:date"
    assert class_id(np.float32) == "numpy:float32"


def test_an_annotation_that_names_nothing_is_refused() -> None:
    def lost(x: Nowhere) -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    wrong: Callable[..., None] = lost
    with pytest.raises(DeclarationError, match=r"annotation cannot be resolved.*import the name at the top"):
        annotations_of(wrong)
