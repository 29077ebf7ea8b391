"""The program `python -m marin_pipeline.data`: what training reads, inspected and audited."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from marin_pipeline.core.errors import MarinError
from marin_pipeline.core.visible import OutputLost, say
from marin_pipeline.data import audit_command, inspection

CLOSED_PIPE = 141
"""The exit code where the reader of the output has gone, as in `... | head`: a shell's for SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    parser = argparse.ArgumentParser("python -m marin_pipeline.data", description="What training reads.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # One line a command.
    audit_command.add(subparsers)
    inspection.add(subparsers)
    parsed = parser.parse_args(audit_command.joined_counts(sys.argv[1:] if arguments is None else arguments))
    try:
        return _told(parsed)
    except OutputLost as error:
        return _lost(error)


def _told(parsed: argparse.Namespace) -> int:
    try:
        return parsed.run(parsed)
    except MarinError as error:
        say(f"error: {error}", sys.stderr)
        return error.exit_code


def _lost(error: OSError) -> int:
    """The exit code where the output could not be written; silent where its reader has gone."""
    closed = error.errno == errno.EPIPE
    if not closed:
        with contextlib.suppress(OutputLost):
            say(f"error: the output cannot be written: {error.strerror}", sys.stderr)
    # What is left in the streams goes nowhere, so that the flush at the end is quiet.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open until the end
    return CLOSED_PIPE if closed else 1


def _leave() -> NoReturn:
    """Run the command of the process, and exit with its code."""
    try:
        code = main()
    except SystemExit as ended:  # of argparse, after help or a wrong option
        code = ended.code
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        code = _lost(error)
    sys.exit(code)


if __name__ == "__main__":
    _leave()
