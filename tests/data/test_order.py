"""The order of training data: a pure function that reads every sequence once an epoch, whoever asks for what part."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixing import key64, mix64
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.permutation import Permutation
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def single(sequences: int, batch: int, seed: int = 0, shuffle: Shuffle = Shuffle(), length: int = 8) -> TrainingOrder:
    """The order of one source."""
    mixture = Mixture((Source("text", None),), (Phase(0, {"text": 1}),))
    return TrainingOrder(Stream(mixture, length), {"text": sequences}, batch, seed, shuffle)


def several(batch: int = 8, seed: int = 7, names: tuple[str, ...] = ("web", "code", "books")) -> TrainingOrder:
    """Three sources in two phases."""
    sizes = {"web": 300, "code": 100, "books": 500}
    mixture = Mixture(
        tuple(Source(name, None) for name in names),
        (Phase(0, {"web": "1/2", "code": "1/2"}), Phase(10_000, {"web": "1/3", "books": "2/3"})),
    )
    return TrainingOrder(Stream(mixture, 10), sizes, batch, seed)


def pairs(batch: Batch) -> list[tuple[int, int, int]]:
    return list(zip(batch.sources.tolist(), batch.sequences.tolist(), batch.epochs.tolist(), strict=True))


def _finaliser(z: int) -> int:
    """The output function of SplitMix64 in plain integers, as Vigna's public-domain reference defines it."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_finaliser_is_that_of_splitmix64() -> None:
    # First output for seed 1234567, as listed with the reference implementation.
    assert int(mix64(np.array([1234567 + STEP], np.uint64))[0]) == 6457827717110365317
    states = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64)
    assert mix64(states).tolist() == [_finaliser(state) for state in states.tolist()]


def test_keys_depend_on_each_number_and_its_place() -> None:
    assert len({key64(0, 1), key64(1, 0), key64(0, 0), key64(1, 1), key64(0), key64(-1)}) == 6


@settings(deadline=None)
@given(
    st.integers(1, 200),
    st.integers(1, 50),
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.sampled_from([Shuffle(), Shuffle(block=4, window=3)]),
)
def test_each_epoch_reads_each_sequence_once(
    sequences: int, batch: int, steps: int, seed: int, shuffle: Shuffle
) -> None:
    order = single(sequences, batch, seed, shuffle)
    read = Batch.joined([order.batch(step) for step in range(steps)])
    for epoch in range(len(read) // sequences):
        part = read[slice(epoch * sequences, (epoch + 1) * sequences)]
        assert sorted(part.sequences.tolist()) == list(range(sequences))
        assert set(part.epochs.tolist()) == {epoch}


def test_no_two_epochs_and_no_two_sources_share_a_permutation() -> None:
    mixture = Mixture((Source("a", None), Source("b", None)), (Phase(0, {"a": "1/2", "b": "1/2"}),))
    order = TrainingOrder(Stream(mixture, 8), {"a": 1000, "b": 1000}, 4, seed=1)
    place = np.arange(1000)
    orders = [order.permutation(source, epoch)(place) for source in (0, 1) for epoch in (0, 1, 2)]
    for one, first in enumerate(orders):
        for second in orders[:one]:
            assert np.count_nonzero(first == second) < 12  # one is expected


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(0, 200))
def test_any_part_of_the_order_is_the_same_whoever_asks(start: int, length: int) -> None:
    order = several()
    alone = [pairs(order.between(position, position + 1))[0] for position in range(start, start + length, 17)]
    assert alone == pairs(order.between(start, start + length))[::17]


@settings(deadline=None)
@given(st.integers(0, 5000))
def test_a_sequence_is_found_where_it_is_read(position: int) -> None:
    order = several()
    ((source, sequence, epoch),) = pairs(order.between(position, position + 1))
    assert order.find(source, sequence, epoch) == position


def test_a_sequence_of_a_source_with_next_to_no_weight_is_found() -> None:
    mixture = Mixture(
        (Source("much", None), Source("hardly", None)),
        (Phase(0, {"much": "99999999999999999999999999/100000000000000000000000000", "hardly": "1e-26"}),),
    )
    order = TrainingOrder(Stream(mixture, 1), {"much": 10, "hardly": 10}, 4, seed=0)
    position = order.find(1, 3, 1)
    assert position > 10**26
    assert order.stream.counts(position + 1)["hardly"] == order.stream.counts(position)["hardly"] + 1


def test_a_turn_that_never_comes_is_refused() -> None:
    with pytest.raises(InputError, match="'code' has no turn"):
        several().find(1, 5, 500)


def test_the_batch_size_only_says_where_the_order_is_cut() -> None:
    read = pairs(several(batch=8).between(0, 960))
    for batch in (1, 3, 24, 96):
        order = several(batch=batch)
        assert [each for step in range(960 // batch) for each in pairs(order.batch(step))] == read


def test_a_source_that_is_added_later_changes_nothing_before() -> None:
    """Sources are told apart by their names, in the permutations and in the digests."""
    two = Mixture((Source("web", None), Source("code", None)), (Phase(0, {"web": "1/2", "code": "1/2"}),))
    before = TrainingOrder(Stream(two, 10), {"web": 300, "code": 100}, 8, seed=7)
    after = several(names=("books", "web", "code"))
    for step in range(100):
        old, new = before.batch(step), after.batch(step)
        assert before.digest(old) == after.digest(new)
        assert before.sum(old) == after.sum(new)
        assert old.sequences.tolist() == new.sequences.tolist()


def test_what_comes_later_can_be_left_out() -> None:
    order = several()
    for position, phases in ((0, 1), (1000, 1), (1001, 2)):
        reached = order.stream.reached(position)
        assert Stream(reached, 10).reached(position) == reached
        assert len(reached.phases) == phases
        sizes = dict(zip(order.names, order.sequences, strict=True))
        short = TrainingOrder(Stream(reached, 10), {name: sizes[name] for name in reached.names}, 8, seed=7)
        batch, same = order.between(0, position), short.between(0, position)
        assert order.digest(batch) == short.digest(same)


def test_shares_are_those_of_the_mixture_and_a_phase_begins_exactly() -> None:
    order = several()
    read = order.between(0, 4000)
    before, after = read.sources[:1000], read.sources[1000:]
    assert set(before.tolist()) == {0, 1}
    assert set(after.tolist()) == {0, 2}
    assert abs(np.count_nonzero(after == 0) - 1000) < 2


def test_the_order_is_the_same_in_every_process() -> None:
    program = (
        "from tests.data.test_order import single, several;"
        "order = single(10_000, 8, 7, length=100);"
        "print(order.batch(0).sequences.tolist(), order.digest(order.batch(12345)), order.sum(order.batch(12345)));"
        "print(several().digest(several().batch(130)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    # What the definition gave when orders were first recorded: another value here is another order of everybody's data.
    assert printed.splitlines() == [
        "[1715, 5830, 2375, 1305, 5966, 8628, 7479, 8280] 49e21d3bac408ab2 48917321058245026",
        "733bd6fe607e0fcf",
    ]


def test_positions_in_tokens_survive_a_change_of_batch_size() -> None:
    before = single(1000, 8, seed=1, length=10)
    after = TrainingOrder(
        before.stream, {"text": 1000}, batch_size=4, seed=1, first_step=50, first_token=before.position(50)
    )
    both = Batch.joined([after.batch(50), after.batch(51)])
    assert pairs(both) == pairs(before.batch(50))
    assert after.position(52) == before.position(51)
    assert after.epochs(52) == before.epochs(51) == {"text": 0.408}


def test_a_change_of_length_goes_on_after_the_tokens_that_were_read() -> None:
    stream = single(100, 1, length=64).stream
    after = TrainingOrder(stream, {"text": 156}, batch_size=2, seed=1, first_step=10, first_token=1000)
    assert after.position(10) == 1024
    expected = TrainingOrder(stream, {"text": 156}, batch_size=2, seed=1).between(16, 18)
    assert pairs(after.batch(10)) == pairs(expected)


def test_the_sum_does_not_depend_on_the_order_and_the_digest_does() -> None:
    order = several()
    batch = order.batch(5)
    turned = batch[np.arange(8)[::-1]]
    assert order.sum(batch) == order.sum(turned)
    assert order.digest(batch) != order.digest(turned)
    again = Batch(batch.sources, batch.sequences, batch.epochs + 1)
    other = Batch(batch.sources, np.roll(batch.sequences, 2), batch.epochs)
    assert len({order.sum(batch), order.sum(again), order.sum(batch[slice(0, 7)])}) == 3
    assert order.digest(other) != order.digest(batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch size 0"),
        ({"sequences": {"text": 0}}, "'text' of the mixture has no sequence"),
        ({"sequences": {}}, "shorter sequence length"),
        ({"first_token": -1}, "negative"),
        ({"seed": -1}, r"seed is -1: give a number in \[0, 2\*\*32\)"),
        ({"seed": 2**32}, r"seed is 4294967296: give a number in \[0, 2\*\*32\)"),
        ({"seed": np.uint64(2**64 - 1)}, r"seed is 18446744073709551615: give"),
        ({"sequences": {"text": 9, "zz": 3}}, "names 'zz', which is none of the mixture's sources: these are 'text'"),
        ({"sequences": {"Text": 9}}, "names 'Text', which is none of the mixture's sources: these are 'text'"),
    ],
)
def test_an_impossible_order_is_refused(change: dict[str, object], message: str) -> None:
    given = {"stream": single(9, 1).stream, "sequences": {"text": 9}, "batch_size": 2, "seed": 0, **change}
    with pytest.raises(InputError, match=message):
        TrainingOrder(**given)


@pytest.mark.parametrize("change", [{"block": 0}, {"window": 0}, {"block": 3, "window": -1}])
def test_an_impossible_shuffle_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        Shuffle(**change)


def test_the_name_of_a_shuffle_is_that_of_its_permutation() -> None:
    from marin_pipeline.data.permutation import BlockPermutation

    assert Shuffle().plain()["name"] == Permutation.NAME
    assert Shuffle(block=8).plain()["name"] == BlockPermutation.NAME
    order = single(1000, 4, shuffle=Shuffle(block=8, window=16))
    assert isinstance(order.permutation(0, 0), BlockPermutation)


@pytest.mark.parametrize("wrong", [2.5, 3.0, "3", None, True, np.float64(1), np.array([1])])
def test_what_is_no_whole_number_is_no_step_and_no_position(wrong: Any) -> None:
    order = single(9, 1)
    for method in (order.batch, order.index, order.position, order.epochs):
        with pytest.raises(InputError, match=r"an order of training: step is .*: give a whole number"):
            method(wrong)
    for place in range(3):
        with pytest.raises(InputError, match=r"(source|sequence|epoch) is .*: give a whole number"):
            order.find(*[wrong if at == place else 0 for at in range(3)])
    for start, stop in ((wrong, 9), (0, wrong)):
        with pytest.raises(InputError, match=r"a stream: (start|stop) is .*: give a whole number"):
            order.between(start, stop)
    with pytest.raises(InputError, match=r"a stream: position is .*: give a whole number"):
        order.stream.counts(wrong)
    assert len(order.batch(np.int32(2))) == len(order.batch(2))  # pyright: ignore[reportArgumentType]


def test_a_step_before_the_first_is_refused() -> None:
    order = TrainingOrder(single(9, 1).stream, {"text": 9}, batch_size=2, seed=0, first_step=5)
    with pytest.raises(InputError, match="step 4 is before step 5"):
        order.batch(4)
