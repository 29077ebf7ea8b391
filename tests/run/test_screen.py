"""What a person sees of a run says what there is to know of each output, in verbs that can be searched for."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marin_pipeline import Artifact, Resources
from marin_pipeline.core.graph import Graph
from marin_pipeline.run.explanation import Explanation
from marin_pipeline.run.outcome import Notice
from marin_pipeline.run.screen import LineScreen, TerminalScreen, output_lines, summary_tree
from tests.conftest import Program
from tests.faults.failing_steps import tries
from tests.run.sample_steps import add, number, times, words
from tests.run.sessions import Bench

FIRST: Artifact[Any] = add(numbers=[number(value=2)]).named("first")
SECOND: Artifact[Any] = add(numbers=[times(count=words(text="a b"))]).named("second")
"""The same step on an equal input that another recipe makes."""


def lines(bench: Bench, target: Artifact[Any] | list[Artifact[Any]], verbosity: int = 0, **options: Any) -> list[str]:
    """What a run prints where no terminal is."""
    stream = io.StringIO()
    session = bench.session(target, **options)
    looks = session.looks()
    session.show(LineScreen(verbosity, stream), session.plan(looks), looks)
    return stream.getvalue().splitlines()


class Growing(dict[str, int]):
    """Gets a key while it is looked through, as when the run goes on while the screen is drawn."""

    def items(self) -> Any:
        for each in super().items():
            self["fail"] = 1
            yield each


def test_the_table_is_drawn_while_notices_come() -> None:
    screen = TerminalScreen(Console(file=io.StringIO()), 0)
    screen.__dict__["_counts"] = Growing(done=1)
    table: Any = getattr(screen, "_table")  # noqa: B009
    assert table().row_count == 1


def test_what_is_adopted_has_a_verb_of_its_own_and_says_from_where(inline: Bench) -> None:
    inline.run(FIRST)
    told = lines(inline, SECOND)
    source = FIRST.key[:8]
    (event,) = [line for line in told if line.startswith("adopt ")]
    assert event.endswith(f"  second  from tests/run/sample_steps.add {source}: equal inputs and code")
    (last,) = [line for line in told if line.startswith("cached ") and "second" in line]
    assert last.endswith(f"  adopted from {source}")
    result = inline.run(SECOND)
    (entry,) = [step for step in summary_tree(result)["steps"] if step["name"] == "second"]
    assert entry["status"] == "cached"
    assert entry["adopted_from"] == {"id": "tests/run/sample_steps.add", "key": FIRST.key, "number": 1}
    session = inline.session(SECOND)
    explained = Explanation(session.plan(), "second", session.objects, session.earlier()).lines()
    assert f"  adopted from tests/run/sample_steps.add {source}: equal inputs and code" in explained


DRIFTING = """
from marin_pipeline import Context, main, step

@step(version=1)
def make(ctx: Context) -> int:
    return 2

if __name__ == "__main__":
    main(make())
"""


def test_a_run_with_a_drifted_output_says_so_with_the_remedy(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "drifting.py"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "sample"\n')
    file.write_text(DRIFTING)
    assert program(file).code == 0
    file.write_text(DRIFTING.replace("return 2", "return 1 + 1"))
    ran = program(file)
    assert ran.code == 0
    remedy = "say --code accept (the change does not matter) or --code rerun"
    assert ran.out.splitlines()[-1].partition("; ")[2] == f"1 drifted, made by other code: {remedy}"
    assert "drift: " not in ran.out, "no line says its verb twice"
    assert program(file, "--json").summary["make"]["drifted"]


def test_a_damaged_value_of_a_target_is_told_in_its_place(
    inline: Bench, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = number(value=7)
    result = inline.run(target)
    assert any(line.strip() == "= 7" for line in output_lines(result))
    (file,) = inline.prefix.rglob("value.json")
    file.chmod(0o644)
    file.write_text("8")
    told = [line for line in lines(inline, target) if line.startswith("damaged")]
    assert len(told) == 1
    assert "value.json: its bytes are not those that were committed" in told[0]
    assert "run" in told[0]
    capsys.readouterr()
    assert lines(inline, target, verbosity=-1) == []
    assert capsys.readouterr().err.startswith(f"damaged  {target.key[:8]}  number  ")


def test_a_retry_counts_and_says_the_same_failure_once(inline: Bench) -> None:
    target = tries(seed=1, ways=["user", "user"]).using(Resources(user_retries=2))
    told = [line[9:].partition("  tries  ")[2] for line in lines(inline, target) if line.startswith("retry")]
    assert told == ["attempt 2 of 3 (user: ValueError: the step's own)", "attempt 3 of 3 (user again)"]


def test_a_quiet_plan_prints_nothing_but_what_a_check_finds(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "drifting.py"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "sample"\n')
    file.write_text(DRIFTING)
    ran = program(file, "plan", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = program(file, "plan", "-q", "--check")
    assert ran.code == 3
    (line,) = ran.out.splitlines()
    assert line.startswith("run ")
    assert program(file).code == 0
    ran = program(file, "plan", "-q", "--check")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_line_is_told_of_what_a_step_is_at_and_one_each_tenth() -> None:
    stream = io.StringIO()
    screen = LineScreen(0, stream)
    (node,) = Graph([number(value=2)]).nodes.values()

    def told(done: int, total: int, unit: str, doing: str = "", **figures: float) -> list[str]:
        data = {"done": done, "total": total, "unit": unit, "figures": figures, **({"doing": doing} if doing else {})}
        screen.notice(Notice("progress", node, data=data))
        found = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return [line.removeprefix(f"progress {node.key[:8]}  number  ") for line in found]

    waiting = "the server says 500; trying again in 1.0 s"
    assert told(0, 0, "", waiting) == [waiting]
    assert told(0, 0, "", waiting) == []
    assert told(5, 10, "items") == ["5/10 items"]
    committing = "committing 12,000 files"
    assert told(10_000, 12_000_000, "bytes", committing, files=10) == [f"{committing}  10.0 kB of 12.0 MB  files 10"]
    assert told(20_000, 12_000_000, "bytes", committing, files=20) == []
    assert told(6_000_000, 12_000_000, "bytes", committing, files=6000) == [
        f"{committing}  6.0 MB of 12.0 MB  files 6,000"
    ]
