"""One update of the parameters: optax's AdamW and Muon on arrays by name, with learning rates given from outside.

The state is a flat mapping from names to arrays with the axes of their parameters, so that a checkpoint holds no class
of a library. Both transformations count from the absolute step, never from a counter of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from haliax import NamedArray

from marin_pipeline.train.recipe import OptimizerConfig

Arrays = dict[str, NamedArray]
Inputs = Mapping[str, tuple[str, ...]]
"""For each block matrix, the names of its input axes; `layers` counts matrices, the other axes are outputs."""

FIRST, SECOND, MOMENTUM = "first_moment/", "second_moment/", "momentum/"


def initial(config: OptimizerConfig, parameters: Mapping[str, NamedArray], inputs: Inputs) -> Arrays:
    """Zeros, named `first_moment/…` and `second_moment/…` (AdamW) or `momentum/…` (Muon): the state at step 0."""
    state: Arrays = {}
    for name, array in parameters.items():
        kinds = (MOMENTUM,) if _by_muon(config, name, inputs) else (FIRST, SECOND)
        for kind in kinds:
            state[kind + name] = array * 0
    return state


Oriented = Callable[[NamedArray, NamedArray], tuple[NamedArray, NamedArray]]
"""Gradient and momentum of stacked matrices to directions and momentum: each matrix by itself, and whole."""


def in_place(function: Oriented, gradient: NamedArray, momentum: NamedArray) -> tuple[NamedArray, NamedArray]:
    """Call `function` on matrices as they lie."""
    return function(gradient, momentum)


def update(
    config: OptimizerConfig,
    inputs: Inputs,
    parameters: Mapping[str, NamedArray],
    state: Mapping[str, NamedArray],
    gradients: Mapping[str, NamedArray],
    norm: jax.Array,
    step: jax.Array,
    factor: jax.Array,
    on_whole: Callable[[Oriented, NamedArray, NamedArray], tuple[NamedArray, NamedArray]] = in_place,
) -> tuple[Arrays, Arrays]:
    """Parameters and state after one update.

    Args:
        norm: float32 scalar, the global norm of the gradient before clipping.
        step: int32 scalar, updates made before this one.
        factor: float32 scalar from the schedule; it multiplies both peak learning rates.
        on_whole: calls what needs whole matrices, where `gradients` are parts of them.
    """
    shrink = jnp.minimum(1.0, config.clip / jnp.maximum(norm, 1e-30))
    clipped = {name: gradient.array * shrink for name, gradient in gradients.items()}
    with_muon = [name for name in parameters if _by_muon(config, name, inputs)]
    with_adam = [name for name in parameters if name not in with_muon]

    adam = optax.scale_by_adam(b1=config.first_beta, b2=config.second_beta, eps=config.epsilon)
    adam_state = optax.ScaleByAdamState(step, _take(state, FIRST, with_adam), _take(state, SECOND, with_adam))
    made: tuple[Any, Any] = adam.update({name: clipped[name] for name in with_adam}, adam_state)
    directions: dict[str, jax.Array] = made[0]
    moved: dict[str, jax.Array] = {FIRST + name: value for name, value in made[1].mu.items()}
    moved |= {SECOND + name: value for name, value in made[1].nu.items()}
    rates = dict.fromkeys(with_adam, config.learning_rate)

    if config.muon_learning_rate is not None:
        for name in with_muon:
            gradient = NamedArray(clipped[name], parameters[name].axes)
            oriented = partial(_muon, config, inputs[name], step)
            direction, momentum = on_whole(oriented, gradient, state[MOMENTUM + name])
            directions[name], moved[MOMENTUM + name] = direction.array, momentum.array
            rates[name] = config.muon_learning_rate

    new = {
        name: NamedArray(_move(array.array, directions[name], rates[name] * factor, _decay(config, name)), array.axes)
        for name, array in parameters.items()
    }
    return new, {name: NamedArray(moved[name], array.axes) for name, array in state.items()}


def _muon(
    config: OptimizerConfig, inputs: tuple[str, ...], step: jax.Array, gradient: NamedArray, momentum: NamedArray
) -> tuple[NamedArray, NamedArray]:
    dimensions = _dimensions(gradient, inputs)
    muon = optax.contrib.scale_by_muon(beta=config.momentum, weight_dimension_numbers=dimensions)
    fresh: Any = muon.init(gradient.array)
    made: tuple[Any, Any] = muon.update(gradient.array, fresh._replace(count=step, mu=momentum.array))
    direction = made[0] * _width_scale(gradient, dimensions)
    return NamedArray(direction, gradient.axes), NamedArray(made[1].mu, gradient.axes)


def _by_muon(config: OptimizerConfig, name: str, inputs: Inputs) -> bool:
    return config.kind == "muon" and name in inputs


def _take(state: Mapping[str, NamedArray], kind: str, names: list[str]) -> dict[str, jax.Array]:
    return {name: state[kind + name].array for name in names}


def _dimensions(array: NamedArray, inputs: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers:
    names = [axis.name for axis in array.axes]
    reduction = tuple(index for index, name in enumerate(names) if name in inputs)
    output = tuple(index for index, name in enumerate(names) if name not in inputs and name != "layers")
    return optax.contrib.MuonDimensionNumbers(reduction, output)


def _width_scale(array: NamedArray, dimensions: optax.contrib.MuonDimensionNumbers) -> float:
    """sqrt(max(1, outputs / inputs)), as in the reference implementation of Muon."""

    def count(indices: Any) -> int:
        return math.prod(array.axes[index].size for index in indices)

    return math.sqrt(max(1, count(dimensions.output_axis) / count(dimensions.reduction_axis)))


def _decay(config: OptimizerConfig, name: str) -> float:
    return 0.0 if name.endswith("norm") else config.weight_decay


def _move(value: jax.Array, direction: jax.Array, rate: jax.Array, decay: float) -> jax.Array:
    return value - rate * (direction + decay * value)
