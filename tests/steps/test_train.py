"""The train step as a user meets it: keys, resuming, extending, and errors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_pipeline import Artifact, Tokens, TrainState, local_artifact, test_context
from marin_pipeline.core.errors import InputError, Stopped
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train import checkpoint
from marin_pipeline.train.mesh import MeshShape
from steps.train import train
from tests.data.token_stores import write_store

MODEL = LlamaConfig(vocabulary=64, width=16, layers=1, heads=2, feed_forward=32)
# AdamW compiles in half the time of Muon, which tests/train resumes at every step.
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


def test_invariant_numerics_are_refused_at_declaration(tokens: Artifact[Tokens]):
    with pytest.raises(InputError, match="numerics='fast'"):
        train(tokens=tokens, steps=6, numerics="invariant", **SMALL)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": LlamaConfig(vocabulary=32, width=16, layers=1, heads=2, feed_forward=32)}, "model.vocabulary=32"),
        ({"sequence_length": 5000}, "5000"),
        ({"checkpoint_every": "often"}, "checkpoint_every"),
        ({"mesh": MeshShape(data=3)}, "1 devices"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tokens: Artifact[Tokens], tmp_path: Path, change: dict[str, Any], named: str
):
    with pytest.raises(InputError, match=named):
        train.fn(test_context(tmp_path), **{"tokens": tokens, "steps": 6, **SMALL, **change})
