"""What `reproduce` tells: errors once and with their remedy, names as they were recorded, and nothing that was not
looked at.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marin_pipeline.lab import reproduce
from marin_pipeline.lab.bundle import Bundle
from marin_pipeline.lab.comparison import _differences
from marin_pipeline.lab.reproduce import Reporter
from marin_pipeline.store.manifest import Entry
from tests.conftest import environment
from tests.lab.projects import PROGRAM, TOOL, Project

pytestmark = pytest.mark.slow

TWO = """
import os
from marin_pipeline import Artifact, Context, main, step

@step
def noise(ctx: Context, seed: int) -> int:
    (ctx.out / "data.bin").write_bytes(os.urandom(8))
    (ctx.out / "a_summary.json").write_text('"' + os.urandom(8).hex() + '"')
    return seed

@step
def both(ctx: Context, a: Artifact[int], b: Artifact[int]) -> int:
    if os.environ.get("FAIL_NOW"):
        raise ValueError("it was told to fail")
    return a.value + b.value

@step
def last(ctx: Context, number: Artifact[int]) -> int:
    return number.value

if __name__ == "__main__":
    main(last(both(noise(1).named("noise/one"), noise(2))))
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A graph in which one function makes two inputs, one of them under a name of its own."""
    made = Project.at(tmp_path, {"program.py": TWO})
    made.run()
    return made


def edited(bundle: Path, **fields: Any) -> Path:
    """A bundle whose first commit says something else, sealed anew."""
    found = Bundle.loads(bundle.read_bytes(), "it")
    first = found.steps[0]
    steps = (replace(first, commit=replace(first.commit, **fields)), *found.steps[1:])
    path = bundle.with_name("edited.json")
    path.write_bytes(replace(found, steps=steps).dumps())
    return path


@pytest.mark.parametrize(
    "event",
    [
        {"event": "transfer", "bytes": 3, "parts": []},
        {"event": "of another version"},
        {"event": "run"},
        {"event": "done", "key": "0" * 64, "name": "a"},
        {"event": "done", "key": "0" * 64, "name": "a", "seconds": None},
        {"event": "fail", "key": "0" * 64, "name": "a", "text": None},
        {},
    ],
)
def test_no_event_stops_what_is_told_and_programs_are_given_all(event: dict[str, Any]) -> None:
    lines: list[str] = []
    Reporter(lines.append, None).event(event)
    given: list[Any] = []
    Reporter(lines.append, given.append).event(event)
    assert given == [event]


def test_a_step_that_downloads_is_run_again_for_people(tmp_path: Path) -> None:
    source = tmp_path / "words.txt"
    source.write_text("some words")
    program = f"""
from marin_pipeline import main
from steps.download import download

if __name__ == "__main__":
    main(download({str(source)!r}))
"""
    project = Project.at(tmp_path, {"program.py": program})
    project.run()
    done = project.tool("reproduce", "download", "--from", project.store)
    assert done.code == 0, done.out + done.err
    assert done.out.splitlines()[-1].startswith("reproduced bit-identical: 1 step")


def test_an_error_nobody_thought_of_leaves_no_store_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.at(tmp_path)
    project.run()
    places: list[str] = []

    def broken(run: Any, *_: Any) -> None:
        places.append(run.to.url)
        (Path(run.to.url) / "half").mkdir(parents=True)
        raise KeyError("key")

    monkeypatch.setattr(reproduce, "_run_again", broken)
    source = reproduce.ReadOnlyObjects(reproduce.open_objects(project.store))
    bundle = reproduce.read_bundle("longest", source, "reproduced")
    told: list[str] = []
    with pytest.raises(KeyError):
        reproduce.reproduce(source, bundle, reproduce.Asked(), Reporter(told.append, None))
    assert not Path(places[0]).exists()
    # What cannot be removed is named.
    monkeypatch.setattr(reproduce.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(reproduce, "_REMOVALS", 1)
    with pytest.raises(KeyError):
        reproduce.reproduce(source, bundle, reproduce.Asked(), Reporter(told.append, None))
    assert any(places[1] in line for line in told)
    monkeypatch.undo()
    shutil.rmtree(places[1])


def test_two_inputs_made_by_one_function_are_told_apart_by_the_names_they_had(project: Project) -> None:
    done, last = project.reproduce("both")
    assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.err
    bundle = Bundle.loads(project.bundle("both").read_bytes(), "it")
    named = {step.names for step in bundle.steps}
    assert ("noise/one",) in named
    assert ("both",) in named
    # A bundle of an earlier version has no names.
    path = project.folder.parent / "nameless.json"
    path.write_bytes(replace(bundle, steps=tuple(replace(step, names=()) for step in bundle.steps)).dumps())
    done, last = project.reproduce(str(path), "--deep")
    assert (done.code, last["verdict"]) == (4, "diverged"), done.err
    keys = [step.key[:8] for step in bundle.steps]
    assert {step["name"] for step in last["verdicts"]} == {f"noise-{keys[0]}", f"noise-{keys[1]}", "both"}
    # With them each is called what it was called where it was recorded.
    _, last = project.reproduce(str(project.bundle("both")), "--deep")
    assert "noise/one" in {step["name"] for step in last["verdicts"]}


def test_what_diverged_has_diverged_when_it_is_asked_again(project: Project) -> None:
    to = str(project.folder.parent / "again")
    for _ in range(2):
        done, last = project.reproduce("last", "--deep", "--to", to)
        assert (done.code, last["verdict"]) == (4, "diverged"), done.err
        verdicts = {step["name"]: step["verdict"] for step in last["verdicts"]}
        assert verdicts["noise/one"] == "diverged"
        # The data are named, not what sums them up.
        assert last["first_difference"]["path"] == "data.bin"
    assert project.reproduce("last", "--deep", "--to", to)[1]["steps"] == 0


def test_what_is_there_of_an_earlier_reproduction_does_not_stand_for_what_it_was_made_from(project: Project) -> None:
    to = str(project.folder.parent / "again")
    assert project.reproduce("last", "--to", to)[1]["verdict"] == "reproduced bit-identical"
    done, last = project.reproduce("last", "--deep", "--to", to)
    assert (done.code, last["verdict"], last["steps"]) == (4, "diverged", 2), done.err


def test_data_are_named_before_json_and_the_value_last() -> None:
    paths = ["b.bin", "a.json", "value.json", "z/rows.parquet"]

    def entries(sha256: str) -> dict[str, Entry]:
        return {path: cast(Entry, type("E", (), {"size": 1, "sha256": sha256})) for path in paths}

    found = [each.path for each in _differences(entries("1"), entries("2"))]
    assert found == ["b.bin", "z/rows.parquet", "a.json", "value.json"]


def test_an_output_that_has_ended_is_not_reproduced_by_an_old_bundle(project: Project) -> None:
    bundle = project.bundle("last")
    for name in ("both", "last"):
        assert project.tool("invalidate", name, "--reason", "wrong", "--prefix", project.store).code == 0
        done, last = project.reproduce(str(bundle))
        assert (done.code, last["verdict"], last["steps"]) == (4, None, 0)
        assert "has ended (wrong)" in last["unverified"]["what"]
        assert "ask for a new bundle" in last["unverified"]["what"]


def test_a_record_that_was_edited_and_sealed_anew_is_refused_as_pull_does(project: Project) -> None:
    path = edited(project.bundle("last"), bytes=12345)
    done, last = project.reproduce(str(path), "--deep")
    assert (done.code, last["verdict"], last["steps"]) == (4, None, 0)
    assert "the record of its output says something else there" in last["unverified"]["what"]
    done = project.tool("pull", str(path), "--from", project.store, "--prefix", str(path.parent / "mine"))
    assert (done.code, "something else there" in done.err) == (4, True)


def test_a_bundle_is_reproduced_from_a_store_that_has_the_same_outputs(tmp_path: Path) -> None:
    project = Project.at(tmp_path)
    project.run()
    bundle, text = project.bundle("longest"), project.bundle("longest").read_text()
    public, again = str(tmp_path / "public"), str(tmp_path / "again")
    done = project.tool("pull", str(bundle), "--from", project.store, "--prefix", public, "--deep")
    assert done.code == 0, done.err
    project.run("--prefix", again)
    shutil.rmtree(project.store)
    for project.store in (public, again):
        for options in ([], ["--deep"]):
            done, last = project.reproduce(str(bundle), *options)
            assert (done.code, last["verdict"]) == (0, "reproduced bit-identical"), done.out + done.err
    assert str(tmp_path) not in text


def test_nothing_has_diverged_where_nothing_was_compared(project: Project) -> None:
    bundle = project.bundle("last")
    other = project.folder.parent / "other"
    shutil.copytree(project.store, other)
    shutil.rmtree(other / "steps")
    (other / "steps").mkdir()
    done = project.tool("reproduce", str(bundle), "--from", str(other))
    assert done.code == 4
    assert "diverged at" not in done.out
    assert "could not be verified: " in done.out
    assert project.store not in done.out
    for snapshot in (project.prefix / "code").iterdir():
        snapshot.chmod(0o644)
        snapshot.unlink()
    done = project.tool("reproduce", str(bundle), "--from", project.store)
    assert done.code == 4
    assert done.out.splitlines()[-1].startswith(f"could not be verified: {project.store}/code/")
    assert "the snapshot of the code is missing" in done.out
    assert "--from" in done.out.splitlines()[-1]


def test_a_failure_is_told_once(project: Project) -> None:
    done = project.tool("reproduce", "last", "--from", project.store, "--deep", FAIL_NOW="1")
    assert done.code == 1
    *above, end = done.out.splitlines()
    assert "\n".join([*above, done.err]).count("ValueError: it was told to fail") == 1
    assert re.fullmatch(r"failed: both \(\w{8}\): ValueError: it was told to fail .*; 2 steps not done; log: .+", end)
    assert Path(end.rpartition("log: ")[2]).is_file()


LOST = """
from pathlib import Path
from marin_pipeline import Context, main, step

@step
def read(ctx: Context, below: bool) -> str:
    return (Path(__file__).parent / "data.txt" if below else Path("data.txt")).read_text()

if __name__ == "__main__":
    main([read(True).named("below"), read(False).named("relative")])
"""


def test_a_file_that_lay_beside_the_code_is_said_to_be_missing_with_how_to_give_it(tmp_path: Path) -> None:
    project = Project.at(tmp_path, {"program.py": LOST, "data.txt": "text"})
    project.run()
    for name in ("below", "relative"):
        done = project.tool("reproduce", name, "--from", project.store)
        assert done.code == 1
        end = done.out.splitlines()[-1]
        assert f"failed: {name} (" in end
        assert "the snapshot of a run has only code" in end
        assert 'LocalFile("data.txt")' in end


def test_what_was_pulled_with_all_its_ancestors_has_their_names_and_says_where_their_logs_are(project: Project) -> None:
    bundle, mine = project.bundle("last"), str(project.folder.parent / "mine")
    done = project.tool("pull", str(bundle), "--from", project.store, "--prefix", mine, "--deep")
    assert done.code == 0, done.err
    listed = [json.loads(line) for line in project.tool("ls", "--prefix", mine, "--json").out.splitlines()]
    assert {"pulled/last", "pulled/both", "pulled/noise/one"} <= {name for each in listed for name in each["names"]}
    for options in ([], ["--follow"]):
        done = project.tool("logs", "pulled/both", "--prefix", mine, *options)
        assert done.code == 0, done.err
        assert f"its log is at {project.store}/steps/" in done.out
        log = done.out.strip().rpartition(" ")[2]
        assert log.endswith("/log/log.txt")
        assert Path(log).parent.parent.is_dir()


def test_a_bundle_says_nothing_of_where_a_local_file_lay(tmp_path: Path) -> None:
    project = Project.at(tmp_path)
    project.run()
    text = project.bundle("longest").read_text()
    assert '"local":"in.txt"' in text
    assert '"stamp"' not in text
    assert str(project.folder) not in text


def test_code_that_git_does_not_track_is_named_by_show_and_share(project: Project) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=project.folder, check=True, capture_output=True)

    git("init", "-q")
    (project.folder / "readme.txt").write_text("nothing else is in the commit")
    git("add", "readme.txt")
    git("commit", "-qm", "first")
    project.run("--force", "last")
    shown = project.tool("show", "last", "--prefix", project.store).out
    assert "with changes" in shown
    assert "not in the commit: program.py" in shown
    shared = project.tool("share", "last", "--prefix", project.store)
    assert "warning: the code was not that of the git commit" in shared.err
    assert "program.py" in shared.err
    # What ran is in the snapshot all the same.
    assert project.reproduce("last")[1]["verdict"] == "reproduced bit-identical"


@pytest.mark.parametrize("deep", [(), ("--deep",)])
def test_what_another_reproduce_made_meanwhile_is_intact_and_not_reproduced(
    tmp_path: Path, deep: tuple[str, ...]
) -> None:
    """Two into one store: the second waits for the first one's step."""
    gate = tmp_path / "gate"
    waiting = (
        'while os.environ.get("WAIT_FOR") and not os.path.exists(os.environ["WAIT_FOR"]):\n        time.sleep(0.05)\n'
        '    if os.environ.get("FAIL_NOW"):'
    )
    project = Project.at(tmp_path)
    text = PROGRAM.replace('if os.environ.get("FAIL_NOW"):', waiting).replace("import os\n", "import os\nimport time\n")
    (project.folder / "program.py").write_text(text)
    project.run()
    command = [sys.executable, *TOOL, "reproduce", "longest", "--from", project.store, "--json", *deep]
    command += ["--to", str(tmp_path / "mine")]
    variables = {**environment(project.prefix), "WAIT_FOR": str(gate)}

    def started(event: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
        assert process.stdout is not None
        for line in process.stdout:
            tree = json.loads(line)
            if tree["event"] == event and tree.get("name") == "longest":
                break
        return process

    both = [started("run"), started("wait")]
    gate.touch()
    last = [json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [each["verdict"] for each in last] == ["reproduced bit-identical", "intact"]
    assert last[1]["steps"] == 0
    assert any(note.startswith("longest: made by another run in") for note in last[1]["notes"])
