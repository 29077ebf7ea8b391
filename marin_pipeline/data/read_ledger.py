"""The ledger of what training has read: it goes with each checkpoint, and a run that reads anything else stops.

Every step adds the digest of its batch, a count, and a sum that does not depend on the order. A run that goes on must
find in it what its own order gives; ids that a loader delivers must be those of the order; and no sequence comes twice
in an epoch of its source. All of it is arithmetic on ids: no token is read again.

Each host may keep the ledger, whatever rows it reads: its rows are compared with those of the order, and the entry is
of the whole batch, which the order tells. So entries are equal on all hosts, and for any number of them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import numpy as np

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.order import Batch, TrainingOrder

SUMMED = 20_000_000
"""Most sequences whose sum a ledger computes anew when a run goes on: about a second."""

_CHUNK = 2**18
"""Sequences summed at a time."""
_HEX = re.compile(r"[0-9a-f]{16}")


def audit_command(order: TrainingOrder, tokens: str = "TOKENS") -> str:
    """What audits the loader over the tokens of a run whose state is not there to be audited.

    Args:
        tokens: their name or key in the store, or their folder.
    """
    return (
        f"python -m marin_pipeline.data audit {tokens} --sequence-length {order.sequence_length} "
        f"--batch-size {order.batch_size} --seed {order.seed}"
    )


@dataclass(frozen=True)
class Entry:
    """What was read before a step."""

    step: int
    """Steps done."""
    batch: str
    """Digest of the ids of the last batch, 16 hex; empty before the first."""
    sequences: int
    """How many were read from the start of training."""
    sum: str
    """Sum of the hashes of all ids since the order's first step, in any order, modulo 2**64; 16 hex."""

    def plain(self) -> dict[str, Any]:
        """As JSON values, for a checkpoint and a line of a log."""
        return asdict(self)

    @staticmethod
    def from_plain(value: Any) -> Entry:
        """What `plain` gave.

        Raises:
            InputError: for anything else.
        """
        try:
            entry = Entry(**value)
            numbers = type(entry.step) is int and type(entry.sequences) is int and min(entry.step, entry.sequences) >= 0
            if numbers and (entry.batch == "" or _HEX.fullmatch(entry.batch)) and _HEX.fullmatch(entry.sum):
                return entry
        except TypeError:
            pass
        raise InputError(f"{str(value)[:200]} is no entry of a ledger of what was read: take it from a checkpoint")


class ReadLedger:
    """Follows one run through an order, step by step.

    Memory: one bit for each sequence of the sources that are read, 12.5 MB for 100 million.
    """

    def __init__(self, order: TrainingOrder, entry: Entry | None = None) -> None:
        """Begin, or go on from a checkpoint.

        What was read before the checkpoint is not read or permuted again: a sequence was, where the inverse of its
        epoch's permutation says so. The sum is computed anew for up to `SUMMED` sequences.

        Args:
            order: what the run reads.
            entry: that of the checkpoint. One of the step at which the order begins is of an earlier order; this one
                says nothing of it.

        Raises:
            InputError: when the run before the checkpoint read something else than this order says.
        """
        self.order = order
        first = order.first_step
        start = Entry(first, "", order.index(first), f"{0:016x}")
        self.entry = start
        """The last entry."""
        self.unchecked: str | None = None
        """What could not be compared with the checkpoint, for the log; None when all was."""
        if entry is not None and entry.step == first == 0:
            if entry != start:
                _refuse(entry, f"that nothing is read before step 0, with the sum {start.sum}")
        elif entry is not None and entry.step != first:
            self.unchecked = _check(order, entry)
            self.entry = entry
        read = order.stream.counts(self.entry.sequences)
        self._reading = [_Epoch(order, place, read[name]) for place, name in enumerate(order.names)]

    def record(self, step: int, ids: Batch, rows: np.ndarray | slice | None = None) -> Entry:
        """Note that the batch of a step was read; to be told before the model sees it.

        Args:
            step: counted from 0; steps come one after another.
            ids: the ids of what the loader delivered: all rows of the batch, or those of this host (`Loaded.ids`).
            rows: which rows of the batch these are; None for all.

        Raises:
            MarinError: when the ids are not those of the order, a sequence comes twice in an epoch, a source has more
                epochs than its `max_epochs`, or the step is not the next one.
        """
        if step != self.entry.step:
            raise MarinError(
                f"step {step} was read where step {self.entry.step} comes next: a loader that goes on begins at the "
                "step of the checkpoint that was restored"
            )
        whole = self.order.batch(step)
        self._compare(step, ids, whole, rows)
        self._follow(step, whole)
        total = (int(self.entry.sum, 16) + self.order.sum(whole)) % 2**64
        self.entry = Entry(step + 1, self.order.digest(whole), self.order.index(step + 1), f"{total:016x}")
        return self.entry

    def _compare(self, step: int, ids: Batch, whole: Batch, rows: np.ndarray | slice | None) -> None:
        """Refuse ids that are not those of the order."""
        chosen = np.arange(len(whole))[slice(None) if rows is None else rows]
        expected = whole[chosen]
        if len(ids) != len(expected):
            raise MarinError(f"step {step}: the loader delivered {len(ids)} rows, where it was asked for {len(chosen)}")
        pairs = [(getattr(ids, name), getattr(expected, name)) for name in ("sources", "sequences", "epochs")]
        wrong = np.flatnonzero(np.any([found != said for found, said in pairs], axis=0))
        if len(wrong):
            row = int(wrong[0])
            raise MarinError(
                f"step {step}, row {chosen[row]} of the batch: the loader delivered {self._told(ids, row)}, where the "
                f"order has {self._told(expected, row)} ({len(wrong)} of {len(ids)} rows differ): it reads other data "
                f"than the run says; stop, and audit it with `{audit_command(self.order)}`"
            )

    def _follow(self, step: int, whole: Batch) -> None:
        """Refuse a second reading in one epoch, and more epochs than the mixture allows."""
        for place in np.unique(whole.sources).tolist():
            source = self.order.stream.mixture.sources[place]
            mine = whole[np.flatnonzero(whole.sources == place)]
            for epoch in np.unique(mine.epochs).tolist():
                if source.max_epochs is not None and epoch >= source.max_epochs:
                    raise MarinError(
                        f"step {step} reads source {source.name!r} after {epoch} whole epochs, and its max_epochs is "
                        f"{source.max_epochs}: train for fewer steps, lower its weight, or raise max_epochs"
                    )
                problem = self._reading[place].add(epoch, mine.sequences[mine.epochs == epoch])
                if problem:
                    raise MarinError(
                        f"step {step}: {problem} of source {source.name!r}: the order is no permutation; nothing that "
                        "was read in this epoch can be trusted to have been read once"
                    )

    def _told(self, ids: Batch, row: int) -> str:
        place = int(ids.sources[row])
        name = repr(self.order.names[place]) if 0 <= place < len(self.order.names) else f"number {place}"
        return f"sequence {ids.sequences[row]} of source {name} in epoch {ids.epochs[row]}"


class _Epoch:
    """What was read of one source in the epoch that is under way."""

    def __init__(self, order: TrainingOrder, place: int, read: int) -> None:
        self._order = order
        self._place = place
        self._length = order.sequences[place]
        self._epoch, self._before = divmod(read, self._length)
        self._read = self._before
        self._bits: np.ndarray | None = None
        """A bit a sequence, of those read since the ledger began; made when the source is first read."""

    def add(self, epoch: int, ids: np.ndarray) -> str | None:
        """Note sequences of an epoch; what is wrong with them, if anything."""
        if self._bits is None:
            self._bits = np.zeros(-(-self._length // 8), np.uint8)
        if epoch == self._epoch + 1 and self._read == self._length:
            self._epoch, self._before, self._read = epoch, 0, 0
            self._bits[:] = 0
        if epoch != self._epoch:
            return f"epoch {epoch} is read after {self._read} of {self._length} sequences in epoch {self._epoch}"
        byte, bit = ids >> 3, np.left_shift(1, ids & 7).astype(np.uint8)
        seen = (self._bits[byte] & bit) != 0
        if self._before:
            seen |= self._order.permutation(self._place, epoch).inverse(ids) < self._before
        once = np.zeros(len(ids), bool)
        once[np.unique(ids, return_index=True)[1]] = True
        again = np.flatnonzero(seen | ~once)
        if len(again):
            return f"sequence {ids[again[0]]} comes a second time in epoch {epoch}"
        np.bitwise_or.at(self._bits, byte, bit)
        self._read += len(ids)
        return None


def _check(order: TrainingOrder, entry: Entry) -> str | None:
    """Compare the entry of a checkpoint with an order; returns what was not compared."""
    if entry.step < order.first_step:
        raise InputError(
            f"the checkpoint is of step {entry.step}, before step {order.first_step}, at which this order begins: go "
            "on with the order of that step"
        )
    count = order.index(entry.step)
    if entry.sequences != count:
        _refuse(entry, f"{count:,} sequences, so the batch size, the sequence length or the first token differs")
    last = order.digest(order.batch(entry.step - 1))
    if entry.batch != last:
        _refuse(
            entry,
            f"the batch {last} at step {entry.step - 1}, so the seed, the shuffle, the mixture or the number of "
            "sequences of a source differs",
        )
    read = count - order.index(order.first_step)
    if read > SUMMED:
        return (
            f"the sum of all ids was not computed anew, since {read:,} sequences were read, more than {SUMMED:,}; "
            "their number and the last batch are those of the order"
        )
    found = f"{_sum(order, entry.step):016x}"
    if entry.sum != found:
        _refuse(entry, f"the sum {found}, with the same last batch, so an earlier batch was another one")
    return None


def _refuse(entry: Entry, says: str) -> NoReturn:
    raise InputError(
        f"the run read something else than this order says: its checkpoint at step {entry.step} has "
        f"{entry.sequences:,} sequences, the batch {entry.batch or 'none'} and the sum {entry.sum}; the order says "
        f"{says}; give the run the data and the settings that it began with, or begin it anew"
    )


def _sum(order: TrainingOrder, step: int) -> int:
    """The sum of all ids from the order's first step to `step`, from counts alone.

    Of whole epochs all ids are summed as they lie; of others the permutation says which.
    """
    start, stop = (order.stream.counts(order.index(at)) for at in (order.first_step, step))
    total = 0
    for place, name in enumerate(order.names):
        length = order.sequences[place]
        number = start[name]
        while number < stop[name]:
            epoch, first = divmod(number, length)
            last = min(length, first + stop[name] - number)
            number += last - first
            whole = last - first == length
            permutation = order.permutation(place, epoch)
            for begin in range(first, last, _CHUNK):
                places = np.arange(begin, min(begin + _CHUNK, last))
                ids = places if whole else permutation(places)
                total += order.sum(Batch(np.full_like(ids, place), ids, np.full_like(ids, epoch)))
    return total % 2**64
