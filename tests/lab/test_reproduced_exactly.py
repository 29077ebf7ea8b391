"""What a second run must equal is what the step says: all bytes, the rows, or the figures within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.projects import PYPROJECT, Project

EXACT = """
import hashlib
import os
from dataclasses import dataclass
from marin_pipeline import Context, main, step

@dataclass(frozen=True)
class Rows:
    logical_digest: str
    count: int

@step(version=1, exact="tolerance")
def measured(ctx: Context) -> dict[str, float]:
    apart = float(os.environ.get("APART", "0"))
    (ctx.out / "state.bin").write_bytes(os.urandom(8) if apart else b"state")
    return {"loss": 2.5 * (1 + apart), "steps": 3.0}

@step(version=1, exact="logical")
def rows(ctx: Context) -> Rows:
    (ctx.out / "rows.bin").write_bytes(os.urandom(8))
    return Rows(hashlib.sha256(os.environ.get("ROWS", "").encode()).hexdigest(), 1)

if __name__ == "__main__":
    main([measured(), rows()])
"""


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project.at(tmp_path_factory.mktemp("exact"), {"program.py": EXACT, "pyproject.toml": PYPROJECT})
    made.run()
    return made


def test_figures_within_their_bounds_are_within_tolerance_and_it_is_told_what_differs(exact: Project) -> None:
    assert exact.reproduce("measured")[1]["verdict"] == "reproduced bit-identical"
    done, last = exact.reproduce("measured", APART="1e-7")
    assert (done.code, last["verdict"]) == (0, "reproduced within tolerance")
    assert [each["path"] for each in last["verdicts"][0]["differences"]] == ["state.bin", "value.json"]
    # What differs is kept, to be looked at.
    assert list(Path(last["prefix"]).rglob("state.bin"))
    assert "1 of them not to the bit" in " ".join(last["verdicts"][0]["notes"])


def test_figures_beyond_their_bounds_diverge(exact: Project) -> None:
    done, last = exact.reproduce("measured", APART="8e-4")
    assert (done.code, last["verdict"]) == (4, "diverged")
    assert "value.loss: 2.5 → 2.502" in " ".join(last["verdicts"][0]["notes"])


def test_equal_rows_in_other_bytes_are_within_tolerance_and_other_rows_are_not(exact: Project) -> None:
    done, last = exact.reproduce("rows")
    assert (done.code, last["verdict"]) == (0, "reproduced within tolerance")
    assert last["first_difference"]["path"] == "rows.bin"
    done, last = exact.reproduce("rows", ROWS="other rows")
    assert (done.code, last["verdict"]) == (4, "diverged")


def test_what_is_there_with_other_bytes_that_count_as_equal_is_cached_and_not_intact(exact: Project) -> None:
    to = str(exact.folder.parent / "cached")
    exact.reproduce("rows", "--to", to)
    assert exact.reproduce("rows", "--to", to)[1]["verdict"] == "cached"
