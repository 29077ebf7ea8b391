"""The tokenizer: any text round-trips as plain text, and training does not see the number of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.tokenizer import END_OF_DOCUMENT, END_OF_DOCUMENT_ID, encode, load_tokenizer, train_bpe

TEXTS = [f"The number {place} is followed by {place + 1}; the sum of both is {2 * place + 1}." for place in range(300)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_bpe(TEXTS, 400).save(str(path))
    return load_tokenizer(path)


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from([END_OF_DOCUMENT, "\0", "", " ", f"a{END_OF_DOCUMENT}b"])
)
def test_any_text_round_trips_and_only_its_end_is_the_end(tokenizer: tokenizers.Tokenizer, text: str) -> None:
    (ids,) = encode(tokenizer, [text], 0)
    assert ids[-1] == 0
    assert 0 not in ids[:-1]
    assert tokenizer.decode(ids[:-1].tolist(), skip_special_tokens=False) == text


def test_end_of_document_is_id_0_and_the_vocabulary_has_the_size_asked_for(tokenizer: tokenizers.Tokenizer) -> None:
    assert tokenizer.token_to_id(END_OF_DOCUMENT) == END_OF_DOCUMENT_ID == 0
    assert tokenizer.get_vocab_size() == 400


def test_training_gives_equal_bytes_with_one_thread_and_with_many(tmp_path: Path) -> None:
    program = (
        "import sys; from marin_pipeline.data.tokenizer import train_bpe;"
        "t = [f'w{i * 7919 % 1000} of {i % 13} and {i % 7} parts' for i in range(5000)];"
        "train_bpe(t, 600).save(sys.argv[1])"
    )
    digests = set()
    for threads in ("1", "2", "5"):
        path = tmp_path / f"{threads}.json"
        subprocess.run(
            [sys.executable, "-c", program, str(path)], env={**os.environ, "RAYON_NUM_THREADS": threads}, check=True
        )
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="at least 257"):
        train_bpe(TEXTS, 256)


def test_little_text_gives_a_small_vocabulary() -> None:
    assert train_bpe(["a"], 2048).get_vocab_size() == 257
