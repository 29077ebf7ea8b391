"""Ctrl-C and SIGTERM end a program, also while its threads wait for a store that is silent.

A call of a store lets no handler of Python run before it returns, and a pool is waited for until its calls have
returned. So a thread of its own hears of each signal as it comes, and ends a process that has not ended in its time.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

OF_COMMAND = (10.0, 1.0)
"""Seconds that a program has to end by itself after a first signal, and after a second one."""

OF_STEPS = (math.inf, 5.0)
"""The same while steps are stopped, which may save what they can; a second signal ends them, and leases are freed."""

_ASKED = (signal.SIGINT, signal.SIGTERM)
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)


class Interrupts:
    """The signals that asked this program to end."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._patience = OF_COMMAND
        self._told = -1
        self._raised = False
        """Set in the thread of the handlers, which may be ahead of the one that hears."""

    def __bool__(self) -> bool:
        """Whether there was one."""
        return self._raised or bool(self._at)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear of signals meanwhile, after a first one until the process has ended. SIGTERM raises as Ctrl-C does."""
        global _heard
        if _heard is not None or threading.current_thread() is not threading.main_thread():
            yield
            return
        ear, self._told = os.pipe()
        os.set_blocking(self._told, False)
        kept_fd = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        kept = {each: signal.getsignal(each) for each in _ASKED}
        kept = {each: handler for each, handler in kept.items() if handler in _DEFAULT}
        for each in kept:
            signal.signal(each, self._interrupt)
        thread = threading.Thread(target=self._hear, args=(ear,), name="interrupts", daemon=True)
        thread.start()
        _heard = self
        try:
            yield
        finally:
            if self:  # the command has ended, and what its threads still wait for ends with the process
                for each in _ASKED:
                    signal.signal(each, lambda number, frame: None)
            else:
                _heard = None
                for each, handler in kept.items():
                    signal.signal(each, handler)
                signal.set_wakeup_fd(kept_fd)
                os.close(self._told)
                thread.join()

    def use(self, patience: tuple[float, float]) -> None:
        """Give other times, from now on."""
        self._patience = patience
        self._at = [time.monotonic()] * len(self._at)
        os.write(self._told, b"\0")

    def _interrupt(self, number: int, frame: object) -> None:
        self._raised = True
        raise KeyboardInterrupt

    def _hear(self, ear: int) -> None:
        while True:
            left = min((at + own for at, own in zip(self._at, self._patience, strict=False)), default=math.inf)
            wait = None if left == math.inf else max(0.0, left - time.monotonic())
            if select.select([ear], [], [], wait)[0]:
                numbers = os.read(ear, 1000)
                if not numbers:
                    os.close(ear)
                    return
                self._at += [time.monotonic()] * sum(number in _ASKED for number in numbers)
            elif time.monotonic() >= left:
                _end()


_heard: Interrupts | None = None
"""Who hears of the signals of this process."""


@contextmanager
def while_steps_stop() -> Iterator[None]:
    """Meanwhile a first signal asks steps to stop, which are waited for."""
    heard = _heard
    if heard is None:
        yield
        return
    heard.use(OF_STEPS)
    try:
        yield
    finally:
        heard.use(OF_COMMAND)


def _end() -> NoReturn:
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:  # nobody may read it
            os.write(2, b"interrupted\n")
    os._exit(130)


def _forget() -> None:
    """The signals of a process that was forked are its own."""
    if _heard is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget)
