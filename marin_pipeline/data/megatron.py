"""Token stores to and from the `.bin` and `.idx` of Megatron-LM's indexed datasets.

`.bin` is token ids alone. `.idx`, all little-endian: `MMIDIDX\\0\\0`; version 1 as uint64; the code of the ids' type as
uint8; the number of sequences and that of document indices, uint64 each; then the tokens of each sequence (int32), the
byte at which each begins in `.bin` (int64), and the sequences at which documents begin, with the number of sequences at
the end (int64). Source: `megatron/core/datasets/indexed_dataset.py` of NVIDIA/Megatron-LM. A document of a store
becomes one sequence; one of more than 2^31 - 1 tokens becomes several.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_kind
from marin_pipeline.data.schema import Stored, Tokenizer, Tokens
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger, TokenPart, token_dtype
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.token_writer import TokenWriter
from marin_pipeline.data.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import tokenizers

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the type, sequences, document indices."""
TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Types of ids by their code; 6 and 7 are no integers."""
LONGEST_SEQUENCE = 2**31 - 1
PIECE_TOKENS = 2**22
"""Tokens that are held at a time."""
PART_TOKENS = 2**26
"""An imported part ends with the document in which it has this many."""
_PART = re.compile(r"part-[0-9]+")


def export_megatron(store: TokenStore, folder: os.PathLike[str], name: str = "tokens") -> tuple[Path, Path]:
    """Write a token store as `<name>.bin` and `<name>.idx`; ids are uint16 where the store's are, else int32.

    Holds some 32 MiB of tokens, and 28 bytes a document. The files are there when both are whole, the index last.

    Args:
        store: what is written, all of it in order.
        folder: where the two files go; it must exist.
        name: of the files, without an ending.

    Returns:
        The paths of `.bin` and `.idx`.

    Raises:
        InputError: when one of the files is there already, the folder is not, or the store was changed.
    """
    where = "an export to Megatron"
    check_kind(where, TokenStore, 'a TokenStore, as in TokenStore(load("tokens"))', store=store)
    folder = _checked_folder(where, folder)
    check_kind(where, str, "text", name=name)
    paths = folder / f"{name}.bin", folder / f"{name}.idx"
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists: give another folder or name, or remove it")
    dtype = np.dtype("<u2" if store.ledger.dtype == "uint16" else "<i4")
    with _aside(folder) as aside:
        with open(aside / paths[0].name, "xb") as file:
            for start in range(0, store.tokens, PIECE_TOKENS):
                file.write(store.read(start, min(start + PIECE_TOKENS, store.tokens)).astype(dtype).tobytes())
        _write_index(store, aside / paths[1].name, dtype)
        for path in paths:
            (aside / path.name).rename(path)
    return paths


def _write_index(store: TokenStore, path: Path, dtype: np.dtype) -> None:
    lengths, documents = _sequences(np.diff(store.offsets))
    pointers = (np.cumsum(lengths) - lengths) * dtype.itemsize
    code = next(code for code, kind in TYPES.items() if np.dtype(kind) == dtype.newbyteorder("="))
    with open(path, "xb") as file:
        file.write(HEADER.pack(MAGIC, 1, code, len(lengths), len(documents)))
        for values, kind in ((lengths, "<i4"), (pointers, "<i8"), (documents, "<i8")):
            file.write(values.astype(kind).tobytes())


def _checked_folder(where: str, folder: object) -> Path:
    """A folder that is there."""
    check_kind(where, os.PathLike, 'a Path, as in Path("folder")', folder=folder)
    found = Path(folder)  # pyright: ignore[reportArgumentType]
    if not found.is_dir():
        raise InputError(f"{where}: there is no folder {found}; make it, or give another")
    return found


@contextmanager
def _aside(folder: Path) -> Generator[Path]:
    """A folder within a folder, for what is not whole yet; gone afterwards, with all that was not moved out of it."""
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as aside:
        yield Path(aside)


def _sequences(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each sequence, and the sequences at which documents begin: documents, cut where they are too long."""
    counts = np.maximum(1, -(-lengths // LONGEST_SEQUENCE))
    documents = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    found = np.full(documents[-1], LONGEST_SEQUENCE, np.int64)
    found[documents[1:] - 1] = lengths - (counts - 1) * LONGEST_SEQUENCE
    return found, documents


@dataclass(frozen=True)
class _Index:
    dtype: np.dtype
    offsets: np.ndarray
    """Where documents start, in tokens: int64 of shape `(documents + 1,)`."""


def _read_index(path: Path, size: int) -> _Index:
    """The index of a `.bin` of `size` bytes."""
    content = path.read_bytes()
    if len(content) < HEADER.size:
        raise InputError(f"{path}: {len(content)} bytes, shorter than the header of an index; copy it again")
    magic, version, code, sequences, indices = HEADER.unpack_from(content)
    if (magic, version) != (MAGIC, 1):
        raise InputError(f"{path}: not an index of version 1 of an indexed dataset of Megatron; give its path")
    if code not in TYPES:
        raise InputError(f"{path}: type {code} of its ids is none of {TYPES}; write it again with one of them")
    dtype = np.dtype(TYPES[code]).newbyteorder("<")
    ends = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * indices]).tolist()
    # A byte a sequence may follow: which kind of input it is, in datasets that mix them.
    if len(content) not in (ends[-1], ends[-1] + sequences):
        raise InputError(f"{path}: {len(content)} bytes, where its counts ask for {ends[-1]}; copy it again")
    if len(content) != ends[-1] and any(content[ends[-1] :]):
        raise InputError(f"{path}: has sequences that are no text; a token store holds text alone")
    lengths = np.frombuffer(content, "<i4", sequences, ends[0]).astype(np.int64)
    pointers = np.frombuffer(content, "<i8", sequences, ends[1])
    documents = np.frombuffer(content, "<i8", indices, ends[2])
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    if (lengths < 0).any() or not np.array_equal(pointers, starts[:-1] * dtype.itemsize):
        raise InputError(f"{path}: its sequences do not follow each other in the .bin; write it again in order")
    if not indices or documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise InputError(f"{path}: its documents are not runs of its {sequences} sequences; write it again")
    if starts[-1] * dtype.itemsize != size:
        raise InputError(f"{path}: of {starts[-1] * dtype.itemsize} bytes, where the .bin has {size}; copy both again")
    return _Index(dtype, starts[documents])


def import_megatron(prefix: str | os.PathLike[str], folder: os.PathLike[str], tokenizer: Stored[Tokenizer]) -> Tokens:
    """Write the token store of an indexed dataset: parts of about 64 Mi tokens, `part-00000` and so on, and a ledger.

    Holds one part's tokens (128 MiB of uint16, but for a part with a very long document), twice as much again while
    they are written, and some 50 bytes a document. An import that fails leaves nothing; the ledger comes last.

    Args:
        prefix: path of `.bin` and `.idx` without the ending.
        folder: the output; it must exist, and have no parts and no ledger.
        tokenizer: the one that made the ids; its `end_of_document` must end every document.

    Raises:
        InputError: naming the file, when it is no such dataset, has no documents, or was not made by that tokenizer;
            naming the folder, when it cannot be the output.
    """
    where = "an import from Megatron"
    check_kind(where, (str, os.PathLike), "a path", prefix=prefix)
    folder = _checked_folder(where, folder)
    filled = sorted(path.name for path in folder.iterdir() if path.name == LEDGER_FILE or _PART.fullmatch(path.name))
    if filled:
        raise InputError(f"{where}: {folder} has {filled[0]} already; give an empty folder, or remove what is there")
    prefix = os.fspath(prefix)
    data, index_path = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    for path in (data, index_path):
        if not path.is_file():
            raise InputError(f"{path} is missing: an indexed dataset is a .bin and an .idx of the same name")
    index = _read_index(index_path, data.stat().st_size)
    if len(index.offsets) == 1:
        raise InputError(f"{index_path}: it has no documents, so there is nothing to import; copy it again")
    made = tokenizer.value
    file = os.fspath(tokenizer / made.path)
    text = _TextBytes(load_tokenizer(file), made.vocabulary)
    nothing = np.flatnonzero(np.diff(index.offsets) == 0)
    if len(nothing):
        raise _unended(data, int(nothing[0]), made.end_of_document)
    with open(file, "rb") as opened:
        identity = hashlib.file_digest(opened, "sha256").hexdigest()
    with _aside(folder) as aside:
        parts: list[TokenPart] = []
        for number, (first, last) in enumerate(_part_bounds(index.offsets)):
            writer = TokenWriter(aside / f"part-{number:05}", made.vocabulary)
            size = 0
            for tokens, ends in _pieces(data, index, first, last):
                _check_ids(data, tokens, ends, first + writer.documents, made)
                writer.append(tokens, ends)
                size += text.count(tokens, ends)
            parts.append(writer.finish(size))
        ledger = Ledger(tuple(parts), token_dtype(made.vocabulary), made.vocabulary, made.end_of_document, identity)
        (aside / LEDGER_FILE).write_text(ledger.to_json(), encoding="utf-8", newline="\n")
        for name in (*(part.name for part in parts), LEDGER_FILE):
            (aside / name).rename(folder / name)
    return Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, made.vocabulary, made.end_of_document)


def _check_ids(data: Path, tokens: np.ndarray, ends: np.ndarray, first: int, made: Tokenizer) -> None:
    """Refuse ids that the tokenizer does not have, and documents that do not end as its own.

    Args:
        first: number of the document that the tokens begin in.
    """
    beyond = np.flatnonzero((tokens < 0) | (tokens >= made.vocabulary))
    if len(beyond):
        document = first + int(np.searchsorted(ends, beyond[0], side="right"))
        raise InputError(
            f"{data}: document {document} has the id {tokens[beyond[0]]}, and the vocabulary of the tokenizer has "
            f"{made.vocabulary}; give the tokenizer that made the ids"
        )
    unended = np.flatnonzero(tokens[ends - 1] != made.end_of_document)
    if len(unended):
        raise _unended(data, first + int(unended[0]), made.end_of_document)


def _unended(data: Path, document: int, end_of_document: int) -> InputError:
    return InputError(
        f"{data}: document {document} does not end with id {end_of_document}, which ends every document of the "
        "tokenizer; write the dataset with the same tokenizer and with ends (preprocess_data.py --append-eod)"
    )


def _part_bounds(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """First document and the one after the last, of each part."""
    first, documents = 0, len(offsets) - 1
    while first < documents:
        last = min(documents, int(np.searchsorted(offsets, offsets[first] + PART_TOKENS)))
        yield first, last
        first = last


def _pieces(data: Path, index: _Index, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens of documents [first, last), some at a time, and where in them documents end."""
    offsets = index.offsets[first : last + 1]
    with open(data, "rb") as file:
        file.seek(int(offsets[0]) * index.dtype.itemsize)
        for start in range(int(offsets[0]), int(offsets[-1]), PIECE_TOKENS):
            stop = min(start + PIECE_TOKENS, int(offsets[-1]))
            tokens = np.frombuffer(file.read((stop - start) * index.dtype.itemsize), index.dtype)
            ends = offsets[1:][(offsets[1:] > start) & (offsets[1:] <= stop)] - start
            yield tokens, ends


class _TextBytes:
    """Counts the UTF-8 bytes of text that tokens stand for, special ones left out."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, vocabulary: int) -> None:
        from tokenizers import decoders

        self._tokenizer = tokenizer
        self._sizes: np.ndarray | None = None
        if isinstance(tokenizer.decoder, decoders.ByteLevel):
            # A token is spelt with one character a byte.
            self._sizes = np.array([len(tokenizer.id_to_token(id) or "") for id in range(vocabulary)], np.int64)
            for id, added in tokenizer.get_added_tokens_decoder().items():
                self._sizes[id] = 0 if added.special else len(added.content.encode())
        self._open: list[np.ndarray] = []

    def count(self, tokens: np.ndarray, ends: np.ndarray) -> int:
        """Bytes of the documents that end at `ends` of `tokens`, or of all `tokens` where no decoding is needed."""
        if self._sizes is not None:
            return int(self._sizes[tokens].sum())
        *ended, rest = np.split(tokens, ends)
        size = 0
        for ids in ended:
            text = self._tokenizer.decode(np.concatenate([*self._open, ids]).tolist(), skip_special_tokens=True)
            size += len(text.encode())
            self._open = []
        self._open.append(rest)
        return size
