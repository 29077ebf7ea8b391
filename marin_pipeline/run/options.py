"""How to run: what a person may say of a run that is in no key, in Python and on the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

from marin_pipeline.core.errors import UsageError
from marin_pipeline.core.secrets import redacted
from marin_pipeline.run.plan import CodePolicy
from marin_pipeline.store.lease import LIFE
from marin_pipeline.store.sizes import MOST, parse_size

if TYPE_CHECKING:
    import argparse

DEFAULT_PREFIX = "marin-store"
MAX_TRANSFER = "MARIN_MAX_TRANSFER"
SUBSTITUTES = "MARIN_SUBSTITUTES"


def default_prefix() -> str:
    """`MARIN_PREFIX`, else `./marin-store`."""
    return os.environ.get("MARIN_PREFIX") or DEFAULT_PREFIX


def given_substitutes() -> tuple[str, ...]:
    """The prefixes in `MARIN_SUBSTITUTES`, which are separated by commas."""
    return tuple(each.strip() for each in os.environ.get(SUBSTITUTES, "").split(",") if each.strip())


def lease_life() -> float:
    """Seconds without a beat after which a lease may be taken over: `MARIN_LEASE_SECONDS`, else 30.

    Raises:
        UsageError: when it is no length of time that a lease can have.
    """
    given = os.environ.get("MARIN_LEASE_SECONDS")
    if not given:
        return LIFE
    try:
        return _checked_life(float(given.encode("ascii")))
    except ValueError:
        raise UsageError(f"MARIN_LEASE_SECONDS={given[:40]!r}: must be a number of seconds") from None


def _checked_life(seconds: float) -> float:
    if not 0.1 <= seconds <= 86_400:
        raise UsageError(f"MARIN_LEASE_SECONDS: {seconds} must be from 0.1 to 86400")
    return seconds


def transfer_limit(given: str | None) -> int | None:
    """Bytes that may come from afar: of `--max-transfer`, else of `MARIN_MAX_TRANSFER`; None for no limit.

    Raises:
        UsageError: when it is no size.
    """
    return (Options() if given is None else Options(max_transfer=given)).limit


@dataclass(frozen=True)
class Options:
    """How to run; none of it is in a key."""

    prefix: str | None = None
    """Root of the store; by default `MARIN_PREFIX`, else `./marin-store`."""
    backend: str = "local"
    """`local` (worker processes) or `inline` (this process)."""
    only: Sequence[str] = ()
    """Names of the steps that may run; the others must be done already."""
    until: Sequence[str] = ()
    """Names of the steps to stop at: they and what they need."""
    force: Sequence[str] = ()
    """Names of the steps to run again though they are done."""
    code: CodePolicy = "stop"
    """What to do where an output was made by other code than the present one."""
    reason: str = ""
    """Recorded with what `force` and `code` do."""
    max_parallel: int | None = None
    """Steps at once, at most."""
    fail_fast: bool = False
    """Start nothing new after a failure."""
    single_writer: bool = False
    """Take a store that does not keep conditional writes: no other run writes there meanwhile."""
    substitutes: Sequence[str] = ()
    """Prefixes of other stores that are looked in, in order, for what is missing, besides those in
    `MARIN_SUBSTITUTES`; they are only read.
    """
    max_transfer: str | int | None = field(default_factory=lambda: os.environ.get(MAX_TRANSFER) or None)
    """Bytes that a run brings from afar at most, as in `10GB`: more is refused before anything runs."""
    lease_life: float = field(default_factory=lease_life)
    """Seconds without a beat after which another run's lease is taken over."""

    @property
    def limit(self) -> int | None:
        """`max_transfer` in bytes.

        Raises:
            UsageError: when it is no size.
        """
        given = self.max_transfer
        if given is None:
            return None
        try:
            size = parse_size(given) if isinstance(given, str) else int(given)
        except (ValueError, TypeError, OverflowError) as error:
            raise UsageError(f"{self._limit_option} {error}") from None
        if not 0 <= size <= MOST:
            raise UsageError(f"{self._limit_option} {given!s:.40}: must be 0 or more, and {MOST} at most")
        return size

    @property
    def _limit_option(self) -> str:
        """Where the limit was given, for errors."""
        is_environment = isinstance(self.max_transfer, str) and self.max_transfer == os.environ.get(MAX_TRANSFER)
        return MAX_TRANSFER if is_environment else "--max-transfer"

    def checked(self) -> Options:
        """These options, when they can be meant.

        Raises:
            UsageError: naming the one that cannot.
        """
        options = self
        for name in ("only", "until", "force", "substitutes"):
            given = getattr(options, name)
            options = replace(options, **{name: (given,) if isinstance(given, str) else tuple(given)})
        if options.code not in get_args(CodePolicy):
            raise UsageError(f"code={options.code!r}: there are {', '.join(get_args(CodePolicy))}")
        if options.max_parallel is not None and options.max_parallel < 1:
            raise UsageError(f"--max-parallel {options.max_parallel}: must be 1 or more")
        _ = options.limit
        _checked_life(options.lease_life)
        return replace(options, reason=redacted(options.reason))

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> Options:
        """What a command line says, whose options `add_options` made."""
        given = {name: getattr(parsed, name) for name in cls.__dataclass_fields__ if hasattr(parsed, name)}
        return cls(**{name: value for name, value in given.items() if value is not None}).checked()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a run for a command line; `Options.of` reads them."""
    parser.add_argument("--prefix", help="root of the store (default: MARIN_PREFIX, else ./marin-store)")
    parser.add_argument(
        "--backend", default="local", help="local (worker processes, the default) or inline (this process)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="STEP", help="run this step only; may be repeated"
    )
    parser.add_argument(
        "--until", action="append", default=[], metavar="STEP", help="run up to this step; may be repeated"
    )
    parser.add_argument(
        "--force", action="append", default=[], metavar="STEP", help="run this step again though it is done"
    )
    parser.add_argument(
        "--substitute",
        dest="substitutes",
        action="append",
        default=[],
        metavar="PREFIX",
        help="look in this store too for what is missing; may be repeated (and MARIN_SUBSTITUTES)",
    )
    parser.add_argument(
        "--max-transfer", metavar="SIZE", help="refuse to bring more from afar, as in 10GB (or MARIN_MAX_TRANSFER)"
    )
    parser.add_argument("--max-parallel", type=int, metavar="N", help="steps at once")
    parser.add_argument("--fail-fast", action="store_true", help="start nothing new after a failure")
    parser.add_argument(
        "--single-writer",
        action="store_true",
        help="take a store that does not keep conditional writes: no other run writes there meanwhile",
    )
    parser.add_argument(
        "--code",
        choices=("stop", "accept", "rerun"),
        default="stop",
        help="of an output that other code made: build nothing on it, take it as good, or make it again",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="kept with what --force and --code do")
