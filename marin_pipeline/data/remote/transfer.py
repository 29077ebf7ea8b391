"""The loop that reads one file from its place: tries again, goes on where it can, begins anew where it must.

It ends with the bytes of one state of the place, whole and with the digests that are known, or with an error.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.kept import KeptFile, PartWriter, blocks_of
from marin_pipeline.data.remote.place import BLOCK, Broken, Mistaken, Place, Reply, State

T = TypeVar("T")

GAIN = 64 * 2**10
"""Bytes beyond all that earlier tries have reached, for which the tries are counted anew."""


@dataclass(frozen=True)
class Patience:
    """How long a place is asked again. None of it is in a key."""

    tries: int = 8
    """Failed tries in a row without a gain, at most."""
    first_wait: float = 0.5
    """Seconds before the second try; doubled for each one after that, and shortened at random by up to half."""
    longest_wait: float = 60.0
    """Seconds between two tries, where the server does not say otherwise."""
    longest_asked: float = 900.0
    """Seconds that are waited at most when the server asks to be asked later."""

    def wait(self, failures: int) -> float:
        """Seconds before the next try after so many failures."""
        return min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


class Halted(Exception):
    """Another file failed, or the step is to stop: what was taken is kept, and nothing more is read."""


class Watch:
    """What several transfers share: how far they are, and whether they are to end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._halted = threading.Event()
        self._replies: set[Reply] = set()
        self.taken: dict[int, int] = {}
        """Bytes by file."""
        self.sizes: dict[int, int] = {}
        """Bytes of the whole by file, where they are known."""

    def check(self) -> None:
        """Raise `Halted` when it is time to end."""
        if self._halted.is_set():
            raise Halted

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than the others go on."""
        self._halted.wait(seconds)
        self.check()

    def halt(self) -> None:
        """End all transfers, also those that wait for bytes."""
        self._halted.set()
        with self._lock:
            replies = list(self._replies)
        for reply in replies:
            reply.interrupt()

    def reading(self, reply: Reply) -> None:
        """Note what is to be closed when it is time to end."""
        with self._lock:
            self._replies.add(reply)
        self.check()

    def read(self, reply: Reply) -> None:
        """It is not read any more."""
        with self._lock:
            self._replies.discard(reply)


class Output(Protocol):
    """Where the bytes go."""

    def write(self, data: bytes | memoryview, /) -> Any: ...


@dataclass(frozen=True)
class Fetched:
    """How a transfer came out."""

    size: int
    sha256: str
    state: State
    answers: int
    """Answers that were needed: 0 when all was kept from an earlier attempt, and is fixed."""
    kept: int
    """Bytes from an earlier attempt."""


class Taking:
    """What has been taken of a file: hashed, written to the output, and kept in parts for a next attempt."""

    def __init__(
        self,
        place: Place,
        expected: Mapping[str, str],
        output: Callable[[], AbstractContextManager[Output]],
        kept: KeptFile,
    ) -> None:
        self._place = place
        self._expected = expected
        self._opened = output
        self._kept = kept
        self._context: AbstractContextManager[Output] | None = None
        self._part: PartWriter | None = None
        self.begin(None)

    def begin(self, state: State | None) -> None:
        """Begin at 0, with bytes of `state`."""
        if self._context is not None and self.size == 0:
            self.state, self.joined = state, False
            return
        self.close(keep=False)
        self.state = state
        self.size = 0
        self.from_before = 0
        """Bytes from an earlier attempt."""
        self.joined = False
        """Whether the bytes come from more than one answer."""
        self._hashes = {name: _new_hash(name, self._place.size) for name in {"sha256", *self._expected}}
        self._context = self._opened()
        self._output = self._context.__enter__()

    def begin_with_kept(self) -> None:
        """Begin with the parts of an earlier attempt."""
        found = self._kept.found()
        if found is None:
            return
        state, files = found
        self.begin(state)
        self.joined = True
        for file in files:
            for block in blocks_of(file, BLOCK):
                self._add(block)
        self.from_before = self.size

    def take(self, block: bytes) -> None:
        """Append bytes of the state."""
        state = self.state
        if state is None or not (state.validator or self._place.fixed):
            self._add(block)
            return
        left = memoryview(block)
        while left:
            if self._part is None:
                self._part = self._kept.writing(self.size // self._kept.part, state)
            piece = left[: self._kept.part - self._part.size]
            self._part.write(piece)
            self._add(piece)
            if self._part.size == self._kept.part:
                self._finish_part()
            left = left[len(piece) :]

    def _add(self, block: bytes | memoryview) -> None:
        self._output.write(block)
        for each in self._hashes.values():
            each.update(block)
        self.size += len(block)

    def _finish_part(self) -> None:
        if self._part is not None:
            part, self._part = self._part, None
            part.finish()

    @property
    def is_whole(self) -> bool:
        """Whether all is there, as far as the size tells."""
        return self.state is not None and self.state.size is not None and self.size == self.state.size

    def has(self, state: State) -> bool:
        """Whether what was taken is of a state, as far as the place can tell."""
        return self.state is not None and bool(state.validator) and state.is_same(self.state)

    @property
    def is_doubtful(self) -> bool:
        """Whether other bytes than those that were expected may be no fault of the place: they were put together of
        several answers, or nothing told where they end. Then one more answer, of the whole, decides.
        """
        return self.joined or self.state is None or self.state.size is None

    def difference(self) -> str:
        """What is wrong with the whole; empty when nothing is."""
        for name, expected in self._expected.items():
            found = self._hashes[name].hexdigest()
            if found != expected:
                return f"{name} {found}, not {expected}"
        return ""

    def finish(self) -> str:
        """Close the output, which is whole; its sha256."""
        self._finish_part()
        self.close(keep=True)
        return self._hashes["sha256"].hexdigest()

    def forget(self) -> None:
        """Nothing that was taken counts, here and for a next attempt."""
        self.begin(None)
        self._kept.forget()

    def close(self, keep: bool) -> None:
        """Let go of the output: as it is, or as nothing."""
        if self._part is not None:
            part, self._part = self._part, None
            part.abandon()
        if self._context is not None:
            context, self._context = self._context, None
            if keep:
                context.__exit__(None, None, None)
            else:
                with suppress(Halted):
                    context.__exit__(Halted, Halted(), None)


class _Checksum:
    """crc32c behind the interface of hashlib."""

    def __init__(self) -> None:
        import google_crc32c

        self._sum: Any = google_crc32c.Checksum()

    def update(self, data: bytes | memoryview) -> None:
        self._sum.update(bytes(data))

    def hexdigest(self) -> str:
        return self._sum.digest().hex()


def _new_hash(name: str, size: int | None) -> Any:
    if name == "crc32c":
        return _Checksum()
    if name == "git":
        return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    return hashlib.new(name, usedforsecurity=name == "sha256")


def transfer(
    place: Place,
    expected: Mapping[str, str],
    output: Callable[[], AbstractContextManager[Output]],
    kept: KeptFile,
    *,
    patience: Patience,
    watch: Watch,
    index: int = 0,
    most: int | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> Fetched:
    """Read a file to its end.

    Args:
        expected: digests that the bytes must have, hex by name (see `Place.digests`).
        output: opens the file that is written; it is left as nothing when its block ends with an error.
        index: under which the watch counts its bytes.
        most: bytes that it may have, as it was declared.

    Raises:
        InputError: when the bytes cannot be had, or are not those that were declared.
        Halted: when the watch says so.
    """
    taking = Taking(place, expected, output, kept)
    try:
        taking.begin_with_kept()
        # What is of a state that may be over counts once the place has said that it is not.
        has_answered = bool(expected or place.fixed)
        best, failures, answers, doubted = taking.size, 0, 0, False
        while True:
            watch.taken[index] = taking.size
            try:
                if not (taking.is_whole and has_answered):
                    answers += 1
                    _read(place, taking, watch, index, most)
                    has_answered = True
                problem = taking.difference()
                if problem and not doubted and taking.is_doubtful:
                    doubted = True
                    raise Mistaken(f"the bytes have the {problem}")
                break
            except Broken as broken:
                if isinstance(broken, Mistaken):
                    taking.forget()
                failures = 1 if taking.size >= best + GAIN else failures + 1
                best = max(best, taking.size)
                _wait(place.shown, broken, failures, patience, watch, log)
        size = taking.size
        if problem:
            taking.forget()
            raise InputError(
                f"{place.shown}: its {size:,} bytes have the {problem}; the file was changed there, or the digest "
                "is of another one: nothing was kept"
            )
        state = taking.state or State("", size)
        return Fetched(size, taking.finish(), replace(state, size=size), answers, taking.from_before)
    except BaseException:
        taking.close(keep=False)
        raise


def _read(place: Place, taking: Taking, watch: Watch, index: int, most: int | None) -> None:
    """Read one answer to its end; of what is whole only whether it is still so."""
    start, before = (0, None) if taking.is_whole else (taking.size, taking.state)
    with closing(place.open(start, before)) as reply:
        watch.reading(reply)
        try:
            if taking.is_whole and taking.has(reply.state):
                return
            if reply.start == 0:
                taking.begin(reply.state)
            elif reply.start == taking.size:
                taking.state, taking.joined = reply.state, True
            else:
                raise Mistaken(f"bytes from {reply.start:,}, where those from {taking.size:,} were asked for")
            size = reply.state.size
            if size is not None:
                watch.sizes[index] = size
            _refuse_more(place, size or 0, most)
            for block in reply.blocks():
                taking.take(block)
                watch.taken[index] = taking.size
                watch.check()
                _refuse_more(place, taking.size, most)
                if size is not None and taking.size > size:
                    raise Mistaken(f"more than the {size:,} bytes that were to come")
        finally:
            watch.read(reply)
    watch.check()  # an answer that was closed for that ends early
    if size is not None and taking.size < size:
        raise Broken(f"it ended after {taking.size:,} of {size:,} bytes")


def _refuse_more(place: Place, size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise InputError(
            f"{place.shown}: has more than the {most:,} bytes that it is declared to have; correct expected_bytes, or "
            "the address"
        )


def patiently(call: Callable[[], T], shown: str, *, patience: Patience, watch: Watch, log: Callable[[str], None]) -> T:
    """What a call returns that may be made again, as often as patience allows.

    Raises:
        InputError: when it came to nothing.
    """
    failures = 0
    while True:
        try:
            return call()
        except Broken as broken:
            failures += 1
            _wait(shown, broken, failures, patience, watch, log)


def _wait(
    shown: str, broken: Broken, failures: int, patience: Patience, watch: Watch, log: Callable[[str], None]
) -> None:
    """Wait before the next try; there may be none."""
    watch.check()
    if failures >= patience.tries:
        times = "one try" if failures == 1 else f"{failures} tries in a row"
        raise InputError(f"{shown}: {broken}; {times} came to nothing, run again to go on") from None
    seconds = patience.wait(failures)
    if broken.wait is not None:
        if broken.wait > patience.longest_asked:
            raise InputError(
                f"{shown}: {broken}: asks to be left alone for {broken.wait:,.0f} s; run again after that"
            ) from None
        seconds = max(broken.wait, seconds)
    log(f"{shown}: {broken}; trying again in {seconds:.1f} s")
    watch.sleep(seconds)
