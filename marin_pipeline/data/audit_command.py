"""The command `audit`: the loader of a run, or over tokens, audited as a person asks for it on the command line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from marin_pipeline.core.errors import InputError, UsageError
from marin_pipeline.core.visible import say
from marin_pipeline.data.audit import HOSTS, MOST_EPOCHS, WORKERS, audit, steps_for
from marin_pipeline.data.checks import check_seeds
from marin_pipeline.data.loader import Loader
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.opened import TokenFolder, open_run_or_tokens
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.run_data import RunData
from marin_pipeline.data.sequences import Sequences, SequenceSource
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.token_store import TokenStore

TOKENS = "tokens"
"""The source of an order over tokens that no run has read."""
LARGEST = 2**16
"""Most sequences that a run of the command reads, unless it is told otherwise."""


def add(subparsers: Any) -> None:
    """The command `audit`."""
    text = (
        "drive the loader of a run, or over tokens, as several hosts would, and compare what it delivers with the order"
    )
    parser = subparsers.add_parser("audit", help=text, description=text)
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a trained state: its name or key, or of tokens name, key, or folder (with ledger.json)",
    )
    of_tokens = parser.add_argument_group("of tokens only", "a trained state says these itself")
    of_tokens.add_argument("--sequence-length", type=int, metavar="N", help="tokens (default: 1024)")
    of_tokens.add_argument("--batch-size", type=int, metavar="B", help="sequences (default: 24)")
    of_tokens.add_argument("--seed", type=_seed, help="of the order (default: 0)")
    parser.add_argument(
        "--hosts", type=_counts, metavar="A,B", help="numbers of hosts (default: those of 1,2,3,8 that divide a batch)"
    )
    parser.add_argument("--workers", type=_counts, default=WORKERS, metavar="A,B", help="of threads (default: 0,2)")
    parser.add_argument(
        "--epochs",
        type=_epochs,
        help="passes over the source that is slowest to be read (default: all steps of a run, 1.25 of tokens; at most "
        f"{LARGEST:,} sequences)",
    )
    parser.add_argument("--prefix", help="of the store (default: MARIN_PREFIX, else ./marin-store)")
    parser.add_argument("--json", action="store_true", help="one line of JSON in place of the table")
    parser.set_defaults(run=_run)


def joined_counts(arguments: Sequence[str]) -> list[str]:
    """Arguments in which the numbers after `--hosts` and `--workers` are one: `1 2` and `1, 2` as `1,2`."""
    joined: list[str] = []
    after = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        is_counts = _COUNTS.fullmatch(argument) is not None
        if after and is_counts and joined[-1] in _COUNTED:
            joined.append(argument.rstrip(","))
        elif after and is_counts:
            joined[-1] = f"{joined[-1]},{argument.strip(',')}"
        else:
            after = option in _COUNTED and (not equals or _COUNTS.fullmatch(value) is not None)
            joined.append(argument.rstrip(",") if after else argument)
    return joined


_COUNTED = ("--hosts", "--workers")
# Of fewer digits than a key has at least: that may follow.
_COUNTS = re.compile(r"[0-9]{1,5}(,[0-9]{1,5})*,?")


def _counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers, such as 1,2")
    return tuple(int(part) for part in text.split(","))


def _epochs(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= MOST_EPOCHS:  # nor what is no number
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0, {MOST_EPOCHS:,} at most")
    return found


def _seed(text: str) -> int:
    try:
        check_seeds(seed=int(text))
    except ValueError as error:
        told = error if isinstance(error, InputError) else f"{text!r}: give a whole number"
        raise argparse.ArgumentTypeError(str(told)) from error
    return int(text)


def default_hosts(batch_size: int) -> tuple[int, ...]:
    """Those of `HOSTS` that divide a batch; one and two where only one does, since one alone proves little."""
    found = tuple(count for count in HOSTS if batch_size % count == 0)
    return found if len(found) > 1 else HOSTS[: min(2, batch_size)]


def _run(parsed: argparse.Namespace) -> int:
    """Audit the loader of a run, or over tokens; 4 when it is wrong."""
    found = open_run_or_tokens(parsed.target, parsed.prefix)
    if isinstance(found, RunData):
        order, sources, most = *_of_run(parsed, found), found.record.steps
    else:
        store = TokenStore(found)
        if isinstance(found, TokenFolder):
            store.verify()  # no store has looked at these files
        order, sources, most = *_of_tokens(parsed, store), None
    hosts = parsed.hosts or default_hosts(order.batch_size)
    beyond = [count for count in hosts if not 0 < count <= order.batch_size]
    if beyond:
        raise UsageError(
            f"--hosts {beyond[0]}: {beyond[0]} hosts cannot share a batch of {order.batch_size} rows, since each needs "
            f"at least one; give numbers from 1 to {order.batch_size}"
        )
    uneven = [count for count in hosts if order.batch_size % count]
    if parsed.hosts and uneven and most is not None:
        raise UsageError(
            f"--hosts {uneven[0]}: so many hosts cannot share a batch of {parsed.target} equally; give numbers that "
            f"divide its {order.batch_size} rows"
        )
    if parsed.epochs is not None:
        steps = steps_for(order, parsed.epochs)
    elif most is not None:
        steps = max(1, LARGEST // order.batch_size)
    else:
        steps = steps_for(order, min(1.25, LARGEST / min(order.sequences)))
    steps = steps if most is None else min(steps, most)

    def loader_for(rows: np.ndarray, start: int, stop: int, workers: int) -> Loader:
        return Loader(order, sources, rows=rows, start=start, stop=stop, workers=workers)

    if isinstance(found, RunData):
        for step in range(steps):
            found.batch(step + 1)  # refuses an order that is not the one that the run recorded
    report = audit(loader_for, order, sources, hosts=hosts, workers=parsed.workers, steps=steps)
    left_out = [] if parsed.hosts else [count for count in HOSTS if count not in hosts]
    if parsed.json:
        of_run: dict[str, Any] = {}
        if isinstance(found, RunData):
            of_run = {"run": parsed.target, "state": found.state, "steps": steps, "steps_of_run": most}
        say(json.dumps({**report.plain(), **of_run, "hosts_left_out": left_out}))
        return 0 if report.ok else 4
    lines = report.lines()
    if left_out:
        lines.insert(-1, f"not with {_and(left_out)} hosts, which cannot share {order.batch_size} rows equally")
    if most is not None:
        lines.insert(
            -1, f"the first {steps:,} of {most:,} steps of {found}, with its own sources, phases, seed and shuffle"
        )
    say("\n".join(lines))
    return 0 if report.ok else 4


def _of_run(parsed: argparse.Namespace, run: RunData) -> tuple[TrainingOrder, list[SequenceSource]]:
    for option in ("sequence_length", "batch_size", "seed"):
        if getattr(parsed, option) is not None:
            name = option.replace("_", "-")
            raise UsageError(f"--{name}: {parsed.target} is a trained state, which says this itself; leave it out")
    return run.order, [run.source(name) for name in run.order.names]


def _of_tokens(parsed: argparse.Namespace, store: TokenStore) -> tuple[TrainingOrder, list[SequenceSource]]:
    """The order of one source. Its name is part of the order: so it is the same however the tokens are asked for."""
    length = 1024 if parsed.sequence_length is None else parsed.sequence_length
    source = Sequences(store, length)
    if not len(source):
        raise InputError(
            f"{parsed.target!r} holds {store.tokens:,} tokens, less than one sequence of {length:,} and a target: use "
            "a shorter sequence length (--sequence-length)"
        )
    stream = Stream(Mixture((Source(TOKENS, None),), (Phase(0, {TOKENS: 1}),)), length)
    batch_size = 24 if parsed.batch_size is None else parsed.batch_size
    return TrainingOrder(stream, {TOKENS: len(source)}, batch_size, parsed.seed or 0), [source]


def _and(counts: Sequence[int]) -> str:
    *most, last = map(str, counts)
    return f"{', '.join(most)} and {last}" if most else last
