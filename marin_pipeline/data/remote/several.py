"""Several files at once. How they come out does not depend on how many: they are in the order that they were declared
in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

from marin_pipeline.core.context import Work
from marin_pipeline.data.remote.kept import PART, Kept
from marin_pipeline.data.remote.sources import Found
from marin_pipeline.data.remote.transfer import Fetched, Halted, Output, Patience, Watch, transfer

LOOK = 0.2
"""Seconds between two looks at how far the files are."""


def fetch_all(
    found: Sequence[Found],
    opened: Callable[[str], AbstractContextManager[Output]],
    work: Work,
    *,
    workers: int,
    patience: Patience,
    watch: Watch,
    look: Callable[[int, int, int], None],
    log: Callable[[str], None],
    part: int = PART,
) -> list[Fetched]:
    """Read the files, `workers` at once; what came of each, in their order.

    Args:
        opened: opens a file of the output by its path.
        look: called again and again with the bytes that there are, the bytes in all (0 where they are not known yet)
            and the files that are done; may raise, which ends all.

    Raises:
        InputError: of the first file, in order, that could not be had.
    """
    kept = Kept(work, part)
    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="download") as pool:
        running = [
            pool.submit(
                transfer,
                each.place,
                each.expected,
                lambda path=each.path: opened(path),
                kept.of(each.place),
                patience=patience,
                watch=watch,
                index=index,
                most=each.most,
                log=log,
            )
            for index, each in enumerate(found)
        ]
        try:
            pending: set[Future[Fetched]] = set(running)
            while pending:
                done, pending = wait(pending, LOOK, FIRST_COMPLETED)
                for each in done:
                    each.result()
                _tell(found, running, watch, look)
        except BaseException:
            watch.halt()
            for each in running:
                each.cancel()
            wait(running)
            for each in running:
                error = None if each.cancelled() else each.exception()
                if error is not None and not isinstance(error, Halted):
                    raise error from None
            raise
    return [each.result() for each in running]


def _tell(
    found: Sequence[Found], running: Sequence[Future[Fetched]], watch: Watch, look: Callable[[int, int, int], None]
) -> None:
    done = [each.done() for each in running]
    sizes = [watch.sizes.get(index, each.place.size) for index, each in enumerate(found)]
    known = [size for size in sizes if size is not None]
    look(sum(watch.taken.values()), sum(known) if len(known) == len(sizes) else 0, sum(done))
