"""Parts of documents: equal rows give equal bytes, however they were spread."""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document, make_document, sort_key
from marin_pipeline.data.funnel import Funnel, FunnelReport
from marin_pipeline.data.parts import batches, read_part
from marin_pipeline.data.schema import Documents
from marin_pipeline.data.writers import FILES_OPEN, PART_BYTES, gather, part_count, part_of, write_documents, write_part

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROWS = st.lists(st.builds(make_document, TEXTS, st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"])), max_size=30)


def _report(documents: list[Document]) -> FunnelReport:
    funnel = Funnel()
    for document in documents:
        funnel.keep(document)
    return funnel.report()


def _write(folder: Path, documents: list[Document]) -> Documents:
    folder.mkdir()
    return write_documents(folder, sorted(documents, key=sort_key), _report(documents))


def _read(folder: Path, documents: Documents) -> list[Document]:
    return [document for part in documents.parts for document in read_part(folder / part)]


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _large(number: int) -> list[Document]:
    """Documents of 1 KiB each."""
    return [make_document(f"{place:04d}" * 256, "source", str(place)) for place in range(number)]


@settings(max_examples=25, deadline=None)
@given(ROWS, st.integers(1, 5))
def test_rows_spread_over_any_number_of_shards_give_the_same_bytes(documents: list[Document], shards: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = []
        for shard in range(shards):
            files.append(folder / f"shard-{shard}.parquet")
            write_part(files[-1], sorted(documents[shard::shards], key=sort_key))
        (folder / "gathered").mkdir()
        gathered = gather(folder / "gathered", files, _report(documents))
        assert gathered == _write(folder / "whole", documents)
        assert _digests(folder / "gathered") == _digests(folder / "whole")
        assert _read(folder / "gathered", gathered) == sorted(documents, key=sort_key)


def test_parts_follow_each_other_in_the_order_of_ids(tmp_path: Path) -> None:
    documents = _large(3000)
    written = _write(tmp_path / "out", documents)
    assert written.parts == ("part-00000-of-00002.parquet", "part-00001-of-00002.parquet")
    assert _read(tmp_path / "out", written) == sorted(documents, key=sort_key)
    assert (written.documents, written.bytes) == (3000, 3000 * 1024)


def test_an_added_document_changes_one_part(tmp_path: Path) -> None:
    documents = _large(3000)
    before = _write(tmp_path / "before", documents)
    after = _write(tmp_path / "after", [*documents, make_document("one more", "source", "new")])
    changed = [
        part for part in before.parts if _digests(tmp_path / "before")[part] != _digests(tmp_path / "after")[part]
    ]
    assert before.parts == after.parts
    assert len(changed) == 1


def test_logical_digest_does_not_depend_on_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = _large(100)
    whole = _write(tmp_path / "whole", documents)
    monkeypatch.setattr("marin_pipeline.data.writers.SMALL_PART_BYTES", 1024)
    monkeypatch.setattr("marin_pipeline.data.writers.ROW_GROUP_BYTES", 4096)
    spread = _write(tmp_path / "spread", documents)
    assert len(whole.parts) < len(spread.parts)
    assert whole.logical_digest == spread.logical_digest


def test_logical_digest_sees_every_column(tmp_path: Path) -> None:
    document = make_document("text", "source", "name")
    others = [
        document,
        document._replace(source="s"),
        document._replace(source_id="n"),
        document._replace(metadata="{ }"),
    ]
    assert len({_write(tmp_path / str(place), [one]).logical_digest for place, one in enumerate(others)}) == 4


@given(st.integers(0, 2**50))
def test_number_of_parts_is_a_power_of_two_that_grows_with_content(size: int) -> None:
    parts = part_count(size)
    assert parts & (parts - 1) == 0
    assert size <= parts * PART_BYTES
    assert part_count(size // 2) <= parts <= part_count(2 * size)


@given(st.integers(0, 2**128 - 1), st.integers(0, 12))
def test_ranges_of_ids_nest(number: int, power: int) -> None:
    id = f"{number:032x}"
    assert part_of(id, 2**power) == part_of(id, 2 ** (power + 1)) // 2


def test_more_shards_than_open_files_are_merged(tmp_path: Path) -> None:
    documents = [make_document(f"text {place}", "source", "name") for place in range(FILES_OPEN + 10)]
    files = [tmp_path / f"{place}.parquet" for place in range(len(documents))]
    for file, document in zip(files, documents, strict=True):
        write_part(file, [document])
    (tmp_path / "out").mkdir()
    gathered = gather(tmp_path / "out", files, _report(documents))
    assert _read(tmp_path / "out", gathered) == sorted(documents, key=sort_key)


def test_no_documents_are_no_parts(tmp_path: Path) -> None:
    written = _write(tmp_path / "out", [])
    assert (written.parts, written.documents, written.bytes) == ((), 0, 0)


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    documents = sorted((make_document(text, "s", "n") for text in ("a", "b", "c")), key=sort_key, reverse=True)
    with pytest.raises(ValueError, match="out of order"):
        write_documents(tmp_path, documents, _report(documents))


def test_a_file_that_is_no_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"part\.parquet.*rerun"):
        list(read_part(tmp_path / "part.parquet"))


@given(ROWS, st.integers(1, 100))
def test_batches_hold_all_documents_in_order(documents: list[Document], size: int) -> None:
    found = list(batches(documents, size))
    assert [document for batch in found for document in batch] == documents
    assert all(sum(document.bytes for document in batch) >= size for batch in found[:-1])
