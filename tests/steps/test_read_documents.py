"""Reading a user's text: every row is a document or counted, and the result does not see where the files lie."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from marin_pipeline import Artifact, LocalFile, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.parts import read_documents as rows_of
from marin_pipeline.data.schema import Documents
from steps.read_documents import documents_from, read_documents


def _fill(folder: Path) -> Path:
    (folder / "more").mkdir(parents=True)
    lines = [{"text": "One text."}, {"text": "a\0b"}, {"content": "x"}, {"text": ""}, {"text": "word"}]
    (folder / "a.jsonl").write_text("\n".join([*map(json.dumps, lines), "{broken"]))
    (folder / "more" / "b.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "Two texts."}\n{"text": "One text."}\n', mtime=0)
    )
    (folder / "c.txt").write_bytes(b"caf\xe9")
    (folder / "notes.md").write_text("not read")
    (folder / ".hidden.txt").write_text("not read")
    return folder


def _run(ctx_folder: Path, folder: Path) -> tuple[Path, Documents]:
    ctx = test_context(ctx_folder)
    files = {
        path.relative_to(folder).as_posix(): LocalFile(path)
        for path in folder.rglob("*.*")
        if path.suffix in (".jsonl", ".gz", ".txt")
    }
    files.pop(".hidden.txt", None)
    return ctx.out, read_documents.fn(ctx, files=files)


def test_every_row_is_a_document_or_counted_by_reason(tmp_path: Path) -> None:
    out, documents = _run(tmp_path / "ctx", _fill(tmp_path / "data"))
    counts = {count.reason: count.documents for count in documents.counts}
    assert counts == {
        "in": 9, "out": 4, "nul_byte": 1, "missing_text": 1, "empty": 1, "broken_json": 1, "invalid_utf8": 1,
    }  # fmt: skip
    rows = list(rows_of(local_artifact(out, documents)))
    assert sorted((row.text, row.source, row.source_id) for row in rows) == [
        ("One text.", "local", "a.jsonl#1"),
        ("One text.", "local", "more/b.jsonl.gz#2"),
        ("Two texts.", "local", "more/b.jsonl.gz#1"),
        ("word", "local", "a.jsonl#5"),
    ]
    removed = [json.loads(line) for line in (out / "removed.jsonl").read_text().splitlines()]
    assert {(row["reason"], row["source_id"]) for row in removed} == {
        ("nul_byte", "a.jsonl#2"),
        ("missing_text", "a.jsonl#3"),
        ("empty", "a.jsonl#4"),
        ("broken_json", "a.jsonl#6"),
        ("invalid_utf8", "c.txt#1"),
    }


def test_where_the_files_lie_does_not_count(tmp_path: Path) -> None:
    first, second = (_run(tmp_path / f"ctx-{name}", _fill(tmp_path / name)) for name in ("here", "there"))
    assert first[1] == second[1]
    assert documents_from(tmp_path / "here", source="s").key == documents_from(tmp_path / "there", source="s").key


def test_the_same_rows_in_any_number_of_files_give_the_same_output(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"text {place % 80}", "name": place}) for place in range(100)]
    made = []
    for files in (1, 3, 7):
        folder = tmp_path / str(files)
        folder.mkdir()
        for place in range(files):
            (folder / f"{place}.jsonl").write_text("\n".join(rows[place::files]))
        ctx = test_context(tmp_path / f"ctx-{files}")
        given = {path.name: LocalFile(path) for path in folder.iterdir()}
        documents = read_documents.fn(ctx, files=given, id_key="name")
        made.append((documents, {path.name: path.read_bytes() for path in ctx.out.iterdir()}))
    assert made[0] == made[1] == made[2]


def test_a_folder_is_declared_with_all_that_can_be_read_in_it(tmp_path: Path) -> None:
    folder = _fill(tmp_path / "data.v1")
    declared = documents_from(folder)
    assert isinstance(declared, Artifact)
    assert declared.declaration is not None
    arguments = declared.declaration.arguments
    assert list(arguments["files"]) == ["a.jsonl", "c.txt", "more/b.jsonl.gz"]
    assert arguments["source"] == "data"
    assert documents_from(folder / "a.jsonl").key != declared.key


def test_a_path_without_text_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b")
    with pytest.raises(InputError, match=r"no such file or folder.*\.jsonl"):
        documents_from(tmp_path / "absent")
    for path in (tmp_path, tmp_path / "table.csv"):
        with pytest.raises(InputError, match=r"nothing here can be read.*\.parquet"):
            documents_from(path)


def test_files_without_rows_give_no_documents(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    documents = read_documents.fn(
        test_context(tmp_path / "ctx"), files={"empty.jsonl": LocalFile(tmp_path / "empty.jsonl")}
    )
    assert (documents.documents, documents.parts, documents.counts) == (0, (), ())


def test_a_wrong_text_key_stops_the_step_with_the_keys_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "x"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl.*content.*text_key"):
        read_documents.fn(test_context(tmp_path / "ctx"), files={"a.jsonl": LocalFile(tmp_path / "a.jsonl")})
