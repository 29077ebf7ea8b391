"""What the command line promises: exit codes, JSON lines and nothing else, and main() that is guarded."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import Program

INTERRUPTED = """
import sys

class Interrupts:
    def find_spec(self, name, *others):
        if name == "{module}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from marin_pipeline.tool import main
"""
NOISY = """
import subprocess
import sys
from dataclasses import dataclass
from marin_pipeline import Artifact, Context, main, step

@dataclass(frozen=True)
class Pair:
    left: int
    right: str

@step
def noisy(ctx: Context, text: str) -> Pair:
    print(text)
    subprocess.run(["echo", text], check=True)
    return Pair(1, text)

@step
def reads(ctx: Context, pair: Artifact[Pair]) -> str:
    assert isinstance(pair.value, Pair)
    return pair.value.right

def build(text: str = "hello") -> Artifact[str]:
    print("building")
    return reads(pair=noisy(text=text))

if __name__ == "__main__":
    main(build)
"""

TWICE = """
from marin_pipeline import Context, main, step

@step
def again(ctx: Context) -> int:
    return 1

first = again()

@step
def again(ctx: Context) -> int:
    return 2

if __name__ == "__main__":
    main([first, again()])
"""


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    file = tmp_path / "work" / "noisy.py"
    file.parent.mkdir()
    file.write_text(NOISY)
    return file


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_json_has_only_json_lines_whoever_prints(program: Program, noisy: Path, backend: str) -> None:
    for arguments in (["plan", "--json"], ["explain", "noisy", "--json"], ["--json"]):
        ran = program(noisy, *arguments, "--backend", backend)
        assert ran.code == 0, ran.err
        assert ran.events
        assert "building" in ran.err
    assert {step["status"] for step in ran.summary.values()} == {"done"}
    assert all(Path(step["path"]).is_dir() for step in ran.summary.values())


def test_exit_codes(program: Program, noisy: Path) -> None:
    assert program(noisy, "plan", "--check").code == 3
    assert program(noisy).code == 0
    assert program(noisy, "plan", "--check").code == 0
    assert program(noisy, "--only", "nothing").code == 2
    assert program(noisy, "--text").code == 2
    assert program(noisy, "--max-parallel", "0").code == 2
    assert program(noisy, prefix=noisy).code == 1


def test_an_option_of_another_command_is_refused_and_nothing_runs(
    program: Program, noisy: Path, tmp_path: Path
) -> None:
    for command, options in {
        "run": ("--check", "--format svg"),
        "plan": ("--format svg", "--lock"),
        "explain noisy": ("--check", "--format svg", "--lock", "-q", "-v", "--fail-fast"),
        "graph": ("--check", "--json", "--lock", "-q", "--max-parallel 2", "--reason x"),
    }.items():
        for option in options:
            ran = program(noisy, *command.split(), *option.split())
            assert ran.code == 2, (command, option)
            assert " goes with `" in ran.err
    assert program(noisy, "--check").code == 2
    assert not (tmp_path / "store").exists()
    assert "flowchart TD" in program(noisy, "graph").out


def test_a_prefix_that_is_a_file_is_told_in_one_line(program: Program, noisy: Path) -> None:
    ran = program(noisy, prefix=noisy)
    assert ran.err.splitlines()[-1].startswith(f"error: {noisy}")
    assert "choose another prefix with --prefix" in ran.err
    assert "Traceback" not in ran.err


def test_a_value_of_a_class_of_the_file_is_read_by_the_store_commands(program: Program, noisy: Path) -> None:
    assert program(noisy).code == 0
    reader = noisy.parent.parent / "reader.py"
    reader.write_text("from marin_pipeline import load\nprint(load('noisy').value.right)\n")
    assert program(reader).out == "hello\n"


def test_a_reader_that_hangs_up_is_no_traceback(noisy: Path, program: Program) -> None:
    shell = noisy.parent / "pipe.sh"
    shell.write_text(f"{sys.executable} {noisy} -v 2>{noisy.parent}/errors | head -n 1 >/dev/null\n")
    import subprocess

    subprocess.run(["sh", str(shell)], check=True, cwd=noisy.parent, timeout=60)
    assert "Traceback" not in (noisy.parent / "errors").read_text()


def test_main_without_a_guard_is_refused_with_the_remedy(program: Program, noisy: Path) -> None:
    noisy.write_text(NOISY.replace('if __name__ == "__main__":\n    main(build)', "main(build)"))
    ran = program(noisy)
    assert ran.code == 2
    assert 'put it under `if __name__ == "__main__":`' in ran.err
    other = noisy.parent / "other.py"
    other.write_text("import noisy\n")
    ran = program(other)
    assert ran.code == 2
    assert f"{noisy}:" in ran.err
    assert "Traceback" not in ran.err


def test_a_run_without_a_guard_does_not_start_itself_again(program: Program, noisy: Path) -> None:
    bare = NOISY.partition("def build")[0].replace(
        "import Artifact, Context, main, step", "import Artifact, Context, run, step"
    )
    noisy.write_text(bare + 'print(run(noisy(text="x")).value)\n')
    ran = program(noisy)
    assert ran.code == 1
    assert "run(...) was reached in a worker process" in ran.err
    noisy.write_text(bare + 'if __name__ == "__main__":\n    print(run(noisy(text="x")).value.right)\n')
    assert program(noisy).out == "x\n"


def test_a_program_with_the_name_of_a_library_is_loaded_from_its_own_file(program: Program, noisy: Path) -> None:
    renamed = noisy.parent / "fractions.py"
    renamed.write_text("import sys\nsys.path.pop(0)\nimport fractions\n" + NOISY)
    ran = program(renamed, "--json")
    assert ran.code == 0, ran.err


def test_a_worker_that_cannot_start_is_told_and_not_tried_for_ever(program: Program, noisy: Path) -> None:
    broken = noisy.parent / "broken"
    broken.mkdir()
    (broken / "socket.py").write_text("raise RuntimeError('no sockets here')\n")
    noisy.write_text(NOISY.replace("    main(build)", f"    sys.path.insert(0, {str(broken)!r})\n    main(build)"))
    noisy.write_text(noisy.read_text().replace("import subprocess\n", "import socket\nimport subprocess\n", 1))
    ran = program(noisy)
    assert ran.code == 1
    assert "a worker process could not be started" in ran.err
    assert "no sockets here" in ran.err


def test_a_command_may_stand_after_overrides(program: Program, noisy: Path) -> None:
    for words in (["noisy.text=x", "plan"], ["plan", "noisy.text=x"], ["noisy.text=x", "--json", "plan"]):
        ran = program(noisy, *words)
        assert ran.code == 0, ran.err
    assert {line["status"] for line in ran.events} == {"run"}
    ran = program(noisy, "noisy.text=x", "explain", "noisy")
    assert "text = 'x'" in ran.out


def test_two_steps_of_one_name_in_a_file_are_refused_with_both_lines(program: Program, noisy: Path) -> None:
    noisy.write_text(TWICE)
    first, second = (number for number, line in enumerate(TWICE.splitlines(), 1) if line == "@step")
    for arguments in ([], ["plan"], ["--backend", "inline"]):
        ran = program(noisy, *arguments)
        assert ran.code == 2
        assert f"noisy.py:{first}) was defined again as step again (noisy.py:{second})" in ran.err
        assert "Traceback" not in ran.err


FAILING = """
from marin_pipeline import Artifact, Context, main, step

@step
def breaks(ctx: Context, word: str) -> int:
    print("before it broke")
    raise ValueError(f"the word was {word}")

@step
def needs(ctx: Context, broken: Artifact[int]) -> int:
    return broken.value

@step
def stands(ctx: Context) -> int:
    return 1

if __name__ == "__main__":
    main([needs(broken=breaks(word="grue")), stands()])
"""


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_failure_shows_its_own_traceback_first_then_what_is_blocked_by_it(
    program: Program, tmp_path: Path, backend: str
) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    ran = program(file, "--backend", backend)
    assert ran.code == 1
    lines = [line for line in ran.err.splitlines() if line != "before it broke"]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].strip().startswith(f'File "{file}"'), "no frame of the engine comes before the step's own"
    end = next(index for index, line in enumerate(lines) if line.startswith("fail "))
    assert lines[end - 1] == "ValueError: the word was grue"
    log = Path(lines[end + 1].partition("log: ")[2])
    assert log.read_text().splitlines() == ["before it broke", *lines[:end]]
    assert re.search(r"blocked  \w{8}  needs   blocked by breaks", ran.out)
    assert re.search(r"done     \w{8}  stands", ran.out)
    assert "before it broke" not in ran.out


def test_a_program_whose_name_is_not_utf8_is_told_in_one_line(program: Program, noisy: Path) -> None:
    file = noisy.with_name(os.fsdecode(b"bad\xff.py"))
    shutil.copy(noisy, file)
    ran = program(file, "plan")
    assert ran.code == 2
    assert "its name is not UTF-8, and keys and records could not hold it; rename it" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("module", ["marin_pipeline.cli", "marin_pipeline.store.objects"])
def test_the_tool_that_is_interrupted_while_it_is_loaded_ends_quietly(
    program: Program, tmp_path: Path, module: str
) -> None:
    file = tmp_path / "interrupted.py"
    file.write_text(INTERRUPTED.format(module=module))
    ran = program(file)
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_an_experiment_that_is_interrupted_while_it_declares_ends_quietly(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "interrupted.py"
    file.write_text("from marin_pipeline import main\nraise KeyboardInterrupt\n")
    ran = program(file)
    assert (ran.code, ran.out, ran.err) == (130, "", "")
