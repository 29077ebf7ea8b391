"""A number in a token store is the document that its tokens were made from, and a name is that number."""

from __future__ import annotations

import functools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_pipeline import Artifact, Documents, local_artifact
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document, make_document, sort_key
from marin_pipeline.data.document_names import DocumentNames
from marin_pipeline.data.parts import part_schema
from marin_pipeline.data.token_ledger import Ledger, TokenPart
from marin_pipeline.data.writers import write_part

ROWS = sorted((make_document(f"text {n}", f"site-{n % 3}", f"{n % 200}.html") for n in range(1000)), key=sort_key)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Documents]:
    """Two parts, of which the second is read in several pieces, as large ones are."""
    folder = tmp_path_factory.mktemp("documents")
    write_part(folder / "first.parquet", ROWS[:300])
    columns = [list(column) for column in zip(*ROWS[300:], strict=True)]
    table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=part_schema())
    pq.write_table(table, folder / "second.parquet", row_group_size=64)
    return local_artifact(folder, Documents(("first.parquet", "second.parquet"), len(ROWS), 1, "d" * 64, ()))


def ledger(*counts: tuple[str, int]) -> Ledger:
    made = (TokenPart(name, count, count, count, 0, 0, "a" * 64, "b" * 64) for name, count in counts)
    return Ledger(tuple(made), "uint16", 300, 0, "c" * 64)


@functools.cache
def opened(stored: Artifact[Documents]) -> DocumentNames:
    return DocumentNames(stored, ledger(("first", 300), ("second", 700)))


def named(document: Document) -> tuple[str, str, str]:
    return document.id, document.source, document.source_id


def test_each_number_has_the_name_of_its_document(stored: Artifact[Documents]) -> None:
    names = opened(stored)
    assert [names.of(number) for number in range(len(ROWS))] == [named(row) for row in ROWS]
    with pytest.raises(InputError, match="document 1000 of a store that has 1000"):
        names.of(1000)


@pytest.mark.parametrize("digits", [6, 20, 32])
def test_the_beginning_of_an_id_finds_its_document(stored: Artifact[Documents], digits: int) -> None:
    for number in (0, 299, 300, 731, 999):
        prefix = ROWS[number].id[:digits]
        expected = [(place, named(row)) for place, row in enumerate(ROWS) if row.id.startswith(prefix)]
        assert opened(stored).find(prefix) == expected
        assert (number, named(ROWS[number])) in expected


def test_a_name_finds_all_documents_that_have_it(stored: Artifact[Documents]) -> None:
    found = opened(stored).find("17.html")
    assert found == [(place, named(row)) for place, row in enumerate(ROWS) if row.source_id == "17.html"]
    assert len(found) == 5
    assert (
        opened(stored).find("17.htm") == opened(stored).find("ffffff0000") == opened(stored).find(ROWS[0].id[:5]) == []
    )


def test_documents_of_other_tokens_are_refused(stored: Artifact[Documents]) -> None:
    for counts in ([("first", 1000)], [("first", 300), ("other", 700)], [("first", 300), ("second", 701)]):
        with pytest.raises(InputError, match="give the documents that these tokens were made from"):
            DocumentNames(stored, ledger(*counts))
    shifted = DocumentNames(stored, ledger(("first", 301), ("second", 699)))
    with pytest.raises(InputError, match=r"300 documents, where the tokens are of 301"):
        shifted.of(0)


def test_a_part_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").write_text("no")
    value = Documents(("part.parquet",), 1, 1, "d" * 64, ())
    with pytest.raises(InputError, match=r"part.parquet: not a readable Parquet file"):
        DocumentNames(local_artifact(tmp_path, value), ledger(("part", 1))).of(0)
