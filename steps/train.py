"""Training: tokens and a recipe become a state.

A state is named by what its steps depend on, not by the arguments that asked for it: a run that is made longer under a
constant schedule goes on from the committed shorter one, and ends with the bytes of a run from step 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from marin_pipeline import Artifact, Chain, Context, Resources, Runtime, Tokens, TrainState, step
from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.mixture import Mixture
from marin_pipeline.data.schema import Packing
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.supply import Held, check_held
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train.apart import NOT_PROVEN, check_apart, check_held_out
from marin_pipeline.train.mesh import MeshShape
from marin_pipeline.train.reading import MAXIMUM_GAP, by_source, held_out_by_source
from marin_pipeline.train.recipe import LOGICAL_SHARDS, Recipe, lower
from marin_pipeline.train.saver import Period

if TYPE_CHECKING:
    from marin_pipeline.data.order_record import OrderRecord

_NOT_IN_THE_STATE = ("held_out", "maximum_gap", "checkpoint_every", "mesh", "workers")
"""Arguments that no byte of the state depends on."""


def train_chain(arguments: Mapping[str, Any]) -> Chain:
    """The chain that a run with these arguments is a part of.

    Raises:
        InputError: naming the argument that cannot be used.
    """
    recipe = _lowered(arguments)
    keys = {name: each.key for name, each in recipe.reading.sources.items()}
    apart = {name: each.key for name, each in held_out_by_source(arguments["held_out"]).items()}
    check_held_out(recipe.reading.mixture.names, apart)
    check_apart(keys, apart)
    if not arguments["maximum_gap"] >= 0:
        raise InputError(f"maximum_gap is {arguments['maximum_gap']}: give a number of nats a token, at least 0")
    if arguments["workers"] < 0:
        raise InputError(f"workers is {arguments['workers']}: give a number of threads, or 0 to read between updates")
    Period.parse(arguments["checkpoint_every"])
    return Chain(initial=recipe.initial(), step=recipe.steps, recipe=recipe.pieces)


def check_sources(arguments: Mapping[str, Any]) -> None:
    """Refuse a run for which a source is empty, too small, or a copy of another one, as soon as its tokens are there.

    Raises:
        InputError: naming each source, what it holds, what the run reads, and what to change.
    """
    recipe = _lowered(arguments)
    _held(recipe, recipe.reading.sources, recipe.reading.packing)
    held_out = held_out_by_source(arguments["held_out"])
    # Parts that some of them share are found when the run opens them: no file is read here.
    check_apart(_ledgers(recipe.reading.sources), _ledgers(held_out), copies=True)


def _ledgers(tokens: Mapping[str, Artifact[Tokens]]) -> dict[str, str]:
    """The digest of each ledger, which has the digests of all tokens."""
    return {name: (each / each.value.ledger).sha256 for name, each in tokens.items()}


def _lowered(arguments: Mapping[str, Any]) -> Recipe:
    return lower(**{name: value for name, value in arguments.items() if name not in _NOT_IN_THE_STATE})


def _held(
    recipe: Recipe, tokens: Mapping[str, Artifact[Tokens]], packing: Mapping[str, Artifact[Packing]] | None
) -> dict[str, Held]:
    """What each source holds, when it is what the run needs.

    Raises:
        InputError: naming the source that does not fit the model, the sequence length or the length of the run.
    """
    length, found = recipe.sequence_length, {}
    for name, each in tokens.items():
        value = each.value
        if recipe.model.vocabulary < value.vocabulary:
            raise InputError(
                f"model.vocabulary={recipe.model.vocabulary} cannot hold the {value.vocabulary} ids of the tokens "
                f"{name!r}: raise it to at least that"
            )
        if packing is None:
            found[name] = Held.cut(value.tokens, length)
            continue
        plan = packing[name].value
        if plan.sequence_length != length:
            raise InputError(
                f"the packing plan of source {name!r} has rows of {plan.sequence_length} tokens, and sequence_length "
                f"is {length}: give the same to both"
            )
        found[name] = Held(value.tokens, plan.rows)
    check_held(recipe.reading.stream, found, steps=recipe.steps, batch_size=recipe.batch_size)
    return found


def train_exact(arguments: Mapping[str, Any]) -> Literal["bitwise", "tolerance"]:
    """What a second run equals: every byte, or metrics within tolerance across meshes."""
    return "bitwise" if arguments["numerics"] == "invariant" else "tolerance"


@step(version=2, chain=train_chain, ready=check_sources, exact=train_exact, resources=Resources(cpus=2, jax=True))
def train(
    ctx: Context,
    tokens: Artifact[Tokens] | dict[str, Artifact[Tokens]],
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
    mixture: Mixture | None = None,
    max_epochs: int | None = 1,
    packing: Artifact[Packing] | dict[str, Artifact[Packing]] | None = None,
    separate_documents: bool = False,
    shuffle: Shuffle = Shuffle(),
    held_out: Artifact[Tokens] | dict[str, Artifact[Tokens]] | None = None,
    maximum_gap: float = MAXIMUM_GAP,
    numerics: Literal["fast", "invariant"] = "fast",
    logical_shards: int = LOGICAL_SHARDS,
    compute: Literal["float32", "bfloat16"] = "float32",
    checkpoint_every: Runtime[str] = "60s",
    mesh: Runtime[MeshShape] = MeshShape(),
    workers: Runtime[int] = 8,
) -> TrainState:
    """Train a model from its initial state.

    Args:
        tokens: what is read: one source, or several by name.
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
        data_seed: of the order of the sequences, which depends on it, the mixture and the step alone.
        mixture: the share of each source, phase by phase; needed where there are several.
        max_epochs: most passes over the one source of a run without a mixture; None repeats it as often as needed.
        packing: plan of whole documents in rows of `sequence_length`, of each source; without one tokens are cut at
            that length wherever documents end.
        separate_documents: keep attention within a document, as packing always does.
        shuffle: how the sequences of a source are permuted.
        held_out: held-out tokens of the same sources, together or by name, for the gap alarm. No part of the key: a
            state that is there already is not scored again.
        maximum_gap: nats a token by which the loss on text that was read may lie below that on text that was not;
            beyond it the run fails, and its last state is kept as a checkpoint. No part of the key.
        numerics: `"fast"`: equal bytes on the same machine and mesh, metrics within tolerance across meshes.
            `"invariant"`: equal bytes on any number of devices and processes with the same library and instruction set.
        logical_shards: slices of a batch that `"invariant"` adds up in a fixed order: a power of two that divides
            `batch_size` and the model's width; at most so many devices share a batch.
        compute: what matrix products are computed in; parameters, norms, softmax, loss and optimizer are float32.
        checkpoint_every: `"60s"` or `"100 steps"`: how often the run is saved against a kill. No part of the key.
        mesh: how the devices are arranged. No part of the key.
        workers: threads that read ahead; 0 reads between updates. No part of the key.

    Raises:
        InputError: naming the argument that does not fit the others or the data.
        MarinError: when the loss is not finite.
    """
    import json

    from marin_pipeline.data.order import TrainingOrder
    from marin_pipeline.data.order_record import RECORD_FILE
    from marin_pipeline.data.read_ledger import audit_command
    from marin_pipeline.train import checkpoint
    from marin_pipeline.train.gap import judge
    from marin_pipeline.train.gap_alarm import GapAlarm
    from marin_pipeline.train.loop import Run
    from marin_pipeline.train.metrics import last_loss
    from marin_pipeline.train.programs import program_for
    from marin_pipeline.train.saver import Earlier, Saver, resume
    from marin_pipeline.train.sources import open_sources

    recipe = lower(
        tokens=_content(tokens),
        packing=_content(packing),
        mixture=mixture,
        max_epochs=max_epochs,
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
        shuffle=shuffle,
        separate_documents=separate_documents,
        numerics=numerics,
        logical_shards=logical_shards,
        compute=compute,
    )
    given, plans = by_source(tokens), None if packing is None else by_source(packing)
    held = _held(recipe, given, plans)
    reading = recipe.reading
    sources, apart = open_sources(given, plans, held_out_by_source(held_out), reading)
    order = TrainingOrder(
        reading.stream, {name: each.sequences for name, each in held.items()}, batch_size, data_seed, shuffle
    )

    def described(step: int) -> dict[str, Any]:
        # Of what was read alone: what comes next is no part of the state.
        last = order.digest(order.batch(step - 1)) if step else ""
        return {"recipe": recipe.described(step), "data": {"tokens_read": order.position(step), "last_batch": last}}

    found = ctx.earlier_state()
    earlier = found and Earlier(found[0], lambda: checkpoint.load(found[1].local("checkpoint")))
    start = resume(ctx.work, earlier, described, steps, ctx.log)
    program = program_for(recipe, mesh)
    alarm = GapAlarm(program, order, sources, apart, maximum_gap)
    if apart:
        ctx.log(NOT_PROVEN)
    if start is not None and start.kept:
        alarm.restore(start.kept)
    with Saver(ctx.work, Period.parse(checkpoint_every)) as saver:
        run = Run(program, sources, order, described, start, alarm, workers)
        state = run.finish(ctx, saver, ctx.records / "timings.jsonl")
        gap = alarm.measure(run.arrays, state.step)
        (ctx.records / "gap.json").write_text(json.dumps(gap.plain(judged_by=maximum_gap), indent=1) + "\n")
        ctx.log(str(gap))
        try:
            judge(gap, maximum_gap, audit_command(order, given[gap.most_read].key[:8]))
        except MarinError:
            saver.save(state)  # with a larger bound the run goes on from here
            raise

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
    (ctx.out / RECORD_FILE).write_text(_record(recipe, held).to_json())
    return result


def _content(given: Any) -> Any:
    """The digest of all files of an artifact, or of each of several, as what names them in a checkpoint."""
    import hashlib
    import json

    if given is None:
        return None
    if isinstance(given, Mapping):
        return {name: _content(each) for name, each in given.items()}
    content = json.dumps([[path, (given / path).sha256] for path in given.files])
    return hashlib.sha256(content.encode()).hexdigest()


def _record(recipe: Recipe, held: Mapping[str, Held]) -> OrderRecord:
    """The order as far as the run goes: what comes later is no part of the state."""
    from marin_pipeline.data.order_record import OrderRecord, SourceRecord

    reading = recipe.reading
    mixture = reading.stream.reached(recipe.steps * recipe.batch_size)
    packed = reading.packing is not None
    return OrderRecord(
        sources={name: SourceRecord(held[name].tokens, held[name].sequences, packed) for name in mixture.names},
        mixture=mixture,
        batch_size=recipe.batch_size,
        sequence_length=reading.sequence_length,
        seed=reading.seed,
        shuffle=reading.shuffle,
        separate=reading.separate,
        steps=recipe.steps,
    )
