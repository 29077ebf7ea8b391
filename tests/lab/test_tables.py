"""Tables and the curve say what the values say, at any width."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console, RenderableType

from marin_pipeline.data.schema import Count, Documents, Tokens
from marin_pipeline.evaluate.scores import Score, Scores
from marin_pipeline.lab import tables


def printed(what: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def documents(*counts: Count) -> Documents:
    kept = [count for count in counts if count.reason == "out"]
    return Documents(("part",), sum(c.documents for c in kept), sum(c.bytes for c in kept), "0" * 64, counts)


def scores(value: float) -> Scores:
    def score(source: str) -> Score:
        return Score(source, 3, 2000, 700, 1.0, value, 0.5)

    return Scores(score("all"), value, (score("a"), score("b")))


def test_the_funnel_names_what_went_in_and_out_and_the_largest_reasons_first() -> None:
    counts = [Count("in", "a", 100, 2_000_000), Count("out", "a", 90, 1_500_000)]
    counts += [Count(f"reason_{index}", "a", index, 10) for index in range(1, 8)]
    text = printed(tables.funnel({"filter": documents(*counts), "tokens": Tokens("l", 7, 90, 1_500_000, 300, 0)}), 160)
    assert "100 → 90" in text
    assert "2.0 MB → 1.5 MB" in text
    assert "reason_7 7, reason_6 6, reason_5 5, reason_4 4, reason_3 3, 2 other reasons 3" in text


def test_bits_per_byte_has_a_row_a_source_and_one_for_all() -> None:
    text = printed(tables.bits_per_byte({"model": scores(1.5), "5-gram": scores(1.75)}, {"zstd -19": 2.25}))
    rows = [line.split() for line in text.splitlines()]
    assert ["a", "3", "2.0", "1.500", "1.750"] in rows
    assert ["all", "3", "2.0", "1.500", "1.750", "2.250"] in rows


@pytest.mark.parametrize("losses", [[3.0], [2.0, 2.0, 2.0], [7.0 - index / 20 for index in range(100)]], ids=len)
def test_the_curve_is_as_high_as_asked_and_falls_with_the_loss(losses: list[float]) -> None:
    metrics = "".join(json.dumps({"loss": loss}) + "\n" for loss in losses)
    lines = str(tables.curve(metrics, width=40, height=6)).splitlines()
    assert len(lines) == 9
    columns = lines[6].partition("│")[2]
    assert len(columns) == min(40, len(losses))
    assert set(columns) == {"█"}
    assert lines[-1].split() == ["1", f"{len(losses):,}", "steps"]


def test_the_curve_of_no_steps_says_so() -> None:
    assert str(tables.curve("")) == "no steps were made"


def test_a_source_and_a_reason_may_hold_anything() -> None:
    told = "[bold]a[/bold]\x1b]0;b\x07"
    for text in (
        printed(tables.funnel({"filter": documents(Count(told, "a", 1, 10))}), 160),
        printed(
            tables.bits_per_byte(
                {"m": Scores(Score(told, 3, 2, 7, 1.0, 1.0, 0.5), 1.0, (Score(told, 3, 2, 7, 1.0, 1.0, 0.5),))}, {}
            ),
            160,
        ),
    ):
        assert "[bold]a[/bold]\\u001b]0;b\\u0007" in text
