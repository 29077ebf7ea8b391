"""What the documents of a token store are called: from a number in the store to an id and a name, and back.

Tokens keep no names. A store made by tokenizing has a part for each part of its documents, under the same name and in
the same order, so a document's number says its part and its row there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.schema import Documents
from marin_pipeline.data.token_ledger import Ledger

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SHORTEST_ID = 6
"""Hex digits of an id that a document is asked for by, at least."""
_COLUMNS = ["id", "source", "source_id"]
_HEX = re.compile(rf"[0-9a-f]{{{SHORTEST_ID},32}}")


class OpenedFile(Protocol):
    """A file that is read by ranges where it lies far away."""

    def open(self, mode: str = "rb", /) -> IO[Any]: ...


class StoredDocuments(Protocol):
    """An output of documents that can be read."""

    @property
    def value(self) -> Documents: ...
    def __truediv__(self, path: str, /) -> OpenedFile: ...


class DocumentName(NamedTuple):
    """What a document is called."""

    id: str
    """xxh3-128 of the text, 32 hex."""
    source: str
    """The collection that it belongs to."""
    source_id: str
    """Its name within that."""


class DocumentNames:
    """The names of the documents that a store's tokens are of. Parts are opened when they are first asked for."""

    def __init__(self, documents: StoredDocuments, ledger: Ledger) -> None:
        """Bring documents and tokens together.

        Raises:
            InputError: when the tokens are not those of these documents, part by part.
        """
        made = [part.removesuffix(".parquet") for part in documents.value.parts]
        if made != [part.name for part in ledger.parts] or documents.value.documents != ledger.documents:
            raise InputError(
                f"{documents.value.documents} documents in {len(made)} parts, where the tokens are of "
                f"{ledger.documents} in {len(ledger.parts)}: give the documents that these tokens were made from"
            )
        self._documents = documents
        self._ledger = ledger
        self._opened = lru_cache(maxsize=16)(self._open)
        # A batch asks for rows here and there: a few hundred row groups are a few MB of names.
        self._names = lru_cache(maxsize=256)(self._read)

    def of(self, document: int) -> DocumentName:
        """What the document with this number in the store is called.

        Raises:
            InputError: for a number that the store does not have.
        """
        if not 0 <= document < self._ledger.documents:
            raise InputError(f"document {document} of a store that has {self._ledger.documents}, numbered from 0")
        part = self._ledger.part_of_document(document)
        row = document - self._ledger.document_starts[part]
        metadata = self._opened(part).metadata
        for group in range(metadata.num_row_groups):
            if row < metadata.row_group(group).num_rows:
                return self._names(part, group)[row]
            row -= metadata.row_group(group).num_rows
        raise AssertionError("the rows of a part were counted when it was opened")

    def find(self, text: str) -> list[tuple[int, DocumentName]]:
        """The documents, with their numbers, whose id begins with `text` (6 hex or more) or whose name within their
        collection it is.

        Looks into what can hold an id, and through all names when none is found.
        """
        if _HEX.fullmatch(text):
            found = [each for each in self._all(text) if each[1].id.startswith(text)]
            if found:
                return found
        return [each for each in self._all("") if each[1].source_id == text]

    def near(self, text: str, most: int) -> list[str]:
        """The first names, `most` of them, that contain `text` in capitals or not, each once."""
        sought, found = text.casefold(), dict[str, None]()
        for _, name in self._all("") if sought else ():
            if sought in name.source_id.casefold():
                found[name.source_id] = None
            if len(found) == most:
                break
        return list(found)

    def _all(self, prefix: str) -> Iterator[tuple[int, DocumentName]]:
        """The documents of all row groups that can hold an id with this prefix."""
        for part, first in enumerate(self._ledger.document_starts[:-1]):
            metadata = self._opened(part).metadata
            for group in range(metadata.num_row_groups):
                held = metadata.row_group(group)
                # Rows are in the order of their ids, so the bounds of a row group leave most of them out.
                bounds = held.column(0).statistics
                if not bounds or not bounds.has_min_max or bounds.min[: len(prefix)] <= prefix <= bounds.max:
                    yield from enumerate(self._names(part, group), first)
                first += held.num_rows

    def _open(self, part: int) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = self._documents.value.parts[part]
        try:
            file = pq.ParquetFile((self._documents / name).open("rb"))
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(
                f"{name}: not a readable Parquet file ({error}); rerun the step that wrote the documents"
            ) from error
        rows, first = file.metadata.num_rows, file.schema_arrow.names[:1]
        if rows != self._ledger.parts[part].documents or first != _COLUMNS[:1]:
            raise InputError(
                f"{name}: {rows} documents, where the tokens are of {self._ledger.parts[part].documents}; give the "
                "documents that these tokens were made from"
            )
        return file

    def _read(self, part: int, group: int) -> list[DocumentName]:
        table = self._opened(part).read_row_group(group, columns=_COLUMNS, use_threads=False)
        return list(map(DocumentName, *(table.column(name).to_pylist() for name in _COLUMNS)))
