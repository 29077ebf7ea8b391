"""Parts of documents on disk, read in order.

A part is a Parquet file with the columns of `Document`, ordered by `sort_key`; the parts of an output follow each
other in that order. Which files belong to an output is said by its value, never found by looking.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document
from marin_pipeline.data.schema import Documents, Stored

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = Document._fields
ROWS_PER_READ = 256


def part_schema() -> pa.Schema:
    """The Parquet schema of a part: five columns of text, none of them null."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.string(), nullable=False) for name in COLUMNS])


def read_part(path: str | os.PathLike[str]) -> Iterator[Document]:
    """The documents of one part, in order; a few hundred rows are in memory at a time.

    Raises:
        InputError: when the file is no part of documents.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(os.fspath(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{os.fspath(path)}: not a readable Parquet file ({error}); rerun the step that wrote it"
        ) from error
    with file:
        missing = set(COLUMNS) - set(file.schema_arrow.names)
        if missing:
            raise InputError(
                f"{os.fspath(path)}: no column {', '.join(sorted(missing))}; "
                f"a part of documents has {', '.join(COLUMNS)}"
            )
        for batch in file.iter_batches(ROWS_PER_READ, columns=list(COLUMNS), use_threads=False):
            yield from map(Document, *(batch.column(name).to_pylist() for name in COLUMNS))


def read_documents(documents: Stored[Documents]) -> Iterator[Document]:
    """All documents of an output, in order of (id, source, source_id)."""
    for part in documents.value.parts:
        yield from read_part(documents / part)


def batches(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Runs of consecutive documents with at least `size` UTF-8 bytes of text each, but for the last."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += document.bytes
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
