"""One update whose bits are equal on any number of devices and processes, of replicas or of fully sharded parameters.

A batch is cut into logical shards, a number that is in the key. Each is one pass through the model, of a shape that no
machine has a part in; gradients are sums, added up as one tree over all shards, and divided once at the end. A device
gathers the weights of a block when it needs them, and hands on its gradient as soon as it has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax import lax
from jax.ad_checkpoint import checkpoint_name, checkpoint_policies
from jax.sharding import NamedSharding, PartitionSpec

from marin_pipeline.core.errors import InputError
from marin_pipeline.models import llama
from marin_pipeline.models.loss import total_cross_entropy
from marin_pipeline.train import invariant, optimizer
from marin_pipeline.train.feed import Layout
from marin_pipeline.train.program import OPTIMIZER, PARAMETERS, Arrays, Placed, Program, prefixed, under
from marin_pipeline.train.recipe import Recipe

SPLIT = "embed"
"""The axis that all parameters have, and that devices hold parts of."""

_GATHERED = "gathered"


class InvariantProgram(Program):
    """A run's computations on one mesh, with the bits of any other."""

    def __init__(self, recipe: Recipe, mesh: jax.sharding.Mesh) -> None:
        """Compile nothing yet.

        Raises:
            InputError: for a mesh that the logical shards cannot be shared by.
        """
        devices = mesh.shape["replica"] * mesh.shape["data"]
        shards = recipe.logical_shards
        if mesh.shape["model"] > 1:
            raise InputError(
                f"mesh.model={mesh.shape['model']}: numerics='invariant' splits no sum within a matrix product yet: "
                "use mesh.model=1, or numerics='fast'"
            )
        if not all(invariant.is_power_of_two(mesh.shape[name]) for name in ("replica", "data")) or devices > shards:
            raise InputError(
                f"{devices} devices (replica {mesh.shape['replica']} x data {mesh.shape['data']}) cannot share "
                f"logical_shards={shards}: use a power of two of devices, at most that many"
            )
        self._devices = devices
        self._shard_rows = recipe.batch_size // shards
        super().__init__(recipe, mesh)
        self._compiled: dict[bool, jax.stages.Compiled] = {}
        self._trips = jax.device_put(
            np.array([shards // devices, shards // mesh.shape["data"], 1], np.int32),
            NamedSharding(mesh, PartitionSpec()),
        )

    def _layout(self) -> Layout:
        rows = invariant.shard_rows(self.recipe.batch_size, self.recipe.logical_shards, self._devices)
        spec = PartitionSpec(None, (invariant.REPLICA, invariant.DATA), None)
        return Layout(NamedSharding(self.mesh, spec), rows.shape)

    def initial(self) -> Arrays:
        return invariant.compile_invariant(self._start.lower())()

    def update(self, state: Arrays, rows: Placed, step: int) -> tuple[Arrays, jax.Array]:
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        factor = np.float32(self.recipe.schedule.factor(step))
        numbers = jax.device_put((np.int32(step), factor), (everywhere, everywhere))
        arguments = (state, *rows, *numbers, self._trips)
        separate = rows[2] is not None
        if separate not in self._compiled:
            self._compiled[separate] = invariant.compile_invariant(self._lowered(arguments))
        return self._compiled[separate](*arguments)

    def _lowered(self, arguments: tuple) -> jax.stages.Lowered:
        specs = {name: self._stored(array).spec for name, array in self.template.items()}
        rows = self.layout.sharding.spec
        everywhere = PartitionSpec()
        documents = None if arguments[3] is None else rows

        def step(arrays, *rest):
            return self._local_step(arrays, *rest)

        def plain(state: Arrays, *rest):
            arrays = {name: array.array for name, array in state.items()}
            moved, measured = jax.shard_map(
                step,
                mesh=self.mesh,
                in_specs=(specs, rows, rows, documents, everywhere, everywhere, everywhere),
                out_specs=(specs, everywhere),
                check_vma=False,
            )(arrays, *rest)
            return {name: NamedArray(moved[name], array.axes) for name, array in state.items()}, measured

        return jax.jit(plain, donate_argnums=0).lower(*arguments)

    def _local_step(
        self,
        arrays: Mapping[str, jax.Array],
        inputs: jax.Array,
        targets: jax.Array,
        documents: jax.Array | None,
        step: jax.Array,
        factor: jax.Array,
        trips: jax.Array,
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """What one device does: `arrays` are its parts, `inputs` the rows of its shards."""
        state = {name: NamedArray(array, self._local(self.template[name].axes)) for name, array in arrays.items()}
        parameters = under(PARAMETERS, state)
        axes = (Axis("batch", self._shard_rows), Axis(llama.POSITION, self.recipe.sequence_length))
        padded = self.recipe.reading.packing is not None
        model = llama.assemble(self.recipe.model, parameters)

        @_without_gathered
        def loss_of(model: llama.Llama, inputs: jax.Array, targets: jax.Array, documents: jax.Array | None):
            whole = jax.tree.map(self._gathered, model, is_leaf=lambda leaf: isinstance(leaf, NamedArray))
            within = None if documents is None else hax.named(documents, axes)
            hidden = whole.hidden(hax.named(inputs, axes), within)
            return total_cross_entropy(hidden, whole.output_table, hax.named(targets, axes), padded=padded)

        def of_shard(shard: tuple[jax.Array, jax.Array, jax.Array | None]):
            inputs, targets, documents = shard
            loss, gradient = eqx.filter_value_and_grad(loss_of)(model, inputs, targets, documents)
            count = jnp.sum(targets >= 0) if padded else jnp.int32(targets.size)
            named = llama.disassemble(gradient)
            losses = invariant.sum_over_devices(loss)
            counts = invariant.sum_over_devices(count)
            return {name: array.array for name, array in named.items()}, losses, counts

        sums, loss, count = invariant.sum_of_shards(of_shard, (inputs, targets, documents), trips[0])
        # A product: whether a division by one number becomes one is the compiler's choice.
        scale = lax.optimization_barrier(1 / jnp.maximum(count, 1).astype(jnp.float32))
        sums, loss, scale = lax.optimization_barrier((sums, loss, scale))
        gradients = {
            name: NamedArray(lax.optimization_barrier(sums[name] * scale), parameters[name].axes) for name in sums
        }
        chunk = self.recipe.model.width // self.recipe.logical_shards
        parts = [
            invariant.squares(array.array, _split(array), chunk, trips[1]) for _, array in sorted(gradients.items())
        ]
        norm = jnp.sqrt(sum(lax.optimization_barrier(parts)))
        norm = lax.optimization_barrier(norm)
        moved, moments = optimizer.update(
            self.recipe.optimizer,
            llama.MATRIX_INPUTS,
            parameters,
            under(OPTIMIZER, state),
            gradients,
            norm,
            step,
            factor,
            partial(self._by_owner, trips[2]),
        )
        found = prefixed(PARAMETERS, moved) | prefixed(OPTIMIZER, moments)
        return {name: array.array for name, array in found.items()}, jnp.stack([loss * scale, norm])

    def _local(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        held = self.recipe.model.width // self.mesh.shape["data"]
        return tuple(axis.resize(held) if axis.name == SPLIT else axis for axis in axes)

    def _gathered(self, part: NamedArray) -> NamedArray:
        axes = tuple(axis.resize(self.recipe.model.width) if axis.name == SPLIT else axis for axis in part.axes)
        whole = invariant.gathered(part.array, _split(part), self.recipe.compute)
        return NamedArray(checkpoint_name(whole, _GATHERED), axes)

    def _by_owner(
        self, one: jax.Array, function: optimizer.Oriented, gradient: NamedArray, momentum: NamedArray
    ) -> tuple[NamedArray, NamedArray]:
        """Call `function` on one whole matrix after the other; each device has its share of those of a stack."""
        axes = tuple(axis.resize(self.recipe.model.width) if axis.name == SPLIT else axis for axis in gradient.axes[1:])
        split = _split(gradient)

        def of_one(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            alone = (Axis(llama.LAYERS, 1), *axes)
            direction, moment = function(*(NamedArray(each[None], alone) for each in pair))
            return direction.array[0], moment.array[0]

        direction, moment = invariant.each_by_owner(of_one, (gradient.array, momentum.array), split, one)
        return NamedArray(direction, gradient.axes), NamedArray(moment, gradient.axes)


def _without_gathered(function):
    """Keep what the backward pass needs, but for gathered weights: they are gathered again."""
    return jax.checkpoint(function, policy=checkpoint_policies.save_anything_except_these_names(_GATHERED))


def _split(array: NamedArray) -> int:
    return next(place for place, axis in enumerate(array.axes) if axis.name == SPLIT)
