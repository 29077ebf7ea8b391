"""`python -m marin_pipeline.data inspect`: what it says is what was read, and what it cannot say it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, run
from marin_pipeline.data.__main__ import main
from marin_pipeline.data.document import document_id
from steps.pack import pack
from steps.tokenize import tokenize
from steps.train_tokenizer import train_tokenizer
from tests.data.inspected_steps import BATCH, LENGTH, STEPS, imported, site, trained

PAGES = {
    "web": {f"page-{place}": f"Page {place} of the web, " + "word by word. " * (place % 4) for place in range(9)},
    "code": {f"{place}.py": f"def f{place}(x):\n\treturn x + {place}\n" * (1 + place % 3) for place in range(9)},
}
# Two that have one name, and one that a terminal would act upon.
PAGES["web"]["0.py"] = "A page with the name of a program."
PAGES["web"]["\x1b[2Jcleared"] = "The name of this page clears the screen.\x07"

Said = tuple[int, str, str]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("inspected") / "store")


@pytest.fixture(scope="module")
def state(prefix: str) -> Artifact[int]:
    """Two sources, one of them packed: half of the run reads both, the other half the first alone, several times."""
    made = {name: site(name=name, pages=pages).named(name) for name, pages in PAGES.items()}
    tokenizer = train_tokenizer(made["web"], vocabulary=300).named("tokenizer")
    tokens = {name: tokenize(each, tokenizer).named(f"tokens/{name}") for name, each in made.items()}
    packing = {"code": pack(tokens["code"], sequence_length=LENGTH).named("packing")}
    return run(trained(tokens=tokens, packing=packing).named("train"), prefix=prefix, backend="inline", quiet=True)


@pytest.fixture
def inspect(state: Artifact[int], prefix: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs the command."""

    def said(*arguments: str, name: str = "train", store: str = prefix) -> Said:
        capsys.readouterr()
        code = main(["inspect", name, "--prefix", store, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return said


def lines(said: Said) -> list[dict[str, Any]]:
    code, out, err = said
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_each_piece_of_each_step_is_found_at_its_document_with_its_name(inspect: Callable[..., Said]) -> None:
    by_document: Counter[tuple[Any, ...]] = Counter()
    names: dict[tuple[str, int], dict[str, Any]] = {}
    for step in range(1, STEPS + 1):
        rows = lines(inspect("--step", str(step), "--json"))
        assert [(row["step"], row["row"]) for row in rows] == [(step, place) for place in range(BATCH)]
        for row in rows:
            filled = sum(piece["stop"] - piece["start"] for piece in row["documents"])
            assert filled == LENGTH if row["source"] == "web" else 0 < filled <= LENGTH
            for piece in row["documents"]:
                place = (step, row["row"], row["sequence"], row["epoch"])
                by_document[(row["source"], piece["document"], *place, piece["start"], piece["stop"])] += 1
                names[row["source"], piece["document"]] = piece
    assert max(by_document.values()) == 1
    found: set[tuple[Any, ...]] = set()
    for (source, number), piece in names.items():
        assert piece["id"] == document_id(PAGES[source][piece["source_id"]])
        assert piece["collection"] == source
        for selector in (str(number), piece["id"][:12]):
            visits = lines(inspect("--document", selector, "--source", source, "--json"))
            keys = ("document", "step", "row", "sequence", "epoch", "start", "stop")
            found |= {(source, *(visit[key] for key in keys)) for visit in visits}
    assert found == set(by_document)
    assert max(place[5] for place in by_document) > 0  # more than one epoch was looked at


def test_the_text_of_what_was_read_is_the_text_of_the_documents(inspect: Callable[..., Said]) -> None:
    for source, pages in PAGES.items():
        for page, text in pages.items():
            visits = lines(inspect("--document", page, "--source", source, "--json", "--text"))
            whole = {visit["tokens"] for visit in visits}
            first = [visit for visit in visits if visit["epoch"] == 0]
            if sum(visit["stop"] - visit["start"] for visit in first) == max(whole, default=-1):
                ordered = sorted(first, key=lambda visit: visit["start"])
                assert "".join(visit["text"] for visit in ordered) == text
    row = lines(inspect("--step", "1", "--row", "2", "--json", "--text"))
    assert [each["row"] for each in row] == [2]
    for piece in row[0]["documents"]:
        assert piece["text"] in PAGES[row[0]["source"]][piece["source_id"]]


def test_a_table_tells_people_the_same(inspect: Callable[..., Said], state: Artifact[int]) -> None:
    called = f"train (state {state.key[:8]} at step {STEPS})"
    code, out, err = inspect("--step", "3", "--text")
    assert (code, err) == (0, "")
    head, columns, *table = out.splitlines()
    assert head.startswith(f"step 3 of {STEPS} of {called}: {BATCH} rows of {LENGTH} tokens, batch ")
    assert columns.split() == [
        "row",
        "source",
        "sequence",
        "epoch",
        "document",
        "tokens",
        "id",
        "collection",
        "source_id",
    ]
    told = lines(inspect("--step", "3", "--json", "--text"))
    pieces = [(row, piece) for row in told for piece in row["documents"]]
    assert len(table) == 2 * len(pieces)
    for (row, piece), line, text in zip(pieces, table[::2], table[1::2], strict=True):
        assert line.split()[:5] == [str(row[key]) for key in ("row", "source", "sequence", "epoch")] + [
            str(piece["document"])
        ]
        assert f"{piece['start']}:{piece['stop']} of {piece['tokens']} " in line
        assert f"  {piece['id'][:12]}  " in line
        assert text == f"    {piece['text']!r}"
    code, out, err = inspect("--document", "3.py")
    assert (code, err) == (0, "")
    head, where, columns, *table = out.splitlines()
    assert where == f"where it was read in the {STEPS} steps of {called}:"
    assert head.startswith("document ")
    assert head.endswith(" tokens")
    assert "3.py" in head
    assert columns.split() == ["step", "row", "sequence", "epoch", "tokens"]
    told = lines(inspect("--document", "3.py", "--json"))
    assert len(table) == len(told)
    assert (
        told[0]["state"]
        == lines(inspect("--step", "3", "--json"))[0]["state"]
        == {
            "key": state.key[:8],
            "step": STEPS,
        }
    )


def test_nothing_that_a_terminal_acts_upon_is_printed(inspect: Callable[..., Said]) -> None:
    code, out, _ = inspect("--document", "\x1b[2Jcleared", "--text")
    assert code == 0
    assert "cleared" in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--step", "0"], 1, f"step 0: train made {STEPS} steps, numbered from 1"),
        (["--step", str(STEPS + 1)], 1, f"step {STEPS + 1}: train made {STEPS} steps"),
        (["--step", "1", "--row", str(BATCH)], 1, f"row {BATCH}: a step of train has {BATCH} rows"),
        (["--document", "1", "--row", "1"], 2, "--row is a row of a step"),
        (["--step", "1", "--source", "web"], 2, "--source says where a document is"),
        (["--document", "999"], 2, "--document 999: no document of train has this number, id or name"),
        (["--document", "fffffffffe"], 2, "no document of train has this number, id or name"),
        (["--document", "nowhere"], 2, "no document of train has this number, id or name"),
        (["--document", "1", "--source", "books"], 2, "--source books: train has 'code', 'web'"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(
    inspect: Callable[..., Said], arguments: list[str], code: int, message: str
) -> None:
    found, out, err = inspect(*arguments)
    assert (found, out) == (code, "")
    assert message in err


def test_several_documents_that_fit_are_listed(inspect: Callable[..., Said]) -> None:
    code, out, err = inspect("--document", "0.py")
    assert (code, out) == (2, "")
    assert "--document 0.py fits 2 documents:\n  --source code --document " in err
    assert err.count("0.py)") == 2
    code, _, err = inspect("--document", "4")
    assert code == 2
    assert err.splitlines() == [
        "error: --document 4 fits 2 documents:",
        "  --source code --document 4",
        "  --source web --document 4",
    ]


def test_names_that_contain_what_was_asked_for_are_listed(inspect: Callable[..., Said]) -> None:
    code, _, err = inspect("--document", "PAGE-")
    assert code == 2
    listed = re.findall(r"'(page-\d)'", err)
    assert len(set(listed)) == len(listed) == 3
    assert "; names that contain it: 'page-" in err
    assert err.count("'0.py'") == 0
    assert inspect("--document", ".p")[2].count(".py'") == 3
    assert "names that contain it" not in inspect("--document", "nowhere")[2]


def test_a_run_is_called_as_it_was_asked_for(inspect: Callable[..., Said], state: Artifact[int]) -> None:
    for name in ("train", state.key[:8]):
        assert inspect("--step", "3", name=name)[1].startswith(f"step 3 of {STEPS} of {name} (state {state.key[:8]} ")
        assert inspect("--step", "0", name=name)[2].startswith(f"error: step 0: {name} made ")


def test_an_output_that_is_no_trained_state_is_refused(inspect: Callable[..., Said]) -> None:
    code, _, err = inspect("--step", "1", name="tokenizer")
    assert code == 1
    assert err == "error: 'tokenizer' is a tokenizer; give a trained state\n"
    assert inspect("--step", "1", name="nothing")[0] == 2


@pytest.fixture
def copied(prefix: str, state: Artifact[int], tmp_path: Path) -> Path:
    """The store again, so that it may be damaged."""
    return Path(shutil.copytree(prefix, tmp_path / "store"))


def folders(store: Path, step: str) -> list[Path]:
    return [found for found in sorted(store.glob(f"steps/**/{step}/*")) if len(found.name) == 16]


def test_without_the_documents_numbers_are_told(inspect: Callable[..., Said], copied: Path) -> None:
    for folder in folders(copied, "*site"):
        shutil.rmtree(folder)
    code, out, err = inspect("--step", "2", "--text", store=str(copied))
    assert (code, err) == (0, "")
    assert "documents of 'web' are told by number only: " in out
    assert "is not there any more" in out
    assert all(
        piece["id"] is None
        for row in lines(inspect("--step", "2", "--json", store=str(copied)))
        for piece in row["documents"]
    )
    assert inspect("--document", "3", "--source", "web", store=str(copied))[0] == 0
    code, _, err = inspect("--document", "page-3", store=str(copied))
    assert code == 2
    assert "the names of 'web' are not known" in err


def test_of_tokens_that_were_imported_it_is_said_what_can_be_asked(inspect: Callable[..., Said], copied: Path) -> None:
    tokenizer = train_tokenizer(site(name="web", pages=PAGES["web"]).named("web"), vocabulary=300).named("tokenizer")
    ids = [[*range(40, 80), 0]] * 9
    for name, given in (("with", tokenizer), ("without", None)):
        tokens = imported(ids=ids, tokenizer=given).named(f"imported/{name}")
        state = trained(tokens={"web": tokens}, packing={}).named(name)
        run(state, prefix=str(copied), backend="inline", quiet=True)
    code, out, err = inspect("--step", "2", "--text", name="with", store=str(copied))
    assert (code, err) == (0, "")
    told = "documents of 'web' are told by number only: the tokens of 'web' (imported "
    last = out.splitlines()[-1]
    assert last.startswith(told)
    assert last.endswith("are known here, as when they were imported; ask for a document by its number")
    assert inspect("--step", "2", name="without", store=str(copied))[0] == 0
    code, _, err = inspect("--step", "2", "--text", name="without", store=str(copied))
    assert code == 1
    assert err.endswith(") were made by no tokenizer that is known here; ask without --text\n")


def test_without_the_tokens_it_is_said_which_are_gone(inspect: Callable[..., Said], copied: Path) -> None:
    for folder in folders(copied, "tokenize"):
        shutil.rmtree(folder)
    code, out, err = inspect("--step", "2", store=str(copied))
    assert (code, out) == (1, "")
    assert "tokens[" in err
    assert "is not there any more; make it again" in err


def test_an_order_that_is_not_the_one_that_was_read_is_an_error(
    inspect: Callable[..., Said], prefix: str, state: Artifact[int]
) -> None:
    tokens = {
        role[7:-1]: found.named(f"read/{role[7:-1]}")
        for role, found in state.inputs.items()
        if role.startswith("tokens[")
    }
    packing = {"code": state.inputs["packing[code]"]}
    other = trained(tokens=tokens, packing=packing, wrong="0123456789abcdef").named("other")
    run(other, prefix=prefix, backend="inline", quiet=True)
    assert inspect("--step", str(STEPS - 1), name="other")[0] == 0
    code, out, err = inspect("--step", str(STEPS), name="other")
    assert (code, out) == (1, "")
    assert "the batch that the run recorded is 0123456789abcdef" in err


def test_the_program_prints_json_lines(prefix: str, state: Artifact[int]) -> None:
    command = [sys.executable, "-m", "marin_pipeline.data", "inspect", state.key[:8], "--step", "5", "--json"]
    variables = {**os.environ, "MARIN_PREFIX": prefix}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["row"] for line in done.stdout.splitlines()] == list(range(BATCH))


@pytest.mark.parametrize(
    ("arguments", "stream", "codes"),
    [
        ("inspect train --step 5", "stdout", {141}),
        ("inspect train --step 5 --json", "stdout", {141}),
        ("inspect train --document 3 --source web", "stdout", {141}),
        ("audit train --workers 0", "stdout", {141}),
        ("audit train --workers 0 --json", "stdout", {141}),
        ("inspect nothing --step 5", "stderr", {141}),
        ("audit nothing", "stderr", {141}),
        ("--help", "stdout", {0, 141}),
        ("audit --help", "stdout", {0, 141}),
        ("audit train --no-such-option", "stderr", {2, 141}),
    ],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_a_closed_pipe_ends_the_program_quietly(
    prefix: str, state: Artifact[int], arguments: str, stream: str, codes: set[int], buffered: bool
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    variables = {**os.environ, "MARIN_PREFIX": prefix, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "-m", "marin_pipeline.data", *arguments.split()]
    out, err = (writes, subprocess.PIPE) if stream == "stdout" else (subprocess.PIPE, writes)
    try:
        done = subprocess.run(command, stdout=out, stderr=err, text=True, check=False, env=variables)
    finally:
        os.close(writes)
    assert done.returncode in codes
    assert not done.stdout
    assert not done.stderr


def test_an_output_that_cannot_be_written_is_an_error(prefix: str, state: Artifact[int]) -> None:
    command = [sys.executable, "-m", "marin_pipeline.data", "inspect", "train", "--step", "5"]
    with open("/dev/full", "w") as full:
        variables = {**os.environ, "MARIN_PREFIX": prefix}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=variables)
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be written: No space left on device\n")
