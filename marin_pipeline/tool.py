"""The program `marin-pipeline`: works on stores and keys. A thin face: each command is an entry of `COMMANDS`, and what
it does is in `run` and `store`.
"""

from __future__ import annotations

import sys

try:
    import argparse
    from collections.abc import Callable, Iterable, Sequence
    from dataclasses import dataclass
    from typing import Any, Literal

    from marin_pipeline.cli import leave, stream_aside, writable_streams
    from marin_pipeline.core.errors import UsageError
    from marin_pipeline.core.visible import say
    from marin_pipeline.store.objects import ObjectStore, open_objects
except KeyboardInterrupt:  # the program is interrupted before it has begun
    raise SystemExit(130) from None

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
    run: Callable[[Any, Parsed], Iterable[str] | int]
    """Does it with the store, or None: the lines to print, or an exit code where nothing is left to print."""
    store: Literal["there", "made", "none"] = "there"
    """Whether the store must be there, is made when it is not, or is not asked for at all."""


KEY = "name, name@n, owner/name@n, or 6 digits of a key"


def _selector(parser: Parser) -> None:
    parser.add_argument("selector", metavar="KEY", help=KEY)


def _listed(parser: Parser) -> None:
    parser.add_argument("selector", nargs="?", metavar="KEY", help=f"{KEY}; of a table what names begin with")
    parser.add_argument(
        "--table", action="store_true", help="results side by side: the arguments that differ, and the figures"
    )
    parser.add_argument("--columns", default="", metavar="A,B", help="arguments and figures of the table")


def _followed(parser: Parser) -> None:
    _selector(parser)
    parser.add_argument(
        "--follow", action="store_true", help="go on until the step has come out; exits with 0 (done) or 1 (failed)"
    )


def _show(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import inspection

    return inspection.show(objects, parsed.selector, parsed.json)


def _ls(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import inspection, table

    if parsed.table or parsed.columns:
        return table.table(objects, parsed.selector or "", parsed.columns, parsed.json)
    if parsed.selector:
        return inspection.list_files(objects, parsed.selector, parsed.json)
    return inspection.list_steps(objects, parsed.json)


def _logs(objects: ObjectStore, parsed: Parsed) -> Iterable[str] | int:
    from marin_pipeline.run import logs

    if not parsed.follow:
        return logs.lines(objects, parsed.selector, parsed.json)
    return logs.follow(objects, parsed.selector, parsed.json, say)


def _experiment(parser: Parser) -> None:
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="an experiment, or a folder of them")


def _runs(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import runs

    return runs.list_runs(objects, parsed.experiment, parsed.json)


def _two(parser: Parser) -> None:
    parser.description = (
        "What sets two keys or two runs apart: arguments, code, inputs down to the root causes, files, figures. "
        "Exits with 0 when they are one, 1 when they differ, 2 when they cannot be compared."
    )
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help=f"{KEY}; or a run (experiment@3)")


def _diff(objects: ObjectStore, parsed: Parsed) -> int:
    from marin_pipeline.run import runs

    return runs.diff(objects, parsed.a, parsed.b, parsed.json, say)


def _code_arguments(parser: Parser) -> None:
    parser.add_argument("steps", nargs="*", metavar="STEP", help="a step's id, or the name of its function")
    parser.add_argument("--folder", help="the folder of the steps (default: here, where golden.py is, else ./steps)")


def _check_arguments(parser: Parser) -> None:
    _code_arguments(parser)
    parser.add_argument("--run", action="store_true", dest="rerun", help="also make the golden inputs again")


def _accept_arguments(parser: Parser) -> None:
    _code_arguments(parser)
    parser.add_argument("--all", action="store_true", help="every step of the folder")


def _code_check(objects: None, parsed: Parsed) -> int:
    return _code(parsed, "check")


def _code_accept(objects: None, parsed: Parsed) -> int:
    if bool(parsed.steps) == parsed.all:
        raise UsageError("code accept: name steps, or say --all")
    return _code(parsed, "accept")


def _code(parsed: Parsed, action: str) -> int:
    import json
    from pathlib import Path

    from marin_pipeline.run import golden

    out = stream_aside() if parsed.json else sys.stdout
    folder = Path(parsed.folder) if parsed.folder else golden.default_folder(Path.cwd())
    with golden.opened(folder) as library:
        if action == "accept":
            found = golden.accept(library, parsed.steps)
        else:
            found = golden.check(library, parsed.steps, parsed.rerun)
    for each in found:
        if parsed.json or each.status not in ("accepted", "unversioned"):
            say(json.dumps(each.tree()) if parsed.json else each, out)
    if not parsed.json:
        count = sum(each.status == "accepted" for each in found)
        say(f"{count} of {sum(each.status != 'unversioned' for each in found)} steps are in {folder / golden.LOCK}")
    return golden.exit_code(found, action)


def _name_words(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="KEY NAME | NAME", help="a key and its new name, or a name to list")
    parser.add_argument("--drop", metavar="NAME@N", help="take the root away that this is; the name stays")


def _name(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import housekeeping

    return housekeeping.name(objects, parsed.words, parsed.drop, parsed.json)


def _verify_options(parser: Parser) -> None:
    parser.add_argument("selectors", nargs="*", metavar="KEY", help=f"{KEY}; by default all current outputs")
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
    from marin_pipeline.run.options import lease_life

    return housekeeping.gc(objects, parsed.grace, parsed.delete, lease_life(), parsed.json)


def _adopt_options(parser: Parser) -> None:
    parser.add_argument("path", metavar="PATH", help="a file or a folder; it is copied")
    parser.add_argument("--as", dest="name", required=True, metavar="NAME", help="what it is called")
    parser.add_argument("--value", default="null", metavar="JSON", help="what dependents read as its value")
    parser.add_argument("--dry-run", action="store_true", help="only say its key and digest")


def _adopt(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.run import housekeeping
    from marin_pipeline.run.options import lease_life

    return housekeeping.take_in(
        objects, parsed.path, parsed.name, parsed.value, parsed.dry_run, lease_life(), parsed.json
    )


def _share_options(parser: Parser) -> None:
    _selector(parser)
    parser.add_argument("--out", metavar="FILE", help="where to write the bundle (default: stdout)")


def _share(objects: ObjectStore, parsed: Parsed) -> Iterable[str]:
    from marin_pipeline.lab import share

    return share.share(objects, parsed.selector, parsed.out, parsed.json)


def _limit_option(parser: Parser) -> None:
    parser.add_argument(
        "--max-transfer", metavar="SIZE", help="refuse to fetch more, as in 10GB (or MARIN_MAX_TRANSFER)"
    )


def _pull_options(parser: Parser) -> None:
    parser.add_argument(
        "bundle", metavar="BUNDLE", help="a file that `share` wrote, - for stdin, or a key of the store it comes from"
    )
    parser.add_argument("--from", dest="source", required=True, metavar="PREFIX", help="root of that store")
    parser.add_argument("--deep", action="store_true", help="take all that it was made from as well")
    parser.add_argument("--as", dest="name", metavar="NAME", help="what it is called here (default: pulled/...)")
    parser.add_argument("--dry-run", action="store_true", help="only check, and say what would be fetched")
    _limit_option(parser)
    parser.add_argument(
        "--single-writer",
        action="store_true",
        help="take a store that does not keep conditional writes: nobody else writes there meanwhile",
    )


def _pull(objects: ObjectStore, parsed: Parsed) -> int:
    from marin_pipeline.lab import pull
    from marin_pipeline.run.options import transfer_limit

    limit = transfer_limit(parsed.max_transfer)
    asked = pull.Asked(
        parsed.bundle, parsed.source, parsed.deep, parsed.name, parsed.single_writer, limit, parsed.dry_run
    )
    return pull.pull(objects, asked, parsed.json)


def _reproduce_options(parser: Parser) -> None:
    parser.description = (
        "Run a recorded step again, with the code of its record, and say whether the same came out. Exits with 0 when "
        "it did, 1 when a step failed, 4 when something differs or cannot be verified. What runs is the code of the "
        "record: reproduce only what comes from people whose code you would run."
    )
    parser.add_argument("what", metavar="KEY|BUNDLE", help=f"{KEY}; or a file that `share` wrote, - for stdin")
    parser.add_argument(
        "--from", dest="source", metavar="PREFIX", help="store of the record (default for a key: --prefix)"
    )
    parser.add_argument("--to", metavar="PREFIX", help="store that is written (default: one that is removed again)")
    parser.add_argument("--deep", action="store_true", help="run all that it was made from again as well")
    environments = "packages: these here, those of the record, or (auto) the record's where the versions here differ"
    parser.add_argument("--environment", choices=("auto", "present", "recorded"), default="auto", help=environments)
    parser.add_argument("--max-parallel", type=int, metavar="N", help="steps at once")
    _limit_option(parser)


def _reproduce(objects: ObjectStore, parsed: Parsed) -> int:
    from marin_pipeline.lab import reproduce
    from marin_pipeline.run.options import transfer_limit
    from marin_pipeline.store.given import open_given

    out = stream_aside() if parsed.json else sys.stdout
    limit = transfer_limit(parsed.max_transfer)
    asked = reproduce.Asked(parsed.to, parsed.deep, parsed.environment, parsed.max_parallel, limit)
    source = open_given(parsed.source, "--from") if parsed.source else None
    return reproduce.command(objects, source, parsed.what, asked, out, parsed.json)


COMMANDS = (
    Command("show", "what is known of one key: how it was made, and its files", _selector, _show),
    Command("ls", "the steps in the store, the files of one, or results side by side", _listed, _ls),
    Command("logs", "what a step printed, or prints", _followed, _logs),
    Command("runs", "the runs of an experiment, those that go on among them", _experiment, _runs),
    Command("diff", "what sets two keys or two runs apart", _two, _diff),
    Command(
        "code check", "whether the code of steps with a version is in code.lock", _check_arguments, _code_check, "none"
    ),
    Command(
        "code accept",
        "make golden inputs again, and enter the code in code.lock where they give what they gave",
        _accept_arguments,
        _code_accept,
        "none",
    ),
    Command("name", "give a key a name, or list what a name has stood for", _name_words, _name),
    Command("verify", "check that the store holds what was committed", _verify_options, _verify),
    Command("invalidate", "end an output that is wrong: the next run makes it again", _invalidate_options, _invalidate),
    Command("gc", "collect what nothing needs any more", _gc_options, _gc),
    Command("share", "write what a stranger needs of one output: its bundle", _share_options, _share),
    Command("pull", "take an output out of somebody's store, verified", _pull_options, _pull, "made"),
    Command(
        "reproduce", "run a recorded step again, and compare what comes out", _reproduce_options, _reproduce, "made"
    ),
    Command("adopt", "take a file or folder that was made elsewhere into the store", _adopt_options, _adopt, "made"),
)


def main() -> None:
    """Run the program; exits with the designed code."""
    writable_streams()
    leave(lambda: _run(_parsed()))


def _parsed() -> Parsed:
    description = "Work on a store: what is there, what made it, what it printed."
    parser = argparse.ArgumentParser(prog="marin-pipeline", description=description)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    _shared(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.text, description=command.text)
        command.declare(added)
        _shared(added)
        added.set_defaults(command=command)
    leading, rest = _split(sys.argv[1:])
    words = next((count for count in (2, 1) if " ".join(rest[:count]) in commands.choices), 0)
    # Parsed by itself a command takes its words and options in any order.
    if words:
        chosen = commands.choices[" ".join(rest[:words])]
        return chosen.parse_intermixed_args([*leading, *rest[words:]])
    return parser.parse_args()


def _shared(parser: Parser) -> None:
    parser.add_argument("--prefix", help="root of the store (default: MARIN_PREFIX, else ./marin-store)")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: Parser, *_: object) -> None:
        from importlib.metadata import version

        say(f"{parser.prog} {version('marin_pipeline')}")
        parser.exit()


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before the command, and the command with all that follows."""
    count = 0
    while count < len(arguments) and (arguments[count] == "--json" or arguments[count].startswith("--prefix")):
        count += 2 if arguments[count] == "--prefix" else 1
    return list(arguments[:count]), list(arguments[count:])


def _run(parsed: Parsed) -> int:
    from marin_pipeline.run.options import default_prefix

    store = parsed.command.store
    objects = None if store == "none" else open_objects(parsed.prefix or default_prefix())
    if objects is not None and store == "there" and not objects.is_there():
        raise UsageError(f"{objects.url}: no store is there; say where it is with --prefix or MARIN_PREFIX")
    found = parsed.command.run(objects, parsed)
    if isinstance(found, int):
        return found
    for line in found:
        say(line)
    return 0
