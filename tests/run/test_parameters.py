"""The parameters of an experiment's function are options of its program, and none has the name of another option."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Program

EACH = """
import argparse
import sys
from marin_pipeline import main

flags = []
argparse.ArgumentParser.print_help = lambda parser: flags.extend(parser._option_string_actions)

def each():
    for flag in flags:
        if flag.startswith("--"):
            name = flag[2:].replace("-", "_")
            exec(f"def e(first: int, {name}: int = 1):\\n    return []", found := {})
            print("name", name, file=sys.stderr)
            yield found["e"]

def ended(target):
    try:
        main(target)
    except SystemExit as end:
        return end.code

if __name__ == "__main__":
    sys.argv = [sys.argv[0], "--help"]
    ended([])
    for target in each():
        print("code", ended(target), file=sys.stderr)
"""


def test_a_parameter_with_the_name_of_an_option_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "each.py"
    path.write_text(EACH)
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    told = re.findall(r"name (\w+)\n(.*)\ncode (\d+)\n", ran.stderr)
    assert len(told) * 3 == len(ran.stderr.splitlines())
    names = {name for name, *_ in told}
    assert {"help", "prefix", "until", "code", "json", "check", "lock", "max_parallel", "substitute"} <= names
    for name, line, code in told:
        assert code == "2"
        where = "is the name of an option of the command line; rename it"
        assert line == f"error: parameter {name!r} of e (<string>:1) {where}"


@pytest.mark.parametrize("arguments", [[], ["plan", "--json"], ["--help"]])
def test_the_refusal_says_where_the_function_is(program: Program, tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "named.py"
    path.write_text(
        "from marin_pipeline import main\n\ndef e(prefix: int = 1):\n    return []\n\n"
        'if __name__ == "__main__":\n    main(e)\n'
    )
    ran = program(path, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"error: parameter 'prefix' of e ({path}:3) is the name of an option of the command line; rename it\n"
    )


def test_names_that_only_resemble_options_are_free(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "near.py"
    path.write_text(
        "from marin_pipeline import main\n\n"
        "def e(pre: int = 1, words: int = 2, substitutes: int = 3, q: int = 4, fail_fast_: int = 5):\n"
        "    assert (pre, words, substitutes, q, fail_fast_) == (6, 7, 8, 9, 5)\n    return []\n\n"
        'if __name__ == "__main__":\n    main(e)\n'
    )
    ran = program(path, "--pre", "6", "--words", "7", "--substitutes", "8", "--q", "9")
    assert "nothing to run" in ran.err
