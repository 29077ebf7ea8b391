"""A run that is interrupted anywhere, made longer, or saved at other times ends with the same bytes."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from marin_pipeline import test_context
from marin_pipeline.core.errors import InputError, MarinError, Stopped
from marin_pipeline.data.sequences import Rows
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train import checkpoint, loop
from marin_pipeline.train.checkpoint import Snapshot
from marin_pipeline.train.loop import Run
from marin_pipeline.train.mesh import MeshShape, build
from marin_pipeline.train.program import Program
from marin_pipeline.train.recipe import Recipe, lower
from marin_pipeline.train.saver import Period, Saver, resume
from tests.data.test_order import single

STEPS = 9
MODEL = LlamaConfig(vocabulary=64, width=16, layers=2, heads=2, key_value_heads=1, feed_forward=32)
TOKENS = (np.random.default_rng(0).zipf(1.5, 3000) % MODEL.vocabulary).astype(np.int32)


class Source:
    """An in-memory source of sequences."""

    sequence_length = 16

    def __len__(self) -> int:
        return (len(TOKENS) - 1) // 16

    def read(self, ids: np.ndarray) -> Rows:
        tokens = TOKENS[ids[:, None] * 16 + np.arange(17)]
        return Rows(tokens[:, :-1], tokens[:, 1:])


class Watcher:
    """Stops the run, or kills it, when it is told of a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked = 0
        self.stop_at = stop_at

    @property
    def stopping(self) -> bool:
        self.asked += 1
        return self.asked == self.stop_at

    def progress(self, done: int, total: int, unit: str = "", **figures: float) -> None: ...

    def log(self, message: str) -> None: ...

    def stop(self) -> Stopped:
        return Stopped("stopped")


def recipe(steps: int = STEPS, **changes: Any) -> Recipe:
    arguments: dict[str, Any] = {
        "tokens": "test",
        "model": MODEL,
        "steps": steps,
        "learning_rate": 1e-2,
        "muon_learning_rate": 0.02,
        "optimizer": "muon",
        "schedule": "constant",
        "warmup": 3,
        "final_fraction": 0.1,
        "weight_decay": 0.1,
        "clip": 1.0,
        "batch_size": 4,
        "sequence_length": 16,
        "seed": 0,
        "data_seed": 0,
        "max_epochs": None,
        "numerics": "fast",
    }
    return lower(**{**arguments, **changes})


@pytest.fixture(scope="module")
def program() -> Program:
    return Program(recipe(), build(MeshShape(data=1), 4))


ORDER = single(len(Source()), batch=4, seed=0, length=16)


def run(
    program: Program, folder: Path, steps: int = STEPS, every: str = "1000s", watcher: Watcher | None = None
) -> Snapshot:
    """Go on from what `folder` holds. The length of a run is not compiled in, so one program serves all lengths."""
    program = copy.copy(program)
    program.recipe = dataclasses.replace(program.recipe, steps=steps)

    def described(step: int) -> dict[str, Any]:
        return {"recipe": program.recipe.described(step), "position": ORDER.position(step)}

    work = test_context(folder).work
    start = resume(work, None, described, steps, lambda message: None)
    with Saver(work, Period.parse(every)) as saver:
        rest = Run(program, [Source()], ORDER, described, start)
        return rest.finish(watcher or Watcher(), saver, folder / "timings")


def digest(snapshot: Snapshot, folder: Path) -> str:
    checkpoint.save(folder, snapshot)
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def straight(program: Program, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the files of an undisturbed run."""
    folder = tmp_path_factory.mktemp("straight")
    return digest(run(program, folder), folder / "out")


@pytest.mark.parametrize("at", range(1, STEPS))
def test_stopped_after_any_step_and_started_again_the_bytes_are_equal(
    program: Program, straight: str, tmp_path: Path, at: int
):
    with pytest.raises(Stopped):
        run(program, tmp_path, watcher=Watcher(stop_at=at))
    assert test_context(tmp_path).work.items() == [f"step-{at:08d}"]
    assert digest(run(program, tmp_path), tmp_path / "out") == straight


class Killed(BaseException):
    """The process is gone."""


def test_killed_between_saves_again_and_again_the_bytes_are_equal(
    program: Program, straight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = Program.update
    for at in (2, 5, 6, 8):

        def update(self: Program, state: Any, rows: Any, step: int, at: int = at) -> Any:
            if step == at:
                raise Killed
            return real(self, state, rows, step)

        monkeypatch.setattr(Program, "update", update)
        with pytest.raises(Killed):
            run(program, tmp_path, every="2 steps")
    monkeypatch.setattr(Program, "update", real)
    assert digest(run(program, tmp_path, every="2 steps"), tmp_path / "out") == straight


def test_how_often_a_run_is_saved_changes_nothing(program: Program, straight: str, tmp_path: Path):
    assert digest(run(program, tmp_path, every="1 steps"), tmp_path / "out") == straight


def test_under_a_constant_schedule_a_shorter_run_goes_on_to_the_bytes_of_a_longer_one(
    program: Program, straight: str, tmp_path: Path
):
    short = run(program, tmp_path, steps=4)
    with Saver(test_context(tmp_path).work, Period(steps=1)) as saver:
        saver.save(short)
    assert digest(run(program, tmp_path), tmp_path / "out") == straight


def test_another_seed_ends_with_other_bytes(straight: str, tmp_path: Path):
    """The control: the comparison above can fail."""
    other = Program(recipe(seed=1), build(MeshShape(data=1), 4))
    assert digest(run(other, tmp_path), tmp_path / "out") != straight


def test_the_metrics_have_one_line_an_update(program: Program, tmp_path: Path):
    lines = [json.loads(line) for line in run(program, tmp_path).metrics.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["batch"] for line in lines] == [ORDER.digest(ORDER.batch(step)) for step in range(STEPS)]
    assert [line["learning_rate"] for line in lines[:4]] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 1e-2])
    assert abs(lines[0]["loss"] - np.log(64)) < 0.1
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["tokens"] == STEPS * 4 * 16
    (timing,) = (json.loads(line) for line in (tmp_path / "timings").read_text().splitlines())
    assert timing["step"] == STEPS


def test_a_loss_that_is_not_finite_stops_the_run_and_is_not_saved(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = Program.update

    def update(self: Program, state: Any, rows: Any, step: int) -> Any:
        state, measured = real(self, state, rows, step)
        return state, measured * np.float32(np.nan) if step == 4 else measured

    monkeypatch.setattr(Program, "update", update)
    with pytest.raises(MarinError, match=f"step 5: loss nan.*{ORDER.digest(ORDER.batch(4))}.*lower learning_rate"):
        run(program, tmp_path, every="1 steps")
    saved = test_context(tmp_path).work.items()
    assert saved
    assert max(saved) <= "step-00000004"


def test_the_initial_state_is_on_the_devices_of_the_mesh(program: Program):
    state = program.initial()
    assert {name: array.axes for name, array in state.items()} == {
        name: array.axes for name, array in program.template.items()
    }
    assert all(isinstance(array.array, jax.Array) for array in state.values())


def test_a_loader_that_delivers_other_sequences_stops_the_run(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that is off by a step after it was started again, as a cursor of another unit is."""
    real = loop.Loader

    def late(order: Any, sources: Any, *, start: int, stop: int, **rest: Any) -> Any:
        for loaded in real(order, sources, start=start, stop=stop + 1, **rest):
            if loaded.step > start:
                yield dataclasses.replace(loaded, step=loaded.step - 1)

    monkeypatch.setattr(loop, "Loader", lambda *given, **named: contextlib.nullcontext(late(*given, **named)))
    with pytest.raises(MarinError, match=r"step 0, row 0 of the batch: the loader delivered sequence \d+ of source"):
        run(program, tmp_path)


def test_a_checkpoint_that_read_something_else_is_refused(program: Program, tmp_path: Path):
    saved = run(program, tmp_path / "first", steps=4)
    lines = [json.loads(line) for line in saved.metrics.splitlines()]
    for name, value in (("batch", "0" * 16), ("sum", "0" * 16), ("sequences", 17)):
        changed = [*lines[:-1], {**lines[-1], name: value}]
        wrong = dataclasses.replace(saved, metrics="".join(json.dumps(line) + "\n" for line in changed).encode())
        with pytest.raises(InputError, match="read"):
            Run(program, [Source()], ORDER, lambda step: {}, wrong)
    Run(program, [Source()], ORDER, lambda step: {}, saved)


def test_a_loader_that_ends_early_ends_with_an_error(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = loop.Loader
    monkeypatch.setattr(loop, "Loader", lambda *given, stop, **named: real(*given, stop=stop - 2, **named))
    with pytest.raises(MarinError, match="the loader ended after step 7 of 9"):
        run(program, tmp_path)
