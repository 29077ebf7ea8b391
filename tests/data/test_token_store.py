"""The token store: any range reads back across parts, nothing leaks, and what was changed or lost is named."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline import local_artifact
from marin_pipeline.core.errors import InputError
from marin_pipeline.data import token_store
from marin_pipeline.data.sequences import Sequences
from marin_pipeline.data.token_ledger import LEDGER_FILE, token_dtype
from marin_pipeline.data.token_store import TokenStore
from tests.data.test_order import single
from tests.data.token_stores import write_store

Parts = list[list[list[int]]]


def _write(folder: Path, parts: Parts, vocabulary: int = 2048) -> TokenStore:
    return TokenStore(write_store(folder, parts, vocabulary))


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
    place = data.draw(st.integers(0, len(documents) - 1))
    assert store.document(place).tolist() == documents[place]
    owners = [place for place, document in enumerate(documents) for _ in document]
    position = data.draw(st.integers(0, len(flat) - 1))
    assert store.document_at(position) == owners[position]
    store.verify()


def test_sequences_are_windows_with_one_target_more(tmp_path: Path) -> None:
    flat = np.arange(100)
    store = _write(tmp_path, [[flat[:37].tolist()], [flat[37:38].tolist()], [flat[38:].tolist()]])
    sequences = Sequences(store, 11)
    assert len(sequences) == 9
    found = sequences.read(np.array([8, 0, 3]))
    assert found.inputs.dtype == found.targets.dtype == np.int32
    assert found.inputs.tolist() == [flat[place * 11 : place * 11 + 11].tolist() for place in (8, 0, 3)]
    assert np.array_equal(found.targets, found.inputs + 1)
    assert found.documents is None
    assert sequences.read(np.empty(0, np.int64)).inputs.shape == (0, 11)


def test_an_epoch_reads_every_token_once_as_input(tmp_path: Path) -> None:
    store = _write(tmp_path, [[list(range(500))], [list(range(500, 1001))]])
    sequences = Sequences(store, 10)
    order = single(len(sequences), batch=25, seed=3, length=10)
    read = [sequences.read(order.batch(step).sequences) for step in range(4)]
    assert sorted(np.concatenate([rows.inputs.ravel() for rows in read]).tolist()) == list(range(1000))
    assert all(np.array_equal(rows.inputs + 1, rows.targets) for rows in read)


def test_large_vocabularies_keep_their_ids(tmp_path: Path) -> None:
    assert (token_dtype(2**16), token_dtype(2**16 + 1)) == ("uint16", "uint32")
    store = _write(tmp_path, [[[0, 2**16, 2**17 - 1]]], vocabulary=2**17)
    assert store.read(0, 3).tolist() == [0, 2**16, 2**17 - 1]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 11), (5, 4)])
def test_a_range_outside_of_the_store_is_refused(tmp_path: Path, start: int, stop: int) -> None:
    store = _write(tmp_path, [[list(range(10))]])
    with pytest.raises(InputError, match=r"tokens \[.* of a store that holds 10"):
        store.read(start, stop)


def test_a_sequence_outside_of_the_store_is_refused(tmp_path: Path) -> None:
    sequences = Sequences(_write(tmp_path, [[list(range(10))]]), 3)
    for ids in ([3], [-1]):
        with pytest.raises(InputError, match="a store that has 3"):
            sequences.read(np.array(ids))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_document_outside_of_the_store_is_refused(tmp_path: Path, index: int) -> None:
    store = _write(tmp_path, [[[1, 0], [2, 0]], [[3, 0]]])
    with pytest.raises(InputError, match=f"document {index} of a store that has 3"):
        store.document(index)


def _flip(path: Path, place: int = 100) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda part: _flip(part / "tokens" / "c" / "0"), "part-1/tokens: damaged"),
    (lambda part: (part / "tokens" / "c" / "0").unlink(), "part-1/tokens: missing"),
    (lambda part: (part / "tokens" / "zarr.json").unlink(), "part-1/tokens: missing"),
    (shutil.rmtree, "part-1/tokens: missing"),
    (
        lambda part: shutil.copytree(part.parent / "part-0" / "tokens", part / "tokens", dirs_exist_ok=True),
        "part-1/tokens: 1000 elements of uint16, where the ledger has 2000 of uint16",
    ),
    (
        lambda part: (part / "tokens" / "zarr.json").write_text(
            (part / "tokens" / "zarr.json").read_text().replace("uint16", "int16")
        ),
        "part-1/tokens: 2000 elements of int16",
    ),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_damage_stops_a_read_and_names_the_part(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    store = _write(tmp_path, [[[1] * 1000], [[0] * 2000], [[3] * 1000]])
    damage(tmp_path / "part-1")
    with pytest.raises(InputError, match=rf"^{said}.*; then run the step that made it again with --force$"):
        store.read(900, 1100)
    assert store.read(0, 1000).tolist() == [1] * 1000
    with pytest.raises(InputError, match=rf"{said}.*; then run the step that made it again with --force$") as caught:
        store.verify()
    assert not {"part-0/tokens:", "part-2/tokens:"} & set(str(caught.value).split())


def test_verify_names_each_part_that_holds_other_tokens_than_were_written(tmp_path: Path) -> None:
    store = _write(tmp_path / "store", [[[place, 0]] for place in range(1, 6)])
    store.verify()
    _write(tmp_path / "other", [[[9, 0]], [[1, 0]], [[9, 0]]])
    for name in ("part-0", "part-2"):
        shutil.rmtree(tmp_path / "store" / name)
        shutil.copytree(tmp_path / "other" / name, tmp_path / "store" / name)
    assert store.read(0, 2).tolist() == [9, 0]
    with pytest.raises(InputError, match=r"2 arrays .* part-0/tokens: sha256 .* part-2/tokens: sha256") as caught:
        store.verify()
    assert "part-1" not in str(caught.value)


def test_damaged_document_starts_are_named(tmp_path: Path) -> None:
    store = _write(tmp_path, [[[1, 0]], [[2, 0], [3, 0]]])
    _flip(tmp_path / "part-1" / "offsets" / "c" / "0", 3)
    assert store.document(0).tolist() == [1, 0]
    for call in (lambda: store.document(1), lambda: store.document_at(3), store.verify):
        with pytest.raises(InputError, match=r"part-1/offsets: damaged"):
            call()


def test_the_ledger_of_another_output_and_no_ledger_are_refused(tmp_path: Path) -> None:
    stored = write_store(tmp_path, [[[1, 0]]])
    with pytest.raises(InputError, match=r"ledger.json: documents is 1, where the output has 2"):
        TokenStore(local_artifact(tmp_path, replace(stored.value, documents=2)))
    (tmp_path / LEDGER_FILE).unlink()
    with pytest.raises(InputError, match=r"no file 'ledger.json'"):
        TokenStore(stored)


def test_a_tokenizer_that_did_not_make_the_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("mine")
    (tmp_path / "other.json").write_text("other")
    stored = write_store(tmp_path, [[[1, 0]]], tokenizer=hashlib.sha256(b"mine").hexdigest())
    assert TokenStore(stored, tmp_path / "mine.json").tokens == 2
    with pytest.raises(InputError, match=r"other.json: another tokenizer"):
        TokenStore(stored, tmp_path / "other.json")


def test_a_thousand_opens_leave_no_file_open_and_no_memory_behind(tmp_path: Path) -> None:
    stored = write_store(tmp_path, [[[place] * 50_000] for place in range(4)])
    process = psutil.Process()

    def reads(opens: int) -> None:
        for place in range(opens):
            assert TokenStore(stored).read(49_999 + place % 100_000, 50_001 + place % 100_000).shape == (2,)

    reads(200)
    files, memory = len(os.listdir("/proc/self/fd")), process.memory_info().rss
    reads(1000)
    assert len(os.listdir("/proc/self/fd")) <= files
    assert process.memory_info().rss - memory < 16 * 2**20


def test_no_more_arrays_stay_open_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "OPEN_ARRAYS", 3)
    store = _write(tmp_path, [[[place, 0]] for place in range(1, 9)])
    for _ in range(2):
        assert [store.read(2 * place, 2 * place + 1).tolist() for place in range(8)] == [
            [place] for place in range(1, 9)
        ]
    assert len(store._arrays) == 3


def test_a_store_written_again_in_the_same_place_is_read_anew(tmp_path: Path) -> None:
    assert _write(tmp_path / "store", [[[1] * 100]]).read(0, 2).tolist() == [1, 1]
    shutil.rmtree(tmp_path / "store")
    assert _write(tmp_path / "store", [[[2] * 100]]).read(0, 2).tolist() == [2, 2]
