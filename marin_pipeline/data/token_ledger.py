"""The ledger of a token store: its parts in order, where each begins, and the digest of what each holds.

Light on purpose: steps name its classes, and no library is loaded. The text of a ledger says where parts begin twice,
as counts and as sums, so that a changed number is noticed when it is read; changed tokens are noticed by their digests.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from marin_pipeline.core.errors import InputError

LEDGER_FILE = "ledger.json"
VERSION = 2
"""Of the file. Version 1 had no digests, no tokenizer and no number."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TokenPart:
    """One part of a token store."""

    name: str
    """Folder of its arrays, relative to the output."""
    tokens: int
    documents: int
    bytes: int
    """UTF-8 bytes of its text, what was cut included."""
    truncated: int
    """Documents that were cut at the most tokens a document may have."""
    empty: int
    """Documents with no token but the one that ends them."""
    tokens_sha256: str
    """Of the token ids, little-endian, in the ledger's dtype, one after another; 64 hex."""
    offsets_sha256: str
    """Of where documents start, little-endian int64, `documents + 1` numbers from 0; 64 hex."""

    @property
    def content(self) -> tuple[str, str]:
        """Equal for parts of the same documents, whatever they are called."""
        return self.tokens_sha256, self.offsets_sha256


@dataclass(frozen=True)
class Ledger:
    """How the parts of a token store follow each other."""

    parts: tuple[TokenPart, ...]
    """In the order of their tokens."""
    dtype: str
    """`uint16` or `uint32`."""
    vocabulary: int
    end_of_document: int
    tokenizer: str
    """sha256 of the tokenizer's file, 64 hex."""

    @cached_property
    def token_starts(self) -> tuple[int, ...]:
        """The first token of each part, counted over all parts, and the number of tokens."""
        return tuple(itertools.accumulate((part.tokens for part in self.parts), initial=0))

    @cached_property
    def document_starts(self) -> tuple[int, ...]:
        """The first document of each part, counted over all parts, and the number of documents."""
        return tuple(itertools.accumulate((part.documents for part in self.parts), initial=0))

    @cached_property
    def contents(self) -> frozenset[tuple[str, str]]:
        """The contents of the parts that have text."""
        return frozenset(part.content for part in self.parts if part.empty < part.documents)

    @property
    def tokens(self) -> int:
        """Token ids in all parts."""
        return self.token_starts[-1]

    @property
    def documents(self) -> int:
        """Documents in all parts."""
        return self.document_starts[-1]

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of text in all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def truncated(self) -> int:
        """Documents in all parts that were cut."""
        return sum(part.truncated for part in self.parts)

    @property
    def empty(self) -> int:
        """Documents in all parts without text."""
        return sum(part.empty for part in self.parts)

    def part_of_token(self, position: int) -> int:
        """The place of the part that holds a token of the store."""
        return bisect.bisect_right(self.token_starts, position) - 1

    def part_of_document(self, index: int) -> int:
        """The place of the part that holds a document of the store."""
        return bisect.bisect_right(self.document_starts, index) - 1

    def check_tokenizer(self, sha256: str, where: str) -> None:
        """Refuse another tokenizer than the one that made the tokens.

        Args:
            sha256: of the file of the tokenizer that is meant to go with the tokens.
            where: names that file.

        Raises:
            InputError: when it is another one.
        """
        if sha256 != self.tokenizer:
            raise InputError(
                f"{where}: another tokenizer (sha256 {sha256[:16]}…) than the one that made the tokens "
                f"({self.tokenizer[:16]}…); give that one, or tokenize the documents again with this one"
            )

    def to_json(self) -> str:
        """The ledger as the text of its file."""
        places = zip(self.parts, self.token_starts, self.document_starts, strict=False)
        parts = [{**dataclasses.asdict(part), "first_token": t, "first_document": d} for part, t, d in places]
        content = {**dataclasses.asdict(self), "parts": parts, "version": VERSION}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str, where: str = LEDGER_FILE) -> Ledger:
        """The ledger that `to_json` wrote.

        Raises:
            InputError: naming `where`, for another version, or a text that was changed.
        """
        again = "run the step that made the tokens again"
        try:
            fields = json.loads(text)
            version = fields.pop("version", 1)
            if version != VERSION:
                raise InputError(
                    f"{where}: a ledger of version {version}, where version {VERSION}, with digests, is read; {again}"
                )
            written = [(part.pop("first_token"), part.pop("first_document")) for part in fields["parts"]]
            ledger = Ledger(**{**fields, "parts": tuple(TokenPart(**part) for part in fields["parts"])})
            problem = ledger._problem()
        except InputError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{where}: not a ledger of tokens ({type(error).__name__}: {error}); {again}") from error
        starts = list(zip(ledger.token_starts, ledger.document_starts, strict=True))
        for part, said, found in zip(ledger.parts, written, starts, strict=False):
            if said != found:
                problem = problem or (
                    f"{part.name} is said to begin at token {said[0]} and document {said[1]}, "
                    f"but the parts before it end at {found[0]} and {found[1]}"
                )
        if problem:
            raise InputError(f"{where}: {problem}: the file is not as it was written; {again}")
        return ledger

    def _problem(self) -> str | None:
        names = Counter(part.name for part in self.parts)
        if twice := [name for name, count in names.items() if count > 1]:
            return f"{twice[0]} is there twice"
        for part in self.parts:
            counts = (part.tokens, part.documents, part.bytes, part.truncated, part.empty)
            if not all(type(count) is int and count >= 0 for count in counts):
                return f"{part.name} has a count that is no whole number of at least 0"
            if not (_DIGEST.fullmatch(part.tokens_sha256) and _DIGEST.fullmatch(part.offsets_sha256)):
                return f"{part.name} has a digest that is not 64 hex"
        if not _DIGEST.fullmatch(self.tokenizer):
            return "the tokenizer's digest is not 64 hex"
        if self.dtype != token_dtype(self.vocabulary):
            return f"{self.dtype} is not the type of {self.vocabulary} ids, which is {token_dtype(self.vocabulary)}"
        return None


def token_dtype(vocabulary: int) -> str:
    """The smallest of `uint16` and `uint32` that holds every id of a vocabulary."""
    return "uint16" if vocabulary <= 2**16 else "uint32"
