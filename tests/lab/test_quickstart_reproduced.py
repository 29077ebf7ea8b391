"""The quick start, shared by one clone and reproduced in another one that has nothing but the bundle and the store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment, standard_docstrings
from tests.experiments.test_quickstart import SMALL
from tests.lab.projects import TOOL
from tests.stores import new_prefix


def clones(folder: Path) -> tuple[Path, Path]:
    """Two fresh clones of a repository that holds the tree as it is."""
    tree = folder / "tree"
    tree.mkdir()
    for name in ("marin_pipeline", "steps", "experiments"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "as it is"]):
        subprocess.run([*git, *words], check=True)
    for name in ("first", "second"):
        subprocess.run(["git", "clone", "-q", str(tree), str(folder / name)], check=True)
    shutil.rmtree(tree)
    return folder / "first", folder / "second"


def in_clone(clone: Path, prefix: str, *words: str) -> str:
    """Run Python in a clone, with that clone's code; what it printed."""
    variables = {**environment(Path(prefix)), "MARIN_PREFIX": prefix, "PYTHONPATH": str(clone)}
    done = subprocess.run(
        [sys.executable, *words], cwd=clone, env=variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "gs"])
def test_the_quick_start_is_reproduced_bit_for_bit_in_a_second_clone(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first, second = clones(tmp_path)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in standard_docstrings("email")))
    prefix, bundle = new_prefix(request, kind), str(tmp_path / "bundle.json")
    options = ("--documents", str(texts), "--held-out", "0.2")
    in_clone(first, prefix, "experiments/quickstart.py", "-q", *options, *SMALL)
    in_clone(first, prefix, *TOOL, "share", "evaluate", "--out", bundle)
    shutil.rmtree(first)
    texts.unlink()
    empty = str(tmp_path / "empty")
    out = in_clone(second, empty, *TOOL, "reproduce", bundle, "--from", prefix, "--deep", "--json")
    last = json.loads(out.splitlines()[-1])
    assert last["verdict"] == "reproduced bit-identical", last
    assert (last["steps"], last["cached"], last["pulled"]) == (11, 0, 0)
    assert last["text"].startswith(f"reproduced bit-identical: 11 steps, {last['files']} files")
    assert last["files"] > 50
    assert not os.path.exists(empty)
