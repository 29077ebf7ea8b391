"""`python -m marin_pipeline.data inspect`: which documents a step read, and which steps read a document.

Asks the committed state of a run and what it was made from; reads no more of the tokens than it shows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from marin_pipeline.core.errors import InputError, MarinError, UsageError
from marin_pipeline.core.visible import say
from marin_pipeline.data.document_names import DocumentName
from marin_pipeline.data.opened import open_run
from marin_pipeline.data.run_data import RunData
from marin_pipeline.data.sequences import Piece
from marin_pipeline.data.whereabouts import documents_in, steps_of, text_of

SHOWN = 10
"""Documents that an error lists."""
NEAR = 3
"""Names that an error lists where none is the one that was asked for."""


def add(subparsers: Any) -> None:
    """Declare the command.

    Args:
        subparsers: of the program, as `add_subparsers` returned them.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="which documents a step of a run read, or which steps read a document",
        description="Which documents a step of a run read, or which steps read a document, with their text.",
    )
    parser.add_argument("state", metavar="RUN", help="a trained state: its name, or 6 digits or more of its key")
    parser.add_argument("--prefix", help="the store (default: MARIN_PREFIX, else ./marin-store)")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--step", type=int, metavar="K", help="a step, numbered from 1 as in the metrics")
    asked.add_argument(
        "--document",
        metavar="D",
        help="a document: its number in its source, from 0 on; 6 digits or more of its id; or its name in its "
        "collection (source_id)",
    )
    parser.add_argument("--row", type=int, metavar="R", help="one row of the step, numbered from 0")
    parser.add_argument("--source", metavar="S", help="the source of the mixture that the document is in")
    parser.add_argument("--text", action="store_true", help="with the text that was read")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    for line in inspect(parsed):
        say(line)
    return 0


def inspect(parsed: argparse.Namespace) -> Iterator[str]:
    """The lines of the answer.

    Raises:
        UsageError: for options that do not go together, and for a document that is not there or not the only one.
        InputError: for a step or a row that the run did not make.
        StoreError: when what the run read is not in the store any more.
    """
    if parsed.row is not None and parsed.step is None:
        raise UsageError("--row is a row of a step: give --step too")
    if parsed.source is not None and parsed.document is None:
        raise UsageError("--source says where a document is: give --document too")
    run = open_run(parsed.state, parsed.prefix)
    if parsed.step is not None:
        return step_lines(run, parsed.step, parsed.row, parsed.text, parsed.json)
    return document_lines(run, parsed.document, parsed.source, parsed.text, parsed.json)


def step_lines(run: RunData, step: int, row: int | None, with_text: bool, as_json: bool) -> Iterator[str]:
    """What a step read.

    Args:
        step: from 1 on.
        row: the only one that is shown; None shows all.
    """
    batch = run.batch(step)
    if row is not None and not 0 <= row < len(batch):
        raise InputError(f"row {row}: a step of {run.name} has {len(batch)} rows, numbered from 0")
    sources = run.sources({run.order.names[place] for place in batch.sources.tolist()})
    rows = documents_in(run.order, sources, step - 1)
    lines: list[Sequence[str]] = []
    texts: list[str] = []
    for each in rows if row is None else [rows[row]]:
        source = sources[each.source]
        read = text_of(source, each.pieces, run.tokenizer(each.source)) if with_text else []
        pieces = [_described(run, each.source, piece) for piece in each.pieces]
        for piece, text in zip(pieces, read, strict=False):
            piece["text"] = text
        place = {"row": each.row, "source": each.source, "sequence": each.sequence, "epoch": each.epoch}
        if as_json:
            yield json.dumps({"state": run.state, "step": step, **place, "documents": pieces})
            continue
        lines += [[*map(_shown, place.values()), *_cells(piece)] for piece in pieces]
        texts += [piece["text"] for piece in pieces if with_text]
    if as_json:
        return
    yield (
        f"step {step:,} of {run.record.steps:,} of {run}: {len(batch)} rows of {run.record.sequence_length:,} "
        f"tokens, batch {run.order.digest(batch)}"
    )
    yield from _table(("row", "source", "sequence", "epoch", *_COLUMNS), lines, texts)
    yield from _unnamed(run, sources)


def document_lines(run: RunData, document: str, source: str | None, with_text: bool, as_json: bool) -> Iterator[str]:
    """Where a document was read.

    Args:
        document: its number, the beginning of its id, or its name in its collection.
        source: the one that it is in; None looks into all.
    """
    name, number = _find(run, document, source)
    held = run.source(name)
    visits = steps_of(run.order, {name: held}, name, number, run.record.steps)
    read = text_of(held, [visit.piece for visit in visits], run.tokenizer(name)) if with_text else []
    places = [
        {"step": visit.step + 1, "row": visit.row, "sequence": visit.sequence, "epoch": visit.epoch} for visit in visits
    ]
    pieces = [_described(run, name, visit.piece) for visit in visits]
    for piece, text in zip(pieces, read, strict=False):
        piece["text"] = text
    if as_json:
        for place, piece in zip(places, pieces, strict=True):
            yield json.dumps({"state": run.state, **place, "source": name, **piece})
        return
    called = run.name_of(name, number)
    tokens = held.store.document_range(number)
    told = "" if called is None else f", {called.id}, {_printable(called.source)} {_printable(called.source_id)}"
    yield f"document {number} of {name!r}{told}: {tokens[1] - tokens[0]:,} tokens"
    if not visits:
        yield f"in none of the {run.record.steps:,} steps of {run}"
    else:
        lines = [[*map(_shown, place.values()), _range(piece)] for place, piece in zip(places, pieces, strict=True)]
        yield f"where it was read in the {run.record.steps:,} steps of {run}:"
        yield from _table(("step", "row", "sequence", "epoch", "tokens"), lines, read)
    yield from _unnamed(run, [name])


_COLUMNS = ("document", "tokens", "id", "collection", "source_id")


def _described(run: RunData, source: str, piece: Piece) -> dict[str, Any]:
    """A piece as JSON values."""
    start, stop = run.source(source).store.document_range(piece.document)
    called = run.name_of(source, piece.document)
    id, collection, source_id = called or (None, None, None)
    names = {"id": id, "collection": collection, "source_id": source_id}
    return {**piece._asdict(), "tokens": stop - start, **names}


def _cells(piece: dict[str, Any]) -> list[str]:
    called = [piece["id"] and piece["id"][:12], piece["collection"], piece["source_id"]]
    return [str(piece["document"]), _range(piece), *(_printable(each or "-") for each in called)]


def _range(piece: dict[str, Any]) -> str:
    return f"{piece['start']}:{piece['stop']} of {piece['tokens']}"


def _shown(value: int | str) -> str:
    return _printable(str(value))


def _printable(text: str) -> str:
    """A name as it is, unless it holds what a terminal acts upon."""
    return text if text.isprintable() else repr(text)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str]) -> Iterator[str]:
    """Aligned columns, numbers to the right; a text below each row where there are some."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for place, row in enumerate([columns, *rows]):
        cells = [
            cell.rjust(width) if _is_number(name) else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()
        if place and texts:
            # As Python writes it: what steers a terminal is escaped, and line ends stay in the line.
            yield f"    {texts[place - 1]!r}"


def _is_number(column: str) -> bool:
    return column in ("row", "step", "sequence", "epoch", "document")


def _unnamed(run: RunData, sources: Iterable[str]) -> Iterator[str]:
    """Why the documents of a source have no names here."""
    for source in sorted(sources):
        try:
            run.names(source)
        except MarinError as error:
            yield f"documents of {source!r} are told by number only: {error}"


def _find(run: RunData, document: str, source: str | None) -> tuple[str, int]:
    """Source and number of the one document that is meant."""
    if source is not None and source not in run.record.sources:
        raise UsageError(f"--source {source}: {run.name} has {', '.join(map(repr, run.record.sources))}")
    names = list(run.record.sources) if source is None else [source]
    found: list[tuple[str, int, DocumentName | None]] = []
    if document.isascii() and document.isdecimal():
        number = int(document)
        found = [(name, number, None) for name in names if number < run.source(name).store.documents]
    problems: list[str] = []
    near: list[str] = []
    for name in [] if found else names:
        try:
            found += [(name, *each) for each in run.names(name).find(document)]
            near += run.names(name).near(document, NEAR) if not found else []
        except MarinError as error:
            problems.append(f"; the names of {name!r} are not known: {error}")
    if not found:
        near = list(dict.fromkeys(near))[:NEAR]
        if near:
            problems.insert(0, f"; names that contain it: {', '.join(map(repr, near))}")
        raise UsageError(
            f"--document {document}: no document of {run.name} has this number, id or name (a number is below "
            f"{max(run.source(name).store.documents for name in names):,}, an id has 6 hex digits or more)"
            f"{''.join(problems)}"
        )
    if len(found) > 1:
        told = [
            f"  --source {name} --document {number}" + ("" if called is None else f"  ({' '.join(called)})")
            for name, number, called in found[:SHOWN]
        ]
        more = [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise UsageError("\n".join([f"--document {document} fits {len(found)} documents:", *told, *more]))
    name, number, _ = found[0]
    return name, number
