"""One document: a text, where it is from, and an id that is its content.

The id is xxh3-128 of the text's UTF-8 bytes, so equal texts have equal ids wherever they come from. Rows are ordered by
`sort_key`, and `LogicalDigest` over rows in that order names a set of documents whatever files hold it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

EXCERPT_CHARACTERS = 200


class Document(NamedTuple):
    """A row of a documents part."""

    id: str
    """xxh3-128 of the UTF-8 text, 32 hex."""
    text: str
    source: str
    """The collection that it belongs to: the unit of mixtures and of scores by domain."""
    source_id: str
    """Its name within the source."""
    metadata: str
    """A JSON object as text, keys sorted."""

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the text."""
        return len(self.text.encode())


def document_id(text: str) -> str:
    """xxh3-128 of the UTF-8 bytes of `text`, 32 hex.

    Raises:
        UnicodeEncodeError: for a text with a lone surrogate; see `fault`.
    """
    return xxhash.xxh3_128_hexdigest(text.encode())


def make_document(text: str, source: str, source_id: str, metadata: Mapping[str, object] | None = None) -> Document:
    """A document with the id of its text. `metadata` must be representable in JSON."""
    packed = json.dumps(metadata or {}, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return Document(document_id(text), text, source, source_id, packed)


def sort_key(document: Document) -> tuple[str, str, str, str]:
    """The order of rows: id, source, source_id; metadata only so that the order is total."""
    return document.id, document.source, document.source_id, document.metadata


def fault(text: str) -> str | None:
    """Why a text cannot be a document, or None when it can.

    `empty` is a text of white space alone. `nul_byte` marks binary content that was taken for text, and NUL ends a
    string in much of what reads it later. `lone_surrogate` cannot be written as UTF-8 (JSON can spell one as
    `\\ud800`).
    """
    if not text or text.isspace():
        return "empty"
    if "\0" in text:
        return "nul_byte"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "lone_surrogate"
    return None


def text_bytes(text: str) -> int:
    """UTF-8 bytes of any text, one with lone surrogates included (three bytes each)."""
    return len(text.encode("utf-8", "surrogatepass"))


def excerpt(text: str) -> str:
    """The beginning of any text, safe to print and to write as UTF-8."""
    return text[:EXCERPT_CHARACTERS].encode("utf-8", "backslashreplace").decode()


class LogicalDigest:
    """sha256 over rows, fed one by one: for each field its length (8 bytes, little-endian) and its UTF-8 bytes."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, document: Document) -> None:
        """Take in the next row; rows come in the order of `sort_key`."""
        for field in document:
            encoded = field.encode()
            self._sha256.update(len(encoded).to_bytes(8, "little"))
            self._sha256.update(encoded)

    def hexdigest(self) -> str:
        """64 hex over the rows so far."""
        return self._sha256.hexdigest()
