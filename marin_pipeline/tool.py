"""The program `marin-pipeline`: works on stores and keys. A thin face: each command is an entry of `COMMANDS`, and what
it does is in `run` and `store`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from marin_pipeline.cli import leave, writable_streams
from marin_pipeline.store.objects import ObjectStore, open_objects

Parser = argparse.ArgumentParser
Parsed = argparse.Namespace


@dataclass(frozen=True)
class Command:
    """One command of the program."""

    name: str
    text: str
    """What it is for, in a line."""
    declare: Callable[[Parser], None]
    """Adds its arguments; `--prefix` and `--json` are there already."""
    run: Callable[[ObjectStore, Parsed], Iterable[str] | int]
    """Does it: the lines to print, or an exit code where nothing is left to print."""


def _selector(parser: Parser) -> None:
    parser.add_argument("selector", metavar="KEY", help="a name, or 6 hex digits of a key")


def _optional_selector(parser: Parser) -> None:
    parser.add_argument("selector", nargs="?", metavar="KEY", help="a name, or 6 hex digits of a key")


def _show(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import inspection

    return inspection.show(objects, parsed.selector, parsed.json)


def _ls(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import inspection

    if parsed.selector:
        return inspection.list_files(objects, parsed.selector, parsed.json)
    return inspection.list_steps(objects, parsed.json)


def _logs(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import inspection

    return inspection.logs(objects, parsed.selector, parsed.json)


def _name_words(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="KEY NAME | NAME", help="a key and its new name, or a name to list")
    parser.add_argument("--drop", metavar="NAME@N", help="take the root away that this is; the name stays")


def _name(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import housekeeping

    return housekeeping.name(objects, parsed.words, parsed.drop, parsed.json)


def _verify_options(parser: Parser) -> None:
    parser.add_argument("selectors", nargs="*", metavar="KEY", help="names or keys; by default all current outputs")
    levels = "every object is there; and has its size and checksum (the default); and its bytes, hashed again"
    parser.add_argument("--level", choices=("present", "intact", "full"), default="intact", help=levels)


def _verify(objects: ObjectStore, parsed: Parsed) -> int:
    from marin_pipeline.run import housekeeping

    return housekeeping.verify(objects, parsed.selectors, parsed.level, parsed.json)


def _invalidate_options(parser: Parser) -> None:
    _selector(parser)
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; it is kept")
    parser.add_argument("--dry-run", action="store_true", help="only say what hangs on it")


def _invalidate(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import housekeeping

    return housekeeping.end_output(objects, parsed.selector, parsed.reason, parsed.dry_run, parsed.json)


def _gc_options(parser: Parser) -> None:
    parser.add_argument("--delete", action="store_true", help="do it; without, only say what would be done")
    parser.add_argument(
        "--grace", default="7d", metavar="TIME", help="keep what was needed since: 7d (the default), 12h, 0s"
    )


def _gc(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import housekeeping
    from marin_pipeline.run.driver import lease_life

    return housekeeping.gc(objects, parsed.grace, parsed.delete, lease_life(), parsed.json)


def _adopt_options(parser: Parser) -> None:
    parser.add_argument("path", metavar="PATH", help="a file or a folder; it is copied")
    parser.add_argument("--as", dest="name", required=True, metavar="NAME", help="what it is called")
    parser.add_argument("--value", default="null", metavar="JSON", help="what dependents read as its value")
    parser.add_argument("--dry-run", action="store_true", help="only say its key and digest")


def _adopt(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import housekeeping
    from marin_pipeline.run.driver import lease_life

    return housekeeping.take_in(
        objects, parsed.path, parsed.name, parsed.value, parsed.dry_run, lease_life(), parsed.json
    )


COMMANDS = (
    Command("show", "what is known of one key: how it was made, and its files", _selector, _show),
    Command("ls", "the steps in the store, or the files of one", _optional_selector, _ls),
    Command("logs", "what a step printed", _selector, _logs),
    Command("name", "give a key a name, or list what a name has stood for", _name_words, _name),
    Command("verify", "check that the store holds what was committed", _verify_options, _verify),
    Command("invalidate", "end an output that is wrong: the next run makes it again", _invalidate_options, _invalidate),
    Command("gc", "collect what nothing needs any more", _gc_options, _gc),
    Command("adopt", "take a file or folder that was made elsewhere into the store", _adopt_options, _adopt),
)


def main() -> None:
    """Run the program; exits with the designed code."""
    description = "Work on a store: what is there, what made it, what it printed."
    parser = argparse.ArgumentParser(prog="marin-pipeline", description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.text, description=command.text)
        command.declare(added)
        added.add_argument("--prefix", help="root of the store (default: MARIN_PREFIX, else ./marin-store)")
        added.add_argument("--json", action="store_true", help="JSON lines on stdout")
        added.set_defaults(run=command.run)
    writable_streams()
    parsed = parser.parse_args()
    leave(lambda: _run(parsed))


def _run(parsed: Parsed) -> int:
    from marin_pipeline.run.driver import default_prefix

    found = parsed.run(open_objects(parsed.prefix or default_prefix()), parsed)
    if isinstance(found, int):
        return found
    for line in found:
        print(line)
    return 0
