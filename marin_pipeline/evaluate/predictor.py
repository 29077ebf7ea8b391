"""A trained model, loaded to be asked: losses of given tokens, or scores of the next one.

Parameters are split over the devices as in training; each row's numbers are those of that row alone.
"""

from __future__ import annotations

from pathlib import Path

import haliax as hax
import jax
import numpy as np
from haliax import Axis, NamedArray

from marin_pipeline.core.errors import InputError
from marin_pipeline.models import llama
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.models.loss import token_losses
from marin_pipeline.train import checkpoint
from marin_pipeline.train import mesh as meshes
from marin_pipeline.train.program import PARAMETERS, under


class Predictor:
    """The model of a checkpoint, on all devices."""

    def __init__(self, folder: Path, config: LlamaConfig, vocabulary: int) -> None:
        """Read the parameters.

        Args:
            folder: of the checkpoint.
            config: of the model.
            vocabulary: of the tokenizer whose ids will be given.

        Raises:
            CorruptOutput: when the checkpoint is not what was saved.
            InputError: when the model cannot hold the vocabulary.
        """
        if vocabulary > config.vocabulary:
            raise InputError(
                f"the tokenizer has {vocabulary} ids and the model {config.vocabulary}: "
                "use the tokenizer that made the training tokens"
            )
        self._config = config
        self._mesh = meshes.build(meshes.MeshShape(), batch_size=jax.device_count())
        arrays = under(PARAMETERS, checkpoint.named(checkpoint.load(folder, PARAMETERS).arrays))
        self._parameters = {
            name: NamedArray(
                jax.device_put(array.array, meshes.sharding(self._mesh, array.axes, meshes.STORAGE)), array.axes
            )
            for name, array in arrays.items()
        }
        self._losses = jax.jit(self._token_losses)
        self._next = jax.jit(self._next_logits)

    @property
    def rows(self) -> int:
        """The number of rows given at once is a multiple of this."""
        return self._mesh.size

    def losses(self, inputs: np.ndarray, targets: np.ndarray) -> jax.Array:
        """Loss in nats of each target: float32 `(rows, length)`, for int32 arrays of that shape."""
        return self._losses(self._parameters, self._placed(inputs), self._placed(targets))

    def next_logits(self, inputs: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Scores of the token that follows position `last[row]` of each row: float32 `(rows, vocabulary)`."""
        return np.asarray(self._next(self._parameters, self._placed(inputs), last))

    def _placed(self, tokens: np.ndarray) -> jax.Array:
        axes = (Axis("batch", tokens.shape[0]), Axis(llama.POSITION, tokens.shape[1]))
        return jax.device_put(tokens, meshes.sharding(self._mesh, axes, meshes.COMPUTE))

    def _hidden(self, parameters: dict[str, NamedArray], inputs: jax.Array) -> tuple[llama.Llama, NamedArray]:
        with hax.axis_mapping(dict(meshes.COMPUTE)), jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
            model = llama.assemble(self._config, parameters)
            return model, model.hidden(hax.named(inputs, ("batch", llama.POSITION)))

    def _token_losses(self, parameters: dict[str, NamedArray], inputs: jax.Array, targets: jax.Array) -> jax.Array:
        model, hidden = self._hidden(parameters, inputs)
        return token_losses(hidden, model.output_table, hax.named(targets, ("batch", llama.POSITION))).array

    def _next_logits(self, parameters: dict[str, NamedArray], inputs: jax.Array, last: jax.Array) -> jax.Array:
        model, hidden = self._hidden(parameters, inputs)
        at = hidden[llama.POSITION, hax.named(last, "batch")]
        return hax.dot(at, model.output_table, axis="embed").rearrange(("batch", "vocabulary")).array
