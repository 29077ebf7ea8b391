"""Permutations with random access: each id once at any length, the same for ever, and as mixed as a true shuffle."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data import order as order_module
from marin_pipeline.data.permutation import BlockPermutation, Permutation, _Network
from tests.data.shuffles import Figure, commonest_jump, even_shares, is_bijection, orders, statistics

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
EXHAUSTIVE = [1, 2, 3, 5, 1000, 2**18]
SAMPLED = [1_000_003, 50_000_000, 3 * 2**60, 2**62 - 1, 2**62]
BEYOND = 5.0
"""Standard deviations that a true shuffle does not stray."""


def _plain(length: int) -> Permutation:
    return Permutation(length, seed=7)


def _blocks(length: int) -> BlockPermutation:
    return BlockPermutation(length, seed=7, block=64, window=100)


Make = Callable[[int], Permutation | BlockPermutation]


def _sample(length: int) -> np.ndarray:
    """Positions all over, with both ends and runs of neighbours."""
    steps = np.arange(20_000)
    found = np.concatenate([steps, length - 1 - steps, steps * (length // 20_000), length // 2 + steps])
    return np.unique(found)


# Bijections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", EXHAUSTIVE)
@pytest.mark.parametrize("make", [_plain, _blocks])
def test_each_id_stands_at_one_position_and_is_found_there(make: Make, length: int) -> None:
    order = make(length)
    ids = order(np.arange(length))
    assert ids.dtype == np.int64
    assert is_bijection(ids)
    assert order.inverse(ids).tolist() == list(range(length))


@pytest.mark.parametrize("length", SAMPLED)
@pytest.mark.parametrize("make", [_plain, _blocks])
def test_ids_of_long_orders_are_within_and_lead_back(make: Make, length: int) -> None:
    order, positions = make(length), _sample(length)
    ids = order(positions)
    assert ids.min() >= 0
    assert ids.max() < length
    assert len(np.unique(ids)) == len(positions)
    assert np.array_equal(order.inverse(ids), positions)
    assert np.array_equal(order(order.inverse(positions)), positions)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5000), st.integers(-(2**70), 2**70))
def test_every_length_and_seed_gives_a_bijection(length: int, seed: int) -> None:
    order = Permutation(length, seed)
    ids = order(np.arange(length))
    assert is_bijection(ids)
    assert np.array_equal(order.inverse(ids), np.arange(length))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 400), st.integers(1, 40), st.integers(0, 2**64))
def test_any_block_and_window_give_a_bijection(length: int, block: int, window: int, seed: int) -> None:
    order = BlockPermutation(length, seed, block, window)
    ids = order(np.arange(length))
    assert is_bijection(ids)
    assert np.array_equal(order.inverse(ids), np.arange(length))


# What is versioned by name -------------------------------------------------------------------------------------------


def _finaliser(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _key(*numbers: int) -> int:
    found = 0
    for number in numbers:
        found = _finaliser((found + STEP + number) & MASK)
    return found


def _permuted(length: int, key: int, tweak: int = 0) -> list[int]:
    """The network by its definition, in plain integers."""
    bits = 0
    while 4**bits < length:
        bits += 1
    lows = 2**bits
    highs = math.ceil(length / lows)

    def once(number: int) -> int:
        high, low = divmod(number, lows)
        for each in range(32 if length < 4096 else 8):
            round_key = _finaliser((key + (each + 1) * STEP) & MASK) ^ tweak
            if each % 2 == 0:
                low = (low + _finaliser(high ^ round_key)) % lows
            else:
                high = (high + _finaliser(low ^ round_key) * highs // 2**64) % highs
        return high * lows + low

    found = []
    for number in range(length):
        number = once(number)
        while number >= length:
            number = once(number)
        found.append(number)
    return found


def _permuted_in_blocks(length: int, seed: int, block: int, window: int) -> list[int]:
    """The two levels by their definition, with lists."""
    blocks = [list(range(length))[first : first + block] for first in range(0, length, block)]
    key = {purpose: _key(seed, purpose, length, block, window) for purpose in (2, 3, 4)}
    blocks = [blocks[each] for each in _permuted(len(blocks), key[2])]
    found = []
    for number, first in enumerate(range(0, len(blocks), window)):
        read = [id for each in blocks[first : first + window] for id in each]
        tweak = _finaliser((number * STEP + key[3]) & MASK)
        found += [read[place] for place in _permuted(len(read), key[4], tweak)]
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 257, 4095, 4096, 4097])
def test_ids_are_those_that_the_definition_gives_in_plain_integers(length: int) -> None:
    assert Permutation(length, 7)(np.arange(length)).tolist() == _permuted(length, _key(7, 1, length))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 20), st.integers(0, 2**64))
def test_ids_in_blocks_are_those_that_the_definition_gives_with_lists(
    length: int, block: int, window: int, seed: int
) -> None:
    ids = BlockPermutation(length, seed, block, window)(np.arange(length))
    assert ids.tolist() == _permuted_in_blocks(length, seed, block, window)


def test_the_names_stand_for_these_orders() -> None:
    # What the definitions gave when they were named: another value here is another order of everybody's data, and
    # needs another name.
    assert Permutation.NAME == "feistel-1"
    assert BlockPermutation.NAME == "feistel-blocks-1"
    first = np.arange(8)
    assert Permutation(1000, 7)(first).tolist() == [749, 894, 601, 46, 824, 343, 796, 171]
    assert Permutation(50_000_000, 7)(first).tolist() == [
        35321565,
        15920605,
        40306479,
        34971239,
        38616494,
        29420818,
        17732805,
        20192849,
    ]
    assert Permutation(2**62, 7)(first[:3]).tolist() == [801579577946635753, 1817761062813998126, 1985371045721417892]
    assert BlockPermutation(50_000_000, 7, block=64, window=256)(first).tolist() == [
        10570574,
        47290891,
        45755761,
        26326502,
        48446745,
        45755762,
        14680017,
        38949908,
    ]
    assert BlockPermutation(1000, 7, block=16, window=5)(first).tolist() == [11, 429, 817, 10, 79, 418, 824, 823]


# How they are called -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [_plain, _blocks])
def test_ids_have_the_shape_of_the_indices(make: Make) -> None:
    order = make(100_000)
    every = order(np.arange(100_000))
    assert order(np.arange(100_000).reshape(10, 100, 100)).tolist() == every.reshape(10, 100, 100).tolist()
    assert order(np.array(17)).shape == ()
    assert order(np.array(17)) == every[17]
    assert order(np.arange(0)).shape == (0,)
    assert order(np.zeros((3, 0), np.int64)).shape == (3, 0)
    assert order(np.arange(200, dtype=np.uint8)[::-1]).tolist() == every[199::-1].tolist()
    assert order(np.array([5, 5, 99_999])).tolist() == every[[5, 5, 99_999]].tolist()


@pytest.mark.parametrize("make", [_plain, _blocks])
@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        (np.array([[0, 10], [11, 3]]), "10 is not in a permutation of 10 ids: give 0 to 9"),
        (np.array([3, -1]), "-1 is not in a permutation of 10 ids: give 0 to 9"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615 is not in a permutation of 10 ids: give 0 to 9"),
        (np.array([1.0]), "must be an integer from 0 to 9, and the array is of float64"),
        (np.array([True]), "must be an integer from 0 to 9, and the array is of bool"),
    ],
)
def test_what_is_in_no_order_is_refused_with_the_range(make: Make, numbers: np.ndarray, told: str) -> None:
    with pytest.raises(InputError, match=f"index .*{re.escape(told)}"):
        make(10)(numbers)
    with pytest.raises(InputError, match=f"id .*{re.escape(told)}"):
        make(10).inverse(numbers)


@pytest.mark.parametrize("length", [0, -1, 2**62 + 1])
@pytest.mark.parametrize("make", [_plain, _blocks])
def test_a_length_that_cannot_be_is_refused(make: Make, length: int) -> None:
    with pytest.raises(InputError, match=re.escape(f"a permutation of {length} ids: the length must be from 1 to")):
        make(length)


@pytest.mark.parametrize(("block", "window"), [(0, 1), (1, 0), (-3, 5)])
def test_a_block_or_window_of_nothing_is_refused(block: int, window: int) -> None:
    with pytest.raises(InputError, match=f"block {block} and window {window}: both must be at least 1"):
        BlockPermutation(100, 7, block, window)


def test_the_order_of_data_offers_it() -> None:
    assert order_module.Permutation is Permutation


def test_equal_arguments_are_equal_orders() -> None:
    left, right = Permutation(1000, 7), Permutation(1000, 7)
    left(np.arange(3))
    assert left == right
    assert hash(left) == hash(right)
    assert left != Permutation(1000, 8)
    assert _blocks(10) == _blocks(10) != _blocks(11)


# As a true shuffle ---------------------------------------------------------------------------------------------------


def _off(figures: dict[str, Figure]) -> set[str]:
    """The figures that a true shuffle does not give."""
    return {name for name, figure in figures.items() if abs(figure.off) > BEYOND}


def _affine(bits: int) -> np.ndarray:
    """A Feistel network whose rounds add a key to a multiple of a half, as the shuffle of Levanter (1.2) does."""
    half = bits // 2
    mask = 2**half - 1
    left, right = np.arange(2**bits) >> half, np.arange(2**bits) & mask
    for key in (11, 222, 33, 404, 155):
        left, right = right, left ^ ((right * 2654435761 + key) & mask)
    return (left << half) | right


@pytest.mark.parametrize(("length", "seed"), [(1000, 0), (1000, 1), (2**18, 0), (2**18, 1), (1_000_003, 0)])
def test_an_order_is_as_a_true_shuffle(length: int, seed: int) -> None:
    ids = Permutation(length, seed)(np.arange(length))
    assert _off(statistics(ids)) == set()
    assert commonest_jump(ids) < 20
    assert _off(statistics(Permutation(length, seed).inverse(np.arange(length)))) == set()


def test_the_statistics_tell_what_is_no_shuffle() -> None:
    affine = _affine(18)
    assert is_bijection(affine)
    found = statistics(affine)
    assert _off(found) == set(found) - {"correlation"}
    assert min(abs(found[name].off) for name in _off(found)) > 100
    assert commonest_jump(affine) > 100
    assert set(even_shares(affine)) == {0.0, 1.0}

    drifting = np.argsort(np.arange(2**18) + np.random.default_rng(0).normal(0, 2**17, 2**18))
    assert "correlation" in _off(statistics(drifting))


def test_no_batch_leans_to_even_or_odd_ids() -> None:
    # 512 of 2^18, half of them even: a share of 0.5 with a standard deviation of 0.0221, and 512 batches.
    for order in (Permutation(2**18, 7), BlockPermutation(2**18, 7, block=64, window=256)):
        assert np.abs(even_shares(order(np.arange(2**18))) - 0.5).max() < BEYOND * 0.0221


def test_orders_of_other_seeds_and_lengths_are_others() -> None:
    length = 2**18
    drawn = [Permutation(length, seed)(np.arange(length)) for seed in (0, 1, -1)]
    drawn.append(BlockPermutation(length, 0, block=1, window=1)(np.arange(length)))
    for number, left in enumerate(drawn):
        for right in drawn[:number]:
            # Two shuffles agree at one position in the mean, a Poisson count; what leads from one to the other is one.
            assert np.count_nonzero(left == right) < 12
            assert _off(statistics(left[np.argsort(right)])) == set()
    longer = Permutation(length + 1, 0)(np.arange(length))
    assert np.count_nonzero(longer == drawn[0]) < 12
    assert abs(np.corrcoef(longer, drawn[0])[0, 1]) < BEYOND / math.sqrt(length)


def _of_windows(length: int, count: int) -> np.ndarray:
    """Orders of `length` ids: those of the ids in each window of one block, `(count, length)`."""
    ids = BlockPermutation(length * count, 7, block=length, window=1)(np.arange(length * count))
    return ids.reshape(count, length) % length


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
def test_all_orders_of_few_ids_are_equally_likely(length: int) -> None:
    assert abs(orders(_of_windows(length, 24_000)).off) < BEYOND


@pytest.mark.parametrize("length", [2, 3])
def test_all_orders_of_few_ids_are_equally_likely_by_seed(length: int) -> None:
    assert abs(orders(np.stack([Permutation(length, seed)(np.arange(length)) for seed in range(600)])).off) < BEYOND


def _alike_in_a_half(windows: np.ndarray) -> float:
    """Standard deviations by which there are too many pairs of ids that have one half of their bits in common, before
    and after, and whose other halves are as far from each other as they were: what tells few rounds from a shuffle.
    """
    half = math.isqrt(windows.shape[1])
    count = 0
    for ids in windows:
        low, high = np.arange(len(ids)) % half, np.arange(len(ids)) // half
        alike = (low * half + ids % half) * half + (ids // half - high) % half
        found = np.bincount(alike)
        count += int((found * (found - 1) // 2).sum())
    expected = len(windows) * half * half * (half - 1) / 2 / (half * half - 1)
    return (count - expected) / math.sqrt(expected)


def test_there_are_rounds_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    length = _Network.SHORT  # the shortest with the fewest rounds
    assert abs(_alike_in_a_half(_of_windows(length, 200))) < BEYOND
    monkeypatch.setattr(_Network, "ROUNDS", 4)
    assert _alike_in_a_half(_of_windows(length, 200)) > 20
    monkeypatch.setattr(_Network, "ROUNDS_OF_SHORT", 8)
    assert orders(_of_windows(6, 24_000)).off > 20


# Two levels ----------------------------------------------------------------------------------------------------------


def test_a_window_is_read_from_its_blocks_alone() -> None:
    order = BlockPermutation(64 * 1000, 7, block=64, window=100)
    read = order(np.arange(64 * 1000)).reshape(10, 6400) // 64
    for blocks in read:
        assert np.unique(blocks, return_counts=True)[1].tolist() == [64] * 100
    drawn = np.concatenate([np.unique(blocks) for blocks in read])
    assert len(np.unique(drawn)) == 1000
    # Each window has blocks of the whole store: 100 of 1,000 have a mean of 499.5 with a standard deviation of 27.4.
    assert np.abs([np.unique(blocks).mean() - 499.5 for blocks in read]).max() < BEYOND * 27.4


@pytest.mark.parametrize("length", [2**18, 1_000_003])
def test_an_order_in_blocks_mixes_but_for_the_blocks_of_a_window(length: int) -> None:
    block, window = 64, 256
    ids = BlockPermutation(length, 7, block, window)(np.arange(length))
    found = statistics(ids, block * window)
    assert _off(found) <= {"jumps", "equal jumps", "correlation"}
    # It is blocks that are placed at random: their number, not that of ids, says how far the correlation strays.
    assert abs(found["correlation"].off) < BEYOND * math.sqrt(block)
    share = (block - 1) / (block * window - 1)
    same = np.mean(ids[1:] // block == ids[:-1] // block)
    assert abs(same - share) < BEYOND * math.sqrt(share / length)
