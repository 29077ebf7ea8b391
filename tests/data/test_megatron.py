"""Indexed datasets of Megatron: what is exported, plain numpy reads; what is imported, is the store that it was."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from marin_pipeline import Artifact, local_artifact
from marin_pipeline.core.errors import InputError
from marin_pipeline.data import megatron
from marin_pipeline.data.megatron import export_megatron, import_megatron
from marin_pipeline.data.schema import Tokenizer
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.tokenizer import encode, load_tokenizer, train_bpe
from tests.data.token_stores import write_store

TEXTS = [f"The {n}th text: it's {n * n} words of ünïcödé 文字." for n in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    made = train_bpe(TEXTS, 300)
    made.save(str(folder / "tokenizer.json"))
    return local_artifact(folder, Tokenizer("tokenizer.json", made.get_vocab_size(), 0))


def read_plainly(prefix: Path) -> list[list[list[int]]]:
    """Documents of an indexed dataset, each a list of sequences: by numpy alone, from the layout of the two files."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = {4: np.dtype("<i4"), 8: np.dtype("<u2")}[code]
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    bounds = np.frombuffer(index, "<i8", documents, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * documents
    data = np.memmap(f"{prefix}.bin", np.uint8, "r") if Path(f"{prefix}.bin").stat().st_size else np.empty(0, np.uint8)
    assert len(data) == lengths.sum() * dtype.itemsize
    read = [
        data[start : start + length * dtype.itemsize].view(dtype).tolist()
        for start, length in zip(pointers.tolist(), lengths.tolist(), strict=True)
    ]
    return [read[first:last] for first, last in pairwise(bounds.tolist())]


def made_folder(path: Path) -> Path:
    path.mkdir()
    return path


DOCUMENTS = st.lists(st.integers(1, 299), max_size=9).map(lambda ids: [*ids, 0])
PARTS = st.lists(st.lists(DOCUMENTS, max_size=5), min_size=1, max_size=4)


@settings(max_examples=20, deadline=None)
@given(PARTS, st.sampled_from([300, 2**17]))
def test_plain_numpy_reads_what_is_exported_and_it_is_imported_as_it_was(
    tokenizer: Artifact[Tokenizer],
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[list[int]]],
    vocabulary: int,
) -> None:
    folder = tmp_path_factory.mktemp("megatron")
    documents = [document for part in parts for document in part]
    store = TokenStore(write_store(folder / "store", parts, vocabulary))
    assert export_megatron(store, folder) == (folder / "tokens.bin", folder / "tokens.idx")
    assert read_plainly(folder / "tokens") == [[document] for document in documents]
    again = made_folder(folder / "again")
    if not documents:
        with pytest.raises(InputError, match=r"tokens\.idx: it has no documents"):
            import_megatron(folder / "tokens", again, tokenizer)
        assert list(again.iterdir()) == []
        return
    value = import_megatron(folder / "tokens", again, tokenizer)
    found = TokenStore(local_artifact(again, value), tokenizer / "tokenizer.json")
    found.verify()
    assert [found.document(place).tolist() for place in range(found.documents)] == documents
    assert found.tokens == store.tokens
    assert found.ledger.empty == documents.count([0])


def test_parts_and_pieces_do_not_change_what_is_imported(
    tokenizer: Artifact[Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = encode(load_tokenizer(tokenizer / "tokenizer.json"), TEXTS, 0)
    store = TokenStore(write_store(tmp_path / "store", [encoded[:7], encoded[7:]], 300))
    monkeypatch.setattr(megatron, "PIECE_TOKENS", 13)
    monkeypatch.setattr(megatron, "PART_TOKENS", 100)
    export_megatron(store, tmp_path)
    assert read_plainly(tmp_path / "tokens") == [[ids.tolist()] for ids in encoded]
    value = import_megatron(tmp_path / "tokens", made_folder(tmp_path / "again"), tokenizer)
    again = TokenStore(local_artifact(tmp_path / "again", value))
    assert len(again.ledger.parts) > 4
    assert np.array_equal(again.read(0, again.tokens), store.read(0, store.tokens))
    assert np.array_equal(again.offsets, store.offsets)
    assert value.bytes == sum(len(text.encode()) for text in TEXTS)
    assert again.ledger.tokenizer == hashlib.sha256(Path(tokenizer / "tokenizer.json").read_bytes()).hexdigest()


def test_bytes_of_text_are_counted_by_decoding_where_tokens_are_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron, "PIECE_TOKENS", 5)
    texts = ["the wörd is wörd", "is the", "the the the"]
    made = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[END]", "[UNK]"], show_progress=False))
    made.save(str(tmp_path / "tokenizer.json"))
    kind = local_artifact(tmp_path, Tokenizer("tokenizer.json", made.get_vocab_size(), 0))
    export_megatron(TokenStore(write_store(tmp_path / "store", [encode(made, texts, 0)], 64)), tmp_path)
    assert import_megatron(tmp_path / "tokens", made_folder(tmp_path / "again"), kind).bytes == len(
        "".join(texts).encode()
    )


def test_a_document_of_several_sequences_is_one_document(
    tokenizer: Artifact[Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron, "LONGEST_SEQUENCE", 4)
    documents = [[1, 2, 3, 4, 5, 6, 7, 8, 0], [0], [1, 2, 3, 0], [1, 2, 3, 4, 0]]
    export_megatron(TokenStore(write_store(tmp_path / "store", [documents])), tmp_path)
    found = read_plainly(tmp_path / "tokens")
    assert found == [[[1, 2, 3, 4], [5, 6, 7, 8], [0]], [[0]], [[1, 2, 3, 0]], [[1, 2, 3, 4], [0]]]
    value = import_megatron(tmp_path / "tokens", made_folder(tmp_path / "again"), tokenizer)
    again = TokenStore(local_artifact(tmp_path / "again", value))
    assert [again.document(place).tolist() for place in range(again.documents)] == documents


def test_files_that_are_there_are_not_written_over(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path / "store", [[[1, 0]]]))
    export_megatron(store, tmp_path)
    with pytest.raises(InputError, match=r"tokens.bin exists"):
        export_megatron(store, tmp_path)
    assert export_megatron(store, tmp_path, "more")[0].read_bytes() == (tmp_path / "tokens.bin").read_bytes()


def test_a_folder_that_holds_an_import_is_not_written_over(tokenizer: Artifact[Tokenizer], tmp_path: Path) -> None:
    export_megatron(TokenStore(write_store(tmp_path / "store", [[[1, 0]]])), tmp_path)
    folder = made_folder(tmp_path / "again")
    (folder / "notes.txt").write_text("no part")
    value = import_megatron(tmp_path / "tokens", folder, tokenizer)
    with pytest.raises(InputError, match=r"again has ledger\.json already; give an empty folder"):
        import_megatron(tmp_path / "tokens", folder, tokenizer)
    TokenStore(local_artifact(folder, value)).verify()
    (folder / "ledger.json").unlink()
    with pytest.raises(InputError, match="again has part-00000 already; give an empty folder"):
        import_megatron(tmp_path / "tokens", folder, tokenizer)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    stored = write_store(tmp_path / "store", [[[1, 0]], [[2, 0]]])
    store, folder = TokenStore(stored), made_folder(tmp_path / "out")
    (tmp_path / "store" / "part-1").rename(tmp_path / "lost")
    with pytest.raises(InputError, match="part-1"):
        export_megatron(store, folder)
    assert list(folder.iterdir()) == []
    (tmp_path / "lost").rename(tmp_path / "store" / "part-1")
    export_megatron(TokenStore(stored), folder)
    assert read_plainly(folder / "tokens") == [[[1, 0]], [[2, 0]]]


def test_what_is_no_store_and_no_folder_is_refused(tokenizer: Artifact[Tokenizer], tmp_path: Path) -> None:
    stored = write_store(tmp_path / "store", [[[1, 0]]])
    artifact: Any = stored
    with pytest.raises(InputError, match=r"an export to Megatron: store is .*: give a TokenStore, as in TokenStore\("):
        export_megatron(artifact, tmp_path)
    store = TokenStore(stored)
    export_megatron(store, tmp_path)
    cases: list[tuple[Any, str]] = [
        (str(tmp_path), r"folder is '.* \(str\): give a Path"),
        (None, "folder is None: give a Path"),
        (tmp_path / "nowhere", "there is no folder .*nowhere; make it"),
        (tmp_path / "tokens.bin", r"there is no folder .*tokens\.bin; make it"),
    ]
    for folder, said in cases:
        with pytest.raises(InputError, match=rf"\Aan export to Megatron: {said}"):
            export_megatron(store, folder, "more")
        with pytest.raises(InputError, match=rf"\Aan import from Megatron: {said}"):
            import_megatron(tmp_path / "tokens", folder, tokenizer)


def _change(ending: str, place: int, content: bytes) -> Callable[[Path], object]:
    def change(prefix: Path) -> None:
        path = Path(f"{prefix}.{ending}")
        found = bytearray(path.read_bytes())
        found[place : place + len(content)] = content
        path.write_bytes(found)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda prefix: Path(f"{prefix}.idx").unlink(), "tokens.idx is missing"),
        (lambda prefix: Path(f"{prefix}.idx").write_bytes(b"MMIDIDX"), "shorter than the header"),
        (_change("idx", 0, b"X"), "not an index of version 1"),
        (_change("idx", 9, b"\2"), "not an index of version 1"),
        (_change("idx", 17, b"\7"), "type 7 of its ids"),
        (_change("idx", 18, b"\3"), "bytes, where its counts ask for"),
        (_change("idx", 34, b"\2"), "do not follow each other"),
        (_change("idx", 34 + 8, b"\2"), "do not follow each other"),
        (_change("idx", 34 + 24, b"\1"), "its documents are not runs"),
        (lambda prefix: Path(f"{prefix}.bin").write_bytes(b"1234"), "where the .bin has 4"),
        (_change("bin", 4, b"\5"), "tokens.bin: document 0 does not end with id 0"),
        (_change("bin", 8, b"\5"), "tokens.bin: document 1 does not end with id 0"),
        (
            _change("bin", 1, b"\5"),
            "tokens.bin: document 0 has the id 1281, and the vocabulary .* has 300",
        ),
        (
            _change("bin", 7, b"\5"),
            "tokens.bin: document 1 has the id 1283, and the vocabulary .* has 300",
        ),
    ],
)
def test_what_is_no_dataset_of_the_tokenizer_is_refused(
    tokenizer: Artifact[Tokenizer], tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    export_megatron(TokenStore(write_store(tmp_path / "store", [[[1, 2, 0], [3, 0]]])), tmp_path)
    change(tmp_path / "tokens")
    folder = made_folder(tmp_path / "again")
    with pytest.raises(InputError, match=said):
        import_megatron(tmp_path / "tokens", folder, tokenizer)
    assert list(folder.iterdir()) == []


def test_an_import_that_failed_can_be_made_again(
    tokenizer: Artifact[Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that fails when parts and pieces of the failing part are written already, by whatever it fails."""
    monkeypatch.setattr(megatron, "PIECE_TOKENS", 2)
    monkeypatch.setattr(megatron, "PART_TOKENS", 3)
    documents = [[1, 2, 0], [3, 0], [4, 5, 6, 0]]
    export_megatron(TokenStore(write_store(tmp_path / "store", [documents])), tmp_path)
    folder, whole = made_folder(tmp_path / "again"), (tmp_path / "tokens.bin").read_bytes()
    _change("bin", 2 * 7 + 1, b"\5")(tmp_path / "tokens")
    with pytest.raises(InputError, match="document 2 has the id 1286"):
        import_megatron(tmp_path / "tokens", folder, tokenizer)
    assert list(folder.iterdir()) == []
    (tmp_path / "tokens.bin").write_bytes(whole)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(megatron, "Ledger", interrupted)
        with pytest.raises(KeyboardInterrupt):
            import_megatron(tmp_path / "tokens", folder, tokenizer)
    assert list(folder.iterdir()) == []
    value = import_megatron(tmp_path / "tokens", folder, tokenizer)
    again = TokenStore(local_artifact(folder, value))
    again.verify()
    assert [again.document(place).tolist() for place in range(again.documents)] == documents
    assert {path.name for path in folder.iterdir()} == {"ledger.json", *(part.name for part in again.ledger.parts)}
