"""Two keys and two runs side by side: arguments, code, root causes, files, figures; exit codes as those of diff."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, Runtime, step
from marin_pipeline.core.errors import UsageError
from marin_pipeline.run.history import all_runs
from marin_pipeline.run.runs import diff, list_runs
from tests.conftest import Program, environment
from tests.faults.faulty_objects import FaultyObjects
from tests.run.sample_steps import add, fails, increment, number
from tests.run.sessions import Bench, step_folder

TOOL = (sys.executable, "-c", "from marin_pipeline.tool import main; main()")


@dataclass(frozen=True)
class Result:
    loss: float
    steps: int


@step
def write(
    ctx: Context, before: Artifact[int], text: str, loss: float, extra: str = "", workers: Runtime[int] = 1
) -> Result:
    (ctx.out / "text.txt").write_text(text)
    (ctx.out / "same.txt").write_text("same")
    if extra:
        (ctx.out / extra).write_text("x" * 2000)
    return Result(loss, 3)


def differences(bench: Bench, a: str, b: str) -> tuple[int, list[str]]:
    found: list[str] = []
    return diff(bench.objects, a, b, False, found.append), found


def difference(bench: Bench, a: str, b: str) -> Any:
    found: list[str] = []
    diff(bench.objects, a, b, True, found.append)
    (line,) = found
    return json.loads(line)


def test_two_keys_differ_in_arguments_inputs_files_and_figures(inline: Bench) -> None:
    def made(root: int, **arguments: Any) -> Artifact[Result]:
        return write(before=increment(before=increment(before=number(value=root))), **arguments)

    inline.run(made(1, text="a", loss=0.5, extra="old.txt", workers=1).named("made"))
    inline.run(made(2, text="b", loss=0.25, extra="new.txt", workers=4).named("made"))
    code, found = differences(inline, "made@1", "made@2")
    assert code == 1
    text = "\n".join(found)
    for line in (
        "argument  text  'a' → 'b'",
        "argument  extra  'old.txt' → 'new.txt'",
        "not in the key  workers  1 → 4",
        "  before → before → before: sample_steps.number",
        "    argument  value  1 → 2",
        "files  1 same, 2 different, 1 added, 1 removed",
        "  added     new.txt  2.0 kB",
        "  removed   old.txt  2.0 kB",
        "  different text.txt  1 B → 1 B",
        "value  loss  0.5 → 0.25  (-0.25)",
    ):
        assert line in text
    assert "machine" not in text
    tree = difference(inline, "made@1", "made@2")
    assert [cause["roles"] for cause in tree["causes"]] == [["before", "before", "before"]]
    assert tree["figures"] == {"loss": [0.5, 0.25]}
    assert {file["path"]: file["change"] for file in tree["files"]}["same.txt"] == "same"


def test_one_key_is_equal(inline: Bench) -> None:
    inline.run(number(value=1))
    key = number(value=1).key
    assert differences(inline, "number", key[:12])[0] == 0


def test_each_pair_of_ancestors_is_looked_at_once(inline: Bench) -> None:
    def ladder(root: int) -> Artifact[int]:
        last = number(value=root)
        for _ in range(12):
            last = add(numbers=[last, last])
        return last.named("ladder")

    inline.run(ladder(1))
    inline.run(ladder(2))
    seen: Counter[str] = Counter()
    objects = FaultyObjects(inline.objects, lambda operation, path: seen.update([operation]))
    assert diff(objects, "ladder@1", "ladder@2", False, lambda line: None) == 1
    assert seen["read"] < 150


def test_machines_are_compared_where_outputs_differ(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.run(number(value=1))
    monkeypatch.setenv("XLA_FLAGS", "--other")
    inline.run(number(value=2))
    assert "machine  flags.XLA_FLAGS  absent → '--other'" in differences(inline, "number@1", "number@2")[1]


def test_what_was_never_made_can_be_compared_too(inline: Bench) -> None:
    inline.run(fails(word="a"))
    inline.run(fails(word="b"))
    keys = [fails(word=word).key for word in "ab"]
    code, found = differences(inline, keys[0][:10], keys[1][:10])
    assert code == 1
    assert "argument  word  'a' → 'b'" in found
    assert found[0].endswith("has no output")


def test_two_runs_differ_by_the_names_of_their_steps(inline: Bench) -> None:
    def experiment(root: int, last: str) -> list[Artifact[Any]]:
        begin = number(value=root).named("begin")
        middle = [add(numbers=[begin] * (index + 1)).named(f"middle/{index}") for index in range(30)]
        return [*middle, number(value=9).named(last)]

    inline.run(experiment(1, "old"))
    inline.run(experiment(2, "new"))
    assert [run.name for run in all_runs(inline.objects)] == ["tests/bench@1", "tests/bench@2"]
    code, found = differences(inline, "tests/bench@1", "tests/bench@2")
    assert code == 1
    assert found[2:11] == [
        "added  new",
        "removed  old",
        "changed  begin",
        "  argument  value  1 → 2",
        "  files  1 different",
        "    different value.json  1 B → 1 B",
        "  value  value  1 → 2  (+1)",
        "+30 downstream",
        "  middle/0  value  value  1 → 2  (+1)",
    ]
    assert differences(inline, "tests/bench@2", "tests/bench@2")[0] == 0
    assert difference(inline, "tests/bench@1", "tests/bench@2")["downstream"][0] == "middle/0"


@step
def drawn(ctx: Context, seed: int) -> float:
    """Gives other bytes each time, as a step that is not deterministic does."""
    (ctx.out / "drawn.txt").write_text(f"{time.time_ns()}")
    (ctx.out / "same.txt").write_text("same")
    return time.time_ns() % 1_000_003 / 2


def test_two_runs_of_the_same_steps_differ_where_the_bytes_do(inline: Bench) -> None:
    inline.run(drawn(seed=1))
    inline.run(drawn(seed=1), force=["drawn"])
    code, found = differences(inline, "tests/bench@1", "tests/bench@2")
    assert code == 1
    assert found[2:4] == ["other bytes  drawn, of the same key", "  files  1 same, 2 different"]
    assert found[-1].startswith("  value  value  ")
    tree = difference(inline, "tests/bench@1", "tests/bench@2")
    assert (tree["equal"], tree["remade"]) == (False, ["drawn"])
    assert {file["path"]: file["change"] for file in tree["outputs"]["drawn"]["files"]} == {
        "drawn.txt": "different",
        "same.txt": "same",
        "value.json": "different",
    }
    first, _ = sorted(step_folder(inline, drawn(seed=1)).glob("attempts/*"))
    shutil.rmtree(first)
    code, found = differences(inline, "tests/bench@1", "tests/bench@2")
    assert (code, found[-1]) == (1, "  its files cannot be compared: the bytes of one of the two have gone")


def test_two_runs_of_the_same_steps_differ_where_one_has_no_output(inline: Bench) -> None:
    inline.run(increment(before=fails(word="a")))
    folder = step_folder(inline, fails(word="a"))
    assert folder.is_dir()
    inline.run([number(value=1), increment(before=fails(word="a"))])
    tree = difference(inline, "tests/bench@1", "tests/bench@2")
    assert (tree["added"], tree["outcomes"]) == (["number"], {})


def test_runs_are_listed_with_who_and_how(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_OWNER", "ada")
    inline.run([number(value=1), fails(word="a")])
    inline.run([number(value=1)])
    inline.run([number(value=1)])
    first, second = [json.loads(line) for line in list_runs(inline.objects, "tests", True)]
    assert (first["run"], first["state"], first["counts"]) == ("tests/bench@1", "failed", {"done": 1, "failed": 1})
    assert (second["run"], second["state"], second["counts"]) == ("tests/bench@2", "ok", {"cached": 1})
    assert second["owner"] == "ada"
    assert next(list_runs(inline.objects, "tests/bench.py", False)).startswith("tests/bench@1")
    begun = [file.stem for file in (inline.prefix / "experiments").rglob("*.begun")]
    assert begun == [first["stem"]], "a run without work has no record of its beginning"
    with pytest.raises(UsageError, match="'other' has no runs"):
        next(list_runs(inline.objects, "other", False))


def test_a_run_and_a_key_are_not_compared(inline: Bench) -> None:
    inline.run(number(value=1))
    with pytest.raises(UsageError, match="one is a run and the other a step"):
        differences(inline, "number", "tests/bench@1")
    with pytest.raises(UsageError, match="nor is it a run"):
        differences(inline, "number", "tests/bench@7")


def test_the_program_exits_as_diff_does(inline: Bench, program: Program, tmp_path: Path) -> None:
    inline.run(number(value=1))
    inline.run(number(value=2))

    def code(*arguments: str) -> int:
        done = subprocess.run(
            [*TOOL, "diff", *arguments], env=environment(inline.prefix), capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr
        return done.returncode

    assert code("number", "number@2") == 0
    assert code("number@1", "number@2", "--json") == 1
    assert code("number@1", "nothing") == 2
    (step_folder(inline, number(value=1)) / "spec.json").write_text("{")
    assert code("number@1", "number@2") == 2
