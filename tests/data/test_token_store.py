"""The token store: equal bytes for equal tokens, and any range read back across parts."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.schema import Tokens
from marin_pipeline.data.sequences import Sequences
from marin_pipeline.data.token_store import LEDGER_FILE, Ledger, TokenPart, TokenStore, token_dtype, write_token_part

Parts = list[list[list[int]]]


@dataclass(frozen=True)
class Folder:
    """An output that lies in a folder."""

    path: Path
    value: Tokens

    def __truediv__(self, path: str) -> os.PathLike[str]:
        return self.path / path


def _write(folder: Path, parts: Parts, vocabulary: int = 2048) -> TokenStore:
    entries = []
    for place, documents in enumerate(parts):
        name = f"part-{place}"
        tokens = write_token_part(folder / name, documents, vocabulary)
        entries.append(TokenPart(name, tokens, len(documents), tokens))
    ledger = Ledger(tuple(entries), token_dtype(vocabulary), vocabulary, 0)
    (folder / LEDGER_FILE).write_text(ledger.to_json())
    return TokenStore(Folder(folder, Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, vocabulary, 0)))


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


PARTS = st.lists(
    st.lists(st.lists(st.integers(0, 2047), min_size=1, max_size=9), min_size=1, max_size=5), min_size=1, max_size=4
)


@settings(max_examples=30, deadline=None)
@given(PARTS, st.data())
def test_any_range_of_tokens_reads_back_across_parts(
    tmp_path_factory: pytest.TempPathFactory, parts: Parts, data: st.DataObject
) -> None:
    store = _write(tmp_path_factory.mktemp("store"), parts)
    documents = [document for part in parts for document in part]
    flat = [token for document in documents for token in document]
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    assert store.read(start, stop).tolist() == flat[start:stop]
    assert (store.tokens, store.documents) == (len(flat), len(documents))
    assert store.offsets.tolist() == np.cumsum([0, *map(len, documents)]).tolist()
    assert [store.document(place).tolist() for place in range(len(documents))] == documents


def test_equal_tokens_give_equal_bytes(tmp_path: Path) -> None:
    parts = [[list(range(1, 2000)) * 50, [0]], [[3, 0]]]
    _write(tmp_path / "first", parts)
    _write(tmp_path / "second", [[np.array(document, np.uint32) for document in part] for part in parts])  # pyright: ignore[reportArgumentType]
    assert _digests(tmp_path / "first") == _digests(tmp_path / "second")
    assert len(_digests(tmp_path / "first")) == 2 * 4 + 1


def test_sequences_are_windows_with_one_target_more(tmp_path: Path) -> None:
    flat = np.arange(100)
    store = _write(tmp_path, [[flat[:37].tolist()], [flat[37:38].tolist()], [flat[38:].tolist()]])
    sequences = Sequences(store, 11)
    assert len(sequences) == 9
    found = sequences.read(np.array([8, 0, 3]))
    assert found.dtype == np.int32
    assert found.tolist() == [flat[place * 11 : place * 11 + 12].tolist() for place in (8, 0, 3)]
    assert sequences.read(np.empty(0, np.int64)).shape == (0, 12)


def test_order_and_sequences_agree_on_how_many_there_are(tmp_path: Path) -> None:
    for tokens in (11, 12, 22, 23):
        store = _write(tmp_path / str(tokens), [[[1] * tokens]])
        assert len(Sequences(store, 10)) == TrainingOrder(store.tokens, 10, 1, seed=0).sequences


def test_an_epoch_reads_every_token_once_as_input(tmp_path: Path) -> None:
    store = _write(tmp_path, [[list(range(500))], [list(range(500, 1001))]])
    order = TrainingOrder(store.tokens, sequence_length=10, batch_size=25, seed=3)
    sequences = Sequences(store, 10)
    read = np.concatenate([sequences.read(order.batch(step)) for step in range(4)])
    assert sorted(read[:, :-1].ravel().tolist()) == list(range(1000))
    assert np.array_equal(read[:, :-1] + 1, read[:, 1:])


def test_large_vocabularies_keep_their_ids(tmp_path: Path) -> None:
    assert (token_dtype(2**16), token_dtype(2**16 + 1)) == ("uint16", "uint32")
    store = _write(tmp_path, [[[0, 2**16, 2**17 - 1]]], vocabulary=2**17)
    assert store.read(0, 3).tolist() == [0, 2**16, 2**17 - 1]


def test_changed_bytes_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    _write(tmp_path, [[list(range(1000))]])
    path = tmp_path / "part-0" / "tokens" / "c" / "0"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    store = TokenStore(Folder(tmp_path, Tokens(LEDGER_FILE, 1000, 1, 1000, 2048, 0)))
    with pytest.raises(ValueError, match=r"(?i)crc|checksum|digest"):
        store.read(0, 10)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 11), (5, 4)])
def test_a_range_outside_of_the_store_is_refused(tmp_path: Path, start: int, stop: int) -> None:
    store = _write(tmp_path, [[list(range(10))]])
    with pytest.raises((InputError, ValueError)):
        store.read(start, stop)


def test_a_sequence_outside_of_the_store_is_refused(tmp_path: Path) -> None:
    sequences = Sequences(_write(tmp_path, [[list(range(10))]]), 3)
    for ids in ([3], [-1]):
        with pytest.raises(InputError, match="a store that has 3"):
            sequences.read(np.array(ids))


@given(PARTS)
def test_the_ledger_round_trips(parts: Parts) -> None:
    entries = tuple(TokenPart(f"part-{place}", len(part), len(part), 3) for place, part in enumerate(parts))
    ledger = Ledger(entries, "uint16", 2048, 0)
    assert Ledger.from_json(ledger.to_json()) == ledger
