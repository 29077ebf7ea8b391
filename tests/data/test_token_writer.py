"""Writing a part: equal tokens give equal bytes however they were handed over, and what cannot be is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.data import token_writer
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.token_writer import TokenWriter, write_token_part
from tests.data.token_stores import write_store

PARTS = [[[*range(1, 2000)] * 50, [0], *([place, 0] for place in range(1, 300))], [[3, 0]]]


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_equal_tokens_give_equal_bytes_however_they_are_handed_over(tmp_path: Path) -> None:
    write_store(tmp_path / "first", PARTS)
    write_store(tmp_path / "second", [[np.array(document, np.uint32) for document in part] for part in PARTS])
    assert digests(tmp_path / "first") == digests(tmp_path / "second")
    assert len(digests(tmp_path / "first")) == 2 * 4 + 1
    tokens = np.concatenate([np.array(document) for document in PARTS[0]])
    ends = np.cumsum([len(document) for document in PARTS[0]])
    writer = TokenWriter(tmp_path / "third" / "part-0", 2048)
    for start in range(0, len(tokens), 777):
        stop = min(start + 777, len(tokens))
        writer.append(tokens[start:stop], ends[(ends > start) & (ends <= stop)] - start)
    part = writer.finish(len(tokens))
    assert digests(tmp_path / "third" / "part-0") == digests(tmp_path / "first" / "part-0")
    assert part == TokenStore(write_store(tmp_path / "fourth", PARTS)).ledger.parts[0]


def test_a_part_may_have_more_tokens_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_writer, "CHUNK_ELEMENTS", 2**17)
    tokens = np.arange(1, 500_001) % 2000
    stored = write_store(tmp_path, [[tokens[:300_000], tokens[300_000:]]])
    store = TokenStore(stored)
    assert len(list((tmp_path / "part-0" / "tokens" / "c").iterdir())) == 4
    assert np.array_equal(store.read(0, 500_000), tokens)
    store.verify()


def test_the_digests_are_those_of_plain_numpy(tmp_path: Path) -> None:
    part = write_token_part(tmp_path / "part", [[5, 0], [0], [7, 8, 0]], 2048, 9)
    assert part.tokens_sha256 == hashlib.sha256(np.array([5, 0, 0, 7, 8, 0], "<u2").tobytes()).hexdigest()
    assert part.offsets_sha256 == hashlib.sha256(np.array([0, 2, 3, 6], "<i8").tobytes()).hexdigest()
    assert (part.name, part.tokens, part.documents, part.bytes, part.empty) == ("part", 6, 3, 9, 1)


@pytest.mark.parametrize(
    ("tokens", "ends", "said"),
    [
        ([1, 64], [2], "ids from 1 to 64 where the vocabulary has 64"),
        ([-1], [1], "ids from -1"),
        ([1, 2], [3], "outside of the 2 tokens"),
        ([1, 2], [2, 1], "outside of the 2 tokens"),
        ([1, 2], [1], "1 tokens after the end of a document"),
    ],
)
def test_what_is_no_part_is_refused(tmp_path: Path, tokens: Sequence[int], ends: Sequence[int], said: str) -> None:
    def write() -> None:
        writer = TokenWriter(tmp_path / "part-7", 64)
        writer.append(np.array(tokens), ends)
        writer.finish(0)

    with pytest.raises(InputError, match=f"part-7: .*{said}"):
        write()


def test_a_part_without_documents_is_a_part(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path, [[], [[1, 0]], []]))
    assert store.read(0, 2).tolist() == [1, 0]
    assert store.offsets.tolist() == [0, 2]
    store.verify()
