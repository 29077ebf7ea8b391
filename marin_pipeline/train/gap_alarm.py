"""The gap alarm: one state scored on what was read, what comes next and held-out text; too large a gap stops a run.

What was read is taken from the loader, not from the order: a loader that reads something else than it should is what
the alarm is for. All three are scored by one compiled forward pass on the mesh of the run, so they differ in text only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.loader import Loaded
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.read_ledger import audit_command
from marin_pipeline.data.sequences import NO_TARGET, Rows, SequenceSource
from marin_pipeline.models import llama
from marin_pipeline.models.loss import token_losses
from marin_pipeline.train import mesh as meshes
from marin_pipeline.train.feed import Layout, placed
from marin_pipeline.train.gap import HELD_OUT, UNSEEN, Gap, Losses, compared, judge
from marin_pipeline.train.kept import Kept
from marin_pipeline.train.program import PARAMETERS, Program, under

SEQUENCES = 64
"""Most sequences of each kind."""

_ABSENT = -2
"""Stands for what another process has: below every token, document and `NO_TARGET`."""
_GATHERED = 8
"""Rows that processes exchange at a time."""


class GapAlarm:
    """Follows a run, and scores its state when asked.

    Every process of the run makes one, tells it of every batch, and checks at the same steps. Memory: twice 64 rows.
    """

    def __init__(
        self,
        program: Program,
        order: TrainingOrder,
        sources: Sequence[SequenceSource],
        held_out: Sequence[SequenceSource],
        bound: float,
    ) -> None:
        """Begin to follow a run, or to go on with one.

        Args:
            program: of the run.
            sources: of the order, by place.
            held_out: by place likewise; or one, of all sources together; or none, and then only what was read and
                what comes next are compared.
            bound: nats a token that text which was not read may lie above text that was. Infinite: never stop.

        Raises:
            InputError: when the held-out text does not fit the order, or the bound is not a number of at least 0.
        """
        if not bound >= 0:
            raise InputError(f"maximum_gap is {bound}: give a number of nats a token, at least 0")
        if len(held_out) not in (0, 1, len(sources)):
            raise InputError(
                f"{len(held_out)} held-out sources were given for {len(sources)} sources: give one each, or one for all"
            )
        for place, source in enumerate(held_out):
            name = order.names[place] if len(held_out) == len(sources) else "of all sources"
            if source.sequence_length != order.sequence_length:
                raise InputError(
                    f"held-out text {name!r} is cut every {source.sequence_length} tokens, and training text every "
                    f"{order.sequence_length}: cut both alike"
                )
        if held_out and not any(map(len, held_out)):
            raise InputError(
                f"the held-out text has no sequence of {order.sequence_length} tokens: hold out more, or give none"
            )
        self._program, self._order, self.bound = program, order, bound
        self._sources, self._held_out = tuple(sources), tuple(held_out)
        self._kept = Kept(SEQUENCES)
        self._separate = any(
            source.read(np.empty(0, np.int64)).documents is not None for source in (*self._sources, *self._held_out)
        )
        shape = program.mesh.shape
        shares = shape["replica"] * shape["data"]
        self._batch = min(program.recipe.batch_size, -(-3 * SEQUENCES // shares) * shares)
        """Rows scored at a time: no more than in training, and shared by the same devices."""
        self._axes = (Axis("batch", self._batch), Axis(llama.POSITION, order.sequence_length))
        self._layout = Layout(meshes.sharding(program.mesh, self._axes, meshes.COMPUTE), (self._batch,))
        self._forward = jax.jit(self._row_losses, out_shardings=meshes.sharding(program.mesh, (), {}))

    def read(self, loaded: Loaded) -> None:
        """Note what the loader delivered for a step."""
        self._kept.add(self._order.index(loaded.step), loaded)

    def kept(self) -> bytes:
        """The rows that were kept, to go with a temporary checkpoint: the order's word for them would not do."""
        return self._kept.to_bytes()

    def restore(self, kept: bytes) -> None:
        """Go on with the rows that an earlier process kept.

        Raises:
            CorruptOutput: when they cannot be read.
        """
        self._kept.restore(kept)

    def check(self, state: Mapping[str, NamedArray], step: int) -> Gap:
        """Score a state.

        Args:
            state: after `step` updates, or its parameters alone.

        Raises:
            MarinError: when the gap exceeds the bound by more than noise; see `judge`.
            InputError: when nothing was read.
        """
        gap = self.measure(state, step)
        judge(gap, self.bound, audit_command(self._order))
        return gap

    def measure(self, state: Mapping[str, NamedArray], step: int) -> Gap:
        """What `check` judges."""
        parameters = under(PARAMETERS, state) or dict(state)
        seen_sources, seen_rows = self._seen(step)
        unseen = self._unseen(step, seen_sources)
        held_sources, held_rows = self._held(seen_sources)
        kinds = [
            (seen_sources, seen_rows),
            (unseen.sources, self._rows(self._sources, unseen.sources, unseen.sequences)),
            (held_sources, held_rows),
        ]
        ends = np.cumsum([len(rows.inputs) for _, rows in kinds])[:-1]
        losses, targets = self._losses(parameters, _joined([rows for _, rows in kinds]))
        found: list[Losses] = []
        for (sources, _), mine, real in zip(kinds, np.split(losses, ends), np.split(targets > 0, ends), strict=True):
            found.append(Losses(mine[real], sources[real]))  # a row of padding alone has no loss
        seen, coming, held = found
        seen_score = seen.score()
        if seen_score is None:
            raise InputError(f"step {step}: no sequence that was read has a token to predict; look at the documents")

        together = len(self._held_out) == 1
        own = Losses(seen.losses, np.zeros_like(seen.sources)) if together else seen
        unseen_difference, unseen_why = compared(seen, coming)
        held_difference, held_why = compared(own, held)
        if not len(coming):
            unseen_why = "all of each source was read"
        if not self._held_out:
            held_why = "none was given"
        names = self._order.names
        reasons = {UNSEEN: unseen_why, HELD_OUT: held_why}
        left = {
            UNSEEN: self._left_out(seen, coming, "all of it was read"),
            HELD_OUT: {} if len(self._held_out) < 2 else self._left_out(seen, held, "nothing of it is held out"),
        }
        epochs = self._order.epochs(step)
        most_read = max(epochs, key=lambda name: epochs[name])
        return Gap(
            step=step,
            seen=seen_score,
            unseen=coming.score(),
            held_out=held.score(),
            unseen_difference=unseen_difference,
            held_out_difference=held_difference,
            epochs=epochs[most_read],
            most_read=most_read,
            by_source={
                "seen": seen.by_source(names),
                UNSEEN: coming.by_source(names),
                HELD_OUT: held.by_source(("all sources together",) if together and len(names) > 1 else names),
            },
            no_verdict={kind: why for kind, why in reasons.items() if why},
            not_compared={kind: each for kind, each in left.items() if each},
        )

    def _left_out(self, seen: Losses, other: Losses, nothing: str) -> dict[str, str]:
        """Sources that are not in both, and why: `nothing` says it of those that were read."""
        read, both = set(seen.sources.tolist()), set(np.intersect1d(seen.sources, other.sources).tolist())
        return {
            name: nothing if place in read else f"none of it is among the {len(seen)} sequences scored as read"
            for place, name in enumerate(self._order.names)
            if place not in both
        }

    def _seen(self, step: int) -> tuple[np.ndarray, Rows]:
        """Sources and rows of what was read: as it was delivered, and before that, in an earlier process, by the order.

        Only what the kept rows lack to `SEQUENCES` is taken from the order's word.
        """
        sources, kept = self._kept.spread() if self._kept.first is not None else ([], [])
        begin = self._order.index(self._order.first_step)
        end = self._order.index(step) if self._kept.first is None else self._kept.first
        missing = min(SEQUENCES - len(kept), end - begin)
        positions = begin + _even(end - begin, missing)
        before = [self._order.between(position, position + 1) for position in positions.tolist()]
        if not kept and not before:
            raise InputError(f"step {step}: nothing was read that could be scored; check after the first step")
        ids = Batch.joined([*before, Batch(*(np.empty(0, np.int64),) * 3)])
        rows = _joined([self._rows(self._sources, ids.sources, ids.sequences), self._gathered(kept)])
        return np.concatenate([ids.sources, np.array(sources, np.int64)]), rows

    def _unseen(self, step: int, seen: np.ndarray) -> Batch:
        """The next sequences of each source that is still in its first epoch, as many as were seen of it."""
        counts = self._order.stream.counts(self._order.index(step))
        found = [Batch(*(np.empty(0, np.int64),) * 3)]
        for place, wanted in zip(*np.unique(seen, return_counts=True), strict=True):
            read, held = counts[self._order.names[place]], self._order.sequences[place]
            within = np.arange(read, min(read + int(wanted), held))
            if len(within):
                sequences = self._order.permutation(int(place), 0)(within)
                found.append(Batch(np.full_like(sequences, place), sequences, np.zeros_like(sequences)))
        return Batch.joined(found)

    def _held(self, seen: np.ndarray) -> tuple[np.ndarray, Rows]:
        """Held-out sequences, spread over what there is: as many of a source as were seen of it."""
        wanted = np.zeros_like(seen) if len(self._held_out) == 1 else seen
        numbers, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        if self._held_out:
            for place, count in zip(*np.unique(wanted, return_counts=True), strict=True):
                held = len(self._held_out[place])
                numbers.append(_even(held, min(held, int(count))))
                places.append(np.full(len(numbers[-1]), place, np.int64))
        joined = np.concatenate(places)
        return joined, self._rows(self._held_out, joined, np.concatenate(numbers))

    def _rows(self, sources: Sequence[SequenceSource], places: np.ndarray, sequences: np.ndarray) -> Rows:
        """Sequences of several sources, in the order given."""
        rows = self._empty(len(places))
        for place in np.unique(places).tolist():
            chosen = np.flatnonzero(places == place)
            _put(rows, chosen, sources[place].read(sequences[chosen]))
        return rows

    def _gathered(self, kept: list[Rows | None]) -> Rows:
        """Rows that were kept, in their order; what other processes kept is taken from them."""
        rows = self._empty(len(kept))
        for place, row in enumerate(kept):
            if row is not None:
                _put(rows, np.array([place]), row)
        if jax.process_count() == 1:
            return rows
        from jax.experimental.multihost_utils import process_allgather

        absent = [place for place, row in enumerate(kept) if row is None]
        for values in (rows.inputs, rows.targets, rows.documents):
            if values is not None:
                values[absent] = _ABSENT
                for first in range(0, len(kept), _GATHERED):
                    part = values[first : first + _GATHERED]
                    part[:] = np.asarray(process_allgather(part)).max(axis=0)
        return rows

    def _empty(self, count: int) -> Rows:
        shape = (count, self._order.sequence_length)
        # Where some source separates documents, a row of one that does not is read as one.
        documents = np.ones(shape, np.int32) if self._separate else None
        return Rows(np.zeros(shape, np.int32), np.full(shape, NO_TARGET, np.int32), documents)

    def _losses(self, parameters: Mapping[str, NamedArray], rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Mean loss of the targets of each row, in float64, and their number: `(rows,)` each.

        A row without a target has a loss of 0.

        Raises:
            MarinError: when a loss is not finite.
        """
        count, found = len(rows.inputs), []
        for first in range(0, count, self._batch):
            part = self._empty(self._batch)
            taken = slice(first, min(count, first + self._batch))
            _put(part, np.arange(taken.stop - first), _cut(rows, taken))
            arrays = placed(_cut(part, self._layout.needed), self._layout.needed, self._layout)
            found.append(np.asarray(self._forward(parameters, *arrays), np.float64)[:, : taken.stop - first])
        total, targets = np.concatenate(found, axis=1)
        wrong = int(np.count_nonzero((targets > 0) & ~np.isfinite(total)))
        if wrong:
            raise MarinError(
                f"{wrong} of {count} sequences that were scored for the gap alarm have a loss that is not finite: the "
                "state cannot be used, or the text has token ids that the model does not know"
            )
        return np.divide(total, targets, out=np.zeros(count), where=targets > 0), targets

    def _row_losses(
        self, parameters: dict[str, NamedArray], inputs: jax.Array, targets: jax.Array, documents: jax.Array | None
    ) -> jax.Array:
        """Sum of losses, and number of targets, of each row: `(2, batch)`."""
        within = None if documents is None else hax.named(documents, self._axes)
        with hax.axis_mapping(dict(meshes.COMPUTE)), jax.sharding.use_abstract_mesh(self._program.mesh.abstract_mesh):
            model = llama.assemble(self._program.recipe.model, parameters)
            hidden = model.hidden(hax.named(inputs, self._axes), within)
        losses = token_losses(hidden, model.output_table, hax.named(jnp.maximum(targets, 0), self._axes)).array
        real = targets != NO_TARGET
        return jnp.stack([jnp.sum(jnp.where(real, losses, 0), axis=1), jnp.sum(real, axis=1).astype(losses.dtype)])


def _even(count: int, wanted: int) -> np.ndarray:
    """`wanted` of the numbers below `count`, evenly spread: the middles of stretches of equal length."""
    return (2 * np.arange(wanted, dtype=np.int64) + 1) * count // (2 * max(1, wanted))


def _put(rows: Rows, places: np.ndarray, found: Rows) -> None:
    rows.inputs[places], rows.targets[places] = found.inputs, found.targets
    if rows.documents is not None and found.documents is not None:
        rows.documents[places] = found.documents


def _cut(rows: Rows, chosen: slice | np.ndarray) -> Rows:
    return Rows(rows.inputs[chosen], rows.targets[chosen], None if rows.documents is None else rows.documents[chosen])


def _joined(parts: Sequence[Rows]) -> Rows:
    separate = [part.documents for part in parts if part.documents is not None]
    return Rows(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate(separate) if separate else None,
    )
