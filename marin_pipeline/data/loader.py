"""The loader: the tokens of each step's batch, read ahead by threads, and of a batch the rows that this process needs.

What comes out depends on the order and the step, and on nothing else: not on workers, timing, how far ahead is read, or
which rows other processes take. A loader that starts at a step reads nothing of the steps before it.

Memory: at most `ahead` batches are ready or in work, and the caller has the one that it was given last. Each takes
`rows x 2 (3 with documents) x sequence_length x 4` bytes, and as much again while it is read; to this comes the cache
of the token stores (64 MiB for all of a process).
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.checks import check_kind, check_whole, whole_numbers
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.sequences import Rows, SequenceSource
from marin_pipeline.data.supply import check_passes

AHEAD_TOKENS = 2**16
"""Tokens that are read ahead where nothing else is said: many small batches, or a few large ones."""
TOLD_SECONDS = 10.0
"""Waiting is told at most once in this time."""
TOLD_SHARE = 0.1
"""Waiting is told of when it took more than this share of the time."""
CLOSE_SECONDS = 10.0
"""How long `close` waits for reads that are under way."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class Loaded:
    """The batch of one step, as far as this process needs it."""

    step: int
    """Updates made before the one that reads it."""
    batch: Batch
    """The ids of the whole batch, whichever rows were read."""
    rows: Rows
    """The tokens of the rows asked for, in that order."""
    needed: np.ndarray
    """The positions within the batch of those rows."""

    @property
    def ids(self) -> Batch:
        """The ids of the rows that were read."""
        return self.batch[self.needed]


class Loader:
    """The batches of steps `start` to `stop - 1`, one after another; a context manager and an iterator.

    Not to be iterated by several threads. Close it, or leave its `with`: then none of its threads is left.
    """

    def __init__(
        self,
        order: TrainingOrder,
        sources: Sequence[SequenceSource],
        *,
        rows: np.ndarray,
        start: int,
        stop: int,
        workers: int = 8,
        ahead: int | None = None,
        log: Log | None = None,
    ) -> None:
        """Begin to read.

        Args:
            sources: in the order of `order.names`.
            rows: positions within a batch that this process needs, ascending.
            start: the first step.
            stop: the step after the last.
            workers: threads that read; each has one read of one source under way at a time. Where reads are slow and
                a batch draws on many sources, as many as a batch has sources do no harm. 0 reads in the caller.
            ahead: batches that are ready or in work. By default as many as have 65,536 tokens, from 4 to 64.
            log: told when waiting for data takes a good part of the time, and of a read that does not end.

        Raises:
            InputError: when sources or rows are not those of the order, or the steps before `stop` pass over a source
                more often than its `max_epochs`.
        """
        check_kind("a loader", TrainingOrder, "a TrainingOrder", order=order)
        check_kind("a loader", Sequence, "a list of sources", sources=sources)
        check_whole("a loader", start=start, stop=stop, workers=workers)
        check_whole("a loader", or_none=True, ahead=ahead)
        if log is not None and not callable(log):
            raise InputError(f"a loader: log is {log!r}: give a function of one line of text, or None")
        rows = _checked_rows(rows, order.batch_size)
        _check_sources(order, sources)
        if not order.first_step <= start <= stop:
            raise InputError(f"steps {start} to {stop}: they must not fall, nor begin before step {order.first_step}")
        check_passes(order, stop)
        if ahead is None:
            ahead = max(4, min(64, AHEAD_TOKENS // max(1, len(rows) * order.sequence_length)))
        if workers < 0 or ahead < 1:
            raise InputError(f"workers={workers}, ahead={ahead}: at least 0 threads and 1 batch are needed")
        self._log: Log = log or (lambda _: None)
        self._work = _Work(order, tuple(sources), rows, start, stop, workers, ahead)
        self._waiting = _Waiting(self._log)
        self._step = start
        self._threads = [
            threading.Thread(target=self._work.run, name=f"loader-{number}", daemon=True) for number in range(workers)
        ]
        # A loader that is dropped stops its threads as well: they hold the work and not the loader. They are daemons so
        # that a read that never ends does not keep a process alive.
        self._dropped = weakref.finalize(self, self._work.close)
        self._dropped.atexit = False
        _open.add(self)
        for thread in self._threads:
            thread.start()

    @property
    def waited(self) -> float:
        """Seconds that the caller waited for data so far; with `workers=0`, those that it read."""
        return self._waiting.total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Loaded:
        """The batch of the next step.

        Raises:
            Exception: what a reader raised, at the step that it read for; the step and the source are in its message,
                or in a note where the message is not ours. The loader is closed then.
            MarinError: when the loader was closed before its last step.
        """
        step = self._step
        if step >= self._work.stop:
            self.close()
            raise StopIteration
        try:
            reading = self._next(step)
            if isinstance(reading.failed, StopIteration):  # would end the caller's loop as if all were read
                raise MarinError(f"step {step}: a reader raised StopIteration, which is no end") from reading.failed
            if reading.failed is not None:
                raise reading.failed
        except BaseException:
            self.close()
            raise
        self._step = step + 1
        return Loaded(step, reading.batch, reading.rows(), self._work.needed)

    def _next(self, step: int) -> _Reading:
        if not self._threads:
            with self._waiting.at(step):
                return self._work.read_now(step)
        with self._waiting.at(step) as waiting:
            while (reading := self._work.take(step, TOLD_SECONDS)) is None:
                waiting.tell()
            return reading

    def close(self) -> None:
        """Stop reading and wait for the threads; may be called again.

        A read that is under way is waited for, 10 seconds at most; one that takes longer is told of and left behind.
        """
        self._dropped()
        end = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        left = [thread for thread in self._threads if thread.is_alive()]
        if left:
            self._log(f"{len(left)} reads of training data did not end within {CLOSE_SECONDS:g} s and are left behind")
        self._threads = left


_open: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    """When the interpreter ends: a thread that came back from a read after that would bring the process down."""
    for loader in list(_open):
        loader.close()


class _Reading:
    """The rows of one step's batch while they are read."""

    def __init__(self, step: int, batch: Batch, shape: tuple[int, int], documents: bool) -> None:
        self.step = step
        self.batch = batch
        self.inputs = np.empty(shape, np.int32)
        self.targets = np.empty(shape, np.int32)
        # A row whose source separates no documents is read as one.
        self.documents = np.ones(shape, np.int32) if documents else None
        self.left = 0
        """Pieces that are not read yet."""
        self.failures: dict[int, BaseException] = {}
        """By the number of the piece."""

    @property
    def failed(self) -> BaseException | None:
        """The failure of the first piece that failed; of several, always the same."""
        return self.failures[min(self.failures)] if self.failures else None

    def put(self, places: np.ndarray, rows: Rows) -> None:
        """Put rows that were read in their places."""
        shape = (len(places), self.inputs.shape[1])
        if rows.inputs.shape != shape or rows.targets.shape != shape:
            raise InputError(f"it gave inputs {rows.inputs.shape} and targets {rows.targets.shape}, not {shape}")
        self.inputs[places], self.targets[places] = _ids(rows.inputs, "inputs"), _ids(rows.targets, "targets")
        if rows.documents is None:
            return
        if self.documents is None or rows.documents.shape != shape:
            raise InputError("it gave documents that it does not give with no rows, or of another shape than inputs")
        self.documents[places] = _ids(rows.documents, "documents")

    def rows(self) -> Rows:
        return Rows(self.inputs, self.targets, self.documents)


def _ids(values: np.ndarray, what: str) -> np.ndarray:
    """Values as int32; to round or wrap them would be to train on something else."""
    if values.dtype == np.int32:
        return values
    if values.dtype.kind not in "iu":
        raise InputError(f"it gave {what} of type {values.dtype}, and ids are whole numbers")
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        raise InputError(f"it gave {what} from {values.min()} to {values.max()}, beyond what an id can be")
    return narrow


@dataclass(frozen=True)
class _Piece:
    """A read of one source, for one step."""

    reading: _Reading
    number: int
    source: int
    ids: np.ndarray
    places: np.ndarray
    """The rows of the reading that it fills."""


@dataclass
class _Work:
    """What is to be read, what is being read, and what is ready; all threads share it.

    A step is planned (its ids are looked up and cut into pieces) when it is less than `ahead` steps after the one that
    the caller waits for; steps are planned in order, and pieces are taken in order.
    """

    order: TrainingOrder
    sources: tuple[SequenceSource, ...]
    needed: np.ndarray
    start: int
    stop: int
    workers: int
    ahead: int
    lock: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False

    def __post_init__(self) -> None:
        self.taken = self.planned = self.start
        """The steps after the last that was taken, and after the last that was planned."""
        self.planning = False
        self.readings: dict[int, _Reading] = {}
        self.pieces: deque[_Piece] = deque()
        self.separate: bool | None = None

    def run(self) -> None:
        """Read until there is nothing left to read: one thread."""
        while True:
            with self.lock:
                while not (self.closed or self.pieces or self._may_plan()):
                    if self.planned >= self.stop and not self.planning:
                        return
                    self.lock.wait()
                if self.closed:
                    return
                piece = self.pieces.popleft() if self.pieces else None
                if piece is None:
                    self.planning = True
            if piece is not None:
                self._read(piece)
            else:
                self._plan()

    def take(self, step: int, timeout: float) -> _Reading | None:
        """The rows of a step when they are all there, or None when they are not there in time."""

        def there() -> bool:
            reading = self.readings.get(step)
            return self.closed or (reading is not None and reading.left == 0)

        with self.lock:
            if not self.lock.wait_for(there, timeout):
                return None
            if self.closed:
                raise MarinError(f"step {step} was asked of a loader that is closed")
            self.taken = step + 1
            self.lock.notify_all()
            return self.readings.pop(step)

    def read_now(self, step: int) -> _Reading:
        """The rows of a step, read by the caller."""
        if self.closed:
            raise MarinError(f"step {step} was asked of a loader that is closed")
        reading, pieces = self._pieces(step)
        for piece in pieces:
            self._fill(piece)
            if reading.failures:
                break
        return reading

    def close(self) -> None:
        """Tell the threads to end."""
        with self.lock:
            self.closed = True
            self.pieces.clear()
            self.readings.clear()
            self.lock.notify_all()

    def _may_plan(self) -> bool:
        return not self.planning and self.planned < min(self.stop, self.taken + self.ahead)

    def _plan(self) -> None:
        reading, pieces = self._pieces(self.planned)
        with self.lock:
            if not self.closed:
                self.readings[reading.step] = reading
                self.pieces.extend(pieces)
            self.planning = False
            # After a step that fails there is none.
            self.planned = self.stop if reading.failures else self.planned + 1
            self.lock.notify_all()

    def _read(self, piece: _Piece) -> None:
        self._fill(piece)
        with self.lock:
            reading = piece.reading
            reading.left -= 1
            if reading.failures:
                self.planned = self.stop
            self.lock.notify_all()

    def _pieces(self, step: int) -> tuple[_Reading, list[_Piece]]:
        """A step's reading, and the pieces it is cut into."""
        shape = (len(self.needed), self.order.sequence_length)
        try:
            batch = self.order.batch(step)
            if self.separate is None:
                self.separate = self._separates()
        except BaseException as error:  # noqa: BLE001 - raised where the step is asked for
            nothing = np.empty(0, np.int64)
            reading = _Reading(step, Batch(nothing, nothing, nothing), (0, 0), False)
            reading.failures[0] = _placed(error, f"step {step}")
            return reading, []
        reading = _Reading(step, batch, shape, self.separate)
        ids = batch[self.needed]
        found = np.unique(ids.sources).tolist()
        # As few reads as keep all threads at work when `ahead` batches are read at once.
        parts = -(-self.workers // (self.ahead * max(1, len(found)))) or 1
        pieces: list[_Piece] = []
        for source in found:
            for places in np.array_split(np.flatnonzero(ids.sources == source), parts):
                if len(places):
                    pieces.append(_Piece(reading, len(pieces), source, ids.sequences[places], places))
        reading.left = len(pieces)
        return reading, pieces

    def _separates(self) -> bool:
        """Whether rows have documents: when any source gives them, whatever a batch draws on.

        So it is the same for all batches and all processes. A source is asked by a read of no rows.
        """
        return any(source.read(np.empty(0, np.int64)).documents is not None for source in self.sources)

    def _fill(self, piece: _Piece) -> None:
        try:
            piece.reading.put(piece.places, self.sources[piece.source].read(piece.ids))
        except BaseException as error:  # noqa: BLE001 - raised where the step is asked for
            where = f"step {piece.reading.step}, source {self.order.names[piece.source]!r}"
            piece.reading.failures[piece.number] = _placed(error, where)


class _Waiting:
    """How long the caller waited, told of where it is a good part of the time."""

    def __init__(self, log: Log) -> None:
        self.total = 0.0
        self._log = log
        self._step = 0
        self._first = True
        self._since = self._counted = time.monotonic()
        self._recent = 0.0

    def at(self, step: int) -> Self:
        """Waiting for a step, as a context."""
        self._step = step
        return self

    def __enter__(self) -> Self:
        self._counted = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._count()
        # Before the first batch there is nothing to do but wait.
        if self._first:
            self._first = False
            self._since, self._recent = self._counted, 0.0
        elif self._counted - self._since >= TOLD_SECONDS:
            self._tell()

    def tell(self) -> None:
        """Say how long it was, while it goes on."""
        self._count()
        if self._counted - self._since >= TOLD_SECONDS:
            self._tell()

    def _count(self) -> None:
        now = time.monotonic()
        self.total += now - self._counted
        self._recent += now - self._counted
        self._counted = now

    def _tell(self) -> None:
        seconds = self._counted - self._since
        if self._recent > TOLD_SHARE * seconds:
            share = f"waited {self._recent:.1f} s of the last {seconds:.1f} s for data"
            self._log(f"{share} (step {self._step}); more workers or ahead may help")
        self._since, self._recent = self._counted, 0.0


def _placed(error: BaseException, where: str) -> BaseException:
    """The same error, which says where it was."""
    if isinstance(error, MarinError):
        error.args = (f"{where}: {error}", *error.args[1:])
    else:
        error.add_note(f"while training data was read: {where}")
    return error


def _checked_rows(rows: np.ndarray, batch_size: int) -> np.ndarray:
    rows = whole_numbers("rows of a batch", rows)
    if np.any(np.diff(rows) <= 0) or np.any((rows < 0) | (rows >= batch_size)):
        raise InputError(f"rows of a batch of {batch_size} must ascend from 0 on, each once; given were {rows}")
    rows.flags.writeable = False
    return rows


def _check_sources(order: TrainingOrder, sources: Sequence[SequenceSource]) -> None:
    if len(sources) != len(order.names):
        raise InputError(f"{len(sources)} sources were given, and the mixture has {len(order.names)}: {order.names}")
    for name, count, source in zip(order.names, order.sequences, sources, strict=True):
        if source.sequence_length != order.sequence_length:
            raise InputError(
                f"source {name!r} is cut every {source.sequence_length} tokens, the order every {order.sequence_length}"
            )
        if len(source) != count:
            raise InputError(f"source {name!r} has {len(source)} sequences, and the order was laid out for {count}")
