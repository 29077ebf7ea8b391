"""Every step of the library has a version, a golden input, and its present code in `code.lock`; and that can fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Program, Ran

STEPS = ROOT / "steps"
ALL = {
    *("baselines", "check_disjoint", "dedupe", "download", "evaluate", "generate", "pack", "package_docs"),
    *("quality_filter", "read_documents", "split_held_out", "tokenize", "train", "train_tokenizer"),
}
EXPERIMENT = """
from pathlib import Path
from marin_pipeline import main
from steps.dedupe import dedupe
from steps.read_documents import documents_from


def build(threshold: float = 0.5):
    documents = dedupe(documents_from(Path(__file__).parent / "texts"))
    return dedupe(documents, against=documents, threshold=threshold).named("again")


if __name__ == "__main__":
    main(build)
"""

Code = Callable[..., Ran]


@pytest.fixture
def code(program: Program) -> Code:
    """Runs `marin-pipeline code ACTION … --folder FOLDER`."""

    def run(action: str, folder: Path, *arguments: str) -> Ran:
        command = "from marin_pipeline.tool import main; main()"
        # The library that a copied `steps` lies beside comes first.
        extra = {"PYTHONPATH": str(folder.parent)} if (folder.parent / "marin_pipeline").is_dir() else {}
        return program("-c", command, "code", action, "--folder", str(folder), *arguments, python=("-P",), extra=extra)

    return run


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A project of the same name with a copy of the steps, for a test to edit."""
    folder = tmp_path / "project"
    shutil.copytree(STEPS, folder / "steps", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_text('[project]\nname = "marin_pipeline"\n')
    return folder / "steps"


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def statuses(ran: Ran) -> dict[str, str]:
    return {line["id"].removeprefix("marin_pipeline/"): line["status"] for line in ran.events}


def test_each_step_has_a_version_a_golden_input_and_its_code_in_the_lock(code: Code) -> None:
    ran = code("check", STEPS, "--json")
    assert statuses(ran) == dict.fromkeys(ALL, "accepted"), ran.out
    assert ran.code == 0


def test_the_golden_inputs_give_what_the_lock_says(code: Code) -> None:
    ran = code("check", STEPS, "--run", "--json")
    assert statuses(ran) == dict.fromkeys(ALL, "accepted"), ran.out + ran.err
    assert ran.code == 0


def test_an_edited_step_one_without_a_version_and_one_without_a_golden_input_are_found(
    code: Code, copied: Path
) -> None:
    edit(copied / "tokenize.py", "documents.value.documents:", "documents.value.documents > 0:")
    edit(copied / "train_tokenizer.py", "@step(version=1)", "@step(version=2)")
    edit(copied / "golden.py", "drawn, simple, overlap", "drawn, overlap")
    (copied / "other.py").write_text(
        "from marin_pipeline import Context, step\n\n@step\ndef other(ctx: Context) -> int:\n    return 1\n"
    )
    ran = code("check", copied, "--json")
    assert ran.code == 3
    found = statuses(ran)
    assert found["tokenize"] == "code"
    assert found["train_tokenizer"] == "version"
    assert found["baselines"] == "no golden"
    assert found["steps/other.other"] == "unversioned"
    assert found["dedupe"] == "accepted"


def test_dedupe_edited_without_another_output_is_accepted_and_what_it_made_stays(
    code: Code, copied: Path, program: Program
) -> None:
    experiment = copied.parent / "experiment.py"
    experiment.write_text(EXPERIMENT)
    (copied.parent / "texts").mkdir()
    (copied.parent / "texts" / "a.txt").write_text("one text")
    assert program(experiment).code == 0

    lock = (copied / "code.lock").read_text()
    edit(copied / "dedupe.py", 'if document.id == previous:\n                reason = "exact_duplicate"', CHANGED)
    planned = {line["name"]: line["status"] for line in program(experiment, "plan", "--json").events}
    assert planned == {"read_documents": "cached", "dedupe": "drift", "again": "drift"}
    assert code("accept", copied, "dedupe").code == 0
    planned = {line["name"]: line["status"] for line in program(experiment, "plan", "--json").events}
    assert set(planned.values()) == {"cached"}
    ran = program(experiment, "--json", "--threshold", "0.4")
    assert {name: step["status"] for name, step in ran.summary.items()}["again"] == "done"

    accepted = (copied / "code.lock").read_text()
    assert len(accepted.splitlines()) - len(lock.splitlines()) <= 6
    edit(copied / "dedupe.py", "if share > threshold else None", "if share >= threshold else None")
    refused = code("accept", copied, "dedupe")
    assert refused.code == 1
    assert "golden/dedupe/train: value.json:" in refused.out
    assert "give the step version=2, or undo the change" in refused.out
    assert (copied / "code.lock").read_text() == accepted


CHANGED = 'is_again = document.id == previous\n            if is_again:\n                reason = "exact_duplicate"'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "differs"),
    [
        (
            "train/optimizer.py",
            'return 0.0 if name.endswith("norm")',
            'return 0.0 if name.endswith("embedding")',
            "train",
        ),
        ("train/schedule.py", "1 + math.cos", "1 + math.sin", "train"),
        ("data/order.py", "key64(seed, salt, epoch)", "key64(seed + 1, salt, epoch)", "train"),
        ("evaluate/windows.py", "length // 2", "length // 3", "evaluate"),
    ],
)
def test_a_small_change_of_the_science_is_found(
    code: Code, tmp_path: Path, file: str, old: str, new: str, differs: str
) -> None:
    for name in ("steps", "marin_pipeline"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    edit(tmp_path / "copy" / "marin_pipeline" / file, old, new)
    ran = code("check", tmp_path / "copy" / "steps", differs, "--run", "--json")
    assert statuses(ran)[differs] == "differs", ran.out + ran.err
