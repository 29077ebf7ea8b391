"""A real run that is killed with SIGKILL, again and again, ends with the output of an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = """
import numpy as np
from marin_pipeline import Context, Tokens, main, step
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger
from marin_pipeline.data.token_writer import write_token_part
from marin_pipeline.models.config import LlamaConfig
from steps.train import train

@step
def tokens(ctx: Context) -> Tokens:
    documents = [np.random.default_rng(0).zipf(1.5, 20_000) % 64]
    part = write_token_part(ctx.out / "part", documents, 64, 9)
    (ctx.out / LEDGER_FILE).write_text(Ledger((part,), "uint16", 64, 0, "0" * 64).to_json())
    return Tokens(LEDGER_FILE, part.tokens, 1, 9, 64, 0)

if __name__ == "__main__":
    model = LlamaConfig(vocabulary=64, width=32, layers=2, heads=2, feed_forward=64)
    main(train(tokens(), model=model, steps=800, sequence_length=64, checkpoint_every="10 steps"))
"""


def start(file: Path, prefix: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(file), "--prefix", str(prefix), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def trained(file: Path, prefix: Path) -> str:
    """Output digest of the train step, after a run that nobody disturbs."""
    process = start(file, prefix)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    summary = json.loads(out.splitlines()[-1])
    return next(entry["digest"] for entry in summary["steps"] if entry["name"] == "train")


def kill_at(file: Path, prefix: Path, step: int) -> None:
    """Start the run and end all its processes when it says that it has made `step` updates."""
    process = start(file, prefix)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "progress" and event.get("unit") == "steps" and event["done"] >= step:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_twice_and_run_again_the_output_is_equal(tmp_path: Path):
    file = tmp_path / "experiment.py"
    file.write_text(EXPERIMENT)
    expected = trained(file, tmp_path / "straight")
    kill_at(file, tmp_path / "killed", 100)
    kill_at(file, tmp_path / "killed", 350)
    assert trained(file, tmp_path / "killed") == expected
