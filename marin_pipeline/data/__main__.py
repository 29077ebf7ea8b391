"""The program `python -m marin_pipeline.data`: what training reads, inspected and audited."""

from __future__ import annotations

import argparse
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
        return parsed.run(parsed)
    except MarinError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
