"""The ledger of a packing plan: by part of a token store, how many rows there are, what fills them, and a digest.

Light on purpose: steps name its classes, and no library is loaded. It names the token ledger that it belongs to, so
that a plan is never read beside other tokens; the first row of each part is written beside the counts that give it.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from functools import cached_property

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.token_ledger import Ledger

PACKING_FILE = "packing.json"
VERSION = 1
"""Of the file."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_AGAIN = "pack the tokens again"


@dataclass(frozen=True)
class PackedPart:
    """The plan of one part of a token store."""

    name: str
    """File of the plan, relative to the output."""
    rows: int
    continued: int
    """Rows that begin within a document; they come first."""
    pieces: int
    """Documents and parts of documents in all rows."""
    documents: int
    """Documents of the part, those without tokens included."""
    tokens: int
    """Filled positions; the part's number of tokens."""
    sha256: str
    """Of the plan's file, 64 hex."""


@dataclass(frozen=True)
class PackingLedger:
    """How the plans of the parts follow each other."""

    parts: tuple[PackedPart, ...]
    """In the order of the parts of the token store."""
    sequence_length: int
    """Positions of a row."""
    token_ledger: str
    """sha256 of the token ledger that the plan belongs to, 64 hex."""

    @cached_property
    def row_starts(self) -> tuple[int, ...]:
        """The first row of each part, counted over all parts, and the number of rows."""
        return tuple(itertools.accumulate((part.rows for part in self.parts), initial=0))

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return self.row_starts[-1]

    @property
    def documents(self) -> int:
        """Documents of all parts."""
        return sum(part.documents for part in self.parts)

    @property
    def tokens(self) -> int:
        """Filled positions of all rows."""
        return sum(part.tokens for part in self.parts)

    @property
    def efficiency(self) -> float:
        """Filled positions among all; 1 where there are none."""
        return self.tokens / (self.rows * self.sequence_length) if self.rows else 1.0

    def part_of_row(self, row: int) -> int:
        """The place of the part that a row belongs to."""
        return bisect.bisect_right(self.row_starts, row) - 1

    def check_tokens(self, ledger: Ledger, where: str) -> None:
        """Refuse a plan of other tokens.

        Args:
            ledger: of the tokens that are meant to go with it.
            where: names the plan.

        Raises:
            InputError: when the plan was made for another ledger.
        """
        found = ledger_digest(ledger)
        if found != self.token_ledger:
            raise InputError(
                f"{where}: the plan was made for other tokens (ledger {self.token_ledger[:16]}…) than these "
                f"({found[:16]}…); give the plan that was made for these, or {_AGAIN}"
            )

    def to_json(self) -> str:
        """The ledger as the text of its file."""
        parts = [
            {**dataclasses.asdict(part), "first_row": first}
            for part, first in zip(self.parts, self.row_starts, strict=False)
        ]
        totals = {name: getattr(self, name) for name in _TOTALS}
        content = {**dataclasses.asdict(self), "parts": parts, **totals, "version": VERSION}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str, where: str = PACKING_FILE) -> PackingLedger:
        """The ledger that `to_json` wrote.

        Raises:
            InputError: naming `where`, for another version, or a text that was changed.
        """
        try:
            fields = json.loads(text)
            version = fields.pop("version")
            if version != VERSION:
                raise InputError(f"{where}: a plan of version {version}, where {VERSION} is read; {_AGAIN}")
            totals = {name: fields.pop(name) for name in _TOTALS}
            starts = [part.pop("first_row") for part in fields["parts"]]
            ledger = PackingLedger(**{**fields, "parts": tuple(PackedPart(**part) for part in fields["parts"])})
            problem = ledger._problem(starts, totals)
        except InputError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{where}: not a packing plan ({type(error).__name__}: {error}); {_AGAIN}") from error
        if problem:
            raise InputError(f"{where}: {problem}: the file is not as it was written; {_AGAIN}")
        return ledger

    def _problem(self, starts: list[int], totals: dict[str, float]) -> str | None:
        for part, said, found in zip(self.parts, starts, self.row_starts, strict=False):
            counts = (part.rows, part.continued, part.pieces, part.documents, part.tokens)
            if not all(type(count) is int and count >= 0 for count in counts):
                return f"{part.name} has a count that is no whole number of at least 0"
            if not _DIGEST.fullmatch(part.sha256):
                return f"{part.name} has a digest that is not 64 hex"
            if said != found:
                return f"{part.name} is said to begin at row {said}, but the parts before it end at {found}"
        if not _DIGEST.fullmatch(self.token_ledger):
            return "the digest of the token ledger is not 64 hex"
        if type(self.sequence_length) is not int or self.sequence_length < 1:
            return f"sequence length {self.sequence_length!r} is no whole number of at least 1"
        for name, said in totals.items():
            if getattr(self, name) != said:
                return f"{name} is said to be {said}, but its parts give {getattr(self, name)}"
        return None


_TOTALS = ("rows", "documents", "tokens", "efficiency")


def ledger_digest(ledger: Ledger) -> str:
    """sha256 of a token ledger's text, 64 hex."""
    return hashlib.sha256(ledger.to_json().encode()).hexdigest()
