"""Arithmetic that does not see the machines: what invariant programs are made of.

Floating-point sums depend on their order, and compilers choose orders and rewrite expressions by what they see. So all
sums over the batch run over a fixed number of logical shards, as an aligned pairwise tree; every loop has a bound that
the compiler cannot know; and what is lowered goes through one pass that makes one partition and several start equal.
Within one jaxlib and instruction set, the bits then depend on neither devices nor processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

REPLICA, DATA = "replica", "data"
"""Mesh axes that share a batch."""

PASSES = "builtin.module(inline,cse)"
"""What the compiler does by itself for several partitions, and for one partition only after its first rewrites."""


OPTIONS: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
"""The host's library of kernels sums rows in another order for one partition than for several."""


def compile_invariant(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """The one way to compile an invariant program.

    With several partitions XLA removes common subexpressions before its algebraic simplifier runs, with one it does so
    later; whether a division by a broadcast value becomes a product with its reciprocal then differs. Doing it first
    makes both start alike.
    """
    from jaxlib.mlir.passmanager import PassManager

    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        PassManager.parse(PASSES).run(module.operation)
    return lowered.compile(compiler_options=OPTIONS if jax.default_backend() == "cpu" else None)


def tree_sum(x: jax.Array) -> jax.Array:
    """The sum along the first axis, whose size is a power of two: neighbours first, then pairs of pairs."""
    while x.shape[0] > 1:
        x = lax.optimization_barrier(x)
        x = x[0::2] + x[1::2]
    return x[0]


def sum_over_devices(x: jax.Array) -> jax.Array:
    """One partial sum a device, added up in the order of the devices: the same on all of them."""
    within = tree_sum(lax.all_gather(x, DATA))
    return tree_sum(lax.all_gather(within, REPLICA))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gathered(part: jax.Array, axis: int, dtype: Any) -> jax.Array:
    """A parameter whole, from the parts that devices hold along `axis`, in the type to compute with.

    Its gradient is summed over the devices as an aligned tree, in float32, and comes back as each device's part.
    """
    return _gather(part, axis, dtype)


def _gather(part: jax.Array, axis: int, dtype: Any) -> jax.Array:
    whole = lax.all_gather(part.astype(dtype), DATA, axis=axis, tiled=True)
    return fixed(whole)


def fixed(x: jax.Array) -> jax.Array:
    """An array in row-major order that no neighbouring operation is compiled into."""
    return lax.optimization_barrier(with_layout_constraint(x, Layout(tuple(range(x.ndim)))))


def _gather_forward(part: jax.Array, axis: int, dtype: Any) -> tuple[jax.Array, None]:
    return _gather(part, axis, dtype), None


def _gather_backward(axis: int, dtype: Any, residuals: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (summed_parts(gradient, axis),)


gathered.defvjp(_gather_forward, _gather_backward)  # pyright: ignore[reportFunctionMemberAccess] - typed as the function


def summed_parts(partial_sum: jax.Array, axis: int) -> jax.Array:
    """This device's part, along `axis`, of the sum of what all devices have: a reduce-scatter of fixed order."""
    partial_sum = fixed(partial_sum).astype(jnp.float32)
    devices = lax.axis_size(DATA)
    shape = partial_sum.shape
    parts = partial_sum.reshape(*shape[:axis], devices, shape[axis] // devices, *shape[axis + 1 :])
    mine = tree_sum(lax.all_to_all(jnp.moveaxis(parts, axis, 0), DATA, 0, 0))
    return tree_sum(lax.all_gather(mine, REPLICA))


def sum_of_shards(body: Callable[[Any], Any], shards: Any, trips: jax.Array) -> Any:
    """`body` of each shard, added up as an aligned pairwise tree.

    The partial sums are kept like the digits of a binary counter: log2(shards) + 1 of them at most, and each is added
    to its neighbour as soon as both are there.

    Args:
        body: of one shard to a tree of arrays.
        shards: a tree of arrays whose first axis counts the shards of this device, a power of two.
        trips: how many there are, as a number that the compiler does not know: the body of a loop that runs once, or
            whose index is a constant, would be compiled into what surrounds it, and become another program.
    """
    count = jax.tree.leaves(shards)[0].shape[0]
    levels = max(2, count.bit_length())
    if count == 1:
        shards = jax.tree.map(lambda x: jnp.concatenate([x, x]), shards)

    def at(index: jax.Array) -> Any:
        return lax.optimization_barrier(
            jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False), shards)
        )

    shapes = jax.eval_shape(lambda: body(jax.tree.map(lambda x: x[0], shards)))
    start = jax.tree.map(lambda each: jnp.zeros((levels, *each.shape), each.dtype), shapes)

    def step(index: jax.Array, counter: Any) -> Any:
        value = lax.optimization_barrier(body(at(index)))

        def carries(state: tuple[jax.Array, Any]) -> jax.Array:
            return (index >> state[0]) & 1 == 1

        def add(state: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            level, later = state
            return level + 1, jax.tree.map(lambda digits, each: digits[level] + each, counter, later)

        level, value = lax.while_loop(carries, add, (jnp.int32(0), value))
        return jax.tree.map(
            lambda digits, each: lax.dynamic_update_index_in_dim(digits, each, level, 0), counter, value
        )

    counter = lax.fori_loop(jnp.int32(0), trips, step, start)
    return jax.tree.map(lambda digits: digits[count.bit_length() - 1], counter)


def each_by_owner(body: Callable[[Any], Any], stacks: Any, axis: int, dynamic_one: jax.Array) -> Any:
    """`body` of each whole array of some stacks, on one device each.

    Args:
        body: of a tree of arrays, to a tree of arrays of the same shapes.
        stacks: a tree of arrays, stacked along their first axis, of which this device holds parts along `axis`.
        dynamic_one: the number one, as one that the compiler does not know.

    Returns:
        This device's parts of the stacked results.
    """
    devices = lax.axis_size(DATA)
    count = jax.tree.leaves(stacks)[0].shape[0]
    held = -(-count // devices)

    def to_owner(x: jax.Array) -> jax.Array:
        mine = lax.all_to_all(_padded(x, held * devices), DATA, 0, axis, tiled=True)
        return _padded(mine, max(2, held))  # of one only, its index would be a constant

    def from_owner(x: jax.Array) -> jax.Array:
        return lax.all_to_all(x[:held], DATA, axis, 0, tiled=True)[:count]

    whole = lax.optimization_barrier(jax.tree.map(to_owner, stacks))

    def step(index: jax.Array, found: Any) -> Any:
        one = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False), whole)
        made = lax.optimization_barrier(body(lax.optimization_barrier(one)))
        return jax.tree.map(lambda x, each: lax.dynamic_update_index_in_dim(x, each, index, 0), found, made)

    found = lax.fori_loop(jnp.int32(0), held * dynamic_one, step, jax.tree.map(jnp.zeros_like, whole))
    return lax.optimization_barrier(jax.tree.map(from_owner, found))


def _padded(x: jax.Array, size: int) -> jax.Array:
    """Zeros added along the first axis."""
    return jnp.pad(x, [(0, size - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


def squares(part: jax.Array, axis: int, chunk: int, trips: jax.Array) -> jax.Array:
    """The sum of squares of a whole array from the part that this device holds along `axis`.

    Args:
        chunk: indices along `axis` that are summed at once, the same however many devices there are.
        trips: chunks of this part, as a number that the compiler does not know.
    """
    held = part.shape[axis] // chunk
    slabs = part.reshape(*part.shape[:axis], held, chunk, *part.shape[axis + 1 :])
    slabs = fixed(_padded(jnp.moveaxis(slabs, axis, 0), max(2, held)))

    def step(index: jax.Array, sums: jax.Array) -> jax.Array:
        slab = fixed(lax.dynamic_index_in_dim(slabs, index, keepdims=False))
        return sums.at[index].set(jnp.sum(slab * slab))

    sums = lax.fori_loop(jnp.int32(0), trips, step, jnp.zeros(max(2, held), jnp.float32))
    return tree_sum(lax.all_gather(sums[:held], DATA, tiled=True))


def is_power_of_two(number: int) -> bool:
    """Whether an aligned tree can have so many leaves."""
    return number > 0 and number & (number - 1) == 0


def shard_rows(batch_size: int, shards: int, devices: int) -> np.ndarray:
    """Which rows of a batch are whose: `(shards of a device, devices * rows of a shard)`.

    Shard `k` is the rows from `k * rows of a shard` on, and device `d` has the shards `d`, `devices + d`, and so on:
    what the devices compute at the same time are neighbours in the tree.
    """
    return np.arange(batch_size).reshape(shards // devices, devices * (batch_size // shards))
