"""Byte-level BPE: trained from text, applied to text, every text encoded as the plain text that it is.

Any text round-trips, since all 256 bytes are in the vocabulary. The spelling of a special token inside a document is
encoded as ordinary characters, so that no text can end a document.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

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
    """A tokenizer from its file, set to encode special tokens in a text as plain text."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(os.fspath(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, texts: list[str], end_of_document: int) -> list[np.ndarray]:
    """Token ids of each text with `end_of_document` after them: uint32 arrays of shape `(tokens + 1,)`."""
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array([*encoding.ids, end_of_document], np.uint32) for encoding in encoded]
