"""What a step finds around it is the same whatever ran before it: a task's changes to its process end with it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Generator

_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


@contextlib.contextmanager
def kept() -> Generator[None, None, None]:
    """Put back the working directory, the environment, the import path, the mask for new files, the limits of
    recursion and of open files, the handlers of signals, the mask of blocked ones and the alarm clock.
    """
    folder, environment, path = os.getcwd(), dict(os.environ), list(sys.path)
    limit = sys.getrecursionlimit()
    mask = os.umask(0o077)
    os.umask(mask)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_main = threading.current_thread() is threading.main_thread()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {each: signal.getsignal(each) for each in _SIGNALS} if in_main else {}
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for each, handler in handlers.items():
                if handler is not None and signal.getsignal(each) is not handler:
                    signal.signal(each, handler)
        os.umask(mask)
        with contextlib.suppress(OSError, ValueError):  # a step may lower the hard limit, for good
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        sys.setrecursionlimit(limit)
        sys.path[:] = path
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        with contextlib.suppress(OSError):  # the folder itself may have gone
            os.chdir(folder)
