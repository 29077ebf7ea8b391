"""What a command is given to look at: the folder of an output, or what a store knows by a name or a key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_pipeline.core.errors import InputError, UsageError
from marin_pipeline.data.order_record import RECORD_FILE
from marin_pipeline.data.run_data import RunData
from marin_pipeline.data.schema import Documents, Packing, Stored, Tokenizer, Tokens
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger

if TYPE_CHECKING:
    from marin_pipeline import Artifact

_KINDS = {Documents: "a set of documents", Tokenizer: "a tokenizer", Packing: "a packing plan", Tokens: "a token store"}


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
    found = _open(text, prefix)
    if isinstance(found, TokenFolder):
        return found
    if not isinstance(found.value, Tokens):
        raise _refused(text, found, "tokens")
    return found


def open_run(text: str, prefix: str | None = None) -> RunData:
    """The data of the run whose trained state a store has under a name or a key.

    Raises:
        InputError: for an output that is not a trained state with a record of its data.
        MarinError: when the store knows nothing by it.
    """
    from marin_pipeline import load

    found: Any = load(text, prefix=prefix)
    if RECORD_FILE not in found.files:
        raise _refused(text, found, "a trained state")
    return RunData(found, text)


def open_run_or_tokens(text: str, prefix: str | None = None) -> RunData | Stored[Tokens]:
    """What there is to audit: the data of a run, or tokens.

    Raises:
        InputError: for a folder without a readable ledger, and for an output that is neither.
        MarinError: when it is no folder, and the store knows nothing by it.
    """
    found = _open(text, prefix)
    if isinstance(found, TokenFolder):
        return found
    if RECORD_FILE in found.files:
        return RunData(found, text)
    if not isinstance(found.value, Tokens):
        raise _refused(text, found, "a trained state or tokens")
    return found


def _open(text: str, prefix: str | None) -> TokenFolder | Artifact[Any]:
    # The public name: what a store is, this package does not know.
    from marin_pipeline import load

    folder = Path(text)
    if not folder.is_dir():
        return load(text, prefix=prefix)
    path = folder / LEDGER_FILE
    if not path.exists():
        # A folder beside the program may have the name of an output by chance.
        try:
            return load(text, prefix=prefix)
        except UsageError:
            pass
    try:
        ledger = Ledger.from_json(path.read_text(encoding="utf-8"), os.fspath(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: no readable ledger of tokens ({error}); give the folder of an output of `tokenize`, as the "
            "summary of its run prints it, or a name or a key in the store"
        ) from error
    counts = (ledger.tokens, ledger.documents, ledger.bytes, ledger.vocabulary, ledger.end_of_document)
    return TokenFolder(folder, Tokens(LEDGER_FILE, *counts))


def _refused(text: str, found: Artifact[Any], wanted: str) -> InputError:
    """What to say of an output of another kind."""
    kind = next((words for kind, words in _KINDS.items() if isinstance(found.value, kind)), None)
    if kind is not None:
        return InputError(f"{text!r} is {kind}; give {wanted}")
    return InputError(
        f"{text!r} is an output of {found.name!r} without a record of what a run read ({RECORD_FILE}); give {wanted} "
        "(a state of an earlier version is trained again with --force)"
    )
