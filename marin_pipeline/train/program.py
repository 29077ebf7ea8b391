"""The compiled parts of a run: its initial state, and one update over all devices.

A state is a flat mapping from names to named arrays (`parameters/…`, `optimizer/…`), split over the mesh by the names
of its axes. The update is a pure function of state, batch, step and factor; the same machine, mesh and libraries give
the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from haliax import Axis, NamedArray

from marin_pipeline.models import llama
from marin_pipeline.models.loss import mean_cross_entropy
from marin_pipeline.train import mesh as meshes
from marin_pipeline.train import optimizer
from marin_pipeline.train.feed import Layout
from marin_pipeline.train.recipe import Recipe

Arrays = dict[str, NamedArray]

Placed = tuple[jax.Array, jax.Array, jax.Array | None]
"""Inputs, targets and documents of a batch on all devices; without documents each row is one text."""

PARAMETERS, OPTIMIZER = "parameters/", "optimizer/"


def under(prefix: str, arrays: Mapping[str, NamedArray]) -> Arrays:
    """The arrays whose names start with `prefix`, named without it."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def prefixed(prefix: str, arrays: Mapping[str, NamedArray]) -> Arrays:
    """The inverse of `under`."""
    return {prefix + name: array for name, array in arrays.items()}


class Program:
    """A run's computations on one mesh."""

    def __init__(self, recipe: Recipe, mesh: jax.sharding.Mesh) -> None:
        self.recipe = recipe
        self.mesh = mesh
        batch = Axis("batch", recipe.batch_size)
        self._rows = (batch, Axis(llama.POSITION, recipe.sequence_length))
        self.template: Arrays = jax.eval_shape(self._initial)
        """Names, axes and dtypes of a state."""
        stored = {name: self._stored(array) for name, array in self.template.items()}
        everywhere = meshes.sharding(mesh, (), {})
        self.layout = self._layout()
        """How the rows of a batch lie on the devices."""
        rows = self.layout.sharding
        self._start = jax.jit(self._initial, out_shardings=stored)
        self._update = jax.jit(
            self._step,
            in_shardings=(stored, rows, rows, rows, everywhere, everywhere),
            out_shardings=(stored, everywhere),
            donate_argnums=0,
        )

    def initial(self) -> Arrays:
        """The state before the first update."""
        return self._start()

    def place(self, arrays: Mapping[str, NamedArray]) -> Arrays:
        """A state read from a checkpoint, laid out on this mesh."""
        return {
            name: NamedArray(jax.device_put(array.array, self._stored(array)), array.axes)
            for name, array in arrays.items()
        }

    def update(self, state: Arrays, rows: Placed, step: int) -> tuple[Arrays, jax.Array]:
        """The state after one update, and `[loss, gradient norm]`. `state` is used up.

        Args:
            rows: inputs, targets and documents of the batch, as `layout` has them.
            step: updates made before this one.
        """
        factor = np.float32(self.recipe.schedule.factor(step))
        return self._update(state, *rows, np.int32(step), factor)

    def _layout(self) -> Layout:
        return Layout(meshes.sharding(self.mesh, self._rows, meshes.COMPUTE), (self.recipe.batch_size,))

    def _stored(self, array: NamedArray) -> jax.sharding.NamedSharding:
        return meshes.sharding(self.mesh, array.axes, meshes.STORAGE)

    def _initial(self) -> Arrays:
        parameters = llama.initial(self.recipe.model, self.recipe.seed)
        moments = optimizer.initial(self.recipe.optimizer, parameters, llama.MATRIX_INPUTS)
        return prefixed(PARAMETERS, parameters) | prefixed(OPTIMIZER, moments)

    def _step(
        self,
        state: Arrays,
        inputs: jax.Array,
        targets: jax.Array,
        documents: jax.Array | None,
        step: jax.Array,
        factor: jax.Array,
    ) -> tuple[Arrays, jax.Array]:
        parameters = under(PARAMETERS, state)
        within = None if documents is None else hax.named(documents, self._rows)
        read, predicted = hax.named(inputs, self._rows), hax.named(targets, self._rows)
        padded = self.recipe.reading.packing is not None

        def loss_of(model: llama.Llama) -> jax.Array:
            model = jax.tree.map(lambda each: each.astype(self.recipe.compute), model)
            return mean_cross_entropy(model.hidden(read, within), model.output_table, predicted, padded=padded)

        with hax.axis_mapping(dict(meshes.COMPUTE)), jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            model = llama.assemble(self.recipe.model, parameters)
            loss, gradient = eqx.filter_value_and_grad(loss_of)(model)
        gradients = llama.disassemble(gradient)
        norm = optax.tree.norm({name: each.array for name, each in gradients.items()})
        parameters, moments = optimizer.update(
            self.recipe.optimizer,
            llama.MATRIX_INPUTS,
            parameters,
            under(OPTIMIZER, state),
            gradients,
            norm,
            step,
            factor,
        )
        return prefixed(PARAMETERS, parameters) | prefixed(OPTIMIZER, moments), jnp.stack([loss, norm])
