"""The audit of a loader: it drives real loaders as hosts would, and compares what they deliver with the order.

An order is only as good as what reads it. So for several numbers of hosts and of workers, stopped and gone on at
several steps, the audit counts every sequence, compares every batch with the order, and the tokens of every row with a
direct read of the sequence that it claims to be. A test with one host that never stops sees nothing of a loader that
shards twice. Memory: 4 bytes a sequence and epoch, and 9 a sequence for the digests of what was read directly.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
import xxhash

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.loader import Loaded
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.sequences import Rows, SequenceSource

HOSTS = (1, 2, 3, 8)
WORKERS = (0, 2)
MOST_EPOCHS = 10_000
"""Passes over a source that an audit makes at most: more than any training, and the steps of them can be counted."""


class LoaderFor(Protocol):
    """Makes the loader of a host as training would: the rows of a batch that it reads, and the steps."""

    def __call__(
        self, rows: np.ndarray, start: int, stop: int, workers: int, /
    ) -> AbstractContextManager[Iterator[Loaded]]: ...


@dataclass(frozen=True)
class AuditRow:
    """What loaders delivered in one run."""

    hosts: tuple[int, ...]
    """How many hosts read, from the start and from each of `resumed` on."""
    workers: int
    resumed: tuple[int, ...]
    """The steps at which all loaders were closed, and new ones went on."""
    steps: int
    """Steps that were delivered."""
    sequences: int
    """Rows that were delivered."""
    distinct: int
    """Different sequences among them; in another epoch of its source one counts anew."""
    most_reads: int
    """Of one sequence in one epoch."""
    other_batches: int
    """Steps whose batch is not that of the order, the same ids in the same places."""
    other_tokens: int
    """Rows whose tokens are not those of the sequence that they claim to be."""
    stream: str
    """Digest of all ids and tokens in their order, 16 hex: equal for any hosts, workers and resumes."""
    problem: str | None
    """The first thing that is wrong."""

    @property
    def repeated(self) -> float:
        """The share of the rows that had been read before in the same epoch."""
        return 1 - self.distinct / self.sequences if self.sequences else 0.0

    @property
    def ok(self) -> bool:
        """Whether all is as the order says."""
        return self.problem is None

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"hosts": list(self.hosts), "resumed": list(self.resumed)}
        return {**fields, "repeated": round(self.repeated, 6), "equal": self.other_batches == 0, "ok": self.ok}


@dataclass(frozen=True)
class AuditReport:
    """The rows of an audit, and what was read in each."""

    rows: tuple[AuditRow, ...]
    batch_size: int
    sequence_length: int
    sequences: dict[str, int]
    """How many each source holds."""
    epochs: dict[str, float]
    """Passes over each source that a row makes."""

    @property
    def ok(self) -> bool:
        """Whether there are rows, and every one is: then all delivered one stream."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "rows": [row.plain() for row in self.rows], "ok": self.ok}

    def lines(self) -> list[str]:
        """As a table of plain text, and what it says."""
        names = ("hosts", "workers", "resumed at", "steps", "sequences", "distinct", "most reads", "repeated")
        table: list[tuple[str, ...]] = [(*names, "batches", "tokens", "stream", "")]
        for row in self.rows:
            figures = (row.workers, _resumed(row.resumed), row.steps, row.sequences, row.distinct, row.most_reads)
            verdict = [_differ(row.other_batches), _differ(row.other_tokens), row.stream, "ok" if row.ok else "WRONG"]
            table.append((_hosts(row.hosts), *map(str, figures), f"{row.repeated:.3f}", *verdict))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in table]
        held = ", ".join(
            f"{name}: {held:,} sequences of {self.sequence_length:,}, read {self.epochs[name]:.2f} times"
            for name, held in self.sequences.items()
        )
        lines += ["", f"{held}; {self.batch_size} a batch"]
        lines += [_told(row) for row in self.rows if row.problem][:10]
        wrong = sum(not row.ok for row in self.rows)
        return [*lines, f"{wrong} of {len(self.rows)} runs are wrong" if wrong else f"all {len(self.rows)} runs are ok"]


def audit(
    loader_for: LoaderFor,
    order: TrainingOrder,
    sources: Sequence[SequenceSource],
    *,
    hosts: Sequence[int] = HOSTS,
    workers: Sequence[int] = WORKERS,
    epochs: float = 1.25,
    steps: int | None = None,
    resumes: Sequence[Sequence[int]] | None = None,
) -> AuditReport:
    """Drive loaders over all `hosts` x `workers` x `resumes`.

    A run that is stopped goes on with the next number of `hosts`, after the last with the first: so each number goes on
    to one other at each of the steps, and with one number only a run goes on with that. Hosts take consecutive parts of
    a batch.

    Args:
        loader_for: makes the loader under audit.
        order: what it should read.
        sources: read directly, for comparison; in the order of `order.names`.
        epochs: passes over the source that is slowest to be read.
        steps: how many, in place of what `epochs` says.
        resumes: for each run the steps at which it is stopped; those of `stops` when not given.

    Raises:
        InputError: for runs of no steps, more hosts than a batch has rows, or a stop outside of the run.
    """
    first = order.first_step
    last = first + (steps_for(order, epochs) if steps is None else steps)
    if last <= first:
        raise InputError(f"{epochs if steps is None else steps} {'epochs' if steps is None else 'steps'} audit nothing")
    plans = [tuple(plan) for plan in (stops(first, last) if resumes is None else resumes)]
    for plan in plans:
        if list(plan) != sorted(set(plan)) or any(not first < at < last for at in plan):
            raise InputError(f"stops at steps {plan}: they must ascend within steps {first} to {last}")
    if not hosts or not all(0 < count <= order.batch_size for count in hosts):
        raise InputError(f"{list(hosts)} hosts share a batch of {order.batch_size}: each needs at least one row")
    direct = _Direct(order, sources)
    rows: list[AuditRow] = []
    for turn, count, plan in itertools.product(range(len(hosts)), workers, plans):
        counts = tuple(hosts[(turn + segment) % len(hosts)] for segment in range(len(plan) + 1))
        rows.append(_Run(order, direct, (first, *plan, last), counts, count).drive(loader_for))
    before, after = order.epochs(first), order.epochs(last)
    return AuditReport(
        tuple(rows),
        order.batch_size,
        order.sequence_length,
        dict(zip(order.names, order.sequences, strict=True)),
        {name: round(after[name] - before[name], 4) for name in order.names},
    )


def steps_for(order: TrainingOrder, epochs: float) -> int:
    """The fewest steps in which each source of the last phase is passed over so many times.

    Raises:
        InputError: when `epochs` is not a number above 0 that an audit can reach.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, Real) or not 0 < epochs <= MOST_EPOCHS:
        raise InputError(f"epochs is {epochs!r}: give a number above 0, {MOST_EPOCHS:,} at most")
    names = order.stream.mixture.phases[-1].weights
    before = order.epochs(order.first_step)

    def passed(steps: int) -> float:
        after = order.epochs(order.first_step + steps)
        return min(after[name] - before[name] for name in names)

    most = 1
    while passed(most) < epochs:
        most *= 2
    return bisect_left(range(most), epochs, key=passed)


def stops(first: int, last: int) -> list[tuple[int, ...]]:
    """Where runs from `first` to `last` are stopped: never, after a step, amid the run, and eight times."""
    steps = last - first
    plans = [(), (first + 1,), (first + steps * 2 // 5,), tuple(first + steps * part // 9 for part in range(1, 9))]
    return [
        plan for plan in dict.fromkeys(plans) if all(first < at < last for at in plan) and len(set(plan)) == len(plan)
    ]


class _Direct:
    """Digests of the tokens of sequences, each read once and with no loader."""

    def __init__(self, order: TrainingOrder, sources: Sequence[SequenceSource]) -> None:
        self._sources = sources
        self._lengths = order.sequences
        self._digests = [np.zeros(length, np.uint64) for length in order.sequences]
        self._known = [np.zeros(length, bool) for length in order.sequences]

    def differ(self, ids: Batch, digests: np.ndarray) -> np.ndarray:
        """Which rows do not have the tokens of their ids."""
        differ = np.ones(len(ids), bool)
        for place, source in enumerate(self._sources):
            known, held = self._known[place], self._digests[place]
            there = (ids.sources == place) & (ids.sequences >= 0) & (ids.sequences < self._lengths[place])
            mine = ids.sequences[there]
            new = np.unique(mine[~known[mine]])
            if len(new):
                held[new] = _digests(source.read(new))
                known[new] = True
            differ[there] = held[mine] != digests[there]
        return differ


def _digests(rows: Rows) -> np.ndarray:
    """A digest of each row: inputs, targets, and which document each position belongs to."""
    documents = np.ones_like(rows.inputs) if rows.documents is None else rows.documents
    given = np.concatenate([rows.inputs, rows.targets, documents], axis=1)
    joined = given.astype("<i4")
    if not np.array_equal(joined, given):  # no ids: another digest than that of any
        joined = given
    return np.array([xxhash.xxh3_64_intdigest(row.tobytes()) for row in joined], np.uint64)


class _Run:
    """One run of loaders, stopped and gone on."""

    def __init__(
        self, order: TrainingOrder, direct: _Direct, bounds: tuple[int, ...], hosts: tuple[int, ...], workers: int
    ) -> None:
        self._order = order
        self._direct = direct
        self._bounds = bounds
        self._hosts = hosts
        self._workers = workers
        self._reads: dict[tuple[int, int], np.ndarray] = {}
        """By source and epoch: how often each sequence was read."""
        self._stream = hashlib.sha256()
        self._steps = self._rows = self._other_batches = self._other_tokens = 0
        self._problem: str | None = None
        self._before: tuple[int, Sequence[Loaded], np.ndarray] | None = None
        """What was delivered for the step before, and its digests then."""

    def drive(self, loader_for: LoaderFor) -> AuditRow:
        for (start, stop), hosts in zip(itertools.pairwise(self._bounds), self._hosts, strict=True):
            slices = np.array_split(np.arange(self._order.batch_size), hosts)
            with ExitStack() as stack:
                loaders = [iter(stack.enter_context(loader_for(rows, start, stop, self._workers))) for rows in slices]
                for step in range(start, stop):
                    self._take(step, slices, [next(loader, None) for loader in loaders])
                if any(next(loader, None) is not None for loader in loaders):
                    self._wrong(f"a loader goes on after step {stop - 1}, the last it was asked for")
        self._look_again()
        distinct = sum(int(np.count_nonzero(reads)) for reads in self._reads.values())
        most = max((int(reads.max()) for reads in self._reads.values()), default=0)
        if distinct < self._rows:
            self._wrong(f"{self._rows - distinct} of {self._rows} rows were read before in their epoch")
        bounds, stream = self._bounds[1:-1], self._stream.hexdigest()[:16]
        counts = (self._steps, self._rows, distinct, most, self._other_batches, self._other_tokens)
        return AuditRow(self._hosts, self._workers, bounds, *counts, stream, self._problem)

    def _take(self, step: int, slices: list[np.ndarray], loaded: Sequence[Loaded | None]) -> None:
        """Note what the loaders of all hosts deliver for a step."""
        parts = [part for part in loaded if part is not None]
        for part, rows in zip(loaded, slices, strict=True):
            if part is None or part.step != step or len(part.ids) != len(rows) or len(part.rows.inputs) != len(rows):
                told = "ends before" if part is None else f"delivers step {part.step} or another number of rows at"
                self._wrong(f"the loader of rows {rows[0]} to {rows[-1]} {told} step {step}")
        if not parts:
            return
        self._steps += 1
        expected = self._order.batch(step)
        ids = Batch.joined([part.ids for part in parts])
        digests = np.concatenate([_digests(part.rows) for part in parts])
        self._look_again()
        self._before = step, parts, digests
        for array in (ids.sources, ids.sequences, digests):
            self._stream.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        self._rows += len(ids)
        self._compare(step, ids, expected, parts)
        if len(ids) == len(digests) == len(expected):
            differ = np.flatnonzero(self._direct.differ(ids, digests))
            self._other_tokens += len(differ)
            if len(differ):
                self._wrong(f"step {step}, row {differ[0]} does not hold {self._told(ids, int(differ[0]))}")
            self._count(ids, expected.epochs)

    def _look_again(self) -> None:
        """See that the rows of the step before are as they were: the model may be reading them still."""
        if self._before is not None:
            step, parts, digests = self._before
            changed = int(np.count_nonzero(np.concatenate([_digests(part.rows) for part in parts]) != digests))
            if changed:
                self._other_tokens += changed
                self._wrong(f"step {step}: {changed} rows had other tokens once the next step was delivered")
            self._before = None

    def _compare(self, step: int, ids: Batch, expected: Batch, parts: Sequence[Loaded]) -> None:
        """Compare the ids of a step with the order's, those of the rows and those of the batch that each host knows."""
        wrong = _first_other(ids, expected)
        if wrong is not None and wrong < min(len(ids), len(expected)):
            self._wrong(f"step {step}, row {wrong} is {self._told(ids, wrong)}, not {self._told(expected, wrong)}")
        others = [part.batch for part in parts if _first_other(part.batch, expected) is not None]
        if others:
            self._wrong(f"step {step}: the batch that {len(others)} of {len(parts)} hosts know is not the order's")
        self._other_batches += wrong is not None or bool(others)

    def _count(self, ids: Batch, epochs: np.ndarray) -> None:
        """Count reads of sequences, in the epochs of the order: a loader that rolls over too early says others."""
        for place, epoch in {*zip(ids.sources.tolist(), epochs.tolist(), strict=True)}:
            length = self._order.sequences[place] if 0 <= place < len(self._order.sequences) else 0
            mine = ids.sequences[(ids.sources == place) & (epochs == epoch)]
            reads = self._reads.setdefault((place, epoch), np.zeros(length, np.uint32))
            np.add.at(reads, mine[(mine >= 0) & (mine < length)], 1)

    def _told(self, ids: Batch, row: int) -> str:
        names, place = self._order.names, int(ids.sources[row])
        name = names[place] if 0 <= place < len(names) else place
        return f"sequence {ids.sequences[row]} of {name!r} (epoch {ids.epochs[row]})"

    def _wrong(self, problem: str) -> None:
        self._problem = self._problem or problem


def _first_other(ids: Batch, expected: Batch) -> int | None:
    """The first row in which two batches differ."""
    if len(ids) != len(expected):
        return min(len(ids), len(expected))
    names = ("sources", "sequences", "epochs")
    other = np.flatnonzero(np.any([getattr(ids, name) != getattr(expected, name) for name in names], axis=0))
    return int(other[0]) if len(other) else None


def _differ(count: int) -> str:
    return "equal" if count == 0 else f"{count} differ"


def _shortened(items: Iterable[int]) -> list[str]:
    """Numbers of a list that fit in a column."""
    found = [str(item) for item in items]
    return found if len(found) <= 4 else [*found[:3], f"... ({len(found)})"]


def _hosts(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else ">".join(_shortened(counts))


def _resumed(steps: tuple[int, ...]) -> str:
    return " ".join(_shortened(steps)) or "-"


def _told(row: AuditRow) -> str:
    return f"{_hosts(row.hosts)} hosts, {row.workers} workers, resumed at {_resumed(row.resumed)}: {row.problem}"
