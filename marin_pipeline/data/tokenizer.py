"""Byte-level BPE: trained from text, applied to text, every text encoded as the plain text that it is.

Any text round-trips, since all 256 bytes are in the vocabulary. The spelling of a special token inside a document is
encoded as ordinary characters, so that no text can end a document.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marin_pipeline.core.errors import InputError

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_FILE = "tokenizer.json"
END_OF_DOCUMENT = "<|end_of_document|>"
END_OF_DOCUMENT_ID = 0
"""Special tokens come first in a vocabulary that is trained here."""
SMALLEST_VOCABULARY = 257
"""The 256 bytes and the end-of-document token."""
BATCH_BYTES = 2**20
"""UTF-8 bytes that are encoded by one call, at least, but for the last."""
PIECE_CHARACTERS = 2**16
"""Longer texts are encoded in pieces of at least this."""

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
KNOWN_SPLITS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The patterns of Llama 3 (and cl100k), Qwen 2 and o200k, as their `tokenizer.json` have them."""
_CUT = re.compile(
    "[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3](?=[ \t\n\r0-9!-&(-/:-@\\[-`{-~、。！，：；？])"
)


def train_bpe(texts: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer with GPT-2's splitting; the end-of-document token has `END_OF_DOCUMENT_ID`.

    The number of threads does not change the result. With little text the vocabulary may stay smaller than asked for.

    Raises:
        InputError: for a vocabulary that cannot hold the 256 bytes and the end-of-document token.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocabulary < SMALLEST_VOCABULARY:
        raise InputError(
            f"vocabulary={vocabulary}: byte-level BPE needs at least {SMALLEST_VOCABULARY} ids, "
            "one a byte and one for the end of a document"
        )
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> tokenizers.Tokenizer:
    """A tokenizer from its file, set to encode special tokens in a text as plain text, all of it, and always alike.

    What such a file may ask for beside that is for training batches, and is turned off: truncation, padding, and the
    dropout of merges, which is random.

    Raises:
        InputError: when the file is no tokenizer.
    """
    import tokenizers
    from tokenizers import models

    try:
        tokenizer = tokenizers.Tokenizer.from_file(os.fspath(path))
    except Exception as error:  # tokenizers raises no narrower kind
        raise InputError(f"{os.fspath(path)}: not a tokenizer of Hugging Face `tokenizers` ({error})") from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE) and tokenizer.model.dropout is not None:
        tokenizer.model.dropout = None
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, texts: Iterable[str], end_of_document: int) -> list[np.ndarray]:
    """Token ids of each text with `end_of_document` after them: uint32 arrays of shape `(tokens + 1,)`."""
    documents: list[np.ndarray] = []
    open_document: list[np.ndarray] = []
    for batch in encode_batches(tokenizer, texts, end_of_document, "uint32"):
        *ended, rest = np.split(batch.tokens, batch.ends)
        for ids in ended:
            documents.append(np.concatenate([*open_document, ids]) if open_document else ids)
            open_document = []
        if len(rest):
            open_document.append(rest)
    return documents


class EncodedBatch(NamedTuple):
    """Tokens of consecutive texts, or of a piece of a long one."""

    tokens: np.ndarray
    """Ids of shape `(n,)`."""
    ends: list[int]
    """Where in `tokens` documents end, the end-of-document token included."""
    truncated: int
    """Documents that end here and were cut."""
    bytes: int
    """UTF-8 bytes of the text."""


def encode_batches(
    tokenizer: tokenizers.Tokenizer,
    texts: Iterable[str],
    end_of_document: int,
    dtype: str,
    maximum_tokens: int | None = None,
) -> Iterator[EncodedBatch]:
    """Token ids of texts in batches of about 1 MiB, so that no more than a batch is ever held as objects.

    A text of over 64 Ki characters is encoded in pieces, cut only where the ids are those of the whole text; see
    `safe_cuts`. With a tokenizer of which no such place is known, and where there is none, it is encoded whole: some
    110 bytes of memory a byte.

    Args:
        tokenizer: what encodes.
        texts: one a document.
        end_of_document: id that follows each.
        dtype: of the ids.
        maximum_tokens: most tokens of a document, its last one included; the rest is left out.
    """
    room = None if maximum_tokens is None else maximum_tokens - 1
    held, cut = 0, False
    for batch in _batches(texts, safe_cuts(tokenizer)):
        encoded = tokenizer.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
        tokens = np.empty(sum(map(len, encoded)) + len(batch), dtype)
        used, truncated = 0, 0
        ends: list[int] = []
        for piece, encoding in zip(batch, encoded, strict=True):
            ids = encoding.ids
            if room is not None and held + len(ids) > room:
                ids, cut = ids[: room - held], True
            tokens[used : used + len(ids)] = ids
            used += len(ids)
            held += len(ids)
            if piece.ends:
                tokens[used] = end_of_document
                used += 1
                ends.append(used)
                truncated += cut
                held, cut = 0, False
        yield EncodedBatch(tokens[:used], ends, truncated, sum(piece.bytes for piece in batch))


class _Piece(NamedTuple):
    text: str
    ends: bool
    """Whether its document ends with it."""
    bytes: int


def _batches(texts: Iterable[str], cuts: re.Pattern[str] | None) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    size = 0
    for text in texts:
        for piece, ends in _pieces(text, cuts):
            batch.append(_Piece(piece, ends, len(piece.encode())))
            size += batch[-1].bytes
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _pieces(text: str, cuts: re.Pattern[str] | None) -> Iterator[tuple[str, bool]]:
    start = 0
    while cuts is not None and len(text) - start > PIECE_CHARACTERS:
        found = cuts.search(text, start + PIECE_CHARACTERS)
        if found is None:
            break
        yield text[start : found.end()], False
        start = found.end()
    yield text[start:], True


def safe_cuts(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Matches the letter before a place where a text may be cut: the ids of both parts are those of the whole text.

    The place is between a letter and a space, a line end, a digit or a mark other than an apostrophe. No pattern that
    is known here (`KNOWN_SPLITS`, and GPT-2's own) makes a piece with such a pair in it, none looks back, and what
    looks ahead looks from a space; NFC joins none of the pairs. None: no safe place is known, because of another
    pattern, a normalizer, or an added token that takes its surroundings with it.
    """
    from tokenizers import normalizers

    if not (tokenizer.normalizer is None or isinstance(tokenizer.normalizer, normalizers.NFC)):
        return None
    if not _is_known_split(tokenizer.pre_tokenizer):
        return None
    for token in tokenizer.get_added_tokens_decoder().values():
        alone = not (token.lstrip or token.rstrip or token.single_word)
        if not token.special and not (alone and _CUT.search(token.content) is None):
            return None
    return _CUT


def _is_known_split(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return False
    state = json.loads(pre_tokenizer.__getstate__())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    steps = [
        {key: value for key, value in step.items() if key != "trim_offsets"}
        for step in (state["pretokenizers"] if state["type"] == "Sequence" else [state])
    ]
    if steps == [{**byte_level, "use_regex": True}]:
        return True
    return steps in [
        [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {**byte_level, "use_regex": False},
        ]
        for pattern in KNOWN_SPLITS
    ]
