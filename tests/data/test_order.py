"""The order of training data: a pure function that visits every sequence once an epoch and really mixes."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixing import key64, mix64
from marin_pipeline.data.order import TrainingOrder, ids_digest, permutation

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


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


def test_the_order_is_the_one_that_its_definition_gives_in_plain_integers() -> None:
    def key(*numbers: int) -> int:
        found = 0
        for number in numbers:
            found = _finaliser((found + STEP + number) & MASK)
        return found

    first, second = key(7, 3, 1), key(7, 3, 2)
    hashes = [_finaliser(_finaliser((id * STEP & MASK) ^ first) ^ second) for id in range(1000)]
    assert permutation(7, 3, 1000).tolist() == sorted(range(1000), key=hashes.__getitem__)


@settings(deadline=None)
@given(st.integers(-(2**70), 2**70), st.integers(0, 100), st.integers(1, 3000))
def test_an_epoch_is_a_permutation(seed: int, epoch: int, sequences: int) -> None:
    assert sorted(permutation(seed, epoch, sequences).tolist()) == list(range(sequences))


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 40), st.integers(0, 2**32))
def test_batches_are_the_epochs_cut_in_pieces(sequences: int, batch: int, steps: int, seed: int) -> None:
    order = TrainingOrder(tokens=sequences * 8 + 1, sequence_length=8, batch_size=batch, seed=seed)
    read = np.concatenate([np.empty(0, np.int64), *(order.batch(step) for step in range(steps))])
    epochs = [permutation(seed, epoch, sequences) for epoch in range(len(read) // sequences + 1)]
    assert read.tolist() == np.concatenate(epochs)[: len(read)].tolist()


def test_the_order_is_the_same_in_every_process() -> None:
    program = (
        "from marin_pipeline.data.order import TrainingOrder;"
        "order = TrainingOrder(tokens=1_000_001, sequence_length=100, batch_size=8, seed=7);"
        "print(order.batch(0).tolist(), order.digest(12345))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    # What the definition gave when orders were first recorded: another value here is another order of everybody's data.
    assert printed.strip() == "[6516, 5689, 8445, 2203, 6471, 1800, 3678, 2631] 630dfddf1acd669e"


def test_positions_in_tokens_survive_a_change_of_batch_size() -> None:
    before = TrainingOrder(tokens=10_001, sequence_length=10, batch_size=8, seed=1)
    after = TrainingOrder(
        tokens=10_001, sequence_length=10, batch_size=4, seed=1, first_step=50, first_token=before.position(50)
    )
    assert np.concatenate([after.batch(50), after.batch(51)]).tolist() == before.batch(50).tolist()
    assert after.position(52) == before.position(51)
    assert after.epoch(52) == before.epoch(51)


def test_a_change_of_length_goes_on_after_the_tokens_that_were_read() -> None:
    after = TrainingOrder(tokens=10_001, sequence_length=64, batch_size=2, seed=1, first_step=10, first_token=1000)
    assert after.position(10) == 1024
    assert after.batch(10).tolist() == permutation(1, 0, after.sequences)[16:18].tolist()


def test_digest_names_the_ids_in_their_order() -> None:
    ids = np.array([3, 1, 2])
    assert ids_digest(ids) == hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16]
    assert ids_digest(ids) != ids_digest(ids[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch size 0"),
        ({"sequence_length": 0}, "sequence length 0"),
        ({"tokens": 10}, "shorter sequence length or more text"),
        ({"tokens": 0}, "shorter sequence length or more text"),
        ({"first_token": -1}, "negative"),
    ],
)
def test_an_impossible_order_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingOrder(**{"tokens": 101, "sequence_length": 10, "batch_size": 2, "seed": 0, **change})


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(InputError, match="step 4 is before step 5"):
        TrainingOrder(tokens=101, sequence_length=10, batch_size=2, seed=0, first_step=5).batch(4)


# Statistics of a true shuffle. An affine permutation (a Feistel network with a linear round, a stride) fails the
# first four: with a power of two of sequences each of its batches is all even or all odd.
SEQUENCES, BATCH = 2**18, 256


@pytest.fixture(scope="module")
def batches() -> np.ndarray:
    return permutation(20261130, 0, SEQUENCES).reshape(-1, BATCH)


def _chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    return float((((counts - expected) ** 2) / expected).sum())


@pytest.mark.parametrize("modulus", [2, 3, 4, 8, 16])
def test_residues_in_a_batch_spread_as_in_a_true_shuffle(batches: np.ndarray, modulus: int) -> None:
    counts = np.stack([(batches % modulus == residue).sum(1) for residue in range(modulus)], 1)
    share = np.array([(np.arange(SEQUENCES) % modulus == residue).mean() for residue in range(modulus)])
    variance = counts.var(0) / (BATCH * share * (1 - share))
    # 1,024 batches: the variance ratio of a hypergeometric count is 1 with a standard deviation of about 0.044.
    assert np.all(np.abs(variance - 1) < 0.2)
    assert np.abs(counts - BATCH * share).max() < 6 * np.sqrt(BATCH * 0.25)


def test_a_batch_draws_from_the_whole_store(batches: np.ndarray) -> None:
    regions = np.stack([(batches // (SEQUENCES // 16) == region).sum(1) for region in range(16)], 1)
    # 1,024 batches with 15 degrees of freedom each: mean 15,360, standard deviation 175.
    assert abs(_chi_square(regions, BATCH / 16) - 15 * len(batches)) < 6 * 176


def test_neighbours_in_the_store_are_not_neighbours_in_the_order(batches: np.ndarray) -> None:
    steps = np.diff(batches.ravel())
    # Of 262,143 differences each value +-1 is expected once.
    assert np.count_nonzero(np.abs(steps) == 1) < 12
    assert len(np.unique(steps)) > SEQUENCES // 2


def test_ranks_are_uncorrelated_with_position_and_between_epochs() -> None:
    place = np.arange(SEQUENCES)
    for left, right in [
        (place, permutation(1, 0, SEQUENCES)),
        (permutation(1, 0, SEQUENCES), permutation(1, 1, SEQUENCES)),
        (permutation(1, 0, SEQUENCES), permutation(2, 0, SEQUENCES)),
    ]:
        assert abs(np.corrcoef(left, right)[0, 1]) < 6 / np.sqrt(SEQUENCES)


def test_all_orders_of_few_sequences_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(12_000):
        order = tuple(permutation(seed, 0, 4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    # 23 degrees of freedom: beyond 70 with probability 1e-6.
    assert _chi_square(np.array(list(counts.values())), 500) < 70


def test_keys_depend_on_each_number_and_its_place() -> None:
    assert len({key64(0, 1), key64(1, 0), key64(0, 0), key64(1, 1), key64(0), key64(-1)}) == 6
