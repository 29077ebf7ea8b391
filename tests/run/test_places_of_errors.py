"""Where an experiment's declaration is wrong: the error names the line of the user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Program

STEPS = """
from marin_pipeline import Context, step
from marin_pipeline.data.mixture import Mixture, Phase, Source

def half(name: str) -> Mixture:
    return Mixture((Source(name),), (Phase(0, {name: 0.5}),))

def chain(arguments):
    half("web")

@step
def count(ctx: Context, text: str) -> int:
    return len(text)

@step(version=1, transfers=chain, unpinned=chain)
def fetch(ctx: Context) -> int:
    return 1
"""

EXPERIMENT = """
from marin_pipeline import main
from marin_pipeline.data.mixture import Mixture, Phase, Source
from own_steps import count, fetch, half
{module}

def build():
    {function}
    return count(text="a")

if __name__ == "__main__":
    main(build)
"""

MIXTURE = 'Mixture((Source("web"),), (Phase(0, {"web": 0.5}),))'


@pytest.mark.parametrize("options", [("plan",), ("plan", "--json"), ("run",), ("run", "--json")], ids=" ".join)
@pytest.mark.parametrize(
    ("module", "function", "said", "place"),
    [
        (MIXTURE, "", "sum to 1/2", f"own_experiment.py:5: {MIXTURE}"),
        ("", MIXTURE, "sum to 1/2", f"own_experiment.py:8: {MIXTURE}"),
        ("", 'half("web")', "sum to 1/2", "own_steps.py:6: return Mixture((Source(name),), (Phase(0, {name: 0.5}),))"),
        ("count(text=3)", "", "step count (own_steps.py:11): text: ", "own_experiment.py:5: count(text=3)"),
        ("", "count(text=3)", "step count (own_steps.py:11): text: ", "own_experiment.py:8: count(text=3)"),
        ("", "count(txt='')", "step count (own_steps.py:11): missing", "own_experiment.py:8: count(txt='')"),
        ("fetch()", "", "step fetch (own_steps.py:15): ", "own_experiment.py:5: fetch()"),
        ("", "fetch()", "step fetch (own_steps.py:15): ", "own_experiment.py:8: fetch()"),
        ("", "main.copy = Source('')", "empty name", "own_experiment.py:8: main.copy = Source('')"),
    ],
)
def test_a_wrong_declaration_is_told_with_its_line_in_the_users_file(
    program: Program, tmp_path: Path, module: str, function: str, said: str, place: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "own"\n')
    (tmp_path / "own_steps.py").write_text(STEPS)
    experiment = tmp_path / "own_experiment.py"
    experiment.write_text(EXPERIMENT.format(module=module, function=function or "pass"))
    ran = program(experiment, *options)
    assert (ran.code, ran.out) == (2, "")
    first, last = ran.err.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert last == f"  in {tmp_path}/{place}"
