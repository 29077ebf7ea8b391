"""Results side by side: `marin-pipeline ls --table`. One table a step, one row a key: the arguments in which the rows
differ, and the figures in the returned values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import UsageError
from marin_pipeline.run.explain import artifact_of, shown
from marin_pipeline.run.figures import figure_text, figures, leaves
from marin_pipeline.store.commit import Commit, look_many
from marin_pipeline.store.names import current_names, find_keys, resolve
from marin_pipeline.store.objects import ObjectStore, command, together
from marin_pipeline.store.output import CommittedOutput

FIGURES = 12
"""Figures that are shown when nobody says which; more are counted."""


LONGEST = 60
"""Characters of a text in a cell, at most."""


@dataclass(frozen=True)
class Row:
    """One key."""

    name: str
    id: str
    key: str
    arguments: Mapping[str, Tree]
    """Plain values by path, those that are not in the key too."""
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Table:
    """Rows of one step, and what to show of them."""

    id: str
    """Of the step."""
    rows: Sequence[Row]
    arguments: Sequence[str]
    """Paths of the arguments that are shown: those in which the rows differ, unless others were chosen."""
    figures: Sequence[str]
    """Paths of the figures that are shown."""
    left_out: int
    """Figures that are not shown."""
    names: Mapping[str, str]
    """Of artifacts, by key."""
    chosen: bool = False
    """Whether a person said what to show."""

    @classmethod
    def of(cls, id: str, rows: Sequence[Row], columns: Sequence[str], names: Mapping[str, str]) -> Table:
        """The table of one step.

        Args:
            columns: arguments and figures to show, in their order; by default all arguments that differ and the first
                figures.
        """
        # Those at the top of the value first: they sum up what is below them.
        known = sorted(dict.fromkeys(path for row in rows for path in row.figures), key=_depth)
        if not columns:
            return cls(id, rows, _differing(rows), known[:FIGURES], len(known) - len(known[:FIGURES]), names)
        arguments = {path for row in rows for path in row.arguments}
        shown_figures = [column for column in columns if column not in arguments and column in known]
        return cls(id, rows, [column for column in columns if column in arguments], shown_figures, 0, names, True)

    def trees(self) -> Iterator[dict[str, Tree]]:
        """One JSON object a row."""
        for row in self.rows:
            paths = [path for path in (row.figures if self.left_out else self.figures) if path in row.figures]
            arguments = self.arguments if self.chosen else row.arguments
            yield {
                "name": row.name,
                "id": row.id,
                "key": row.key,
                "arguments": {path: row.arguments.get(path) for path in arguments},
                "figures": {path: _json(row.figures[path]) for path in paths},
            }

    def lines(self) -> Iterator[str]:
        """The table for people."""
        header = ["name", *self.arguments, *self.figures]
        cells = [
            [
                row.name,
                *(_cell(row.arguments[path], self.names) if path in row.arguments else "" for path in self.arguments),
                *(figure_text(row.figures.get(path)) for path in self.figures),
            ]
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]
        for line in [header, *cells]:
            first, *others = (
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            yield "  ".join([first, *others]).rstrip()
        if self.left_out:
            yield f"{self.left_out:,} more figures; choose with --columns, or --json has all"


def _cell(value: Tree, names: Mapping[str, str]) -> str:
    """A value for people; text as it is, unless it holds what would break the line."""
    is_plain = isinstance(value, str) and value.isprintable() and value == value.strip() != "" and len(value) <= LONGEST
    return value if is_plain else shown(value, names)


def tables(objects: ObjectStore, prefix: str, columns: Sequence[str]) -> list[Table]:
    """The tables of the names at and below a prefix, of all keys of a step, or of every step with two results.

    Args:
        prefix: of names, such as `train`; or a step's id; empty for every step.
        columns: arguments and figures to show; by default all arguments that differ and the first figures.

    Raises:
        UsageError: when nothing fits, or no row has a column.
    """
    names = current_names(objects)
    rows: dict[str, list[Row]] = {}
    for row in _rows(objects, prefix, names):
        rows.setdefault(row.id, []).append(row)
    if not rows and prefix:
        raise UsageError(
            f"{prefix!r} is no name with a result, no beginning of one before a '/', and no step's id in "
            f"{objects.url}; {command('ls', objects)} lists what there is"
        )
    first = {key: sorted(each)[0] for key, each in names.items()}
    if not prefix:
        rows = {id: each for id, each in rows.items() if len(each) > 1}
    found = [Table.of(id, each, columns, first) for id, each in sorted(rows.items())]
    for column in columns if rows else ():
        if not any(column in table.arguments or column in table.figures for table in found):
            every = [Table.of(table.id, table.rows, (), first) for table in found]
            known = dict.fromkeys(path for table in every for path in (*table.arguments, *table.figures))
            raise UsageError(f"--columns: no row has {column!r}; there are {', '.join([*known][:30]) or 'none'}")
    return [table for table in found if not columns or table.arguments or table.figures]


def _rows(objects: ObjectStore, prefix: str, names: Mapping[str, list[str]]) -> list[Row]:
    """Rows by name; those of a step's id, and of every step, by their first name, else their key."""
    named = sorted(name for each in names.values() for name in each if _is_below(name, prefix.removesuffix("/")))
    if named and prefix:
        steps = together(objects, *(partial(resolve, objects, name) for name in named))
        found = [(name, *step) for name, step in zip(named, steps, strict=True)]
    else:
        keys = find_keys(objects, "", f"steps/{prefix}" if prefix else "steps")
        found = sorted(
            (sorted(names[key])[0] if key in names else key[:8], id, key) for id, key in keys if prefix in ("", id)
        )
    looks = look_many(objects, dict.fromkeys((id, key) for _, id, key in found))
    rows = (
        partial(_row, objects, name, id, key, commit)
        for name, id, key in found
        if (commit := looks[key].commit) is not None
    )
    return together(objects, *rows)


def _row(objects: ObjectStore, name: str, id: str, key: str, commit: Commit) -> Row:
    return Row(name, id, key, _arguments(commit), figures(CommittedOutput(objects, id, key, commit).value_tree))


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}/")


def _arguments(commit: Commit) -> dict[str, Tree]:
    """What was given, by path. Where a file lay, and when it was changed, does not count."""
    found = dict(leaves(commit.arguments))
    return {
        path: {"~file": leaf["~file"]} if isinstance(leaf, dict) and "~file" in leaf and not artifact_of(leaf) else leaf
        for path, leaf in found.items()
    }


def _differing(rows: Sequence[Row]) -> list[str]:
    """Paths at which not all rows have the same."""
    paths = list(dict.fromkeys(path for row in rows for path in row.arguments))
    return [
        path for path in paths if len({json.dumps(row.arguments.get(path, "~"), sort_keys=True) for row in rows}) > 1
    ]


def _json(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if abs(value) < float("inf") else None


def _depth(path: str) -> int:
    return path.count(".") + path.count("[")


def table(objects: ObjectStore, prefix: str, columns: str, as_json: bool) -> Iterator[str]:
    """The lines of `ls --table`."""
    found = tables(objects, prefix, [column.strip() for column in columns.split(",") if column.strip()])
    return _lines(objects, found, prefix, as_json)


def _lines(objects: ObjectStore, found: Sequence[Table], prefix: str, as_json: bool) -> Iterator[str]:
    if as_json:
        yield from (json.dumps(tree) for each in found for tree in each.trees())
        return
    if not found:
        yield f"{objects.url}: no step has two results to set side by side; `ls --table NAME` shows one"
    for index, each in enumerate(found):
        if index:
            yield ""
        if not prefix or len(found) > 1:
            yield each.id
        yield from each.lines()
