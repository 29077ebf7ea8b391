"""The mixture of sources: exact shares at every position, by phase, and every unusable declaration refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.canonical import digest, encode
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source, Weight, exact, shares
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.split import Split
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.supply import Held, check_expected, check_held, check_passes


def _mixture(*phases: tuple[int, Mapping[str, Weight]], **fields: int | None) -> Mixture:
    names = list(dict.fromkeys(name for _, weights in phases for name in weights))
    return Mixture(tuple(Source(name, **fields) for name in names), tuple(Phase(*phase) for phase in phases))


def _uneven(sources: int, seed: int = 0) -> dict[str, Weight]:
    """Weights over four orders of magnitude."""
    return shares(
        {f"source{index:03}": ((index * 7919 + seed * 104_729) % 997 % 100 + 1) ** 2 for index in range(sources)}
    )


def _by_definition(weights: list[int], turns: int) -> list[int]:
    """The source of each turn, by building the tree as nested pairs and dealing the turns out node by node."""
    nodes = [(weight, order, order) for order, weight in enumerate(weights)]  # weight, when made, source or pair
    while len(nodes) > 1:
        first, second, *rest = sorted(nodes, key=lambda node: node[:2])
        pair = (first, second) if first[0] == second[0] else (second, first)
        nodes = [*rest, (first[0] + second[0], len(weights) * 2 - len(nodes), pair)]
    dealt = [-1] * turns

    def deal(node: tuple, at: list[int]) -> None:
        weight, _, below = node
        if isinstance(below, int):
            for turn in at:
                dealt[turn] = below
            return
        half = Fraction(1, 2)
        share = Fraction(below[0][0], weight)
        left = [m for m in range(len(at)) if (m + 1) * share + half >= 1 + (m * share + half) // 1]
        deal(below[0], [at[m] for m in left])
        deal(below[1], [at[m] for m in sorted(set(range(len(at))) - set(left))])

    deal(nodes[0], list(range(turns)))
    return dealt


WEIGHTS = st.lists(st.integers(1, 1000) | st.sampled_from([1, 2, 3, 10**17]), min_size=1, max_size=12)


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 120))
def test_the_turns_are_those_that_the_definition_gives(weights: list[int], turns: int) -> None:
    assert Split(weights).turns(0, turns)[0] == _by_definition(weights, turns)


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 10**18), st.integers(1, 100))
def test_the_turns_found_at_a_position_are_those_of_going_there(weights: list[int], start: int, length: int) -> None:
    split = Split(weights)
    sources, numbers = split.turns(start, length)
    counts = split.counts(start)
    for turn, (source, number) in enumerate(zip(sources, numbers, strict=True)):
        assert counts == split.counts(start + turn)
        assert number == counts[source]
        counts[source] += 1
    assert counts == split.counts(start + length)
    assert sum(counts) == start + length


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 10**18))
def test_no_source_is_ever_two_turns_from_its_share(weights: list[int], position: int) -> None:
    total = sum(weights)
    for weight, count in zip(weights, Split(weights).counts(position), strict=True):
        assert abs(count * total - position * weight) < 2 * total


def _deviations(weights: list[int], turns: int) -> np.ndarray:
    """How far each source is from its share after each turn: `(turns, sources)`."""
    sources, _ = Split(weights).turns(0, turns)
    counts = np.zeros((turns, len(weights)))
    counts[np.arange(turns), sources] = 1
    return np.abs(counts.cumsum(0) - np.outer(np.arange(1, turns + 1), np.array(weights) / sum(weights)))


@pytest.mark.parametrize(
    "weights",
    [
        [499, *[1] * 499],  # merging the sources' evenly spaced turns by time is 125 turns off here
        [1_000_000 // (rank + 1) for rank in range(500)],
        [2**rank for rank in range(60)],
        [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377],
        [1, 99_999],
    ],
    ids=["one half", "harmonic", "powers", "Fibonacci", "1e-5"],
)
def test_hard_mixtures_stay_within_one_turn_of_their_shares(weights: list[int]) -> None:
    assert _deviations(weights, 3000).max() < 1


def test_equal_sources_take_turns_in_rounds() -> None:
    sources, _ = Split([1] * 512).turns(512 * 1000, 512 * 3)
    for round in range(3):
        assert sorted(sources[round * 512 : (round + 1) * 512]) == list(range(512))
    assert Split([7, 7]).turns(0, 6)[0] == [0, 1, 0, 1, 0, 1]


def test_a_share_of_one_in_a_hundred_thousand_among_500_gets_its_turns() -> None:
    rest = shares({f"source{index:03}": index + 1 for index in range(499)})
    mixture = _mixture(
        (0, {"rare": 1e-5, **{name: str(Fraction(each) * 99_999 / 10**5) for name, each in rest.items()}})
    )
    stream = Stream(mixture, 1)
    assert len(mixture.sources) == 500
    for position in range(0, 3_000_000, 12_345):
        assert abs(stream.counts(position)["rare"] - position / 100_000) < 2
    assert stream.counts(10**9)["rare"] == 10_000


def test_phases_carry_counts_on_and_stay_near_their_shares() -> None:
    mixture = _mixture(
        (0, _uneven(500)), (5_000_000, {"source000": "1/3", "new": "2/3"}), (9_000_000, shares({"new": 1, "last": 3}))
    )
    stream = Stream(mixture, 1000)
    expected = dict.fromkeys(mixture.names, Fraction(0))
    ends = [5000, 9000, 20_000]
    for index, (start, phase, end) in enumerate(zip([0, *ends], mixture.phases, ends, strict=False)):
        for name, weight in phase.fractions().items():
            expected[name] += weight * (end - start)
        counts = stream.counts(end)
        assert list(counts) == list(mixture.names)
        assert sum(counts.values()) == end
        assert all(abs(counts[name] - expected[name]) < 2 * (index + 1) for name in mixture.names)
    assert stream.counts(9000)["source001"] == stream.counts(5000)["source001"]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 150), st.integers(1, 9), st.integers(0, 99))
def test_any_cut_of_the_stream_is_the_stream(sources: int, start: int, length: int, tokens: int, seed: int) -> None:
    first, second = _uneven(sources, seed), _uneven(sources + 3, seed + 1)
    stream = Stream(_mixture((0, first), (tokens * 50, second), (tokens * 51, first)), tokens)
    source, number = stream.slots(start, start + length)
    assert source.dtype == number.dtype == np.int64
    assert source.shape == number.shape == (length,)
    whole = [array[start:] for array in stream.slots(0, start + length)]
    assert np.array_equal([source, number], whole)
    counts = list(stream.counts(start).values())
    for place, nth in zip(source, number, strict=True):
        assert nth == counts[place]
        counts[place] += 1
    assert counts == list(stream.counts(start + length).values())


def test_a_phase_begins_exactly_inside_a_batch() -> None:
    stream = Stream(_mixture((0, {"a": 1}), (1000, {"b": 1}), (1030, {"a": 0.5, "b": 0.5})), 10)
    source, number = stream.slots(96, 108)
    assert source.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0]
    assert number.tolist() == [96, 97, 98, 99, 0, 1, 2, 100, 3, 101, 4, 102]


@pytest.mark.parametrize(("start", "first"), [(1, 1), (10, 1), (11, 2), (20, 2)])
def test_a_phase_begins_with_the_next_whole_sequence(start: int, first: int) -> None:
    stream = Stream(_mixture((0, {"a": 1}), (start, {"b": 1})), 10)
    assert stream.starts == (0, first)
    assert stream.slots(0, 4)[0].tolist() == [0] * first + [1] * (4 - first)


def test_the_stream_of_a_mixture_is_the_one_first_recorded() -> None:
    # Another value here is another order of everybody's data: name it anew in Split.NAME.
    few = Stream(_mixture((0, {"web": 0.6, "code": 0.3, "books": 0.1})), 1)
    assert few.slots(0, 20)[0].tolist() == [0, 1, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 1, 0, 0, 2, 0, 1, 0]
    many = Stream(_mixture((0, _uneven(500)), (2**20, {"source007": 1e-5, "source008": 0.99999})), 2)
    slots = np.concatenate([*many.slots(10**5, 10**5 + 1024), *many.slots(2**19 - 512, 2**19 + 512)])
    assert hashlib.sha256(slots.astype("<i8").tobytes()).hexdigest()[:16] == "42ad1cf7586dd73f"
    assert Split.NAME == "huffman1"


def test_the_order_of_the_sources_only_decides_between_equal_ones() -> None:
    weights: dict[str, Weight] = {"a": "1/2", "b": "1/3", "c": "1/6"}
    phases = (Phase(0, weights),)
    names = [
        [mixture.names[place] for place in Stream(mixture, 1).slots(0, 50)[0]]
        for order in ("abc", "cba")
        for mixture in [Mixture(tuple(map(Source, order)), phases)]
    ]
    assert names[0] == names[1]
    equal = Mixture((Source("b"), Source("a")), (Phase(0, {"a": 0.5, "b": 0.5}),))
    assert Stream(equal, 1).slots(0, 4)[0].tolist() == [0, 1, 0, 1]


def test_a_batch_of_1024_from_500_sources_takes_under_2_ms() -> None:
    stream = Stream(_mixture((0, _uneven(500))), 2048)
    spent = []
    for batch in range(20):
        before = time.process_time()
        stream.slots(batch * 10**6, batch * 10**6 + 1024)
        spent.append(time.process_time() - before)
    assert min(spent) < 0.002


def test_declaring_a_mixture_and_checking_a_run_load_no_numpy() -> None:
    program = """
import sys
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.supply import check_expected
stream = Stream(Mixture((Source("a", 1, 100),), (Phase(0, {"a": 1}),)), 8)
check_expected(stream, steps=2, batch_size=6)
assert stream.restricted(12) and "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# What is in a key -----------------------------------------------------------------------------------------------------


def test_a_mixture_has_one_key_however_its_weights_are_written() -> None:
    def key(weights: Mapping[str, Weight]) -> str:
        return digest(encode(Mixture((Source("a"), Source("b")), (Phase(0, weights),)), "mixture"))

    assert key({"a": 0.2, "b": 0.8}) == key({"b": "4/5", "a": "0.20"}) == key(shares({"a": 5, "b": 20.0}))
    assert key({"a": 0.2, "b": 0.8}) != key({"a": 0.8, "b": 0.2})


def test_what_earlier_sequences_depend_on_stays_when_later_phases_change() -> None:
    first: dict[str, Weight] = {"b": 0.5, "a": 0.5}
    short = Stream(_mixture((0, first)), 10)
    longer = Stream(_mixture((0, first), (95, {"a": 0.1, "c": 0.9}), max_epochs=7, expected_tokens=99), 10)
    assert longer.restricted(10) == short.restricted(10)
    assert longer.restricted(10) == [
        {"from": 0, "to": 10, "weights": [["b", "1/2"], ["a", "1/2"]], "split": "huffman1"}
    ]
    assert longer.restricted(12) == [
        *short.restricted(10),
        {"from": 10, "to": 12, "weights": [["a", "1/10"], ["c", "9/10"]], "split": "huffman1"},
    ]
    assert longer.restricted(0) == []


@pytest.mark.parametrize(
    ("weight", "value"),
    [
        (3, Fraction(3)),
        (0.1, Fraction(1, 10)),
        (1e-5, Fraction(1, 100_000)),
        (1e22, Fraction(10**22)),
        (np.float64(0.3), Fraction(3, 10)),
        ("1/3", Fraction(1, 3)),
        ("2/6", Fraction(1, 3)),
        ("0.125", Fraction(1, 8)),
        ("2.5E-3", Fraction(1, 400)),
    ],
)
def test_a_weight_is_the_rational_that_is_written(weight: Weight, value: Fraction) -> None:
    assert exact(weight, "here") == value


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.integers(1, 10**9) | st.floats(1e-9, 1e9), min_size=1, max_size=50))
def test_shares_sum_to_exactly_1_in_the_proportions_given(relative: dict[str, Weight]) -> None:
    found = {name: Fraction(share) for name, share in shares(relative).items()}
    assert sum(found.values()) == 1
    values = {name: exact(weight, "") for name, weight in relative.items()}
    assert len({found[name] / values[name] for name in relative}) == 1
    Phase(0, {**shares(relative)})


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (0, "the weight 0 is not above 0; leave the source out"),
        (-0.5, "the weight -0.5 is not above 0"),
        ("0/3", "not above 0"),
        ("-1/3", "not above 0"),
        (float("nan"), "'nan' is no finite number"),
        (float("inf"), "'inf' is no finite number"),
        ("1/0", "'1/0' is no finite number"),
        ("1/3 ", "is no finite number"),
        ("a third", "'a third' is no finite number"),
        ("1e-99999999", "is no finite number"),
        ("1" * 1000, "is no finite number"),
        (True, "True is no number"),
        (None, "None is no number"),
        ((1, 3), "is no number"),
    ],
)
def test_a_weight_that_is_none_is_refused_by_phase_and_source(weight: Weight, message: str) -> None:
    with pytest.raises(InputError, match=f"phase of the mixture at 1,000 tokens, source 'web': .*{message}"):
        Phase(1000, {"code": 0.5, "web": weight})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 0.5, "b": 0.4}, "its 2 sources sum to 9/10, 0.1 less than 1; correct them, or .*shares"),
        ({"a": "2/3", "b": "2/3"}, "sum to 4/3, 0.333 more than 1"),
        ({"a": 0.4, "b": "0.60000001"}, "1e-08 more than 1; correct them"),
        ({"a": 2, "b": 1}, "sum to 3, 2 more than 1"),
        (dict.fromkeys("abc", 1 / 3), "sum to 9999999999999999/10000000000000000, 1e-16 less than 1; write fractions"),
        ({"a": 1 / 3, "b": "0.6666666667"}, 'more than 1; write fractions as text, "1/3" for 1/3, or .*shares'),
        ({f"{n}": f"1/{n}" for n in range(101, 141)}, r"its 40 sources sum to 0\.335047746763657, 0\.665 less"),
        ({}, "no weights; name at least one source"),
    ],
)
def test_weights_that_do_not_sum_to_1_are_refused_with_their_sum(weights: Mapping[str, Weight], message: str) -> None:
    with pytest.raises(InputError, match=f"phase of the mixture at 7 tokens: .*{message}"):
        Phase(7, weights)


def test_fractions_with_no_short_common_denominator_are_refused() -> None:
    many: dict[str, Weight] = {f"{n}": f"1/{n}" for n in range(10**9, 10**9 + 600)}
    with pytest.raises(InputError, match=r"of 600 sources have a common denominator of \d+ bits: give whole numbers"):
        shares(many)
    with pytest.raises(InputError, match=r"its 600 sources sum to 5\.9999\d+e-07, 1 less than 1"):
        Phase(0, many)


def test_a_weight_beyond_every_float_is_refused_as_others_are() -> None:
    with pytest.raises(InputError, match=r"sum to more than 1e300, more than 1e300 more than 1"):
        Phase(0, {"a": "1e400"})


ONE = Phase(0, {"a": 1})
A, B = Source("a"), Source("b")


@pytest.mark.parametrize(
    ("sources", "phases", "message"),
    [
        ((), (), "a mixture of 0 sources and 0 phases"),
        ((A,), (), "a mixture of 1 sources and 0 phases"),
        ((A, B, A), (ONE,), "'a' among its sources more than once"),
        ((A, B), (ONE,), "the source 'b', to which no phase gives a weight"),
        ((A,), (Phase(0, {"a": 0.5, "c": 0.5}),), "at 0 tokens names 'c', which is none of .* sources: these are 'a'"),
        ((A,), (Phase(5, {"a": 1}),), "first phase of the mixture starts at 5 tokens"),
        ((A,), (ONE, Phase(9, {"a": 1}), Phase(9, {"a": 1})), "starts at 9 tokens follows one that starts at 9"),
        ((A,), (ONE, Phase(9, {"a": 1}), Phase(8, {"a": 1})), "starts at 8 tokens follows one that starts at 9"),
    ],
)
def test_a_mixture_that_does_not_fit_together_is_refused(
    sources: tuple[Source, ...], phases: tuple[Phase, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Mixture(sources, phases)


def test_sources_and_phases_with_impossible_fields_are_refused() -> None:
    with pytest.raises(InputError, match="empty name"):
        Source("")
    with pytest.raises(InputError, match="source 'a': max_epochs is 0"):
        Source("a", max_epochs=0)
    with pytest.raises(InputError, match="source 'a': expected_tokens is 0"):
        Source("a", expected_tokens=0)
    with pytest.raises(InputError, match="starts at -1 tokens"):
        Phase(-1, {"a": 1})


def test_a_stream_of_no_length_or_with_an_empty_phase_is_refused() -> None:
    mixture = _mixture((0, {"a": 1}), (91, {"b": 1}), (99, {"a": 1}))
    with pytest.raises(InputError, match="sequence length 0"):
        Stream(mixture, 0)
    with pytest.raises(
        InputError, match="at 99 tokens begins with sequence 10 of 10 tokens, as the phase before it does"
    ):
        Stream(mixture, 10)
    assert Stream(mixture, 4).starts == (0, 23, 25)


def test_positions_that_do_not_exist_are_refused() -> None:
    stream = Stream(_mixture((0, {"a": 1})), 4)
    for position in (-1, -(10**9)):
        with pytest.raises(InputError, match=f"sequence {position} of the mixture"):
            stream.counts(position)
        with pytest.raises(InputError, match=f"sequence {position} of the mixture"):
            stream.slots(position, 5)
    with pytest.raises(InputError, match="the end is before the start"):
        stream.slots(5, 4)


def _supply(max_epochs: int | None = 1, **expected: int) -> Stream:
    sources = tuple(Source(name, max_epochs, expected.get(name)) for name in ("web", "code"))
    return Stream(Mixture(sources, (Phase(0, {"web": 0.75, "code": 0.25}),)), 10)


def _cut(**tokens: int) -> dict[str, Held]:
    return {name: Held.cut(count, 10) for name, count in tokens.items()}


def test_a_run_that_reads_exactly_what_its_sources_hold_is_let_through() -> None:
    # 20 steps of 4 sequences: 60 of the one, 20 of the other, each with one token more as the last target.
    check_held(_supply(), _cut(web=601, code=201), steps=20, batch_size=4)
    check_expected(_supply(web=601, code=201), steps=20, batch_size=4)
    check_held(_supply(2), _cut(web=301, code=101), steps=20, batch_size=4)
    check_held(_supply(None), _cut(web=11, code=11), steps=10**6, batch_size=4)
    check_expected(_supply(web=601), steps=20, batch_size=4)


def test_a_source_too_small_is_refused_with_what_it_has_what_is_read_and_what_to_do() -> None:
    with pytest.raises(InputError) as refused:
        check_held(_supply(2), _cut(web=601, code=100), steps=20, batch_size=4)
    assert str(refused.value) == (
        "source 'code' of the mixture holds 100 tokens, 9 sequences of 10; 20 steps of 4 sequences read 20 from it, "
        "2.222 epochs, and its max_epochs is 2; lower its weight, raise max_epochs to 3, or train for at most 18 steps"
    )
    check_held(_supply(2), _cut(web=601, code=100), steps=18, batch_size=4)
    check_held(_supply(3), _cut(web=601, code=100), steps=20, batch_size=4)


def test_a_source_expected_to_be_too_small_is_refused_before_it_is_made() -> None:
    with pytest.raises(
        InputError, match=r"'web' of the mixture is expected to hold 600 tokens, 59 sequences of 10; .*60"
    ):
        check_expected(_supply(web=600), steps=20, batch_size=4)


def test_the_steps_of_an_order_are_refused_as_the_run_is() -> None:
    """`check_passes` with what a run reads from its beginning says what `check_held` says."""
    order = TrainingOrder(_supply(2), {"web": 60, "code": 9}, batch_size=4, seed=0)
    check_passes(order, 18)
    with pytest.raises(InputError) as refused:
        check_passes(order, 20)
    assert str(refused.value) == (
        "source 'code' of the mixture holds 9 sequences of 10; steps before 20 read 20 from it, 2.222 epochs, and its "
        "max_epochs is 2; lower its weight, raise max_epochs to 3, or train for at most 18 steps"
    )
    # Sequences 0 to 39 come before step 8; of the first 48 the source has 12, of the first 56 it has 14.
    later = TrainingOrder(_supply(1), {"web": 60, "code": 12}, batch_size=8, seed=0, first_step=8, first_token=400)
    check_passes(later, 9)
    with pytest.raises(InputError, match=r"'code' .* steps before 10 read 14 from it, 1\.167 .* at most 9 steps"):
        check_passes(later, 10)
    check_passes(TrainingOrder(_supply(None), {"web": 1, "code": 1}, 4, 0), 10**9)
    over = TrainingOrder(_supply(1), {"web": 1, "code": 1}, 4, 0, first_token=400)
    with pytest.raises(InputError, match=r"(?s)'web' .*a smaller batch size\n.*'code' .*a smaller batch size"):
        check_passes(over, 0)


def test_missing_unknown_and_empty_sources_are_told_together() -> None:
    with pytest.raises(InputError) as refused:
        check_held(_supply(), _cut(code=0, books=500), steps=20, batch_size=4)
    missing, unknown, empty = str(refused.value).splitlines()
    assert "source 'web' of the mixture is missing" in missing
    assert "the tokens 'books' are given, and no source of the mixture has that name" in unknown
    assert (
        empty == "source 'code' of the mixture holds 0 tokens, less than one sequence of 10 and a target; leave it out"
    )


def test_a_source_shorter_than_a_sequence_is_refused_even_if_its_turn_never_comes() -> None:
    with pytest.raises(InputError, match=r"'code' of the mixture holds 10 tokens, less than .*shorter sequence length"):
        check_held(_supply(None), _cut(web=601, code=10), steps=0, batch_size=1)


@given(tokens=st.integers(0, 400), length=st.integers(1, 30))
def test_tokens_that_are_cut_make_as_many_sequences_as_have_all_their_targets(tokens: int, length: int) -> None:
    held = Held.cut(tokens, length)
    assert held.tokens == tokens
    assert held.sequences == sum(start + length < tokens for start in range(0, tokens, length))


def test_rows_that_are_packed_are_counted_as_the_plan_has_them() -> None:
    """Padding makes more rows of the same tokens than there are sequences in them."""
    packed = {"web": Held(550, 60), "code": Held(70, 10)}
    check_held(_supply(2), packed, steps=20, batch_size=4)
    with pytest.raises(InputError) as refused:
        check_held(_supply(1), packed, steps=20, batch_size=4)
    assert str(refused.value) == (
        "source 'code' of the mixture holds 70 tokens, 10 sequences of 10; 20 steps of 4 sequences read 20 from it, "
        "2 epochs, and its max_epochs is 1; lower its weight, raise max_epochs to 2, or train for at most 10 steps"
    )
    with pytest.raises(InputError, match=r"'code' of the mixture holds 0 tokens, .*; leave it out"):
        check_held(_supply(1), {**packed, "code": Held(0, 0)}, steps=1, batch_size=4)


def test_what_is_expected_of_packed_sources_is_judged_by_their_plan_alone() -> None:
    with pytest.raises(InputError, match=r"'web' .*\n.*'code' "):
        check_expected(_supply(web=550, code=70), steps=20, batch_size=4)
    with pytest.raises(InputError, match=r"\Asource 'code' [^\n]*\Z"):
        check_expected(_supply(web=550, code=70), steps=20, batch_size=4, packed=["web"])
    check_expected(_supply(web=550, code=70), steps=20, batch_size=4, packed=["web", "code"])


def test_of_many_problems_the_first_ten_are_told_and_counted() -> None:
    stream = Stream(_mixture((0, _uneven(500))), 10)
    with pytest.raises(InputError) as refused:
        check_held(stream, {}, steps=1, batch_size=1)
    *told, more = str(refused.value).splitlines()
    assert len(told) == 10
    assert more == "and 490 more like these"
