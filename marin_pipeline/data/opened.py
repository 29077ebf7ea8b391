"""Tokens that a command is given: the folder of an output, or what a store knows by a name or a key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.schema import Stored, Tokens
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger


@dataclass(frozen=True)
class TokenFolder:
    """The files of a token store in a folder."""

    folder: Path
    value: Tokens

    def __truediv__(self, path: str) -> os.PathLike[str]:
        return self.folder / path


def open_tokens(text: str, prefix: str | None = None) -> Stored[Tokens]:
    """The tokens in a folder that has a ledger, or else those that a store has under a name or a key.

    Args:
        prefix: of the store; `MARIN_PREFIX`, or `./marin-store`, when not given.

    Raises:
        InputError: for a folder without a readable ledger, and for an output that is not one of tokens.
        MarinError: when it is no folder, and the store knows nothing by it.
    """
    folder = Path(text)
    if folder.is_dir():
        path = folder / LEDGER_FILE
        try:
            ledger = Ledger.from_json(path.read_text(encoding="utf-8"), os.fspath(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: no readable ledger of tokens ({error}); give the folder of an output of `tokenize`, as the "
                "summary of its run prints it"
            ) from error
        counts = (ledger.tokens, ledger.documents, ledger.bytes, ledger.vocabulary, ledger.end_of_document)
        return TokenFolder(folder, Tokens(LEDGER_FILE, *counts))
    # The public name: what a store is, this package does not know.
    from marin_pipeline import load

    found: Any = load(text, prefix=prefix)
    if not isinstance(found.value, Tokens):
        raise InputError(f"{text!r} is {type(found.value).__name__}, not Tokens: name the output of `tokenize`")
    return found
