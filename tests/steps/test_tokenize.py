"""From documents to a tokenizer and a token store: nothing is lost, and equal documents give equal bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document, make_document
from marin_pipeline.data.parts import read_documents
from marin_pipeline.data.schema import Documents, Tokenizer
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.tokenizer import END_OF_DOCUMENT, load_tokenizer
from steps.tokenize import tokenize
from steps.train_tokenizer import train_tokenizer

StoreDocuments = Callable[[Iterable[Document]], Artifact[Documents]]

TEXTS = [f"Text {place} has {place % 17} parts and {place % 5} ends.\n" * 100 for place in range(700)]
ODD = ["word", " ", "a\0b", f"not {END_OF_DOCUMENT} the end", "ü" * 1000, "🙂"]


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def documents(stored: StoreDocuments) -> Artifact[Documents]:
    return stored(make_document(text, "s", str(place)) for place, text in enumerate([*TEXTS, *ODD]))


def _tokenizer(folder: Path, documents: Artifact[Documents], vocabulary: int = 500) -> Artifact[Tokenizer]:
    ctx = test_context(folder)
    return local_artifact(ctx.out, train_tokenizer.fn(ctx, documents=documents, vocabulary=vocabulary))


def test_every_document_reads_back_from_the_store_in_order(tmp_path: Path, documents: Artifact[Documents]) -> None:
    tokenizer = _tokenizer(tmp_path / "tokenizer", documents)
    ctx = test_context(tmp_path / "tokens")
    tokens = tokenize.fn(ctx, documents=documents, tokenizer=tokenizer)
    store = TokenStore(local_artifact(ctx.out, tokens))
    loaded = load_tokenizer(tokenizer / tokenizer.value.path)
    rows = list(read_documents(documents))
    assert len(store.ledger.parts) == len(documents.value.parts) > 1
    assert (tokens.documents, tokens.bytes) == (len(rows), documents.value.bytes)
    assert tokens.tokens == store.tokens
    for place in [*range(0, len(rows), 50), *(place for place, row in enumerate(rows) if row.text in ODD)]:
        *ids, end = store.document(place).tolist()
        assert end == tokens.end_of_document
        assert loaded.decode(ids, skip_special_tokens=False) == rows[place].text
    store.verify()


def test_the_ledger_names_the_tokenizer_and_counts_what_is_cut_and_what_is_empty(
    tmp_path: Path, stored: StoreDocuments
) -> None:
    texts = ["", "one two three four five six", "a", "\n" * 5000]
    documents = stored(make_document(text, "s", str(place)) for place, text in enumerate(texts))
    tokenizer = _tokenizer(tmp_path / "tokenizer", documents, 300)
    found = {}
    for maximum in (None, 5):
        ctx = test_context(tmp_path / f"tokens-{maximum}")
        value = tokenize.fn(ctx, documents=documents, tokenizer=tokenizer, maximum_tokens=maximum)
        store = TokenStore(local_artifact(ctx.out, value), tokenizer / "tokenizer.json")
        store.verify()
        found[maximum] = store
    whole, cut = found[None], found[5]
    assert (whole.ledger.documents, whole.ledger.truncated, whole.ledger.empty) == (4, 0, 1)
    assert (cut.ledger.documents, cut.ledger.empty, cut.ledger.bytes) == (4, 1, whole.ledger.bytes)
    lengths = np.diff(whole.offsets)
    assert cut.ledger.truncated == (lengths > 5).sum() > 0
    assert np.diff(cut.offsets).tolist() == np.minimum(lengths, 5).tolist()
    other = _tokenizer(tmp_path / "other", documents, 257)
    with pytest.raises(InputError, match="another tokenizer"):
        TokenStore(local_artifact(ctx.out, value), other / "tokenizer.json")


@pytest.mark.parametrize("maximum", [1, 0, -3])
def test_no_room_for_text_stops_the_step(tmp_path: Path, stored: StoreDocuments, maximum: int) -> None:
    documents = stored([make_document("word", "s", "1")])
    tokenizer = _tokenizer(tmp_path / "tokenizer", documents)
    with pytest.raises(InputError, match=f"maximum_tokens={maximum}: at least 2"):
        tokenize.fn(test_context(tmp_path / "c"), documents=documents, tokenizer=tokenizer, maximum_tokens=maximum)


def test_equal_documents_give_equal_bytes(tmp_path: Path, documents: Artifact[Documents]) -> None:
    made = []
    for name in ("first", "second"):
        tokenizer = _tokenizer(tmp_path / f"tokenizer-{name}", documents)
        ctx = test_context(tmp_path / f"tokens-{name}")
        value = tokenize.fn(ctx, documents=documents, tokenizer=tokenizer)
        made.append((value, tokenizer.value, _digests(ctx.out), (tokenizer / "tokenizer.json").sha256))
    assert made[0] == made[1]


def test_little_text_gives_the_vocabulary_that_there_is(tmp_path: Path, stored: StoreDocuments) -> None:
    tokenizer = _tokenizer(tmp_path / "tokenizer", stored([make_document("word", "s", "1")]), 2048)
    assert tokenizer.value.vocabulary == load_tokenizer(tokenizer / "tokenizer.json").get_vocab_size() < 2048


def test_no_documents_stop_the_step_with_what_to_do(tmp_path: Path, stored: StoreDocuments) -> None:
    some, none = stored([make_document("word", "s", "1")]), stored([])
    with pytest.raises(InputError, match=r"train_tokenizer.*give more text"):
        _tokenizer(tmp_path / "a", none)
    tokenizer = _tokenizer(tmp_path / "b", some)
    with pytest.raises(InputError, match=r"tokenize.*give more text"):
        tokenize.fn(test_context(tmp_path / "c"), documents=none, tokenizer=tokenizer)
