"""A program works where its user stands: whatever its working directory holds and wherever its output goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Program, environment

EXPERIMENT = """
from marin_pipeline import Context, main, step

@step
def greets(ctx: Context, name: str) -> str:
    print(name)
    return f"Grüße → {name}"

def build(name: str = "Żółw → 亀", list_of_names: str = ""):
    if list_of_names:
        name = open(list_of_names).read()
    return greets(name=name).named("greets")

if __name__ == "__main__":
    main(build)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "work" / "greeting.py"
    found.parent.mkdir()
    found.write_text(EXPERIMENT, encoding="utf-8")
    return found


def shell(file: Path, arguments: str, full: bool = False, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the file from a shell, which can send its output anywhere. With `full` no file can be written."""
    limit = "ulimit -f 0; " if full else ""
    return subprocess.run(
        ["sh", "-c", f'{limit}"$0" "$1" {arguments}', sys.executable, str(file)],
        capture_output=True,
        text=True,
        env={**environment(file.parent.parent / "store"), **extra},
        timeout=60,
        check=False,
    )


def test_a_file_of_the_working_directory_stands_in_for_no_library(
    program: Program, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "json.py").write_text("raise RuntimeError('the wrong one')\n")
    monkeypatch.chdir(here)
    ran = program(file)
    assert ran.code == 0, ran.err


def test_an_output_that_lacks_characters_fails_no_run(program: Program, file: Path) -> None:
    extra = {"PYTHONIOENCODING": "ascii"}
    for arguments in ([], ["--name", "Łódź"], ["plan", "--name", "é"], ["explain", "greets", "--name", "é"]):
        ran = program(file, *arguments, extra=extra)
        assert ran.code == 0, ran.err
        assert not ran.err
    assert "name '" in ran.out
    assert program(file, "-v", "--backend", "inline", "--name", "ö", extra=extra).code == 0


@pytest.mark.parametrize("arguments", [">&-", ">&- 2>&-", "--json >&-", "plan >&-", "--backend inline >&- 2>&- <&-"])
def test_a_closed_output_fails_no_run(file: Path, arguments: str) -> None:
    ran = shell(file, arguments)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    commits = list((file.parent.parent / "store").glob("steps/**/commits/1.json"))
    assert len(commits) == (0 if "plan" in arguments else 1)


@pytest.mark.parametrize("command", ["plan --json", "plan", "graph", "explain greets"])
def test_an_output_that_cannot_be_written_is_told_in_one_line(file: Path, command: str) -> None:
    ran = shell(file, f"{command} > {file.with_name('output')}", full=True)
    assert ran.returncode == 1
    assert ran.stderr == "error: the output cannot be written: File too large\n"


def test_a_file_that_a_program_does_not_find_is_shown_as_python_shows_it(program: Program, file: Path) -> None:
    ran = program(file, "plan", "--list-of-names", "missing.txt")
    assert ran.code == 1
    assert ran.err.startswith("Traceback")
    assert ran.err.endswith("FileNotFoundError: [Errno 2] No such file or directory: 'missing.txt'\n")
    assert "open(list_of_names)" in ran.err


def test_a_bundle_that_cannot_be_written_is_told_in_one_line(file: Path) -> None:
    assert shell(file, "").returncode == 0
    tool = file.with_name("tool.py")
    tool.write_text("from marin_pipeline.tool import main\nmain()\n")
    ran = shell(tool, f"share greets > {file.with_name('output')}", full=True)
    assert (ran.returncode, ran.stderr) == (1, "error: the output cannot be written: File too large\n")
    ran = shell(tool, "share greets | true")
    assert not ran.stderr


@pytest.mark.parametrize("prefix", ["~nosuchuser/x", "file:/x", "s3://x"])
def test_a_prefix_that_can_be_no_store_is_wrong_use(program: Program, file: Path, prefix: str) -> None:
    ran = program(file, "plan", "--prefix", prefix)
    assert ran.code == 2
    assert prefix in ran.err
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
