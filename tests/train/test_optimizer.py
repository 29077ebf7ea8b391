"""One update against the formulas of AdamW and Muon."""

from __future__ import annotations

from typing import Any

import haliax as hax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin_pipeline.train import optimizer
from marin_pipeline.train.recipe import OptimizerConfig

INPUTS = {"matrix": ("embed",)}


def arrays(seed: int, scale: float = 1.0) -> dict[str, hax.NamedArray]:
    random = np.random.default_rng(seed)

    def draw(*axes: hax.Axis) -> hax.NamedArray:
        return hax.named(jnp.asarray(random.normal(0, scale, [axis.size for axis in axes]), jnp.float32), axes)

    layers, embed, out = hax.Axis("layers", 3), hax.Axis("embed", 8), hax.Axis("feed_forward", 32)
    return {"matrix": draw(layers, out, embed), "table": draw(out, embed), "norm": draw(embed)}


def config(kind: Any, clip: float = 1e9) -> OptimizerConfig:
    return OptimizerConfig(kind, learning_rate=0.1, muon_learning_rate=0.2, weight_decay=0.5, clip=clip)


def run(
    settings: OptimizerConfig, gradients: list[dict[str, hax.NamedArray]], factor: float
) -> tuple[dict[str, np.ndarray], list[float]]:
    parameters = arrays(0)
    state = optimizer.initial(settings, parameters, INPUTS)
    norms = []
    for step, gradient in enumerate(gradients):
        norm = optax.tree.norm({name: each.array for name, each in gradient.items()})
        parameters, state = optimizer.update(
            settings, INPUTS, parameters, state, gradient, norm, jnp.int32(step), jnp.float32(factor)
        )
        norms.append(float(norm))
    return {name: np.asarray(array.array) for name, array in parameters.items()}, norms


def test_adamw_follows_its_formula():
    gradients = [arrays(1), arrays(2)]
    made, norms = run(config("adamw"), gradients, factor=0.5)
    for name, start in arrays(0).items():
        value = np.asarray(start.array, np.float64)
        first = second = np.zeros_like(value)
        for count, gradient in enumerate((np.asarray(g[name].array, np.float64) for g in gradients), 1):
            first = 0.9 * first + 0.1 * gradient
            second = 0.95 * second + 0.05 * gradient**2
            direction = first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.95**count)) + 1e-8)
            decay = 0.0 if name == "norm" else 0.5
            value = value - 0.5 * 0.1 * (direction + decay * value)
        np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-5)
    squares = [sum(float((np.asarray(a.array) ** 2).sum()) for a in gradient.values()) for gradient in gradients]
    np.testing.assert_allclose(norms, np.sqrt(squares), rtol=1e-5)


def test_muon_moves_block_matrices_by_nearly_orthogonal_steps_and_the_rest_as_adamw_does():
    made, _ = run(config("muon"), [arrays(1)], factor=1.0)
    start = np.asarray(arrays(0)["matrix"].array)
    direction = (start - made["matrix"]) / 0.2 - 0.5 * start
    # sqrt(outputs / inputs) = 2 times singular values that five Newton-Schulz steps bring near 1.
    values = np.linalg.svd(direction / 2, compute_uv=False)
    assert values.shape == (3, 8)
    assert 0.6 < values.min() <= values.max() < 1.3
    adamw, _ = run(config("adamw"), [arrays(1)], factor=1.0)
    np.testing.assert_array_equal(made["table"], adamw["table"])
    np.testing.assert_array_equal(made["norm"], adamw["norm"])


def test_the_state_names_arrays_and_keeps_their_axes():
    parameters = arrays(0)
    state = optimizer.initial(config("muon"), parameters, INPUTS)
    assert sorted(state) == [
        "first_moment/norm",
        "first_moment/table",
        "momentum/matrix",
        "second_moment/norm",
        "second_moment/table",
    ]
    assert state["momentum/matrix"].axes == parameters["matrix"].axes


@pytest.mark.parametrize("clip", [0.01, 1e9])
def test_the_gradient_is_clipped_by_its_global_norm(clip: float):
    """Adam does not see the scale of a gradient, but it sees that one of two was clipped."""
    gradients = [arrays(1, scale=100.0), arrays(2, scale=1e-4)]
    made, norms = run(config("adamw", clip), gradients, factor=1.0)
    scaled = [
        {name: array * min(1.0, clip / norm) for name, array in gradient.items()}
        for gradient, norm in zip(gradients, norms, strict=True)
    ]
    expected, _ = run(config("adamw"), scaled, factor=1.0)
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-5)
