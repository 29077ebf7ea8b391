"""The loader gives what order and step say, whatever its threads do, and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data import loader as module
from marin_pipeline.data.loader import Loaded, Loader
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.sequences import Rows, Sequences, SequenceSource
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.token_store import TokenStore
from tests.conftest import ROOT
from tests.data.token_stores import write_store

LENGTH, BATCH = 8, 6
WEIGHTS = {"a": "0.2", "b": "0.5", "c": "0.3"}
COUNTS = (40, 100, 60)
ALL = np.arange(BATCH)
PATIENCE = 30.0
"""Seconds after which a test gives up on what should happen at once."""


class Watched:
    """A source of which it is known what was read, and to which something can be done before each read."""

    def __init__(self, source: SequenceSource, before: Callable[[np.ndarray], object] = lambda _: None) -> None:
        self.source = source
        self.sequence_length = source.sequence_length
        self.before = before
        self.read_ids: list[int] = []

    def __len__(self) -> int:
        return len(self.source)

    def read(self, ids: np.ndarray) -> Rows:
        if len(ids):
            self.read_ids += ids.tolist()
            self.before(ids)
        return self.source.read(ids)


def stored(folder: Path, separate: Sequence[bool] = (False, False, False)) -> list[Sequences]:
    """Token stores of the three sources, no token of which is another's."""
    sources: list[Sequences] = []
    for place, (count, apart) in enumerate(zip(COUNTS, separate, strict=True)):
        ids = np.arange(1, count * LENGTH + 2) + 10_000 * place
        ids[10::11] = 0
        parts = [np.split(part, np.flatnonzero(part == 0) + 1) for part in np.array_split(ids, 3)]
        parts = [[document for document in part if len(document)] for part in parts]
        sources.append(Sequences(TokenStore(write_store(folder / str(place), parts, 2**16)), LENGTH, apart))
    assert tuple(map(len, sources)) == COUNTS
    return sources


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Sequences]:
    return stored(tmp_path_factory.mktemp("stores"))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == []


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader-")]


def order_of(weights: dict[str, str] = WEIGHTS, counts: Sequence[int] = COUNTS, first_step: int = 0) -> TrainingOrder:
    mixture = Mixture(tuple(Source(name, max_epochs=None) for name in weights), (Phase(0, weights),))
    held = dict(zip(weights, counts, strict=True))
    return TrainingOrder(Stream(mixture, LENGTH), held, BATCH, seed=5, first_step=first_step)


ORDER = order_of()
ONE = order_of({"a": "1"}, COUNTS[:1])


def plainly(sources: Sequence[SequenceSource], rows: np.ndarray, step: int, order: TrainingOrder = ORDER) -> Rows:
    """The rows of a step, read one after another."""
    batch = order.batch(step)[rows]
    read = [sources[source].read(np.array([id])) for source, id in zip(batch.sources, batch.sequences, strict=True)]
    nothing = np.empty((0, LENGTH), np.int32)
    return Rows(
        np.concatenate([nothing, *(row.inputs for row in read)]),
        np.concatenate([nothing, *(row.targets for row in read)]),
    )


def equal(found: Rows, expected: Rows) -> bool:
    return np.array_equal(found.inputs, expected.inputs) and np.array_equal(found.targets, expected.targets)


def soon(happens: Callable[[], bool]) -> bool:
    """Whether something happens before patience ends."""
    end = time.monotonic() + PATIENCE
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


# What comes out ------------------------------------------------------------------------------------------------------


@given(
    workers=st.sampled_from([0, 1, 2, 5]),
    ahead=st.integers(1, 4),
    hosts=st.lists(st.integers(0, 3), min_size=BATCH, max_size=BATCH),
    start=st.integers(0, 60),
    steps=st.integers(0, 8),
    delays=st.randoms(use_true_random=False),
)
def test_every_host_gets_its_rows_whatever_the_threads_do(sources, workers, ahead, hosts, start, steps, delays):
    """Any assignment of rows to hosts, together, is the batch; a read takes anything from nothing to a millisecond."""
    watched = [Watched(source, lambda _: time.sleep(delays.choice([0, 0, 0.001]))) for source in sources]
    for host in set(hosts):
        rows = np.flatnonzero(np.array(hosts) == host)
        with Loader(ORDER, watched, rows=rows, start=start, stop=start + steps, workers=workers, ahead=ahead) as loader:
            found = list(loader)
        assert [loaded.step for loaded in found] == list(range(start, start + steps))
        for loaded in found:
            batch = ORDER.batch(loaded.step)
            assert np.array_equal(loaded.batch.sequences, batch.sequences)
            assert np.array_equal(loaded.ids.sequences, batch.sequences[rows])
            assert equal(loaded.rows, plainly(sources, rows, loaded.step))


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_a_loader_that_starts_later_reads_nothing_of_what_was_before(sources: list[Sequences], workers: int):
    def read(start: int, stop: int) -> tuple[list[Loaded], list[list[int]]]:
        watched = [Watched(source) for source in sources]
        with Loader(ORDER, watched, rows=ALL, start=start, stop=stop, workers=workers) as loader:
            return list(loader), [sorted(source.read_ids) for source in watched]

    whole, _ = read(0, 12)
    for cut in range(13):
        (before, _), (after, ids) = read(0, cut), read(cut, 12)
        assert all(equal(a.rows, b.rows) for a, b in zip(whole, [*before, *after], strict=True))
        rest = ORDER.between(cut * BATCH, 12 * BATCH)
        assert ids == [sorted(rest.sequences[rest.sources == place].tolist()) for place in range(3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_that_needs_no_row_is_told_the_batches(sources: list[Sequences], workers: int):
    with Loader(ORDER, sources, rows=np.empty(0, np.int64), start=0, stop=3, workers=workers) as loader:
        found = list(loader)
    assert [(loaded.rows.inputs.shape, len(loaded.batch)) for loaded in found] == [((0, LENGTH), BATCH)] * 3


def test_documents_are_there_in_every_batch_or_in_none(tmp_path: Path, sources: list[Sequences]):
    """Else the shape of the computation would depend on what a batch, or a host's part of it, draws on."""
    apart = stored(tmp_path, (True, False, False))
    seldom = order_of({"a": "0.1", "b": "0.5", "c": "0.4"})
    seen = set[bool]()
    for rows in (ALL[:1], ALL):
        with Loader(seldom, apart, rows=rows, start=0, stop=10) as loader:
            for loaded in loader:
                assert loaded.rows.documents is not None
                for place, source, id in zip(range(6), loaded.ids.sources, loaded.ids.sequences, strict=False):
                    own = apart[source].read(np.array([id])).documents
                    assert np.array_equal(loaded.rows.documents[place], np.ones(LENGTH) if own is None else own[0])
                seen.add(0 in loaded.batch.sources)
    assert seen == {True, False}
    with Loader(ORDER, sources, rows=ALL, start=0, stop=2) as loader:
        assert [loaded.rows.documents for loaded in loader] == [None, None]


def test_two_loaders_at_once_do_not_meet(sources: list[Sequences]):
    with (
        Loader(ORDER, sources, rows=ALL[:3], start=0, stop=20) as first,
        Loader(ORDER, sources, rows=ALL[3:], start=0, stop=20) as second,
    ):
        for one, two in zip(first, second, strict=True):
            both = np.concatenate([one.rows.inputs, two.rows.inputs])
            assert np.array_equal(both, plainly(sources, ALL, one.step).inputs)


# How it reads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "ahead", "at_once"),
    [(1, 4, 1), (2, 4, 2), (4, 4, 4), (4, 1, 4), (6, 2, 6), (9, 1, 6)],
    ids=["one", "two batches", "four batches", "four parts", "two batches in three parts", "no more than rows"],
)
def test_all_workers_read_at_once(sources: list[Sequences], workers: int, ahead: int, at_once: int):
    """As few reads as keep them at work: of different batches, and where there are fewer of these, of their parts."""
    together = threading.Barrier(at_once)
    source = Watched(sources[0], lambda _: together.wait(PATIENCE))
    with Loader(ONE, [source], rows=ALL, start=0, stop=4, workers=workers, ahead=ahead) as loader:
        assert all(equal(loaded.rows, plainly(sources, ALL, loaded.step, ONE)) for loaded in loader)


def test_sources_of_a_batch_are_read_at_once(sources: list[Sequences]):
    together = threading.Barrier(3)
    watched = [Watched(source, lambda _: together.wait(PATIENCE)) for source in sources]
    every = next(step for step in itertools.count() if len(set(ORDER.batch(step).sources.tolist())) == 3)
    with Loader(ORDER, watched, rows=ALL, start=every, stop=every + 1, workers=3, ahead=1) as loader:
        assert equal(next(loader).rows, plainly(sources, ALL, every))


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 5])
def test_a_slow_consumer_has_no_more_than_ahead_batches_waiting(sources: list[Sequences], workers: int, ahead: int):
    source = Watched(sources[0])
    with Loader(ONE, [source], rows=ALL, start=0, stop=30, workers=workers, ahead=ahead) as loader:
        for taken in range(1, 5):
            next(loader)
            assert soon(lambda taken=taken: len(source.read_ids) >= (taken + ahead) * BATCH)
            time.sleep(0.02)
            assert len(source.read_ids) == (taken + ahead) * BATCH


# When it is slow -----------------------------------------------------------------------------------------------------


def test_waiting_for_data_is_told_and_counted(sources: list[Sequences], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "TOLD_SECONDS", 0.1)
    told: list[str] = []
    source = Watched(sources[0], lambda _: time.sleep(0.02))
    began = time.monotonic()
    with Loader(ONE, [source], rows=ALL, start=0, stop=20, workers=1, log=told.append) as loader:
        list(loader)
    assert 0.2 < loader.waited <= (took := time.monotonic() - began)
    assert 1 <= len(told) <= took / 0.1
    told_of = re.compile(
        r"waited \d+\.\d s of the last \d+\.\d s for data \(step \d+\); more workers or ahead may help"
    )
    assert all(told_of.fullmatch(line) for line in told)


def test_a_read_that_does_not_end_is_told_of_while_it_is_waited_for(
    sources: list[Sequences], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "TOLD_SECONDS", 0.05)
    told: list[str] = []
    source = Watched(sources[0], lambda _: soon(lambda: len(told) >= 2))
    with Loader(ONE, [source], rows=ALL, start=7, stop=8, log=told.append) as loader:
        next(loader)
    assert all("(step 7)" in line for line in told)


def test_a_consumer_that_is_slower_than_the_reads_is_told_nothing(
    sources: list[Sequences], monkeypatch: pytest.MonkeyPatch
):
    """By a clock that goes on while the consumer works, so that a machine that is busy has no part in it."""
    monkeypatch.setattr(module, "TOLD_SECONDS", 0.1)
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    told: list[str] = []
    with Loader(ONE, [Watched(sources[0])], rows=ALL, start=0, stop=12, log=told.append) as loader:
        for _ in range(12):
            clock[0] += 0.05
            next(loader)
    assert told == []
    assert loader.waited == 0


# When a read fails ---------------------------------------------------------------------------------------------------


def failing(step: int, row: int, error: BaseException) -> Callable[[np.ndarray], None]:
    """Fails when that row of that step is read, and no other, of the order of one source."""
    bad = ONE.batch(step).sequences[row]

    def check(ids: np.ndarray) -> None:
        if bad in ids:
            raise error

    return check


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_row_that_cannot_be_read_stops_at_its_step(sources: list[Sequences], workers: int, ahead: int):
    source = Watched(sources[0], failing(3, 2, InputError("part-1/tokens: missing; make the tokens again")))
    found: list[int] = []
    loader = Loader(ONE, [source], rows=ALL, start=0, stop=6, workers=workers, ahead=ahead)
    with pytest.raises(InputError, match=r"^step 3, source 'a': part-1/tokens: missing; make the tokens again$"):
        found.extend(loaded.step for loaded in loader)
    assert threads() == []
    with pytest.raises(MarinError, match="step 3 was asked of a loader that is closed"):
        next(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_who_does_not_read_the_row_does_not_fail(sources: list[Sequences], workers: int):
    source = Watched(sources[0], failing(3, 2, InputError("unreadable")))
    with Loader(ONE, [source], rows=np.delete(ALL, 2), start=0, stop=6, workers=workers) as loader:
        assert len(list(loader)) == 6


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "I/O error"), SystemExit(3)], ids=repr)
def test_other_errors_are_raised_as_they_are_with_a_note(sources: list[Sequences], workers: int, error: BaseException):
    source = Watched(sources[0], failing(2, 0, error))
    with (
        Loader(ONE, [source], rows=ALL, start=0, stop=6, workers=workers) as loader,
        pytest.raises(type(error)) as raised,
    ):
        list(loader)
    assert raised.value is error
    assert raised.value.__notes__[-1] == "while training data was read: step 2, source 'a'"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reader_that_says_it_is_at_its_end_does_not_end_the_run(sources: list[Sequences], workers: int):
    source = Watched(sources[0], failing(2, 0, StopIteration()))
    with (
        Loader(ONE, [source], rows=ALL, start=0, stop=6, workers=workers) as loader,
        pytest.raises(MarinError, match="step 2: a reader raised StopIteration"),
    ):
        list(loader)


def test_of_two_failures_in_a_step_the_same_one_is_always_told(sources: list[Sequences]):
    """That of the source that comes first, though its read ends last."""
    second = threading.Event()

    def fail_late(_: np.ndarray) -> None:
        assert second.wait(PATIENCE)
        raise InputError("late")

    def fail_early(_: np.ndarray) -> None:
        second.set()
        raise InputError("early")

    watched = [Watched(sources[0], fail_late), Watched(sources[1], fail_early), Watched(sources[2])]
    step = next(step for step in itertools.count() if {0, 1} <= set(ORDER.batch(step).sources.tolist()))
    with (
        Loader(ORDER, watched, rows=ALL, start=step, stop=step + 1, workers=3, ahead=1) as loader,
        pytest.raises(InputError, match=f"step {step}, source 'a': late"),
    ):
        next(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_another_shape_are_refused(sources: list[Sequences], workers: int):
    class Short(Watched):
        def read(self, ids: np.ndarray) -> Rows:
            rows = super().read(ids)
            return Rows(rows.inputs[:1], rows.targets[:1])

    with (
        Loader(ONE, [Short(sources[0])], rows=ALL, start=0, stop=2, workers=workers) as loader,
        pytest.raises(InputError, match=r"step 0, source 'a': it gave inputs \(1, 8\)"),
    ):
        next(loader)


# When it ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, GeneratorExit])
def test_a_consumer_that_fails_leaves_no_thread(sources: list[Sequences], error: type[BaseException]):
    def consume() -> None:
        with Loader(ORDER, sources, rows=ALL, start=0, stop=50) as loader:
            next(loader)
            raise error

    with pytest.raises(error):
        consume()
    assert threads() == []


def test_a_generator_that_is_dropped_leaves_no_thread(sources: list[Sequences]):
    def steps() -> Generator[int, None, None]:
        with Loader(ORDER, sources, rows=ALL, start=0, stop=50) as loader:
            for loaded in loader:
                yield loaded.step

    dropped = steps()
    assert next(dropped) == 0
    dropped.close()
    assert threads() == []


def test_a_loader_that_is_forgotten_stops_its_threads(sources: list[Sequences]):
    loader = Loader(ORDER, sources, rows=ALL, start=0, stop=50)
    next(loader)
    assert threads()
    del loader
    gc.collect()
    assert soon(lambda: threads() == [])


def test_an_interrupt_while_a_batch_is_waited_for_leaves_no_thread(sources: list[Sequences]):
    asked = threading.Event()

    def interrupt(_: np.ndarray) -> None:
        assert asked.wait(PATIENCE)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        # Longer than the interrupt takes: it meets the wait, and not the end of the read.
        time.sleep(0.3)

    def consume() -> None:
        with Loader(ONE, [Watched(sources[0], interrupt)], rows=ALL, start=0, stop=1, workers=1) as loader:
            asked.set()
            next(loader)

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert threads() == []


def test_a_read_that_never_ends_is_left_behind_and_told_of(sources: list[Sequences], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    told: list[str] = []
    reading, released = threading.Event(), threading.Event()

    def block(_: np.ndarray) -> None:
        reading.set()
        assert released.wait(PATIENCE)

    loader = Loader(ONE, [Watched(sources[0], block)], rows=ALL, start=0, stop=5, workers=1, log=told.append)
    assert reading.wait(PATIENCE)
    loader.close()
    assert told == ["1 reads of training data did not end within 0.05 s and are left behind"]
    released.set()
    loader.close()
    assert threads() == []


LEFT_OPEN = """
import sys, threading, time
import numpy as np
from marin_pipeline.data import loader
from tests.data.test_loader import ALL, ONE, COUNTS, LENGTH

class Slow:
    sequence_length = LENGTH
    def __len__(self): return COUNTS[0]
    def read(self, ids):
        reading.set()
        time.sleep(float(sys.argv[1]))
        print("read", flush=True)

loader.CLOSE_SECONDS, reading = float(sys.argv[2]), threading.Event()
left_open = loader.Loader(ONE, [Slow()], rows=ALL, start=0, stop=5, workers=1)
assert reading.wait(60)
raise SystemExit(7)
"""


@pytest.mark.parametrize(("seconds", "patience", "printed"), [("3600", "0.1", ""), ("0.3", "60", "read\n")])
def test_a_process_that_leaves_a_loader_open_ends_when_its_read_does_or_without_it(
    seconds: str, patience: str, printed: str
):
    command = [sys.executable, "-c", LEFT_OPEN, seconds, patience]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (7, printed)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_ended_stays_ended_and_one_that_was_closed_says_so(sources: list[Sequences], workers: int):
    with Loader(ORDER, sources, rows=ALL, start=0, stop=3, workers=workers) as loader:
        assert len(list(loader)) == 3
        assert list(loader) == []
    with Loader(ORDER, sources, rows=ALL, start=0, stop=3, workers=workers) as loader:
        next(loader)
    with pytest.raises(MarinError, match="step 1 was asked of a loader that is closed"):
        next(loader)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.array([1, 0])}, "rows of a batch of 6 must ascend"),
        ({"rows": np.array([1, 1])}, "rows of a batch of 6 must ascend"),
        ({"rows": np.array([-1])}, "rows of a batch of 6 must ascend"),
        ({"rows": np.array([6])}, "rows of a batch of 6 must ascend"),
        ({"start": 3, "stop": 2}, "steps 3 to 2"),
        ({"start": 1, "order": order_of(first_step=2)}, "nor begin before step 2"),
        ({"workers": -1}, "workers=-1"),
        ({"ahead": 0}, "ahead=0"),
        ({"order": ONE}, "3 sources were given, and the mixture has 1"),
        ({"order": order_of(counts=(40, 100, 61))}, "source 'c' has 60 sequences, and the order was laid out for 61"),
    ],
)
def test_what_does_not_fit_together_is_refused(sources: list[Sequences], change: dict[str, object], message: str):
    given: dict[str, object] = {"order": ORDER, "rows": ALL, "start": 0, "stop": 5} | change
    with pytest.raises(InputError, match=message):
        Loader(given.pop("order"), sources, **given)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("start", [0, 5])
def test_a_loader_that_would_read_a_source_too_often_is_not_made(sources: list[Sequences], start: int) -> None:
    mixture = Mixture((Source("a", max_epochs=1),), (Phase(0, {"a": 1}),))
    order = TrainingOrder(Stream(mixture, LENGTH), {"a": COUNTS[0]}, BATCH, seed=0)
    steps = COUNTS[0] // BATCH
    with Loader(order, sources[:1], rows=ALL, start=start, stop=steps, workers=0) as loader:
        assert max(loaded.batch.epochs.max() for loaded in loader) == 0
    told = (
        f"source 'a' of the mixture holds 40 sequences of 8; steps before {steps + 1} read {(steps + 1) * BATCH} from "
        f"it, {(steps + 1) * BATCH / 40:.4g} epochs, and its max_epochs is 1; "
    )
    with pytest.raises(InputError, match=re.escape(told)):
        Loader(order, sources[:1], rows=ALL[:2], start=start, stop=steps + 1)


def test_a_source_that_is_cut_otherwise_is_refused(sources: list[Sequences]):
    with pytest.raises(InputError, match="source 'a' is cut every 9 tokens, the order every 8"):
        Loader(ONE, [Sequences(sources[0].store, 9)], rows=ALL, start=0, stop=1)
