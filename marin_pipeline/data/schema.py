"""The kinds that data steps hand on: documents, a tokenizer, tokens, a packing plan.

They are small, typed and deterministic; every path in them is relative to the output that they describe. Light on
purpose: step signatures name these classes, and declaring a step loads no library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, TypeVar

Kind_co = TypeVar("Kind_co", covariant=True)


@dataclass(frozen=True)
class Count:
    """How much of one source met one fate in a step."""

    reason: str
    """`in`, `out`, or the name of the rule that dropped the documents."""
    source: str
    """Where the documents came from."""
    documents: int
    bytes: int
    """UTF-8 bytes of their text."""


@dataclass(frozen=True)
class Documents:
    """Documents in Parquet parts, ordered by (id, source, source_id) within and across parts."""

    parts: tuple[str, ...]
    """Parquet files with columns id, text, source, source_id, metadata, in the order of their ids."""
    documents: int
    bytes: int
    """UTF-8 bytes of all texts."""
    logical_digest: str
    """sha256 over the rows, 64 hex; independent of how Parquet lays them out."""
    counts: tuple[Count, ...]
    """What went in, out and away, by reason and source, ordered by both."""


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer in the file format of Hugging Face `tokenizers`."""

    path: str
    """The file, `tokenizer.json`."""
    vocabulary: int
    """Number of token ids, special ones included."""
    end_of_document: int
    """Id of the token that follows every document."""


@dataclass(frozen=True)
class Tokens:
    """A token store: arrays of token ids and document starts, and the ledger that lists them."""

    ledger: str
    """The file that lists the parts, `ledger.json`."""
    tokens: int
    """Token ids in all parts, end-of-document tokens included."""
    documents: int
    bytes: int
    """UTF-8 bytes of the text that the tokens stand for."""
    vocabulary: int
    end_of_document: int


@dataclass(frozen=True)
class Packing:
    """A packing plan: by part of a token store, which pieces of its documents fill each row."""

    ledger: str
    """The file that lists the plans of the parts, `packing.json`."""
    sequence_length: int
    """Positions of a row."""
    rows: int
    documents: int
    tokens: int
    """Filled positions; the rest of the rows is padding."""


class Stored(Protocol[Kind_co]):
    """An output that can be read: its value, and its files and folders by relative path."""

    @property
    def value(self) -> Kind_co: ...
    def __truediv__(self, path: str, /) -> os.PathLike[str]: ...
