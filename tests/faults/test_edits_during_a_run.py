"""Code and files that are edited while a run is going on: what a step read is what its key says, or nothing is kept."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import LocalFile, run
from marin_pipeline.run.driver import RunFailed
from tests.conftest import environment
from tests.faults.disturbing_steps import maps_over_what_is_rewritten, reads_what_is_rewritten
from tests.run.sessions import Bench, failure, step_folder, wait_until

GATED = """
import os
import time
from pathlib import Path
from marin_pipeline import Context, ShardContext, main, step

FACTOR = 2

def pass_gate() -> None:
    gate = Path(os.environ["MARIN_TEST_GATE"])
    (gate / "reached").touch()
    while not (gate / "open").exists():
        time.sleep(0.01)

def one(shard: ShardContext, item: int) -> int:
    return item * FACTOR

@step
def mapped(ctx: Context) -> int:
    pass_gate()
    return sum(result.value for result in ctx.map(one, [1, 2, 3, 4]))

@step
def late(ctx: Context) -> int:
    pass_gate()
    from gated_helper import factor
    return factor()

@step
def early(ctx: Context) -> int:
    from gated_helper import factor
    pass_gate()
    return factor() + FACTOR

def build(which: str):
    return {"mapped": mapped, "late": late, "early": early}[which]()

if __name__ == "__main__":
    main(build)
"""
HELPER = "def factor():\n    return 2\n"
EDITED = "was edited while the run was going on"


@dataclass
class Project:
    """An experiment whose step waits at a gate while the test edits its files."""

    folder: Path
    backend: str
    drivers: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def file(self) -> Path:
        return self.folder / "gated.py"

    @property
    def helper(self) -> Path:
        return self.folder / "gated_helper.py"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self, which: str) -> None:
        """Start a run; return when its step waits at the gate."""
        extra = {"MARIN_TEST_GATE": str(self.folder / "gate")}
        driver = subprocess.Popen(
            [sys.executable, str(self.file), "--which", which, "--json", "--backend", self.backend],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(self.store), **extra},
        )
        self.drivers.append(driver)
        wait_until(lambda: (self.folder / "gate" / "reached").exists() or driver.poll() is not None)

    def finish(self) -> dict[str, Any]:
        """Open the gate; how the only step of the last run came out."""
        (self.folder / "gate" / "open").touch()
        out, err = self.drivers[-1].communicate(timeout=60)
        assert "Traceback" not in err, err
        (step,) = json.loads(out.splitlines()[-1])["steps"]
        return step

    @property
    def commits(self) -> list[Path]:
        return list(self.store.glob("steps/**/commits/*.json"))

    def value(self, step: dict[str, Any]) -> Any:
        return json.loads(Path(step["path"], "value.json").read_text())


@pytest.fixture(params=["inline", "local"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path, request.param)
    found.file.write_text(GATED)
    found.helper.write_text(HELPER)
    (tmp_path / "gate").mkdir()
    yield found
    for driver in found.drivers:
        if driver.poll() is None:
            driver.kill()
        driver.communicate()


def refused(project: Project, step: dict[str, Any]) -> None:
    assert step["status"] == "failed", step
    assert EDITED in step["message"]
    assert not project.commits
    assert not list(project.store.glob("shards/**/record.json"))


def test_a_constant_that_is_edited_before_ctx_map_is_never_mixed_and_the_rerun_is_right(project: Project) -> None:
    project.start("mapped")
    project.file.write_text(GATED.replace("FACTOR = 2", "FACTOR = 3"))
    step = project.finish()
    if project.backend == "local":  # the shards' processes load the file after the edit
        refused(project, step)
    else:
        assert project.value(step) == 20
    project.file.write_text(GATED)
    project.start("mapped")
    assert project.value(project.finish()) == 20


def test_a_constant_that_is_edited_and_put_back_changes_nothing(project: Project) -> None:
    project.start("mapped")
    project.file.write_text(GATED.replace("FACTOR = 2", "FACTOR = 3"))
    project.file.write_text(GATED)
    assert project.value(project.finish()) == 20


def test_a_touch_and_a_comment_harm_nobody(project: Project) -> None:
    project.start("late")
    os.utime(project.file)
    project.helper.write_text("# said anew\n" + HELPER)
    assert project.value(project.finish()) == 2


def test_a_module_that_is_edited_before_it_is_imported_keeps_nothing_and_the_rerun_is_right(project: Project) -> None:
    project.start("late")
    project.helper.write_text(HELPER.replace("2", "3"))
    refused(project, project.finish())
    project.helper.write_text(HELPER)
    project.start("late")
    step = project.finish()
    assert step["status"] == "done", step
    assert project.value(step) == 2


def test_an_edit_after_all_was_loaded_harms_nobody(project: Project) -> None:
    project.start("early")
    project.file.write_text(GATED.replace("FACTOR = 2", "FACTOR = 3"))
    project.helper.write_text(HELPER.replace("2", "3"))
    step = project.finish()
    assert step["status"] == "done", step
    assert project.value(step) == 4
    assert len(project.commits) == 1


@pytest.mark.parametrize("declare", [reads_what_is_rewritten, maps_over_what_is_rewritten])
def test_a_local_file_that_is_written_while_it_is_read_is_refused(bench: Bench, tmp_path: Path, declare: Any) -> None:
    file = tmp_path / "input.txt"
    file.write_text("before")
    target = declare(file=LocalFile(file))
    result = bench.run(target)
    assert result.exit_code == 1
    assert f"{file}: was written while it was being read; run the experiment again" in failure(result)
    assert not (step_folder(bench, target) / "commits").exists()
    assert not list(bench.prefix.glob("shards/**/record.json"))
    os.utime(file)
    assert bench.run(declare(file=LocalFile(file))).exit_code == 0


def test_a_session_that_edits_a_loaded_step_is_told_to_reload_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "session_steps.py"
    source = (
        "from marin_pipeline import Context, step\n\n\n@step\ndef one(ctx: Context, x: int) -> int:\n    return x + 1\n"
    )
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    steps = importlib.import_module("session_steps")
    options: dict[str, Any] = {"prefix": str(tmp_path / "store"), "backend": "inline", "quiet": True}
    assert run(steps.one(1), **options).value == 2
    file.write_text(source.replace("x + 1", "x + 100"))
    with pytest.raises(RunFailed, match="reload the module first"):
        run(steps.one(1), **options)
    importlib.reload(steps)
    assert run(steps.one(1), **options).value == 101
