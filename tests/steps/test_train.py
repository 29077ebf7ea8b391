"""The train step as a user meets it: keys, resuming, extending, and errors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from marin_pipeline import Artifact, Tokens, TrainState, local_artifact, test_context
from marin_pipeline.core.errors import InputError, MarinError, Stopped
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.schema import Packing
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train import checkpoint
from marin_pipeline.train.apart import NOT_PROVEN
from marin_pipeline.train.mesh import MeshShape
from steps.pack import pack
from steps.train import check_sources, train
from tests.data.token_stores import write_store

MODEL = LlamaConfig(vocabulary=64, width=16, layers=1, heads=2, feed_forward=32)
# AdamW compiles in half the time of Muon, which tests/train resumes at every step.
NUMERICS: tuple[Literal["fast", "invariant"], ...] = ("fast", "invariant")
SMALL: dict[str, Any] = {
    "model": MODEL,
    "optimizer": "adamw",
    "batch_size": 4,
    "sequence_length": 16,
    "schedule": "constant",
    "warmup": 3,
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Tokens]:
    folder = tmp_path_factory.mktemp("tokens")
    random = np.random.default_rng(0)
    documents = [np.array([*(random.zipf(1.5, 60) % 63 + 1), 0]) for _ in range(20)]
    return write_store(folder, [documents], vocabulary=64)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Interrupted:
    """What `interrupted` returns."""

    def __init__(self, ctx: Any, stop_at: int, earlier: Any) -> None:
        self._ctx = ctx
        self._stop_at = stop_at
        self._earlier = earlier
        self._asked = 0
        self.logged: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def stopping(self) -> bool:
        self._asked += 1
        return self._asked == self._stop_at

    def earlier_state(self) -> Any:
        return self._earlier

    def log(self, message: str) -> None:
        self.logged.append(message)


def interrupted(ctx: Any, stop_at: int = 0, earlier: Any = None) -> Any:
    """A context that is asked to stop after some updates, or knows of an earlier state."""
    return Interrupted(ctx, stop_at, earlier)


@pytest.fixture(scope="module")
def straight(tokens: Artifact[Tokens], tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainState, Path]:
    """Value and output of an undisturbed run."""
    ctx = test_context(tmp_path_factory.mktemp("straight"))
    return train.fn(ctx, tokens=tokens, steps=6, **SMALL), ctx.out


def test_the_output_says_what_it_is(straight: tuple[TrainState, Path]):
    state, files = straight[0], content(straight[1])
    assert (state.step, state.parameters, state.tokens_seen) == (6, MODEL.parameters, 6 * 4 * 16)
    assert {"metrics.jsonl", "config.json", "checkpoint/checkpoint.json"} < set(files)
    assert files["metrics.jsonl"] == files["checkpoint/metrics.jsonl"]


def test_stopped_and_started_again_the_output_is_equal(
    tokens: Artifact[Tokens], straight: tuple[TrainState, Path], tmp_path: Path
):
    with pytest.raises(Stopped):
        train.fn(interrupted(test_context(tmp_path), stop_at=4), tokens=tokens, steps=6, **SMALL)
    ctx = interrupted(test_context(tmp_path))
    assert train.fn(ctx, tokens=tokens, steps=6, checkpoint_every="1 steps", **SMALL) == straight[0]
    assert content(ctx.out) == content(straight[1])
    assert ctx.logged[0] == "going on from checkpoint step-00000004"


def test_a_longer_run_goes_on_from_a_committed_shorter_one(
    tokens: Artifact[Tokens], straight: tuple[TrainState, Path], tmp_path: Path
):
    shorter = test_context(tmp_path / "shorter")
    state = train.fn(shorter, tokens=tokens, steps=4, **SMALL)
    ctx = interrupted(test_context(tmp_path / "longer"), earlier=(4, local_artifact(shorter.out, state).output))
    assert train.fn(ctx, tokens=tokens, steps=6, **SMALL) == straight[0]
    assert content(ctx.out) == content(straight[1])
    assert ctx.logged[0] == "going on from the committed state at step 4"


def test_a_state_digest_can_be_checked_from_the_files(straight: tuple[TrainState, Path]):
    state, out = straight
    arrays = checkpoint.load(out / state.checkpoint).arrays
    assert checkpoint.state_digest(checkpoint.describe(arrays)) == state.state_digest


def test_where_and_how_fast_is_in_no_key(tokens: Artifact[Tokens]):
    plain = train(tokens=tokens, steps=6, **SMALL)
    assert train(tokens=tokens, steps=6, checkpoint_every="1 steps", mesh=MeshShape(model=2), **SMALL).key == plain.key
    assert train(tokens=tokens, steps=7, **SMALL).key != plain.key
    assert train(tokens=tokens, steps=6, seed=1, **SMALL).key != plain.key


def test_the_key_of_a_shorter_run_is_on_the_way_of_a_longer_one(tokens: Artifact[Tokens]):
    shorter, longer = train(tokens=tokens, steps=4, **SMALL), train(tokens=tokens, steps=6, **SMALL)
    assert shorter.declaration is not None
    assert longer.declaration is not None
    assert longer.declaration.spec_at(4) == shorter.declaration.spec
    cosine = {**SMALL, "schedule": "cosine"}
    shorter, longer = train(tokens=tokens, steps=4, **cosine), train(tokens=tokens, steps=6, **cosine)
    assert shorter.declaration is not None
    assert longer.declaration is not None
    assert longer.declaration.spec_at(4) != shorter.declaration.spec


def test_invariant_numerics_promise_every_byte_and_refuse_what_their_shards_do_not_divide(tokens: Artifact[Tokens]):
    made = {name: train(tokens=tokens, steps=6, numerics=name, **{**SMALL, "batch_size": 8}) for name in NUMERICS}
    exact = {name: each.declaration.exact for name, each in made.items() if each.declaration is not None}
    assert exact == {"fast": "tolerance", "invariant": "bitwise"}
    with pytest.raises(InputError, match="batch_size=6 is not divided by logical_shards=8"):
        train(tokens=tokens, steps=6, numerics="invariant", **{**SMALL, "batch_size": 6})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": LlamaConfig(vocabulary=32, width=16, layers=1, heads=2, feed_forward=32)}, "model.vocabulary=32"),
        ({"sequence_length": 5000}, "less than one sequence of 5,000"),
        ({"checkpoint_every": "often"}, "checkpoint_every"),
        ({"workers": -1}, "workers is -1"),
        ({"maximum_gap": float("nan")}, "maximum_gap is nan"),
        ({"mesh": MeshShape(data=3)}, "1 devices"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tokens: Artifact[Tokens], tmp_path: Path, change: dict[str, Any], named: str
):
    given = {"tokens": tokens, "steps": 6, **SMALL, **change}

    def declared_and_run() -> None:
        train(**given)
        train.fn(test_context(tmp_path), **given)

    with pytest.raises(InputError, match=named):
        declared_and_run()


def test_another_seed_of_the_order_does_not_go_on_from_a_checkpoint(tokens: Artifact[Tokens], tmp_path: Path):
    with pytest.raises(Stopped):
        train.fn(interrupted(test_context(tmp_path), stop_at=4), tokens=tokens, steps=6, **SMALL)
    with pytest.raises(InputError, match=r"recipe\.pieces\[0\]\.data\.seed: 0, expected 5"):
        train.fn(test_context(tmp_path), tokens=tokens, steps=6, data_seed=5, **SMALL)


# Several sources -----------------------------------------------------------------------------------------------------

MIXTURE = Mixture(
    (Source("a", max_epochs=2), Source("b", max_epochs=None)),
    (Phase(0, {"a": 1}), Phase(12 * 16, {"a": "1/4", "b": "3/4"})),
)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Tokens]:
    return write_store(tmp_path_factory.mktemp("other"), [[[*range(1, 40), 0]] * 3], vocabulary=64)


def lines(ctx: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ctx.out / "metrics.jsonl").read_text().splitlines()]


def test_a_mixture_is_read_in_its_phases_and_goes_on_where_it_was_stopped(
    tokens: Artifact[Tokens], other: Artifact[Tokens], tmp_path: Path
):
    given: dict[str, Any] = {"tokens": {"a": tokens, "b": other}, "mixture": MIXTURE, "steps": 6, **SMALL}
    straight = test_context(tmp_path / "straight")
    state = train.fn(straight, **given)
    with pytest.raises(Stopped):
        train.fn(interrupted(test_context(tmp_path / "stopped"), stop_at=4), **given)
    again = interrupted(test_context(tmp_path / "stopped"))
    assert train.fn(again, workers=0, **given) == state
    assert content(again.out) == content(straight.out)
    data = json.loads((straight.out / "data.json").read_text())
    assert data["mixture"]["phases"][1] == {"start": 192, "weights": {"a": "1/4", "b": "3/4"}}
    assert data["sources"]["b"] == {"tokens": 120, "sequences": 7, "packed": False}
    # Three batches of the first source alone, then nine of twelve sequences from the second, which has seven.
    assert lines(straight)[-1]["epoch"] == pytest.approx(9 / 7)


def test_a_source_that_is_added_later_leaves_the_earlier_states(
    tokens: Artifact[Tokens], other: Artifact[Tokens], tmp_path: Path
):
    alone = train({"a": tokens}, mixture=Mixture((Source("a"),), (Phase(0, {"a": 1}),)), steps=3, **SMALL)
    both = train({"a": tokens, "b": other}, mixture=MIXTURE, steps=6, **SMALL)
    assert alone.declaration is not None
    assert both.declaration is not None
    assert both.declaration.spec_at(3) == alone.declaration.spec
    assert both.declaration.spec_at(4) != alone.declaration.spec
    first, second = test_context(tmp_path / "alone"), test_context(tmp_path / "both")
    train.fn(first, tokens={"a": tokens}, mixture=Mixture((Source("a"),), (Phase(0, {"a": 1}),)), steps=3, **SMALL)
    train.fn(second, tokens={"a": tokens, "b": other}, mixture=MIXTURE, steps=3, **SMALL)
    assert content(first.out) == content(second.out)


@pytest.mark.parametrize(
    ("steps", "named"),
    [(40, r"source 'a' .* its max_epochs is 2"), (6, None)],
)
def test_a_source_that_is_too_small_is_refused_before_anything_is_read(
    tokens: Artifact[Tokens], other: Artifact[Tokens], tmp_path: Path, steps: int, named: str | None
):
    declared = train({"a": tokens, "b": other}, mixture=MIXTURE, steps=steps * 10, **SMALL)
    assert declared.declaration is not None
    if named is None:
        short = train({"a": tokens, "b": other}, mixture=MIXTURE, steps=steps, **SMALL)
        assert short.declaration is not None
        check_sources(short.declaration.arguments)
        return
    with pytest.raises(InputError, match=named):
        check_sources(declared.declaration.arguments)


def test_one_source_repeats_only_when_it_may(tokens: Artifact[Tokens], tmp_path: Path):
    with pytest.raises(InputError, match=r"source 'tokens' .* raise max_epochs to 2"):
        train.fn(test_context(tmp_path), tokens=tokens, steps=30, **SMALL)


def test_declared_sizes_refuse_a_run_when_it_is_declared(tokens: Artifact[Tokens]):
    small = Mixture((Source("tokens", expected_tokens=500),), (Phase(0, {"tokens": 1}),))
    with pytest.raises(InputError, match="is expected to hold 500 tokens"):
        train(tokens, mixture=small, steps=30, **SMALL)


# Documents -----------------------------------------------------------------------------------------------------------


def test_packed_documents_train_and_go_on_where_they_were_stopped(tokens: Artifact[Tokens], tmp_path: Path):
    packing = packed(tokens, tmp_path / "plan", sequence_length=64)
    given: dict[str, Any] = {"tokens": tokens, "packing": packing, "steps": 3, **SMALL, "sequence_length": 64}
    straight = test_context(tmp_path / "straight")
    state = train.fn(straight, **given)
    with pytest.raises(Stopped):
        train.fn(interrupted(test_context(tmp_path / "stopped"), stop_at=2), **given)
    again = interrupted(test_context(tmp_path / "stopped"))
    assert train.fn(again, **given) == state
    cut = train.fn(test_context(tmp_path / "cut"), **{**given, "packing": None})
    apart = train.fn(test_context(tmp_path / "apart"), **{**given, "packing": None}, separate_documents=True)
    assert len({state.state_digest, cut.state_digest, apart.state_digest}) == 3


def packed(tokens: Artifact[Tokens], folder: Path, sequence_length: int) -> Artifact[Packing]:
    ctx = test_context(folder)
    return local_artifact(ctx.out, pack.fn(ctx, tokens=tokens, sequence_length=sequence_length))


# The gap alarm -------------------------------------------------------------------------------------------------------


def test_the_gap_alarm_is_in_no_key_and_keeps_the_state_that_it_refuses(tokens: Artifact[Tokens], tmp_path: Path):
    """Held-out text of another kind: what the model has not learned stands far above what it has."""
    strange = write_store(tmp_path / "held-out", [[[63, 1, 62, 2, 61, 3, 60] * 20 + [0]] * 8], vocabulary=64)
    given: dict[str, Any] = {"tokens": tokens, "steps": 6, **SMALL, "learning_rate": 3e-2}
    assert train(held_out=strange, maximum_gap=9.0, **given).key == train(**given).key
    ctx = test_context(tmp_path / "run")
    audit = f"data audit {tokens.key[:8]} --sequence-length 16 --batch-size 4 --seed 0`"
    with pytest.raises(MarinError, match=f"held-out.*{audit}"):
        train.fn(ctx, held_out=strange, maximum_gap=1e-3, **given)
    assert ctx.work.items()[-1] == "step-00000006"
    first = json.loads((ctx.records / "gap.json").read_text())
    with pytest.raises(MarinError, match="held-out"):  # the same command again is judged by what was read, too
        train.fn(ctx, held_out=strange, maximum_gap=1e-3, **given)
    assert json.loads((ctx.records / "gap.json").read_text()) == first
    again = interrupted(ctx)
    state = train.fn(again, held_out=strange, maximum_gap=9.0, **given)
    assert again.logged[0] == "going on from checkpoint step-00000006"
    assert again.logged.count(NOT_PROVEN) == 1
    plain = interrupted(test_context(tmp_path / "plain"))
    assert state == train.fn(plain, **given)
    assert NOT_PROVEN not in plain.logged
    gap = json.loads((ctx.records / "gap.json").read_text())
    assert gap["held_out"]["loss"] > gap["seen"]["loss"]
    assert (first["judged_by"], gap["judged_by"]) == (1e-3, 9.0)


def test_sources_and_held_out_text_are_of_one_tokenizer(
    tokens: Artifact[Tokens], other: Artifact[Tokens], tmp_path: Path
):
    strange = write_store(tmp_path / "strange", [[[*range(1, 40), 0]] * 9], vocabulary=60, tokenizer="cd" * 32)
    ctx = test_context(tmp_path / "run")
    with pytest.raises(InputError, match=r"source 'b' was tokenized by another .* 60 ids\) than source 'a' .* 64 ids"):
        train.fn(ctx, tokens={"a": tokens, "b": strange}, mixture=MIXTURE, steps=6, **SMALL)
    with pytest.raises(InputError, match="held-out text was tokenized by another"):
        train.fn(ctx, tokens=tokens, held_out=strange, steps=6, **SMALL)


@pytest.mark.parametrize("by_name", [False, True])
def test_held_out_text_is_not_what_is_trained_on(tokens: Artifact[Tokens], by_name: bool):
    with pytest.raises(InputError, match="is what source 'tokens' trains on"):
        train(tokens, held_out={"tokens": tokens} if by_name else tokens, steps=6, **SMALL)


def test_held_out_text_is_of_the_sources(tokens: Artifact[Tokens], other: Artifact[Tokens]):
    with pytest.raises(InputError, match="held_out names c, and the sources of the mixture are a, b"):
        train({"a": tokens, "b": other}, mixture=MIXTURE, held_out={"c": tokens}, steps=6, **SMALL)


def test_one_store_is_not_two_sources(tokens: Artifact[Tokens]):
    with pytest.raises(InputError, match="sources 'a' and 'b' are the same tokens"):
        train({"a": tokens, "b": tokens}, mixture=MIXTURE, steps=6, **SMALL)


def test_what_is_written_of_the_order_is_the_same_however_it_was_declared(
    tokens: Artifact[Tokens], other: Artifact[Tokens], tmp_path: Path
):
    """Two starts that are rounded to one sequence, and sources that share no phase in another order, are one key."""
    sources = (Source("a"), Source("b", max_epochs=None))
    made = []
    for place, (order, start) in enumerate(((sources, 12 * 16), (sources[::-1], 12 * 16 - 15))):
        mixture = Mixture(order, (Phase(0, {"a": 1}), Phase(start, {"b": 1})))
        given: dict[str, Any] = {"tokens": {"a": tokens, "b": other}, "mixture": mixture, "steps": 5, **SMALL}
        ctx = test_context(tmp_path / str(place))
        train.fn(ctx, **given)
        made.append((train(**given).key, content(ctx.out)))
    assert made[0] == made[1]


def test_a_held_out_loss_that_is_no_number_is_no_pass(tokens: Artifact[Tokens], tmp_path: Path):
    """Ids that the model does not know."""
    beyond = write_store(tmp_path / "beyond", [[[*range(60, 100), 0]] * 9], vocabulary=128)
    with pytest.raises(MarinError, match="sequences that were scored for the gap alarm have a loss that is not finite"):
        train.fn(test_context(tmp_path), tokens=tokens, held_out=beyond, steps=6, **SMALL)
