"""The loader with the defect of MaxText's for OLMo, as at its commit e591f30cb: planted, to be caught.

A host takes its slice of the permuted source *and*, of that, every `hosts`-th sequence: it comes to the end of the
slice `hosts` times too early and goes on in the next permutation. And where it resumes, its cursor is step x rows in
place of step x rows x hosts, so that it reads again what was read. With one host it is the loader itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from marin_pipeline.data.loader import Loader
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.sequences import SequenceSource


class DefectiveLoader(Loader):
    """Reads as hosts with the defect do. Of an order of one source only."""

    def __init__(
        self,
        order: TrainingOrder,
        sources: Sequence[SequenceSource],
        *,
        rows: np.ndarray,
        start: int,
        stop: int,
        workers: int = 2,
        ahead: int | None = None,
        log: Callable[[str], None] | None = None,
        hosts: int | None = None,
    ) -> None:
        """As the loader.

        Args:
            hosts: that share a batch in consecutive parts; by the number of `rows` when not given. With all rows and
                `hosts=8` one process reads what eight would.
        """
        hosts = order.batch_size // len(rows) if hosts is None else hosts
        defective = _ShardedTwice(order, np.asarray(rows), start, hosts)
        super().__init__(defective, sources, rows=rows, start=start, stop=stop, workers=workers, ahead=ahead, log=log)


class _ShardedTwice(TrainingOrder):
    """What the loader of a host, or of several, takes for the order."""

    def __init__(self, order: TrainingOrder, rows: np.ndarray, start: int, hosts: int) -> None:
        if len(order.names) != 1 or order.batch_size % hosts or order.index(order.first_step):
            raise ValueError(f"{order.names}, {order.batch_size} rows, {hosts} hosts: the defect is of one source")
        self.__dict__.update(order.__dict__)
        self._rows, self._start, self._hosts = rows, start - order.first_step, hosts

    def batch(self, step: int) -> Batch:
        """The order's batch, but for the rows that the host reads."""
        batch = super().batch(step)
        a_host = self.batch_size // self._hosts
        host, place = np.divmod(self._rows, a_host)
        done = step - self.first_step - self._start
        # Sharded by the framework ("every hosts-th"), after a cursor that counts one host's rows as if they were all.
        cursor = self._start * a_host + (done * a_host + place) * self._hosts + host
        # Sharded by its own sampler (a slice of each epoch).
        slice_length = self.sequences[0] // self._hosts
        epochs, within = np.divmod(cursor, slice_length)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            rows = self._rows[chosen]
            batch.sequences[rows] = self.permutation(0, epoch)((host * slice_length + within)[chosen])
            batch.epochs[rows] = epoch
        return batch
