"""The sources of a run, opened: the sequences of each, and held-out ones beside them, all of one tokenizer."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.packed_sequences import PackedSequences
from marin_pipeline.data.schema import Packing, Stored, Tokens
from marin_pipeline.data.sequences import Sequences, SequenceSource
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.train.apart import check_parts
from marin_pipeline.train.reading import TOGETHER, Reading


def open_sources(
    tokens: Mapping[str, Stored[Tokens]],
    packing: Mapping[str, Stored[Packing]] | None,
    held_out: Mapping[str, Stored[Tokens]],
    reading: Reading,
) -> tuple[list[SequenceSource], list[SequenceSource]]:
    """The sequences of each source, by its place in the mixture, and the held-out ones.

    Args:
        tokens: by source.
        packing: plan of each source; None where tokens are cut.
        held_out: by source, or one under the name `TOGETHER`, or none.

    Raises:
        InputError: naming the source whose files are not what they should be, whose tokens another tokenizer made, or
            which holds the text of another one, or held-out text.
    """
    names = reading.mixture.names
    stores: dict[str, TokenStore] = {}
    apart: dict[str, TokenStore] = {}
    said: dict[str, TokenStore] = {}
    for name in names:
        with _named(where := f"source {name!r}"):
            said[where] = stores[name] = TokenStore(tokens[name])
    for name, given in held_out.items():
        with _named(where := TOGETHER if name == TOGETHER else f"held-out text of {name!r}"):
            said[where] = apart[name] = TokenStore(given)
    _refuse_other_tokenizers(said)
    check_parts(
        {name: store.ledger for name, store in stores.items()}, {name: store.ledger for name, store in apart.items()}
    )

    def cut(store: TokenStore) -> SequenceSource:
        return Sequences(store, reading.sequence_length, reading.separate)

    sources: list[SequenceSource] = []
    for name in names:
        with _named(f"source {name!r}"):
            sources.append(cut(stores[name]) if packing is None else PackedSequences(stores[name], packing[name]))
    order = [TOGETHER] if TOGETHER in apart else [name for name in names if name in apart]
    return sources, [cut(apart[name]) for name in order]


@contextmanager
def _named(where: str) -> Generator[None]:
    """An error about what is opened says what it is of."""
    try:
        yield
    except MarinError as error:
        error.args = (f"{where}: {error}", *error.args[1:])
        raise


def _refuse_other_tokenizers(stores: Mapping[str, TokenStore]) -> None:
    (first, store), *others = stores.items()
    for name, other in others:
        if other.ledger.tokenizer != store.ledger.tokenizer:
            raise InputError(
                f"{name} was tokenized by another tokenizer (sha256 {other.ledger.tokenizer[:16]}…, "
                f"{other.ledger.vocabulary} ids) than {first} ({store.ledger.tokenizer[:16]}…, "
                f"{store.ledger.vocabulary} ids): tokenize all that one model reads with the same"
            )
