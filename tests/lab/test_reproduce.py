"""A recorded step is run again from its record alone, and one of five words is said, never one too many."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marin_pipeline.lab.bundle import Bundle, BundledStep
from marin_pipeline.lab.reproduction import Recorded, batches
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.origins import Origin
from tests.conftest import ROOT, environment
from tests.lab.projects import HELPER, PROGRAM, PYPROJECT, TOOL, Project
from tests.stores import new_prefix


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that was run once."""
    made = Project.at(tmp_path)
    made.run("--backend", "inline")
    return made


@pytest.fixture
def noisy(tmp_path: Path) -> Project:
    """One whose last step writes other bytes each time."""
    made = Project.at(tmp_path)
    made.run("--noise", "4", "--backend", "inline")
    return made


def ran(lines: list[dict[str, Any]]) -> list[str]:
    """Names of the steps that began to run."""
    return [line["name"] for line in lines if line["event"] == "run"]


def objects_of(prefix: Path, name: str) -> list[Path]:
    """The files of an output called so, wherever they lie."""
    return [path for path in prefix.rglob(name) if "attempts" in path.parts or "shards" in path.parts]


def flip(path: Path) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_all_steps_are_run_again_and_give_the_same_bytes(project: Project) -> None:
    done, last = project.reproduce("longest", "--deep")
    assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.err
    assert ran(done.events) == ["read", "upper", "longest"]
    assert (last["steps"], last["cached"], last["pulled"], last["files"]) == (3, 0, 0, 9)
    assert last["text"].startswith("reproduced bit-identical: 3 steps, 9 files")
    assert project.left_over == []
    assert last["prefix"] is None


def test_without_deep_the_step_alone_runs_on_inputs_that_were_fetched(project: Project) -> None:
    done, last = project.reproduce("longest")
    assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.err
    assert ran(done.events) == ["longest"]
    assert (last["steps"], last["pulled"]) == (1, 1)


def test_a_bundle_is_enough_when_the_project_has_gone_and_another_stands_in_its_place(project: Project) -> None:
    bundle = project.bundle("longest")
    shutil.rmtree(project.folder)
    other = Project.at(project.folder.parent, {"helper.py": "def clean(text):\n    return 'other'\n"}, "elsewhere")
    done, last = project.reproduce(
        str(bundle), "--deep", cwd=other.folder, PYTHONPATH=f"{other.folder}:{ROOT}", MARIN_PREFIX="/nowhere"
    )
    assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.err
    assert last["steps"] == 3


def test_code_that_was_edited_since_is_not_what_runs(project: Project) -> None:
    (project.folder / "helper.py").write_text("def clean(text: str) -> str:\n    return text.upper()\n")
    (project.folder / "program.py").write_text("raise SystemExit('not this')\n")
    assert project.reproduce("longest", "--deep")[1]["verdict"] == "reproduced bit-identical"


def test_a_step_that_is_not_deterministic_diverges_at_the_file(noisy: Project) -> None:
    done, last = noisy.reproduce("longest", "--deep")
    assert (done.code, last["verdict"]) == (4, "diverged")
    assert last["first_difference"]["path"] == "b.txt"
    assert last["first_difference"]["place"].startswith("line 2, byte ")
    assert last["text"].startswith("diverged at longest: b.txt (")
    verdicts = {step["name"]: step["verdict"] for step in last["verdicts"]}
    same = "reproduced bit-identical"
    assert verdicts == {"read": same, "upper": same, "longest": "diverged"}
    # What differs is kept, to be looked at.
    assert Path(last["prefix"]).is_dir()
    assert objects_of(Path(last["prefix"]), "b.txt")


def test_the_first_step_that_differs_is_named_with_its_file(tmp_path: Path) -> None:
    program = PROGRAM.replace('write_text("\\n".join(words))', 'write_text("\\n".join([*words, os.urandom(4).hex()]))')
    project = Project.at(tmp_path)
    (project.folder / "program.py").write_text(program)
    project.run()
    _, last = project.reproduce("longest", "--deep")
    assert last["verdict"] == "diverged"
    assert (last["first_difference"]["step"], last["first_difference"]["path"]) == ("read", "words.txt")
    # Without its ancestors it is made from the same bytes.
    assert project.reproduce("longest")[1]["verdict"] == "reproduced bit-identical"


def test_a_step_that_fails_is_no_verdict(project: Project) -> None:
    done, last = project.reproduce("longest", "--deep", FAIL_NOW="1")
    assert (done.code, last["verdict"], last["ok"]) == (1, None, False)
    assert [step["name"] for step in last["failed"]] == ["longest"]
    failed = next(line for line in done.events if line["event"] == "fail")
    assert "it was told to fail" in failed["traceback"]


def test_what_is_there_already_is_never_called_reproduced(project: Project) -> None:
    to = str(project.folder.parent / "again")
    assert project.reproduce("longest", "--deep", "--to", to)[1]["verdict"] == "reproduced bit-identical"
    done, last = project.reproduce("longest", "--deep", "--to", to)
    assert (done.code, last["verdict"], last["steps"], last["cached"]) == (0, "intact", 0, 3)
    assert ran(done.events) == []
    done, last = project.reproduce("longest", "--to", str(project.prefix))
    assert (last["verdict"], last["steps"]) == ("intact", 0)


def test_what_is_there_already_and_is_damaged_is_not_intact(project: Project) -> None:
    to = project.folder.parent / "again"
    project.reproduce("longest", "--deep", "--to", str(to))
    (path,) = objects_of(to, "a.txt")
    flip(path)
    done, last = project.reproduce("longest", "--to", str(to))
    assert (done.code, last["verdict"]) == (4, None)
    assert last["unverified"]["where"].endswith("/a.txt")
    assert last["text"].startswith("could not be verified: ")


def test_ancestors_that_are_there_already_are_told_apart_from_steps_that_ran(project: Project) -> None:
    to = str(project.folder.parent / "again")
    project.reproduce("upper", "--deep", "--to", to)
    done, last = project.reproduce("longest", "--deep", "--to", to)
    assert ran(done.events) == ["longest"]
    assert (last["verdict"], last["steps"], last["cached"]) == ("reproduced bit-identical", 1, 2)
    assert {step["name"]: step["verdict"] for step in last["verdicts"]}["upper"] == "cached"


def test_a_flipped_byte_of_an_input_is_refused_before_anything_runs(project: Project) -> None:
    bundle = project.bundle("longest")
    for path in objects_of(project.prefix, "word.txt"):
        flip(path)
    done, last = project.reproduce(str(bundle))
    assert (done.code, last["verdict"], last["steps"]) == (4, "diverged", 0)
    first = last["first_difference"]
    # Files are fetched several at once: of damaged ones the first that is seen is named.
    assert first["path"] in ("words/0.txt", "words/1.txt")
    assert (first["change"], first["step"]) == ("damaged", "upper")
    assert {step["id"]: step["key"] for step in json.loads(bundle.read_text())["steps"]}[first["id"]] == first["key"]
    assert f"word.txt (the file {first['path']!r}): its bytes are not those" in first["message"]
    assert ran(done.events) == []
    # With all its ancestors it needs none of these bytes.
    assert project.reproduce(str(bundle), "--deep")[1]["verdict"] == "reproduced bit-identical"


def test_a_flipped_byte_of_a_local_file_that_was_kept_is_refused(project: Project) -> None:
    bundle = project.bundle("longest")
    (kept,) = [path for path in (project.prefix / "files").rglob("*") if path.is_file()]
    flip(kept)
    done, last = project.reproduce(str(bundle), "--deep")
    assert (done.code, last["verdict"]) == (4, "diverged")
    assert [last["first_difference"][each] for each in ("path", "step")] == ["in.txt", "read"]
    assert kept.name in last["first_difference"]["message"]
    assert ran(done.events) == []


def test_a_local_file_that_nobody_kept_is_said(project: Project) -> None:
    bundle = project.bundle("longest")
    shutil.rmtree(project.prefix / "files")
    done = project.tool("reproduce", str(bundle), "--from", str(project.prefix), "--deep")
    assert done.code == 1
    assert "'in.txt', which a step was given, is not kept there" in done.err


def test_a_snapshot_with_other_code_than_its_name_says_is_refused(project: Project) -> None:
    bundle = project.bundle("longest")
    (snapshot,) = (project.prefix / "code").iterdir()
    flip(snapshot)
    done, last = project.reproduce(str(bundle), "--deep")
    assert (done.code, last["verdict"], last["first_difference"]) == (4, None, None)
    assert snapshot.name in last["unverified"]["where"]
    assert "--from" in last["unverified"]["what"]
    assert ran(done.events) == []


def test_engine_and_steps_are_those_of_the_record(tmp_path: Path) -> None:
    program = PROGRAM.replace(
        'write_text("the same\\n")',
        'write_text("\\n".join([marin_pipeline.__file__, helper.__file__, os.getcwd(), str(sys.dont_write_bytecode)]))',
    ).replace("import os\n", "import os\nimport sys\nimport helper\nimport marin_pipeline\n")
    project = Project.at(tmp_path)
    (project.folder / "program.py").write_text(program)
    project.run()
    to = tmp_path / "again"
    project.reproduce("longest", "--to", str(to), "--deep")
    (path,) = objects_of(to, "a.txt")
    engine, helper, here, writes_none = path.read_text().splitlines()
    assert engine.startswith(str(tmp_path / "scratch" / "marin-reproduce-"))
    assert engine.endswith("/packages/marin_pipeline/__init__.py")
    assert helper.endswith("/project/helper.py")
    assert here == str(Path(helper).parent)
    assert writes_none == "True"


def test_steps_of_two_states_of_the_code_run_each_with_its_own(project: Project) -> None:
    text = (project.folder / "program.py").read_text()
    (project.folder / "program.py").write_text(
        text.replace('"the same\\n"', '"the same\\n" + EDITED').replace(
            "@step\ndef longest", 'EDITED = "since"\n\n\n@step\ndef longest'
        )
    )
    project.run()
    assert len(list((project.prefix / "code").iterdir())) == 2
    done, last = project.reproduce("longest", "--deep")
    assert (last["verdict"], last["steps"]) == ("reproduced bit-identical", 3), done.err
    assert ran(done.events) == ["read", "upper", "longest"]


def test_secrets_that_are_not_set_are_named_before_anything_runs(tmp_path: Path) -> None:
    program = """
from marin_pipeline import Context, Secret, main, step

@step
def secretive(ctx: Context, token: Secret) -> int:
    return len(token.value)

if __name__ == "__main__":
    main(secretive(Secret("A_TOKEN_OF_MINE")))
"""
    project = Project.at(tmp_path, {"program.py": program, "pyproject.toml": PYPROJECT})
    project.extra["A_TOKEN_OF_MINE"] = "xyzzy-xyzzy"
    project.run()
    del project.extra["A_TOKEN_OF_MINE"]
    done = project.tool("reproduce", "secretive", "--from", str(project.prefix), "--json")
    assert (done.code, done.out) == (2, "")
    assert "export A_TOKEN_OF_MINE=..." in done.err
    _, last = project.reproduce("secretive", A_TOKEN_OF_MINE="abcde-abcde")
    assert last["verdict"] == "reproduced bit-identical"


def test_what_was_made_elsewhere_is_fetched_and_said(tmp_path: Path) -> None:
    project = Project.at(tmp_path, {"texts/a.txt": "to be or not"})
    adopted = project.tool(
        "adopt", str(project.folder / "texts"), "--as", "texts", "--prefix", str(project.prefix), "--json"
    )
    digest = json.loads(adopted.out.splitlines()[-1])["digest"]
    (project.folder / "program.py").write_text(f"""
from typing import Any
from marin_pipeline import Artifact, Context, adopted, main, step

@step
def count(ctx: Context, texts: Artifact[Any]) -> int:
    return len((texts / "a.txt").read_text().split())

@step
def double(ctx: Context, number: Artifact[int]) -> int:
    return 2 * number.value

if __name__ == "__main__":
    main(double(count(adopted("texts", "{digest}"))))
""")
    project.run()
    done, last = project.reproduce("double", "--deep")
    assert (last["verdict"], last["steps"], last["pulled"], last["adopted"]) == (
        "reproduced bit-identical",
        2,
        1,
        ["texts"],
    ), done.err
    done = project.tool("reproduce", "texts", "--from", str(project.prefix))
    assert done.code == 2
    assert "no step could make it again" in done.err


def test_an_equal_result_that_was_adopted_is_run_again(project: Project) -> None:
    # A comment-free refactoring: `read` has a new key and the same bytes, so that `upper` is adopted and not run.
    (project.folder / "helper.py").write_text("def clean(text: str) -> str:\n    return str(text.lower())\n")
    first = project.run()
    assert {step["status"] for step in first.summary.values()} == {"done", "cached"}
    done, last = project.reproduce("longest", "--deep")
    assert (last["verdict"], last["steps"]) == ("reproduced bit-identical", 3), done.err


def test_an_input_that_was_there_with_other_bytes_is_told_and_what_reads_it_diverges(tmp_path: Path) -> None:
    project = Project.at(tmp_path)
    program = PROGRAM.replace('write_text("\\n".join(words))', 'write_text("\\n".join([*words, os.urandom(4).hex()]))')
    (project.folder / "program.py").write_text(program)
    project.run()
    to = str(tmp_path / "again")
    assert project.reproduce("read", "--to", to)[1]["verdict"] == "diverged"
    done, last = project.reproduce("upper", "--to", to)
    assert (done.code, last["verdict"]) == (4, "diverged")
    assert (last["first_difference"]["step"], last["first_difference"]["path"]) == ("read", "words.txt")
    assert {step["name"]: step["verdict"] for step in last["verdicts"]} == {"read": "diverged", "upper": "diverged"}
    assert any("read" in note and "other bytes than are recorded" in note for note in last["notes"])


def test_a_store_that_is_looked_in_on_a_miss_does_not_make_what_is_to_be_run(project: Project) -> None:
    done, last = project.reproduce("longest", "--deep", MARIN_SUBSTITUTES=str(project.prefix))
    assert (ran(done.events), last["steps"]) == (["read", "upper", "longest"], 3)


def test_unpinned_steps_run_and_are_named_beside_the_verdict(tmp_path: Path) -> None:
    program = """
import os
from marin_pipeline import Artifact, Context, main, step

@step(unpinned=lambda arguments: ["https://example.org/newest"])
def newest(ctx: Context) -> str:
    return os.environ.get("NEWEST", "1")

@step
def read(ctx: Context, text: Artifact[str]) -> str:
    return text.value

if __name__ == "__main__":
    main(read(newest()))
"""
    project = Project.at(tmp_path, {"program.py": program})
    project.run()
    done, last = project.reproduce("read", "--deep")
    assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.err
    assert any("newest is unpinned" in note and "https://example.org/newest" in note for note in last["notes"])
    done, last = project.reproduce("read", "--deep", NEWEST="2")
    assert (last["verdict"], last["first_difference"]["step"]) == ("diverged", "newest")
    assert last["first_difference"]["place"] == "value: '1' → '2'"


def test_a_project_without_a_pyproject_is_run_again(tmp_path: Path) -> None:
    files = {"program.py": PROGRAM.replace("version=2", ""), "helper.py": HELPER, "in.txt": "some words here"}
    project = Project.at(tmp_path, files)
    project.run()
    assert project.reproduce("longest", "--deep")[1]["verdict"] == "reproduced bit-identical"


def test_a_folder_for_temporary_files_inside_a_project_is_refused(project: Project) -> None:
    done = project.tool("reproduce", "longest", "--from", str(project.prefix), TMPDIR=str(project.folder))
    assert done.code == 1
    assert "set TMPDIR to another folder" in done.err


def test_steps_in_modules_and_in_the_folder_of_the_program_are_found(tmp_path: Path) -> None:
    steps = "from marin_pipeline import Context, step\n\n@step\ndef {name}(ctx: Context) -> str:\n    return '{name}'\n"
    program = """
from beside import beside
from counting.inner import inner
from marin_pipeline import Artifact, Context, main, step

@step
def both(ctx: Context, parts: list[Artifact[str]]) -> str:
    return "".join(part.value for part in parts)

if __name__ == "__main__":
    main(both([beside(), inner()]))
"""
    files = {
        "pyproject.toml": PYPROJECT,
        "experiments/program.py": program,
        "experiments/beside.py": steps.format(name="beside"),
        "src/counting/__init__.py": "",
        "src/counting/inner.py": steps.format(name="inner"),
    }
    project = Project.at(tmp_path, files)
    project.extra["PYTHONPATH"] = f"{project.folder / 'src'}:{ROOT}"
    project.run(file="experiments/program.py")
    bundle = project.bundle("both")
    shutil.rmtree(project.folder)
    project.extra["PYTHONPATH"] = str(ROOT)
    done, last = project.reproduce(str(bundle), "--deep")
    assert (last["verdict"], last["steps"]) == ("reproduced bit-identical", 3), done.err


def test_people_are_told_in_lines_and_the_verdict_is_the_last(noisy: Project) -> None:
    done = noisy.tool("reproduce", "longest", "--from", str(noisy.prefix), "--deep")
    lines = done.out.splitlines()
    assert done.code == 4
    assert [line.split()[0] for line in lines if line.split()[2:3] == ["read"]] == ["run", "done", "compared"]
    assert lines[-1].startswith("diverged at longest: b.txt (27 B, other bytes): line 2, byte ")


def test_a_bundle_needs_to_be_told_where_its_store_is(project: Project) -> None:
    done = project.tool("reproduce", str(project.bundle("longest")))
    assert done.code == 2
    assert "--from PREFIX: say where the store of" in done.err


def test_a_record_that_does_not_say_with_which_code_it_was_made_is_said(project: Project) -> None:
    bundle = Bundle.loads(project.bundle("longest").read_bytes(), "it")
    older = [replace(step, commit=replace(step.commit, origin="", target=None)) for step in bundle.steps]
    path = project.folder.parent / "older.json"
    path.write_bytes(replace(bundle, steps=tuple(older), origins={}, files={}).dumps())
    done = project.tool("reproduce", str(path), "--from", str(project.prefix))
    assert done.code == 1
    assert "does not say with which code it was made" in done.err


def test_a_bundle_that_was_edited_by_hand_is_refused(project: Project) -> None:
    path = project.bundle("longest")
    path.write_bytes(path.read_bytes().replace(b'"helper.py"', b'"helped.py"').replace(b"program.py", b"progrum.py"))
    done = project.tool("reproduce", str(path), "--from", str(project.prefix))
    assert done.code == 4
    assert "not a bundle" in done.err


@pytest.mark.parametrize(
    ("end", "number", "event"),
    [(os.killpg, signal.SIGINT, "run"), (os.kill, signal.SIGTERM, "run"), (os.kill, signal.SIGTERM, "note")],
)
def test_interrupted_it_stops_the_steps_and_leaves_nothing(
    tmp_path: Path, end: Callable[[int, int], None], number: signal.Signals, event: str
) -> None:
    program = PROGRAM.replace(
        'if os.environ.get("FAIL_NOW"):', 'while os.environ.get("WAIT_NOW"):\n        time.sleep(0.05)\n    if False:'
    ).replace("import os\n", "import os\nimport time\n")
    project = Project.at(tmp_path)
    (project.folder / "program.py").write_text(program)
    project.run()
    scratch = tmp_path / "scratch"
    command = [sys.executable, *TOOL, "reproduce", "longest", "--from", str(project.prefix), "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**environment(project.prefix), "WAIT_NOW": "1", "TMPDIR": str(scratch)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            break
    end(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert event == "note" or json.loads(out.splitlines()[-1])["verdict"] is None
    assert project.left_over == []


def test_interrupted_before_the_steps_begin_it_ends_with_130_and_says_no_more(project: Project) -> None:
    """What is imported to declare the steps again interrupts who has started it."""
    early = (
        'if os.environ.get("END_NOW"):\n    import signal\n    import time\n\n'
        "    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(20)\n"
    )
    (project.folder / "program.py").write_text(PROGRAM.replace("import os\n", f"import os\n{early}"))
    project.run("--force", "longest")
    done = project.tool("reproduce", "longest", "--from", project.store, END_NOW="1")
    assert (done.code, done.err) == (130, "")
    assert "error" not in done.out
    assert project.left_over == []


def test_steps_are_run_together_by_code_and_environment_and_never_before_what_they_need() -> None:
    """A chain in which two codes alternate, and a side branch that needs not wait."""
    graph = {"a": ("1", ""), "b": ("1", "a"), "c": ("2", "b"), "d": ("1", "c"), "e": ("2", ""), "f": ("1", "a")}
    steps = [recorded(name, code, needs) for name, (code, needs) in graph.items()]
    found = [[step.key for step in batch] for batch in batches(steps)]
    assert found == [["a", "b", "f"], ["c", "e"], ["d"]]


def recorded(name: str, code: str, needs: str) -> Recorded:
    origin = Origin(code, None, "3.11.7", {}, {})
    made = Recorded(BundledStep(name, name, "{}", cast(Commit, None)), origin, "same", name)
    made.__dict__["inputs"] = list(needs)
    return made


@pytest.mark.slow
def test_an_environment_of_the_recorded_versions_is_built_when_they_are_not_here(tmp_path: Path) -> None:
    """The record is made by a Python with one small package, in a version that is not the present one's."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", str(bare)], check=True)
    install = [str(bare / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "iniconfig==2.0.0"]
    subprocess.run(install, check=True)
    project = Project.at(tmp_path)
    program = PROGRAM.replace("import os\n", "import importlib.metadata\nimport os\n").replace(
        '"the same\\n"', 'importlib.metadata.version("iniconfig")'
    )
    (project.folder / "program.py").write_text(program)
    project.extra = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    project.run(python=str(bare / "bin" / "python"))
    done, last = project.reproduce("longest", "--deep")
    assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.err
    told = [line["text"] for line in done.events if line["event"] == "note"]
    assert any("iniconfig 2.0.0 → " in line for line in told)
    assert any(line.startswith("building an environment") for line in told)
    # With the packages that are here it comes out otherwise, and the packages are named beside the verdict.
    done, last = project.reproduce("longest", "--deep", "--environment", "present")
    assert (done.code, last["verdict"]) == (4, "diverged")
    assert any("iniconfig 2.0.0 → " in note for note in last["notes"])


@pytest.mark.parametrize("kind", ["gs", "s3"])
def test_from_and_to_object_storage(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    project = Project.at(tmp_path)
    project.store = new_prefix(request, kind)
    project.run()
    done, last = project.reproduce("longest", "--deep")
    assert (done.code, last["verdict"], last["steps"]) == (0, "reproduced bit-identical", 3), done.err
    to = new_prefix(request, kind)
    done, last = project.reproduce("longest", "--to", to)
    assert (last["verdict"], last["steps"], last["pulled"]) == ("reproduced bit-identical", 1, 1), done.err
    assert project.reproduce("longest", "--to", to)[1]["verdict"] == "intact"
