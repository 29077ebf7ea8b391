"""The ledger of what was read: equal for any hosts and any interruption, and one wrong id stops the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data import read_ledger
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.permutation import Permutation
from marin_pipeline.data.read_ledger import Entry, ReadLedger
from tests.data.orders import SEQUENCE_LENGTH, mixed, one_source


def _read(order: TrainingOrder, stop: int, entry: Entry | None = None) -> list[Entry]:
    return _record(ReadLedger(order, entry), stop)


def _record(ledger: ReadLedger, stop: int) -> list[Entry]:
    return [ledger.record(step, ledger.order.batch(step)) for step in range(ledger.entry.step, stop)]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 30), st.integers(0, 20), st.integers(0, 20))
def test_a_run_that_goes_on_anywhere_ends_with_the_entries_of_one_that_never_stopped(
    web: int, code: int, batch_size: int, before: int, after: int
) -> None:
    order = mixed(web, code, batch_size, block=3 * (web % 2))
    whole = _read(order, before + after)
    entry = whole[before - 1] if before else None
    assert _read(order, before + after, entry) == whole[before:]
    assert [made.sequences for made in whole] == [order.index(step + 1) for step in range(before + after)]


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 20))
def test_the_sum_depends_on_what_was_read_and_not_on_its_order(random, step: int) -> None:
    order = mixed()
    batch = order.batch(step)
    shuffled = batch[np.array(random.sample(range(len(batch)), len(batch)))]
    assert order.sum(shuffled) == order.sum(batch)
    place = random.randrange(len(batch))
    for name in ("sources", "sequences", "epochs"):
        other = getattr(batch, name).copy()
        other[place] = 1 - other[place] if name == "sources" else other[place] + random.choice([1, 2, 2**40])
        assert order.sum(replace(batch, **{name: other})) != order.sum(batch)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 5), st.sampled_from(["sources", "sequences", "epochs"]), st.integers(1, 9))
def test_any_single_wrong_id_stops_the_run_and_is_named(step: int, row: int, name: str, by: int) -> None:
    order = mixed()
    ledger = ReadLedger(order)
    for earlier in range(step):
        ledger.record(earlier, order.batch(earlier))
    batch = order.batch(step)
    wrong = getattr(batch, name).copy()
    wrong[row] = 1 - wrong[row] if name == "sources" else wrong[row] + by
    with pytest.raises(MarinError, match=rf"step {step}, row {row} of the batch: .*\(1 of 6 rows differ\)"):
        ledger.record(step, replace(batch, **{name: wrong}))


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_each_host_keeps_the_ledger_of_the_whole_batch_by_its_own_rows(hosts: int) -> None:
    order = mixed()
    for rows in np.split(np.arange(6), hosts):
        ledger = ReadLedger(order)
        entries = [ledger.record(step, order.batch(step)[rows], rows) for step in range(20)]
        assert entries == _read(order, 20)


def test_a_wrong_row_of_a_host_is_named_by_its_place_in_the_batch() -> None:
    order, rows = mixed(), np.array([4, 5])
    ids = order.batch(0)[rows]
    ids.sequences[1] += 1
    with pytest.raises(MarinError, match="step 0, row 5 of the batch"):
        ReadLedger(order).record(0, ids, rows)


def test_another_number_of_rows_and_another_step_are_refused() -> None:
    order = mixed()
    with pytest.raises(MarinError, match="delivered 5 rows, where it was asked for 6"):
        ReadLedger(order).record(0, order.batch(0)[:5])
    with pytest.raises(MarinError, match="step 1 was read where step 0 comes next"):
        ReadLedger(order).record(1, order.batch(1))


def test_an_entry_is_json_and_what_is_no_entry_is_refused() -> None:
    entry = _read(mixed(), 3)[-1]
    assert Entry.from_plain(json.loads(json.dumps(entry.plain()))) == entry
    for change in ({"step": "3"}, {"sum": "12"}, {"batch": "xyz"}, {"more": 1}, {"sequences": -1}):
        with pytest.raises(InputError, match="no entry of a ledger"):
            Entry.from_plain({**entry.plain(), **change})
    with pytest.raises(InputError, match="no entry of a ledger"):
        Entry.from_plain(None)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (mixed(seed=8), "so the seed, the shuffle, the mixture or the number of sequences of a source differs"),
        (mixed(web=38), "so the seed, the shuffle, the mixture or the number of sequences of a source differs"),
        (mixed(block=2), "so the seed, the shuffle, the mixture or the number of sequences of a source differs"),
        (one_source(37, 6), "so the seed, the shuffle, the mixture or the number of sequences of a source differs"),
        (mixed(batch_size=12), "120 sequences, so the batch size, the sequence length or the first token differs"),
    ],
)
def test_a_checkpoint_of_another_order_is_refused(other: TrainingOrder, differs: str) -> None:
    entry = _read(mixed(), 10)[-1]
    with pytest.raises(InputError, match="read something else than this order says") as error:
        ReadLedger(other, entry)
    assert differs in str(error.value)


def test_an_earlier_batch_that_was_another_one_is_noticed_by_the_sum() -> None:
    entry = _read(mixed(), 10)[-1]
    with pytest.raises(InputError, match="with the same last batch, so an earlier batch was another one"):
        ReadLedger(mixed(), replace(entry, sum=f"{int(entry.sum, 16) ^ 1:016x}"))


def test_a_sum_over_too_many_is_not_computed_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = _read(mixed(), 10)[-1]
    assert ReadLedger(mixed(), entry).unchecked is None
    monkeypatch.setattr(read_ledger, "SUMMED", 59)
    ledger = ReadLedger(mixed(), replace(entry, sum="0" * 16))
    assert "60 sequences were read, more than 59" in (ledger.unchecked or "")


def test_entries_from_before_and_at_the_start_are_told_apart() -> None:
    order = mixed()
    later = TrainingOrder(
        order.stream, dict(zip(order.names, order.sequences, strict=True)), 12, 7, first_step=10, first_token=480
    )
    earlier = _read(order, 10)
    went_on = ReadLedger(later, earlier[-1])
    assert went_on.entry == Entry(10, "", 480 // SEQUENCE_LENGTH, "0" * 16)
    assert went_on.record(10, later.batch(10)).sequences == 72
    with pytest.raises(InputError, match="of step 9, before step 10"):
        ReadLedger(later, earlier[-2])
    with pytest.raises(InputError, match="nothing is read before step 0"):
        ReadLedger(order, Entry(0, "", 3, "0" * 16))


class _Broken(TrainingOrder):
    """An order that gives one batch in place of another, or a sequence of a batch twice."""

    instead: Mapping[int, int] = MappingProxyType({})
    twice: int | None = None

    def batch(self, step: int) -> Batch:
        batch = super().batch(self.instead.get(step, step))
        if step == self.twice:
            batch.sequences[-1] = batch.sequences[0]
        return batch


@pytest.mark.parametrize(
    ("start", "instead", "twice"),
    [(0, {}, 2), (0, {2: 1}, None), (2, {}, 2), (2, {2: 1}, None), (2, {4: 2}, None), (13, {14: 11}, None)],
)
def test_a_second_reading_in_one_epoch_stops_the_run(start: int, instead: dict[int, int], twice: int | None) -> None:
    plain = one_source(40, 4)
    order = _Broken(plain.stream, {"web": 40}, 4, 7)
    order.instead, order.twice = instead, twice
    ledger = ReadLedger(order, _read(plain, start)[-1] if start else None)
    wrong = max(instead, default=twice)
    epoch = 1 if start > 10 else 0
    with pytest.raises(MarinError, match=rf"step {wrong}: sequence \d+ comes a second time in epoch {epoch} of source"):
        _record(ledger, 20)


def test_an_epoch_that_ends_too_early_stops_the_run() -> None:
    order = one_source(40, 4)
    early = order.batch(0)
    early = replace(early, epochs=early.epochs + np.array([0, 0, 1, 1]))
    order.batch = lambda step: early  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(MarinError, match="epoch 1 is read after 2 of 40 sequences in epoch 0"):
        ReadLedger(order).record(0, early)


def test_more_epochs_than_the_mixture_allows_stop_the_run() -> None:
    order = mixed(web=100, code=11, max_epochs=1)
    with pytest.raises(MarinError, match="step 5 reads source 'code' after 1 whole epochs, and its max_epochs is 1"):
        _read(order, 10)


def test_going_on_permutes_nothing_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    order = one_source(10**9, 512)
    entry = Entry(10**6, order.digest(order.batch(10**6 - 1)), order.index(10**6), "0" * 16)
    asked: list[int] = []
    forward = Permutation.__call__

    def counted(self: Permutation, indices: np.ndarray) -> np.ndarray:
        asked.append(len(indices))
        return forward(self, indices)

    monkeypatch.setattr(Permutation, "__call__", counted)
    ledger = ReadLedger(order, entry)
    ledger.record(10**6, order.batch(10**6))
    assert sum(asked) == 3 * 512
