"""What holds for all data steps: declaring them is light, and their outputs do not depend on who did the work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from marin_pipeline import run
from steps.dedupe import dedupe
from steps.quality_filter import QualityRules, quality_filter
from steps.read_documents import documents_from
from steps.split_held_out import split_held_out
from steps.tokenize import tokenize
from steps.train_tokenizer import train_tokenizer

MODULES = [
    "read_documents",
    "package_docs",
    "split_held_out",
    "dedupe",
    "quality_filter",
    "train_tokenizer",
    "tokenize",
]
HEAVY = ["jax", "ray", "pyarrow", "datasets", "haliax", "equinox", "optax", "tensorstore", "tokenizers", "numpy"]

DECLARE = """
import sys, time
from steps.package_docs import package_docs, pinned
from steps.split_held_out import split_held_out
from steps.dedupe import dedupe
from steps.quality_filter import quality_filter, QualityRules
from steps.train_tokenizer import train_tokenizer
from steps.tokenize import tokenize

documents = package_docs(packages=pinned(["numpy", "optax"]))
held_out = split_held_out(documents=documents, part="held_out")
train = quality_filter(documents=dedupe(documents=split_held_out(documents=documents, part="train"), against=held_out))
tokens = tokenize(documents=train, tokenizer=train_tokenizer(documents=train))
print(len(tokens.key), *sorted(set(sys.modules) & set(sys.argv[1:])))
"""


def test_declaring_a_whole_pipeline_loads_no_library() -> None:
    printed = subprocess.run([sys.executable, "-c", DECLARE, *HEAVY], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["64"]


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_step_loads_no_library(module: str) -> None:
    program = f"import sys, steps.{module}; print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    printed = subprocess.run([sys.executable, "-c", program, *HEAVY], capture_output=True, text=True, check=True).stdout
    assert printed.split() == []


def test_outputs_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in range(3):
        texts = (
            f"Report {place % 900} of part {name} says that {place % 900 * 7919} was found, and so on. " * 12
            for place in range(1000)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = documents_from(folder)
    held_out = split_held_out(documents=documents, part="held_out")
    train = dedupe(documents=split_held_out(documents=documents, part="train"), against=held_out)
    kept = quality_filter(documents=train, rules=QualityRules(max_words=10_000, max_top_2_gram=0.9))
    tokens = tokenize(documents=train, tokenizer=train_tokenizer(documents=train, vocabulary=300))
    inline = run([documents, train, kept, tokens], prefix=str(tmp_path / "one"), backend="inline")
    local = run([documents, train, kept, tokens], prefix=str(tmp_path / "two"), backend="local", max_parallel=3)
    assert len(inline[0].value.parts) > 1
    assert [artifact.output.digest for artifact in inline] == [artifact.output.digest for artifact in local]
