"""Whether the sources of a run are different text, and none of it is its held-out text.

Asked three times: of the keys of artifacts at declaration, of the digests of ledgers as soon as inputs are there, and
of the digests of parts when stores are opened. One text that was split into other parts is not noticed: that documents
are apart, the step `check_disjoint` proves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.token_ledger import Ledger
from marin_pipeline.train.reading import TOGETHER

NOT_PROVEN = (
    "held_out: no part of its tokens is a part of the training tokens; that no document is in both, or nearly so, is "
    "proven by the step check_disjoint, and not here"
)
"""What a run with held-out text says in its log."""

_HOLD_OUT = "give text that was held out of it (split_held_out, before dedupe)"


def check_held_out(names: Sequence[str], held_out: Mapping[str, object]) -> None:
    """Refuse held-out text that is not of the sources.

    Args:
        names: of the mixture's sources.
        held_out: by source or under `TOGETHER`.

    Raises:
        InputError: naming the sources.
    """
    if held_out and TOGETHER not in held_out and set(held_out) != set(names):
        raise InputError(
            f"held_out names {', '.join(sorted(held_out))}, and the sources of the mixture are "
            f"{', '.join(sorted(names))}: give held-out tokens of each source, or of all together"
        )


def check_apart(tokens: Mapping[str, object], held_out: Mapping[str, object], *, copies: bool = False) -> None:
    """Refuse one text as two sources, whose repeats would not be seen, and held-out text that is trained on.

    Args:
        tokens: what names the tokens of each source; equal where they are the same.
        held_out: likewise, by source or under `TOGETHER`.
        copies: they are named by their content, so that what is equal may have two names.

    Raises:
        InputError: naming both.
    """
    known: dict[object, str] = {}
    for name, each in tokens.items():
        if each in known:
            raise InputError(
                f"sources {known[each]!r} and {name!r} are the same tokens{' under two names' if copies else ''}: give "
                "one of them, with the weight and the max_epochs of both"
            )
        known[each] = name
    for name, each in held_out.items():
        if each in known:
            raise InputError(
                f"{_held(name)} is what source {known[each]!r} trains on{', under another name' if copies else ''}: "
                f"{_HOLD_OUT}"
            )


def check_parts(tokens: Mapping[str, Ledger], held_out: Mapping[str, Ledger]) -> None:
    """Refuse stores that hold the same text, all of it or some of their parts; see `check_apart`.

    Args:
        tokens: ledgers by source.
        held_out: by source or under `TOGETHER`.

    Raises:
        InputError: naming both, and how many parts they share.
    """
    of_sources, of_held_out = _with_text(tokens), _with_text(held_out)
    check_apart(of_sources, of_held_out, copies=True)
    known: dict[tuple[str, str], str] = {}
    for name, contents in of_sources.items():
        for other in (known[each] for each in sorted(contents) if each in known):
            raise InputError(
                f"sources {other!r} and {name!r} share text: {_shared(tokens[name], tokens[other])} of the latter are "
                "parts of the former, with the same tokens; leave their documents out of one of the two and tokenize "
                "it again, or make one source of both, with the weight and the max_epochs of both"
            )
        known |= dict.fromkeys(contents, name)
    for name, contents in of_held_out.items():
        for other in (known[each] for each in sorted(contents) if each in known):
            raise InputError(
                f"{_shared(held_out[name], tokens[other])} of {_held(name)} are parts of source {other!r}, which "
                f"trains on them: {_HOLD_OUT}"
            )


def _with_text(ledgers: Mapping[str, Ledger]) -> dict[str, frozenset[tuple[str, str]]]:
    return {name: ledger.contents for name, ledger in ledgers.items() if ledger.contents}


def _shared(ledger: Ledger, other: Ledger) -> str:
    shared = sum(part.content in other.contents for part in ledger.parts)
    return f"{shared} of the {len(ledger.parts)} parts"


def _held(name: str) -> str:
    return "held_out" if name == TOGETHER else f"held_out[{name}]"
