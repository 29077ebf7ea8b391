"""The program `python -m marin_pipeline.data`: what training reads, inspected and audited."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from marin_pipeline.core.errors import MarinError
from marin_pipeline.data import audit, inspection


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    parser = argparse.ArgumentParser("python -m marin_pipeline.data", description="What training reads.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # One line a command.
    audit.add(subparsers)
    inspection.add(subparsers)
    parsed = parser.parse_args(arguments)
    try:
        code = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has gone, as in `... | head`: the last flush is quiet, too
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open until the end
        return 1
    except MarinError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
