"""The README's first experiment, as a newcomer runs and edits it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Program

HELLO = ROOT / "experiments" / "hello.py"


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A copy that a test may edit, in a project of its own."""
    copy = tmp_path / "project" / "hello.py"
    copy.parent.mkdir()
    copy.write_text(HELLO.read_text())
    return copy


def statuses(program: Program, file: Path, *arguments: str) -> dict[str, str]:
    ran = program(file, "--json", *arguments)
    assert ran.code == 0, ran.err
    return {name: step["status"] for name, step in ran.summary.items()}


def test_the_readme_shows_this_file_and_it_is_at_most_20_lines() -> None:
    code = HELLO.read_text()
    assert len(code.splitlines()) <= 20
    body = code.partition('"""\n\n')[2]
    assert body.strip() in (ROOT / "README.md").read_text()


def test_a_second_run_does_nothing(program: Program, hello: Path) -> None:
    assert statuses(program, hello) == {"count_words": "done", "multiply": "done"}
    assert statuses(program, hello) == {"count_words": "cached", "multiply": "cached"}


def test_an_edited_comment_runs_nothing(program: Program, hello: Path) -> None:
    statuses(program, hello)
    hello.write_text(
        hello.read_text().replace(
            "    return len(text.split())", "    # how many words\n\n    return len(text.split())  # all"
        )
    )
    assert statuses(program, hello) == {"count_words": "cached", "multiply": "cached"}


def test_edited_code_runs_its_step_and_what_depends_on_it(program: Program, hello: Path) -> None:
    statuses(program, hello)
    hello.write_text(hello.read_text().replace("return len(text.split())", "return len(text.split()) + 1"))
    plan = program(hello, "plan")
    assert re.search(r"run +\w{8}  count_words  code changed: hello", plan.out), plan.out
    assert re.search(r"run +\w{8}  multiply  downstream of count_words", plan.out), plan.out
    assert statuses(program, hello) == {"count_words": "done", "multiply": "done"}


def test_edited_code_of_a_later_step_leaves_the_earlier_one(program: Program, hello: Path) -> None:
    statuses(program, hello)
    hello.write_text(hello.read_text().replace("count.value * times", "count.value * times + 0"))
    assert statuses(program, hello) == {"count_words": "cached", "multiply": "done"}


def test_a_changed_argument_runs_what_depends_on_it_and_says_so(program: Program, hello: Path) -> None:
    statuses(program, hello)
    assert "times 2 → 3" in program(hello, "plan", "multiply.times=3").out
    assert statuses(program, hello, "multiply.times=3") == {"count_words": "cached", "multiply": "done"}


def test_a_wrong_argument_in_a_declaration_is_one_clear_error(program: Program, hello: Path) -> None:
    hello.write_text(hello.read_text().replace('text="a b c"', "text=3"))
    ran = program(hello)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert re.search(r"error: step count_words \(hello.py:6\): text: expected str, got 3", ran.err), ran.err
    assert "in " + str(hello) + ":18: main(multiply(" in ran.err


def test_its_keys_and_bytes_are_those_of_the_lock_file_beside_it(program: Program) -> None:
    assert program(HELLO).code == 0
    checked = program(HELLO, "plan", "--check")
    assert (checked.code, "lock" in checked.out) == (0, False), checked.out
    assert HELLO.with_suffix(".lock.json").is_file()
