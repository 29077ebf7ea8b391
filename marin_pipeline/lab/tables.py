"""Results as tables and a curve on a terminal.

Each function takes values and returns something that rich can print; nothing here reads a store or decides what is
shown.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from marin_pipeline.core.visible import visible
from marin_pipeline.data.schema import Count, Documents, Tokens
from marin_pipeline.evaluate.scores import Scores
from marin_pipeline.run.words import bytes_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH = 110
"""Columns of what goes to a file or a pipe."""

REASONS = "left out, by reason"
TOLD = 5
"""Reasons that are named; more are counted."""

_LEVELS = " ▁▂▃▄▅▆▇█"


def console() -> Console:
    """Where results are printed: as wide as the terminal, and wide enough for every table elsewhere."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=WIDTH)


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        last_of_text = column == REASONS
        table.add_column(column, justify="left" if index == 0 or last_of_text else "right", no_wrap=not last_of_text)
    return table


def funnel(steps: Mapping[str, Documents | Tokens]) -> Table:
    """What went into each step and came out, and why the rest did not."""
    table = _table("Documents", "step", "documents", "text", "tokens", REASONS)
    for name, value in steps.items():
        if isinstance(value, Tokens):
            table.add_row(_plain(name), f"{value.documents:,}", bytes_text(value.bytes), f"{value.tokens:,}", "")
            continue
        entered = [count for count in value.counts if count.reason == "in"]
        documents = sum(count.documents for count in entered)
        size = sum(count.bytes for count in entered)
        table.add_row(
            _plain(name),
            f"{documents:,} → {value.documents:,}",
            f"{bytes_text(size)} → {bytes_text(value.bytes)}",
            "",
            _plain(_reasons(value.counts)),
        )
    return table


def _plain(text: str) -> Text:
    """A text of a record as it is: neither a terminal nor rich acts upon it."""
    from rich.text import Text

    return Text(visible(text))


def _reasons(counts: Iterable[Count]) -> str:
    """Documents left out by reason, the largest first."""
    by_reason: dict[str, int] = {}
    for count in counts:
        if count.reason not in ("in", "out"):
            by_reason[count.reason] = by_reason.get(count.reason, 0) + count.documents
    ordered = sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))
    told = len(ordered) if len(ordered) <= TOLD + 1 else TOLD
    shown = [f"{reason} {documents:,}" for reason, documents in ordered[:told]]
    rest = [documents for _, documents in ordered[told:]]
    return ", ".join([*shown, *([f"{len(rest)} other reasons {sum(rest):,}"] if rest else [])])


def bits_per_byte(columns: Mapping[str, Scores], overall: Mapping[str, float]) -> Table:
    """Held-out bits per byte by source, one column a model; `overall` adds columns that have no sources."""
    table = _table("Held-out bits per byte", "source", "documents", "kB", *columns, *overall)
    first = next(iter(columns.values()))
    by_source = {name: {score.source: score for score in scores.by_source} for name, scores in columns.items()}
    for score in first.by_source:
        cells = [f"{by_source[name][score.source].bits_per_byte:.3f}" for name in columns]
        table.add_row(
            _plain(score.source), f"{score.documents:,}", f"{score.bytes / 1e3:.1f}", *cells, *("" for _ in overall)
        )
    table.add_section()
    cells = [f"{scores.overall.bits_per_byte:.3f}" for scores in columns.values()]
    whole = first.overall
    table.add_row(
        "all",
        f"{whole.documents:,}",
        f"{whole.bytes / 1e3:.1f}",
        *cells,
        *(f"{value:.3f}" for value in overall.values()),
    )
    return table


def curve(metrics: str, width: int = 64, height: int = 8) -> Text:
    """The training loss over the steps, from the lines of `metrics.jsonl`; each column is the mean over its steps."""
    from rich.text import Text

    losses = [float(json.loads(line)["loss"]) for line in metrics.splitlines()]
    if not losses:
        return Text("no steps were made")
    columns = _means(losses, min(width, len(losses)))
    low, high = min(columns), max(columns)
    rows: list[str] = ["Training loss, nats a token"]
    for row in range(height - 1, -1, -1):
        label = f"{high:.2f}" if row == height - 1 else f"{low:.2f}" if row == 0 else ""
        rows.append(f"{label:>6} │" + "".join(_cell(value, low, high, row, height) for value in columns))
    rows.append(f"{'':>6} └" + "─" * len(columns))
    end = f"{len(losses):,}"
    rows.append(f"{'':>6}  1" + end.rjust(max(len(columns) - 1, len(end) + 1)) + " steps")
    text = Text("\n".join(rows))
    text.stylize("bold", 0, len(rows[0]))
    return text


def _means(values: Sequence[float], parts: int) -> list[float]:
    edges = [index * len(values) // parts for index in range(parts + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]


def _cell(value: float, low: float, high: float, row: int, height: int) -> str:
    filled = (value - low) / (high - low) * (height - 1) + 1 if high > low else 1.0
    return _LEVELS[max(0, min(8, round((filled - row) * 8)))]
