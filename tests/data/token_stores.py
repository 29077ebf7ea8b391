"""Small token stores for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from marin_pipeline import Artifact, local_artifact
from marin_pipeline.data.schema import Tokens
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger, token_dtype
from marin_pipeline.data.token_writer import write_token_part

TOKENIZER = "ab" * 32
"""Said to be the digest of the tokenizer that made the tokens."""


def write_store(
    folder: Path,
    parts: Sequence[Sequence[Sequence[int] | np.ndarray]],
    vocabulary: int = 2048,
    tokenizer: str = TOKENIZER,
) -> Artifact[Tokens]:
    """An artifact in `folder` whose parts hold these documents; a byte of text a token."""
    made = []
    for place, documents in enumerate(parts):
        size = sum(len(ids) for ids in documents)
        made.append(write_token_part(folder / f"part-{place}", documents, vocabulary, size))
    ledger = Ledger(tuple(made), token_dtype(vocabulary), vocabulary, 0, tokenizer)
    (folder / LEDGER_FILE).write_text(ledger.to_json())
    return opened(folder)


def opened(folder: Path) -> Artifact[Tokens]:
    """The artifact that `write_store` made in `folder`, possibly in another process."""
    ledger = Ledger.from_json((folder / LEDGER_FILE).read_text())
    return local_artifact(
        folder, Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, ledger.vocabulary, 0)
    )
