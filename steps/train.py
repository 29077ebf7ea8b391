"""Training: tokens and a recipe become a state.

A state is named by what its steps depend on, not by the arguments that asked for it: a run that is made longer under a
constant schedule goes on from the committed shorter one, and ends with the bytes of a run from step 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from marin_pipeline import Artifact, Chain, Context, Resources, Runtime, Tokens, TrainState, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train.mesh import MeshShape
from marin_pipeline.train.recipe import lower

_WHERE_OR_HOW_FAST = ("checkpoint_every", "mesh")


def train_chain(arguments: Mapping[str, Any]) -> Chain:
    """The chain that a run with these arguments is a part of.

    Raises:
        InputError: naming the argument that cannot be used.
    """
    recipe = lower(**{name: value for name, value in arguments.items() if name not in _WHERE_OR_HOW_FAST})
    return Chain(initial=recipe.initial(), step=recipe.steps, recipe=recipe.pieces)


@step(version=1, chain=train_chain, exact="tolerance", resources=Resources(cpus=2, jax=True))
def train(
    ctx: Context,
    tokens: Artifact[Tokens],
    model: LlamaConfig,
    steps: int,
    learning_rate: float = 6e-3,
    muon_learning_rate: float = 0.02,
    optimizer: Literal["muon", "adamw"] = "muon",
    schedule: Literal["cosine", "linear", "constant"] = "cosine",
    warmup: int = 20,
    final_fraction: float = 0.05,
    weight_decay: float = 0.1,
    clip: float = 1.0,
    batch_size: int = 8,
    sequence_length: int = 128,
    seed: int = 0,
    data_seed: int = 0,
    numerics: Literal["fast", "invariant"] = "fast",
    checkpoint_every: Runtime[str] = "60s",
    mesh: Runtime[MeshShape] = MeshShape(),
) -> TrainState:
    """Train a model from its initial state.

    Args:
        tokens: what is read, in an order that depends on `data_seed` alone.
        model: the model; its vocabulary must hold every token id.
        steps: updates in all.
        learning_rate: peak of AdamW.
        muon_learning_rate: peak of Muon, which moves the block matrices under `optimizer="muon"`.
        schedule: course of both rates after the warm-up; cosine and linear end at `final_fraction` of the peak.
        warmup: updates over which the rates rise linearly from zero.
        weight_decay: on matrices, times the learning rate.
        clip: largest global norm of the gradient.
        batch_size: sequences an update.
        sequence_length: predicted tokens a sequence.
        seed: of the initial parameters.
        data_seed: of the order of the sequences.
        numerics: `"fast"`: equal bytes on the same machine and mesh, metrics within tolerance across meshes.
        checkpoint_every: `"60s"` or `"100 steps"`: how often the run is saved against a kill. No part of the key.
        mesh: how the devices are arranged. No part of the key.

    Raises:
        InputError: naming the argument that does not fit the others or the data.
        MarinError: when the loss is not finite.
    """
    import hashlib
    import json

    from marin_pipeline.data.order import TrainingOrder
    from marin_pipeline.data.sequences import Sequences
    from marin_pipeline.data.token_store import TokenStore
    from marin_pipeline.train import checkpoint
    from marin_pipeline.train.loop import Run
    from marin_pipeline.train.mesh import build
    from marin_pipeline.train.metrics import last_loss
    from marin_pipeline.train.program import Program
    from marin_pipeline.train.saver import Earlier, Period, Saver, resume

    if model.vocabulary < tokens.value.vocabulary:
        raise InputError(
            f"model.vocabulary={model.vocabulary} cannot hold the {tokens.value.vocabulary} ids of the tokens: "
            "raise it to at least that"
        )
    content = json.dumps([[path, (tokens / path).sha256] for path in tokens.files])
    recipe = lower(
        tokens=hashlib.sha256(content.encode()).hexdigest(),
        model=model,
        steps=steps,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        optimizer=optimizer,
        schedule=schedule,
        warmup=warmup,
        final_fraction=final_fraction,
        weight_decay=weight_decay,
        clip=clip,
        batch_size=batch_size,
        sequence_length=sequence_length,
        seed=seed,
        data_seed=data_seed,
        numerics=numerics,
    )
    store = TokenStore(tokens)
    order = TrainingOrder(store.tokens, sequence_length, batch_size, data_seed)

    def described(step: int) -> dict[str, Any]:
        position = {"tokens_read": order.position(step), "next_batch": order.digest(step)}
        return {"recipe": recipe.described(step), "data": position}

    found = ctx.earlier_state()
    earlier = found and Earlier(found[0], lambda: checkpoint.load(found[1].local("checkpoint")))
    start = resume(ctx.work, earlier, described, steps, ctx.log)
    program = Program(recipe, build(mesh, batch_size))
    with Saver(ctx.work, Period.parse(checkpoint_every)) as saver:
        run = Run(program, Sequences(store, sequence_length), order, described, start)
        state = run.finish(ctx, saver, ctx.records / "timings.jsonl")

    result = TrainState(
        step=state.step,
        parameters=model.parameters,
        tokens_seen=steps * batch_size * sequence_length,
        state_digest=checkpoint.save(ctx.out / "checkpoint", state),
        final_loss=last_loss(state.metrics),
        model=model,
        sequence_length=sequence_length,
    )
    (ctx.out / result.metrics).write_bytes(state.metrics)
    (ctx.out / "config.json").write_text(json.dumps(recipe.described(steps), indent=1, sort_keys=True) + "\n")
    return result
