"""Writing parts of documents: equal rows give equal bytes.

The number of parts follows from the bytes of text alone, and a document's part from its id alone: part i of n holds
the i-th n-th of the range of ids. So an added document changes one part, whoever wrote it and however many workers
there were.
"""

from __future__ import annotations

import heapq
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from marin_pipeline.data.document import Document, LogicalDigest, sort_key
from marin_pipeline.data.funnel import FunnelReport, write_removed
from marin_pipeline.data.parts import part_schema, read_part
from marin_pipeline.data.schema import Documents

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES = 64 * 2**20
SMALL_PART_BYTES = 2**20
SMALL_PARTS = 4
ROW_GROUP_BYTES = 4 * 2**20
ZSTD_LEVEL = 3
FILES_OPEN = 256
PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": ZSTD_LEVEL,
    "use_dictionary": ["source"],
    "write_statistics": ["id"],
    "store_schema": False,
}


def part_count(size: int) -> int:
    """Into how many parts documents of `size` UTF-8 bytes go: a power of two, so that the ranges of ids nest.

    About 64 MiB a part; a corpus of a few MiB still gets up to four parts, so that it can be tokenized on several
    cores.
    """
    parts = 1
    while size > parts * PART_BYTES or (parts < SMALL_PARTS and size >= 2 * parts * SMALL_PART_BYTES):
        parts *= 2
    return parts


def part_of(id: str, parts: int) -> int:
    """The part of a document: the position of its id in the range of ids, scaled to the number of parts."""
    return int(id[:8], 16) * parts >> 32


class PartWriter:
    """One Parquet file of documents, written as a context manager; its row groups hold about 4 MiB of text each.

    The rows must come in order of `sort_key`; what is written with another order cannot be read as a part.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema = part_schema()
        self._writer = pq.ParquetWriter(path, self._schema, **PARQUET_OPTIONS)
        self._rows: list[Document] = []
        self._held = 0

    def add(self, document: Document) -> None:
        """Write the next row."""
        self._rows.append(document)
        self._held += document.bytes
        if self._held >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            columns = [pa.array(column, pa.string()) for column in zip(*self._rows, strict=True)]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._held = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def write_part(path: Path, documents: Iterable[Document]) -> None:
    """Write documents, which come in order, to one Parquet file."""
    with PartWriter(path) as writer:
        for document in documents:
            writer.add(document)


def write_documents(folder: Path, documents: Iterable[Document], report: FunnelReport) -> Documents:
    """Write documents, which come in order, as the parts of an output, with the sample of what was removed.

    Args:
        folder: the output folder of the step.
        documents: as many as `report` counts as kept.
        report: what went in, out and away.

    Raises:
        ValueError: when the rows are out of order or are not those that the report counts: a defect of the calling
            step.
    """
    parts = part_count(report.bytes_out)
    rows = _Rows(documents)
    names: list[str] = []
    for index, group in itertools.groupby(rows, lambda document: part_of(document.id, parts)):
        names.append(f"part-{index:05d}-of-{parts:05d}.parquet")
        write_part(folder / names[-1], group)
    if rows.bytes != report.bytes_out:
        raise ValueError(f"{rows.bytes} bytes of text were written, but the report counts {report.bytes_out}")
    write_removed(folder, report)
    return Documents(tuple(names), rows.documents, rows.bytes, rows.digest.hexdigest(), report.counts)


class _Rows:
    """Documents passing by: their order is checked, they are counted and digested."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = documents
        self.documents = 0
        self.bytes = 0
        self.digest = LogicalDigest()

    def __iter__(self) -> Iterator[Document]:
        previous = ("", "", "", "")
        for document in self._documents:
            key = sort_key(document)
            if key < previous:
                raise ValueError(f"documents out of order: {key[:3]} after {previous[:3]}")
            previous = key
            self.documents += 1
            self.bytes += document.bytes
            self.digest.add(document)
            yield document


def gather(folder: Path, files: Sequence[str | os.PathLike[str]], report: FunnelReport) -> Documents:
    """Merge parts that shards wrote, each in order, into the parts of an output.

    The result depends on the rows alone, not on how they were spread over `files`. Memory holds a few hundred rows a
    file.
    """
    with tempfile.TemporaryDirectory(prefix="merge-") as scratch:
        runs: list[str | os.PathLike[str]] = list(files)
        level = 0
        while len(runs) > FILES_OPEN:
            merged: list[str | os.PathLike[str]] = []
            for start in range(0, len(runs), FILES_OPEN):
                path = Path(scratch) / f"{level}-{start}.parquet"
                write_part(path, _merged(runs[start : start + FILES_OPEN]))
                merged.append(path)
            runs = merged
            level += 1
        return write_documents(folder, _merged(runs), report)


def _merged(files: Sequence[str | os.PathLike[str]]) -> Iterator[Document]:
    return heapq.merge(*map(read_part, files), key=sort_key)


def concatenate(path: Path, schema: pa.Schema, files: Iterable[str | os.PathLike[str]]) -> None:
    """Write the rows of Parquet files, all of `schema`, in the given order to one Parquet file at `path`."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=ZSTD_LEVEL, store_schema=False) as writer:
        for file in files:
            with pq.ParquetFile(os.fspath(file)) as rows:
                writer.write_table(rows.read().cast(schema))
