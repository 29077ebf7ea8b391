"""What is of another type than it should be is refused where it is given, with the name of the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.loader import Loader
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.permutation import BlockPermutation, Permutation
from marin_pipeline.data.sequences import Rows, Sequences
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.token_ledger import Ledger
from marin_pipeline.data.token_store import TokenStore
from tests.data.token_stores import write_store

WRONG: list[object] = [1.5, 2.0, "2", True, [2], np.bool_(True)]
"""No whole numbers."""
MIXTURE = Mixture((Source("a"),), (Phase(0, {"a": 1}),))
STREAM = Stream(MIXTURE, 4)
ORDER = TrainingOrder(STREAM, {"a": 4}, 2, 0)
MAKERS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "Source": (Source, {"name": "a", "max_epochs": 2, "expected_tokens": 9}),
    "Phase": (Phase, {"start": 0, "weights": {"a": 1}}),
    "Mixture": (Mixture, {"sources": MIXTURE.sources, "phases": MIXTURE.phases}),
    "Shuffle": (Shuffle, {"block": 2, "window": 2}),
    "Permutation": (Permutation, {"length": 9, "seed": 3}),
    "BlockPermutation": (BlockPermutation, {"length": 9, "seed": 3, "block": 2, "window": 2}),
    "Stream": (Stream, {"mixture": MIXTURE, "sequence_length": 4}),
    "TrainingOrder": (
        TrainingOrder,
        {"stream": STREAM, "sequences": {"a": 4}, "batch_size": 2, "seed": 0, "first_step": 0, "first_token": 0},
    ),
}
WHOLE = [(maker, field) for maker, (_, given) in MAKERS.items() for field, value in given.items() if type(value) is int]
OTHERS: list[tuple[str, str, list[object]]] = [
    ("Source", "name", [3, None, b"a"]),
    ("Phase", "weights", [None, 0.5, "a", ["a"]]),
    ("Mixture", "sources", [None, Source("a"), "a", {"a": 1}]),
    ("Mixture", "phases", [None, Phase(0, {"a": 1}), {"a": 1}]),
    ("Stream", "mixture", [None, {"a": 1}]),
    ("TrainingOrder", "stream", [None, MIXTURE]),
    ("TrainingOrder", "sequences", [None, 4, [4]]),
    ("TrainingOrder", "shuffle", [None, 256, True]),
]


@pytest.mark.parametrize(("maker", "field"), WHOLE)
def test_what_is_no_whole_number_is_refused_with_its_field(maker: str, field: str) -> None:
    make, given = MAKERS[maker]
    make(**given)
    make(**{**given, field: np.int64(given[field])})
    may_be_none = field in ("max_epochs", "expected_tokens") or (maker, field) == ("Shuffle", "block")
    for wrong in WRONG if may_be_none else [*WRONG, None]:
        with pytest.raises(InputError, match=rf": {field} is {re.escape(repr(wrong))}.*: give a whole number"):
            make(**{**given, field: wrong})
    if may_be_none:
        make(**{**given, field: None})


@pytest.mark.parametrize(("maker", "field", "wrong"), OTHERS)
def test_what_is_of_another_kind_is_refused_with_its_field(maker: str, field: str, wrong: list[object]) -> None:
    make, given = MAKERS[maker]
    for each in wrong:
        with pytest.raises(InputError, match=rf": {field} is {re.escape(repr(each)[:40])}.*: give "):
            make(**{**given, field: each})


def test_what_a_mixture_holds_and_the_counts_of_an_order_are_looked_at_one_by_one() -> None:
    wrong: Any = "a"
    with pytest.raises(InputError, match=r"a mixture: sources\[1\] is 'a' \(str\): give a Source"):
        Mixture((Source("a"), wrong), MIXTURE.phases)
    with pytest.raises(InputError, match=r"a mixture: phases\[0\] is 'a' \(str\): give a Phase"):
        Mixture(MIXTURE.sources, (wrong,))
    weights: Any = {3: 1}
    with pytest.raises(InputError, match=r"at 0 tokens, weights: source is 3 \(int\): give its name"):
        Phase(0, weights)
    counts: Any = {"a": 4.0}
    with pytest.raises(InputError, match=r"source 'a': sequences is 4\.0 \(float\): give a whole number"):
        TrainingOrder(STREAM, counts, 2, 0)
    odd = ("where", "or_none")
    stream = Stream(Mixture(tuple(Source(name) for name in odd), (Phase(0, dict.fromkeys(odd, "1/2")),)), 4)
    assert TrainingOrder(stream, dict.fromkeys(odd, 4), 2, 0).sequences == (4, 4)


def test_a_loader_and_a_cut_refuse_what_is_of_another_type(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path, [[[1] * 17]]))
    given: dict[str, Any] = {
        "order": ORDER, "sources": [Sequences(store, 4)], "rows": np.arange(2),
        "start": 0, "stop": 1, "workers": 0, "ahead": 1, "log": None,
    }  # fmt: skip
    with Loader(**{**given, "start": np.int64(0), "rows": []}) as loader:
        assert next(loader).step == 0
    for field in ("start", "stop", "workers", "ahead"):
        for wrong in [*WRONG, *([None] if field != "ahead" else [])]:
            with pytest.raises(InputError, match=rf"a loader: {field} is {re.escape(repr(wrong))}"):
                Loader(**{**given, field: wrong})
    for field, value in (("order", STREAM), ("sources", given["sources"][0]), ("log", "log.txt")):
        with pytest.raises(InputError, match=f"a loader: {field} is "):
            Loader(**{**given, field: value})
    for rows in (np.array([0.5, 1.0]), np.array([True, False]), np.array(["0"]), None):
        with pytest.raises(InputError, match="rows of a batch must be whole numbers"):
            Loader(**{**given, "rows": rows})
    for wrong in [*WRONG, None]:
        length: Any = wrong
        with pytest.raises(InputError, match="sequences: sequence_length is "):
            Sequences(store, length)


def test_what_is_read_by_number_is_read_by_whole_numbers(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path, [[[1] * 17]]))
    sequences = Sequences(store, 4)
    for wrong in (np.array([0.5]), np.array([1.0]), ["1"], [True], [None]):
        ids: Any = wrong
        with pytest.raises(InputError, match="sequences must be whole numbers"):
            sequences.read(ids)
        with pytest.raises(InputError, match="positions must be whole numbers"):
            store.read_many(ids, 1)
    for ids in (np.array([[0]]), np.int64(0)):
        with pytest.raises(InputError, match="sequences must be a list"):
            sequences.read(ids)
    assert sequences.read(np.array([])).inputs.shape == (0, 4)
    assert np.array_equal(sequences.read([0, 1]).inputs, np.ones((2, 4)))  # pyright: ignore[reportArgumentType]
    methods: list[Callable[[Any], object]] = [
        sequences.pieces,
        sequences.sequences_of,
        store.document,
        store.document_at,
        lambda each: store.read(each, 3),
        lambda each: store.read(0, each),
        lambda each: store.read_many(np.array([0]), each),
    ]
    for method in methods:
        for wrong in [*WRONG, None]:
            with pytest.raises(InputError, match=r": \w+ is .*: give a whole number"):
                method(wrong)


def test_numbers_of_numpy_do_not_overflow_where_pythons_do_not() -> None:
    mixture = Mixture((Source("a", None),), (Phase(0, {"a": 1}),))
    length: Any = np.uint8(4)
    held: Any = {"a": np.int8(4)}
    size: Any = np.int8(2)
    seed: Any = np.int64(3)
    of_numpy: Any = np.int64
    narrow = TrainingOrder(Stream(mixture, length), held, size, seed)
    wide = TrainingOrder(Stream(mixture, 4), {"a": 4}, 2, 3)
    for step in (100, 2**31):
        assert narrow.position(step) == wide.position(step) == 8 * step
        assert narrow.digest(narrow.batch(of_numpy(step))) == wide.digest(wide.batch(step))


@pytest.mark.parametrize("wrong", [np.float32(0.5), np.int64(2**32)])
def test_a_loader_refuses_what_cannot_be_an_id(wrong: Any) -> None:
    class Source:
        sequence_length = 4

        def __len__(self) -> int:
            return 4

        def read(self, ids: np.ndarray) -> Rows:
            tokens = np.zeros((len(ids), 4), np.int32)
            return Rows(tokens + wrong, tokens)

    with (
        Loader(ORDER, [Source()], rows=np.arange(1), start=0, stop=1, workers=0) as made,
        pytest.raises(InputError, match="it gave inputs"),
    ):
        next(made)


def test_a_ledger_with_a_part_twice_is_refused(tmp_path: Path) -> None:
    write_store(tmp_path, [[[1] * 17], [[2] * 17]])
    text = (tmp_path / "ledger.json").read_text()
    first, second = (part.name for part in Ledger.from_json(text, "here").parts)
    with pytest.raises(InputError, match=f"{first} is there twice"):
        Ledger.from_json(text.replace(second, first), "here")
