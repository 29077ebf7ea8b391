"""The quick start on a small text of the user's own: from files to an evaluated model, then nothing twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.quickstart import quickstart, resting_on
from tests.conftest import ROOT, Program, Ran, standard_docstrings

QUICKSTART = ROOT / "experiments" / "quickstart.py"
SMALL = (
    "tokenizer.vocabulary=300",
    "train.model.vocabulary=300",
    "train.model.width=16",
    "train.model.layers=1",
    "train.model.feed_forward=32",
    "train.sequence_length=32",
    "train.steps=6",
    "generate.tokens=4",
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a jsonl file and, among the good rows, the odd ones that people have."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [json.dumps({"text": text}) for text in standard_docstrings("email")]
    rows += [
        json.dumps({"text": ""}),
        json.dumps({"text": "word"}),
        json.dumps({"text": "a\0b"}),
        '{"text": 3}',
        "not json",
    ]
    (folder / "docs.jsonl").write_bytes("\n".join(rows).encode() + b"\n" + b'{"text": "\xff\xfe"}\n')
    (folder / "note.txt").write_text("A note of its own, a whole file, with a few more words than the filter asks for.")
    return folder


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def first(program: Program, texts: Path, prefix: Path) -> Ran:
    """A finished run (the first test that asks makes it)."""
    return run(program, texts, prefix)


def run(program: Program, texts: Path, prefix: Path, *arguments: str, python: tuple[str, ...] = ()) -> Ran:
    options = ("--documents", str(texts), "--held-out", "0.2")
    given = {argument.partition("=")[0] for argument in arguments}
    small = [override for override in SMALL if override.partition("=")[0] not in given]
    return program(QUICKSTART, "--json", *options, *small, *arguments, prefix=prefix, python=python)


def test_the_users_own_text_becomes_an_evaluated_model(first: Ran) -> None:
    assert first.code == 0, first.err
    assert first.events[-1]["ok"]
    path = Path(first.summary["evaluate"]["path"])
    assert json.loads((path / "value.json").read_text())["fields"]["overall"]["fields"]["bits_per_byte"] > 0


def test_what_cannot_be_used_is_counted_by_reason(first: Ran) -> None:
    value = json.loads((Path(first.summary["corpus"]["path"]) / "value.json").read_text())
    reasons = {count["fields"]["reason"] for count in value["fields"]["counts"]}
    assert len(reasons - {"in", "out"}) >= 4, reasons


@pytest.mark.usefixtures("first")
def test_the_report_of_own_text_says_what_the_figure_rests_on_and_expects_nothing(
    program: Program, texts: Path, prefix: Path
) -> None:
    again = program(QUICKSTART, "--documents", str(texts), "--held-out", "0.2", *SMALL, prefix=prefix)
    assert again.code == 0, again.err
    said = again.out + again.err
    assert "expected" not in said
    assert re.search(r"the training text was read \d+\.\d\d times; held-out documents that were scored: \d+", said)


def test_the_expected_figure_is_of_the_documentation_alone(texts: Path) -> None:
    assert quickstart().predictions
    assert not quickstart(documents=str(texts)).predictions


@pytest.mark.parametrize(("documents", "hint"), [(19, True), (20, False)])
def test_few_held_out_documents_are_said_to_be_few(documents: int, hint: bool) -> None:
    metrics = '{"epoch": 0.5}\n{"epoch": 12.347}\n'
    first, *more = resting_on(metrics, documents)
    assert first == f"the training text was read 12.35 times; held-out documents that were scored: {documents}"
    assert ["--held-out" in line for line in more] == [True] * hint


@pytest.mark.usefixtures("first")
def test_a_second_run_finds_everything_cached_and_loads_no_jax_and_no_ray(
    program: Program, texts: Path, prefix: Path
) -> None:
    again = run(program, texts, prefix, python=("-X", "importtime"))
    assert {step["status"] for step in again.summary.values()} == {"cached"}
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in again.err.splitlines()}
    assert "marin_pipeline" in loaded
    assert not loaded & {"jax", "ray", "haliax", "datasets", "tensorstore", "pyarrow"}


@pytest.mark.usefixtures("first")
def test_a_changed_learning_rate_runs_training_and_what_follows(program: Program, texts: Path, prefix: Path) -> None:
    options = ("--documents", str(texts), "--held-out", "0.2", *SMALL, "train.learning_rate=1e-3")
    plan = program(QUICKSTART, "plan", "--json", *options, prefix=prefix)
    status = {step["name"]: (step["status"], step["reason"]) for step in plan.events}
    assert status["train"] == ("run", "learning_rate 0.006 → 0.001")
    assert status["evaluate"] == ("run", "downstream of train")
    assert {name for name, (each, _) in status.items() if each != "cached"} == {"train", "evaluate", "generate"}


def test_a_longer_constant_run_goes_on_from_the_committed_state(program: Program, texts: Path, tmp_path: Path) -> None:
    constant = ("train.schedule=constant", "train.warmup=2", "--until", "train")
    short = run(program, texts, tmp_path / "a", *constant)
    longer = run(program, texts, tmp_path / "a", *constant, "train.steps=10")
    straight = run(program, texts, tmp_path / "b", *constant, "train.steps=10")
    assert short.code == longer.code == straight.code == 0, short.err + longer.err + straight.err
    assert longer.summary["tokens"]["status"] == "cached"
    assert longer.summary["train"]["digest"] == straight.summary["train"]["digest"]
    log = Path(longer.summary["train"]["path"]).parent / "log" / "log.txt"
    assert "step 6" in log.read_text()


def test_a_wrong_override_is_one_clear_error(program: Program, tmp_path: Path) -> None:
    for arguments, words in (
        (("train.steps=many",), ("train.steps", "int", "many")),
        (("train.speed=1",), ("train", "speed", "learning_rate")),
        (("trian.steps=3",), ("trian", "train")),
        (("--only", "nothing"), ("nothing", "tokenizer")),
        (("--documents", str(tmp_path / "absent")), ("absent",)),
        (("train.numerics=exact",), ("numerics", "invariant")),
    ):
        ran = program(QUICKSTART, *arguments)
        assert ran.code == 2, (arguments, ran.err)
        assert "Traceback" not in ran.err, ran.err
        assert all(word in ran.err for word in words), ran.err
