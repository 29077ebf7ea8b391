"""The tokenizer: any text round-trips as plain text, pieces give the ids of the whole, and threads are not seen."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from marin_pipeline.core.errors import InputError
from marin_pipeline.data import tokenizer as tokenizer_module
from marin_pipeline.data.tokenizer import (
    END_OF_DOCUMENT,
    END_OF_DOCUMENT_ID,
    KNOWN_SPLITS,
    encode,
    encode_batches,
    load_tokenizer,
    safe_cuts,
    train_bpe,
)

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


def _split_by(pattern: str | None) -> tokenizers.Tokenizer:
    """A tokenizer with many merges that splits by a pattern, or as GPT-2 does."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    made.pre_tokenizer = (
        byte_level
        if pattern is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"), byte_level])
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    made.train_from_iterator(MIXED, trainer)
    made.encode_special_tokens = True
    return made


MIXED = [
    f"It's {n}% of the year{n}, they'll say;\n\n\tx_{n} = f(a[{n}])  # 東京は、{n}年。안녕! don't\r\n" * 3
    for n in range(80)
]
SPACES = ("", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000")
WORDS = "a Z the don't 's 'LL 7 123 . ... _ - <|end|> 東 は 、 。 안 é e\u0301 \u0301 ß İ 🙂 ' ’ / \0 ٣ ſ"
FRAGMENTS = st.sampled_from([*WORDS.split(" "), *SPACES])


@pytest.fixture(scope="module", params=[None, *KNOWN_SPLITS], ids=["gpt2", "llama3", "qwen2", "o200k"])
def split_tokenizer(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return _split_by(request.param)


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["plain", "nfc"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(FRAGMENTS | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join))
def test_ids_of_a_text_that_is_cut_at_every_safe_place_are_those_of_the_whole(
    split_tokenizer: tokenizers.Tokenizer, normalizer: normalizers.Normalizer | None, text: str
) -> None:
    split_tokenizer.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    cuts = safe_cuts(split_tokenizer)
    assert cuts is not None
    places = [0, *(found.end() for found in cuts.finditer(text)), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    found = [split_tokenizer.encode(piece, add_special_tokens=False).ids for piece in pieces]
    assert [id for ids in found for id in ids] == split_tokenizer.encode(text, add_special_tokens=False).ids


def test_long_texts_are_encoded_in_pieces_with_the_ids_of_the_whole(
    split_tokenizer: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARACTERS", 50)
    monkeypatch.setattr(tokenizer_module, "BATCH_BYTES", 300)
    texts = ["", "".join(MIXED), "short", "東京" * 400, "".join(MIXED[:7])]
    batches = list(encode_batches(split_tokenizer, texts, 0, "uint16"))
    assert len(batches) > 20
    assert max(len(batch.tokens) for batch in batches) < 3000
    assert all(batch.tokens.dtype == np.uint16 for batch in batches)
    whole = [[*split_tokenizer.encode(text, add_special_tokens=False).ids, 0] for text in texts]
    assert np.concatenate([batch.tokens for batch in batches]).tolist() == [id for ids in whole for id in ids]
    assert sum(len(batch.ends) for batch in batches) == len(texts)
    assert sum(batch.bytes for batch in batches) == sum(len(text.encode()) for text in texts)
    assert [ids.tolist() for ids in encode(split_tokenizer, texts, 0)] == whole


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "added"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None, None),
        (pre_tokenizers.Metaspace(), None, None),
        (pre_tokenizers.Whitespace(), None, None),
        (pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFKC(), None),
        (pre_tokenizers.ByteLevel(add_prefix_space=False), None, tokenizers.AddedToken("a b")),
        (pre_tokenizers.ByteLevel(add_prefix_space=False), None, tokenizers.AddedToken("<x>", rstrip=True)),
        (pre_tokenizers.ByteLevel(add_prefix_space=False), None, tokenizers.AddedToken("1", single_word=True)),
    ],
)
def test_where_no_safe_place_is_known_a_text_stays_whole(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None,
    added: tokenizers.AddedToken | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARACTERS", 50)
    made = _split_by(None)
    made.pre_tokenizer = pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    if normalizer is not None:
        made.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    if added is not None:
        made.add_tokens([added])
    assert safe_cuts(made) is None
    text = "a b 1 <x>  " * 100
    assert encode(made, [text], 0)[0].tolist() == [*made.encode(text, add_special_tokens=False).ids, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab c\n", max_size=60), min_size=1, max_size=8), st.integers(2, 20))
def test_longer_documents_are_cut_and_counted(tokenizer: tokenizers.Tokenizer, texts: list[str], maximum: int) -> None:
    whole = [ids.tolist() for ids in encode(tokenizer, texts, 0)]
    (batch,) = encode_batches(tokenizer, texts, 0, "uint16", maximum)
    found = np.split(batch.tokens, batch.ends)[:-1]
    assert [ids.tolist() for ids in found] == [
        ids if len(ids) <= maximum else [*ids[: maximum - 1], 0] for ids in whole
    ]
    assert batch.truncated == sum(len(ids) > maximum for ids in whole)


def test_a_cut_goes_through_all_pieces_of_a_document(
    tokenizer: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARACTERS", 50)
    monkeypatch.setattr(tokenizer_module, "BATCH_BYTES", 100)
    text = "".join(TEXTS[:20])
    batches = list(encode_batches(tokenizer, [text, "next"], 0, "uint16", 101))
    tokens = np.concatenate([batch.tokens for batch in batches])
    first, second = encode(tokenizer, [text, "next"], 0)
    assert tokens.tolist() == [*first[:100].tolist(), 0, *second.tolist()]
    assert sum(batch.truncated for batch in batches) == 1


def test_what_a_file_asks_for_in_training_batches_is_turned_off(
    tokenizer: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    changed = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    changed.enable_truncation(5)
    changed.enable_padding(length=64)
    changed.model.dropout = 0.5  # pyright: ignore[reportAttributeAccessIssue]
    changed.save(str(tmp_path / "tokenizer.json"))
    (expected,) = encode(tokenizer, TEXTS[:1], 0)
    assert encode(load_tokenizer(tmp_path / "tokenizer.json"), TEXTS[:1], 0)[0].tolist() == expected.tolist()


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: not a tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")
