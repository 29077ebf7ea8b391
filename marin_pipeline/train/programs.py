"""Which program runs a recipe."""

from __future__ import annotations

from marin_pipeline.train import host_threads
from marin_pipeline.train.mesh import MeshShape, build
from marin_pipeline.train.program import Program
from marin_pipeline.train.recipe import Recipe


def program_for(recipe: Recipe, shape: MeshShape) -> Program:
    """The program of a recipe, over all devices. It is the first thing of a process that asks jax for devices.

    Raises:
        InputError: when the devices cannot share the work as the recipe and the mesh say.
    """
    if recipe.numerics == "fast":
        return Program(recipe, build(shape, recipe.batch_size))
    from marin_pipeline.train.invariant_program import InvariantProgram

    host_threads.pin()
    return InvariantProgram(recipe, build(shape, recipe.batch_size))
