"""`code.lock` calls two codes equal when a golden run has covered both, and never else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.source import code_digest, digest_of
from marin_pipeline.run.code_lock import (
    LOCK,
    RELATIVE_TOLERANCE,
    CodeLock,
    Entry,
    Golden,
    Pieces,
    differences,
    figures,
    read_lock,
    write_lock,
)
from tests.conftest import ROOT, Program, Ran

OLD: Pieces = {"steps/a:a": "1" * 64, "data/x": "1" * 64}
NEW: Pieces = {"steps/a:a": "2" * 64, "data/x": "1" * 64, "steps/a:helper": "1" * 64}
CLASS: Pieces = {"mine:Rules": "5" * 64}
GOLDEN = Golden("a" * 64, output="b" * 64, files={"value.json": "c" * 64})
ENTRY = Entry(1, {"golden": GOLDEN}, (OLD, NEW))


def test_two_accepted_codes_are_equal_and_a_third_is_not() -> None:
    assert ENTRY.vouches(OLD, NEW)
    assert ENTRY.vouches(NEW, OLD)
    assert not ENTRY.vouches(OLD, {**NEW, "data/x": "3" * 64})
    assert not Entry(1, {}, (OLD,)).vouches(OLD, NEW)


def test_a_mixture_of_two_accepted_codes_was_never_run() -> None:
    other = {"steps/a:a": "2" * 64, "data/x": "2" * 64}
    assert not Entry(1, {}, (OLD, other)).vouches(OLD, {"steps/a:a": "1" * 64, "data/x": "2" * 64})


def test_other_argument_classes_must_be_the_same_on_both_sides() -> None:
    assert ENTRY.vouches({**OLD, **CLASS}, {**NEW, **CLASS})
    assert not ENTRY.vouches({**OLD, **CLASS}, {**NEW, "mine:Rules": "6" * 64})
    assert not ENTRY.vouches({**OLD, **CLASS}, NEW)


def test_a_class_that_a_golden_covers_is_not_excused_by_another_golden_without_it() -> None:
    entry = Entry(1, {}, (OLD, {**OLD, **CLASS}))
    assert entry.covers({**OLD, "other:Class": "1" * 64})
    assert not entry.covers({**OLD, "mine:Rules": "6" * 64})
    assert not entry.vouches({**OLD, **CLASS}, {**OLD, "mine:Rules": "6" * 64})


def test_the_digest_of_a_code_is_that_of_its_pieces() -> None:
    code = code_digest(ROOT / "steps" / "dedupe.py", "dedupe")
    assert digest_of({piece.name: piece.digest for piece in reversed(code.pieces)}) == code.digest


def test_the_file_reads_back_and_a_new_code_adds_only_what_changed(tmp_path: Path) -> None:
    entries = [Entry(1, {"golden": GOLDEN}, (OLD,)), ENTRY, Entry(1, {"golden": GOLDEN}, (OLD, NEW, {**OLD, **CLASS}))]
    texts = []
    for entry in entries:
        write_lock(tmp_path, CodeLock({"a": entry}))
        texts.append((tmp_path / LOCK).read_text().splitlines())
        assert CodeLock.loads((tmp_path / LOCK).read_text()).steps == {"a": entry}
    added = [line.strip() for line in texts[1] if line not in texts[0]]
    assert len([line for line in added if line.startswith('"')]) <= 3
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("old", ['"1', '"version": 1', '"schema": 1', '"codes"', "{"])
def test_a_lock_that_was_edited_is_refused_with_the_remedy(tmp_path: Path, old: str) -> None:
    (tmp_path / LOCK).write_text(CodeLock({"a": ENTRY}).dumps().replace(old, old.replace("1", "4") + "x", 1))
    with pytest.raises(InputError, match="code accept --all"):
        read_lock(tmp_path)
    assert read_lock(tmp_path / "elsewhere") == CodeLock()


def test_a_lock_that_has_no_end_is_refused_and_not_read(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"has more than 67,108,864 bytes.*code accept --all"):
        read_lock(tmp_path)
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).symlink_to("/dev/zero")
    with pytest.raises(InputError, match="no file at all"):
        read_lock(tmp_path)


def test_a_lock_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    for folder in (tmp_path / "gone", tmp_path):
        (tmp_path / LOCK / "in the way").mkdir(parents=True, exist_ok=True)
        with pytest.raises(InputError, match=r"code\.lock: the lock of code cannot be written .*mend that"):
            write_lock(folder, CodeLock({"a": ENTRY}))


def test_figures_are_compared_within_the_stated_tolerance_and_files_by_every_byte() -> None:
    value = {
        "~data": "m:C",
        "fields": {"loss": 2.0, "steps": 5, "digest": "x", "by": [{"~data": "m:D", "fields": {"n": 1}}]},
    }
    found = dict(figures(value))
    assert found == {"value.loss": 2.0, "value.steps": 5, "value.by[0].n": 1}
    old = Golden("k", figures=found)
    assert not differences(old, Golden("k", figures={**found, "value.loss": 2.0 * (1 + RELATIVE_TOLERANCE / 2)}))
    beyond = Golden("k", figures={**found, "value.loss": 2.0 * (1 + RELATIVE_TOLERANCE * 2)})
    assert differences(old, beyond)[0].startswith("value.loss: 2.0 → 2.0")
    assert differences(old, Golden("k", figures={"value.loss": 2.0})) != []
    assert differences(Golden("k", figures={"value.n": 10**6}), Golden("k", figures={"value.n": 10**6 + 1})) != []
    assert differences(GOLDEN, Golden("a" * 64, output="d" * 64, files={"value.json": "d" * 64})) == [
        "value.json: cccccccc → dddddddd"
    ]
    assert differences(Golden("k", logical="a" * 64), Golden("k", logical="b" * 64)) == [
        "logical digest aaaaaaaa → bbbbbbbb"
    ]
    assert differences(GOLDEN, old) != []
    with pytest.raises(InputError, match=r"value\.loss"):
        dict(figures({"loss": {"~float": "nan"}}))


# In a project --------------------------------------------------------------------------------------------------------

STEPS = """
from marin_pipeline import Artifact, Chain, Context, step


@step(version=1)
def make(ctx: Context, size: int, rules: object = None) -> int:
    (ctx.out / "squares.txt").write_text(" ".join(str(each * each) for each in range(size)))
    return size


@step(version=1)
def total(ctx: Context, made: Artifact[int]) -> int:
    return sum(int(each) for each in (made / "squares.txt").read_text().split())


def way(arguments):
    return Chain(initial="start", step=arguments["to"], recipe=lambda steps: steps)


@step(version=1, chain=way)
def climb(ctx: Context, to: int) -> list[int]:
    earlier = ctx.earlier_state()
    return [earlier[0] if earlier else 0, to]


@step
def plain(ctx: Context) -> int:
    return 1
"""
GOLDENS = """
from pathlib import Path
from marin_pipeline import Artifact
from steps.numbers import climb, make, total


def golden(folder: Path) -> list[Artifact]:
    return [total(make(size=4)), climb(to=2)]
"""
RULES = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    name: str = "r"

    def shown(self):
        return self.name
"""
EXPERIMENT = """
from marin_pipeline import main
from rules import Rules
from steps.numbers import climb, make, total


def build(to: int = 0):
    return [total(make(size=3, rules=Rules())), *([climb(to=to)] if to else [])]


if __name__ == "__main__":
    main(build)
"""
HARMLESS = ("each * each", "each**2")
HARMFUL = ("each * each", "each * each * each")


class Project:
    """A folder with steps that a test edits, and an experiment that uses them."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.folder = folder
        self.program = program
        (folder / "steps").mkdir(parents=True)
        (folder / "pyproject.toml").write_text('[project]\nname = "sample"\n')
        (folder / "steps" / "__init__.py").touch()
        self.steps = folder / "steps" / "numbers.py"
        self.steps.write_text(STEPS)
        self.golden = folder / "steps" / "golden.py"
        self.golden.write_text(GOLDENS)
        self.lock = folder / "steps" / LOCK
        self.rules = folder / "rules.py"
        self.rules.write_text(RULES)
        self.experiment = folder / "experiment.py"
        self.experiment.write_text(EXPERIMENT)

    def edit(self, change: tuple[str, str], file: Path | None = None) -> None:
        text = (file or self.steps).read_text()
        assert change[0] in text
        (file or self.steps).write_text(text.replace(*change, 1))

    def code(self, *arguments: str) -> Ran:
        command = "from marin_pipeline.tool import main; main()"
        return self.program("-c", command, "code", *arguments, "--folder", str(self.folder / "steps"))

    def plan(self, *arguments: str) -> dict[str, str]:
        events = self.program(self.experiment, "plan", "--json", *arguments).events
        return {line["name"]: line["status"] for line in events}

    def run(self, *arguments: str) -> Ran:
        return self.program(self.experiment, "--json", *arguments)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the project and its store are kept as they were made first."""
    return tmp_path_factory.mktemp("kept") / "all"


@pytest.fixture
def project(tmp_path: Path, program: Program, kept: Path) -> Project:
    """A project whose lock is written and whose experiment has run."""
    found = Project(tmp_path / "project", program)
    if kept.is_dir():
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    else:
        assert found.code("accept", "--all").code == 0
        assert found.run().code == 0
        shutil.copytree(tmp_path, kept)
    return found


def test_a_harmless_edit_is_drift_until_a_golden_run_has_shown_it(project: Project) -> None:
    project.edit(HARMLESS)
    assert project.plan() == {"make": "drift", "total": "cached"}
    checked = project.code("check")
    assert checked.code == 3
    assert "sample/make  code changed: steps/numbers:make" in checked.out
    accepted = project.code("accept", "make")
    assert (accepted.code, accepted.out.splitlines()[-1][:6]) == (0, "1 of 1"), accepted.err
    # The experiment's Rules are in no golden input: they are the same on both sides.
    assert project.plan() == {"make": "cached", "total": "cached"}
    assert project.code("check").code == 0
    project.edit((HARMLESS[1], HARMLESS[0]))
    assert project.plan() == {"make": "cached", "total": "cached"}


def test_a_chain_goes_on_from_a_state_of_a_code_that_the_lock_vouches_for(project: Project) -> None:
    assert load_value(project, "3") == [0, 3]
    project.edit(("earlier[0] if earlier else 0", "0 if not earlier else earlier[0]"))
    assert load_value(project, "5") == [0, 5]
    assert project.code("accept", "climb").code == 0
    # The state at 5 is of the present code anyway; the one at 3 counts since the lock vouches for it.
    assert load_value(project, "4") == [3, 4]


def load_value(project: Project, to: str) -> list[int]:
    """What `climb` returned."""
    path = project.run("--to", to, "--only", "climb").summary["climb"]["path"]
    return json.loads((Path(path) / "value.json").read_text())


def test_what_is_built_on_a_vouched_output_is_not_blocked(project: Project) -> None:
    project.edit(HARMLESS)
    assert {step["status"] for step in project.run("--force", "total").summary.values()} == {"cached", "blocked"}
    assert project.code("accept", "make").code == 0
    ran = project.run("--force", "total")
    assert {name: step["status"] for name, step in ran.summary.items()} == {"make": "cached", "total": "done"}


def test_an_edited_class_of_an_argument_drifts_though_the_steps_code_is_accepted(project: Project) -> None:
    project.edit(HARMLESS)
    project.edit(("return self.name", "return self.name * 2"), project.rules)
    assert project.code("accept", "--all").code == 0
    assert project.plan()["make"] == "drift"


def test_another_output_is_refused_with_the_file_and_the_remedy_and_nothing_is_written(project: Project) -> None:
    before = project.lock.read_text()
    project.edit(HARMFUL)
    for arguments in (["accept", "make"], ["accept", "--all"], ["check", "--run"]):
        ran = project.code(*arguments)
        assert ran.code == 1, ran.out
        assert "sample/make  make: squares.txt:" in ran.out
        assert "give the step version=2, or undo the change" in ran.out
        assert project.lock.read_text() == before
    assert "sample/total  total: value.json:" in ran.out
    assert "see sample/make" in ran.out
    # The step below is not what differs, and says so.
    assert "sample/make" in project.code("accept", "total").out
    assert project.lock.read_text() == before


def test_what_is_equal_and_was_not_written_is_not_called_accepted(project: Project) -> None:
    before = project.lock.read_text()
    project.edit(HARMFUL)
    project.edit(("else 0, to]", "else 0, int(to)]"))
    ran = project.code("accept", "--all", "--json")
    assert ran.code == 1
    lines = {line["id"]: line for line in ran.events}
    assert {id: line["status"] for id, line in lines.items() if id.startswith("sample/")} == {
        "sample/make": "differs",
        "sample/total": "differs",
        "sample/climb": "equal",
    }
    assert lines["sample/climb"]["text"] == "its golden output is the same; not written, because of sample/make"
    assert project.lock.read_text() == before


def test_a_new_version_is_a_new_entry_and_moves_what_is_built_on_it(project: Project) -> None:
    project.edit(HARMFUL)
    project.edit(("@step(version=1)", "@step(version=2)"))
    lines = {line["id"]: line["status"] for line in project.code("check", "--json").events}
    assert lines == {"sample/make": "version", "sample/total": "golden", "sample/climb": "accepted"} | {
        "steps/numbers.plain": "unversioned"
    }
    assert project.code("accept", "--all").code == 0
    assert project.code("check", "--run").code == 0
    tree = json.loads(project.lock.read_text())["steps"]
    assert (tree["sample/make"]["version"], tree["sample/total"]["version"]) == (2, 1)


def test_a_golden_input_that_changed_together_with_the_code_proves_nothing(project: Project) -> None:
    project.edit(("size=4", "size=5"), project.golden)
    project.edit(HARMLESS)
    before = project.lock.read_text()
    refused = project.code("accept", "make")
    assert refused.code == 1
    assert "have both changed" in refused.out
    assert project.lock.read_text() == before
    project.edit((HARMLESS[1], HARMLESS[0]))
    assert project.code("accept", "make").code == 0
    project.edit(HARMLESS)
    assert project.code("accept", "make").code == 0


def test_what_cannot_be_accepted_is_one_clear_error(project: Project) -> None:
    for arguments, said in (
        (["accept"], "say --all"),
        (["accept", "make", "--all"], "say --all"),
        (["accept", "nothing"], "there are: sample/climb, sample/make, sample/total"),
        (["accept", "plain"], "follows its source"),
    ):
        ran = project.code(*arguments)
        assert (ran.code, said in ran.err, "Traceback" in ran.err) == (2, True, False), ran.err
    project.edit(("total(make(size=4))", "make(size=4)"), project.golden)
    assert "declares no golden input for it" in project.code("accept", "total").err
    lines = {line["id"]: line["status"] for line in project.code("check", "--json").events}
    assert (lines["sample/make"], lines["sample/total"]) == ("accepted", "no golden")
    project.golden.unlink()
    ran = project.code("check")
    assert (ran.code, "there is no golden.py" in ran.err) == (2, True)
    project.lock.write_text("<<<<<<< ours")
    project.edit(HARMLESS)
    assert "code accept --all" in project.program(project.experiment, "plan").err


def test_a_golden_input_that_fails_shows_the_steps_own_traceback(project: Project) -> None:
    project.edit((HARMLESS[0], "each / 0"))
    ran = project.code("accept", "make")
    assert ran.code == 1
    assert "ZeroDivisionError" in ran.err
    assert "the golden inputs cannot be made" in ran.err


def test_a_step_that_has_gone_leaves_the_lock_with_all(project: Project) -> None:
    text = project.steps.read_text()
    project.steps.write_text(text.replace("def total", "def summed"))
    project.edit(("total(make", "summed(make"), project.golden)
    project.edit(("make, total", "make, summed"), project.golden)
    lines = {line["id"]: line["status"] for line in project.code("check", "--json").events}
    assert (lines["sample/total"], lines["sample/summed"]) == ("gone", "new")
    assert project.code("accept", "--all").code == 0
    assert set(json.loads(project.lock.read_text())["steps"]) == {"sample/make", "sample/summed", "sample/climb"}
