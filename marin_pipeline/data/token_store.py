"""The token store: per part two TensorStore arrays, token ids and document starts, and one ledger that lists the parts.

Parts are never copied to bring them together: the ledger says how they follow each other, and a read finds its part by
bisection. Equal tokens give equal bytes: zarr3, with a chunk grid that no worker or machine can move.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.schema import Stored, Tokens

LEDGER_FILE = "ledger.json"
TOKENS_ARRAY = "tokens"
OFFSETS_ARRAY = "offsets"
CHUNK_ELEMENTS = 2**27
"""Elements a file: 256 MiB of uint16."""
INNER_CHUNK_ELEMENTS = 2**16
"""Elements a read fetches at least; each such chunk has a crc32c of its own, checked on reading."""
CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class TokenPart:
    """One part of a token store."""

    name: str
    """Folder of its arrays, relative to the output."""
    tokens: int
    documents: int
    bytes: int
    """UTF-8 bytes of its text."""


@dataclass(frozen=True)
class Ledger:
    """How the parts of a token store follow each other."""

    parts: tuple[TokenPart, ...]
    """In the order of their tokens."""
    dtype: str
    """`uint16` or `uint32`."""
    vocabulary: int
    end_of_document: int

    @property
    def tokens(self) -> int:
        """Token ids in all parts."""
        return sum(part.tokens for part in self.parts)

    @property
    def documents(self) -> int:
        """Documents in all parts."""
        return sum(part.documents for part in self.parts)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of text in all parts."""
        return sum(part.bytes for part in self.parts)

    def to_json(self) -> str:
        """The ledger as the text of its file."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> Ledger:
        """The ledger that `to_json` wrote."""
        fields = json.loads(text)
        return Ledger(**{**fields, "parts": tuple(TokenPart(**part) for part in fields["parts"])})


def token_dtype(vocabulary: int) -> str:
    """The smallest of `uint16` and `uint32` that holds every id of a vocabulary."""
    return "uint16" if vocabulary <= 2**16 else "uint32"


def _zarr3(path: str | os.PathLike[str]) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": os.path.abspath(path)}}


def _write_array(path: Path, values: np.ndarray) -> None:
    import tensorstore

    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    sharding = {"chunk_shape": [INNER_CHUNK_ELEMENTS], "codecs": codecs, "index_codecs": codecs}
    metadata = {
        "shape": [len(values)],
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK_ELEMENTS]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    array = tensorstore.open({**_zarr3(path), "metadata": metadata}, create=True).result()
    array.write(values).result()


def write_token_part(folder: Path, documents: Sequence[Sequence[int] | np.ndarray], vocabulary: int) -> int:
    """Write the arrays of one part into `folder`.

    Args:
        folder: becomes the part's folder, with `tokens` and `offsets` in it.
        documents: token ids of each document, the end-of-document token included.
        vocabulary: number of ids; it decides the type of the array.

    Returns:
        The number of tokens written.
    """
    lengths = np.fromiter((len(ids) for ids in documents), np.int64, len(documents))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    tokens = np.empty(offsets[-1], token_dtype(vocabulary))
    for start, ids in zip(offsets.tolist(), documents, strict=False):
        tokens[start : start + len(ids)] = ids
    _write_array(folder / TOKENS_ARRAY, tokens)
    _write_array(folder / OFFSETS_ARRAY, offsets)
    return len(tokens)


class TokenStore:
    """Random access to the tokens of all parts, numbered from 0 as if they were one array."""

    def __init__(self, tokens: Stored[Tokens]) -> None:
        """Open the store of an output that has been made; arrays are opened when they are first read."""
        self._stored = tokens
        with open(tokens / tokens.value.ledger, encoding="utf-8") as file:
            self.ledger = Ledger.from_json(file.read())
        """What the store holds."""
        self._starts = list(itertools.accumulate((part.tokens for part in self.ledger.parts), initial=0))
        self._arrays: dict[int, Any] = {}

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self._starts[-1]

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.ledger.documents

    @cached_property
    def _context(self) -> Any:
        import tensorstore

        return tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})

    def _open(self, part: int, name: str) -> Any:
        import tensorstore

        folder = os.fspath(self._stored / f"{self.ledger.parts[part].name}/{name}")
        return tensorstore.open(_zarr3(folder), context=self._context, read=True, open=True).result()

    def _tokens_of(self, part: int) -> Any:
        if part not in self._arrays:
            self._arrays[part] = self._open(part, TOKENS_ARRAY)
        return self._arrays[part]

    def _pieces(self, start: int, stop: int) -> list[Any]:
        """Reads, already under way, that cover tokens [start, stop) one after another."""
        if not 0 <= start <= stop <= self.tokens:
            raise InputError(f"tokens [{start}, {stop}) of a store that holds {self.tokens}")
        reads = []
        part = max(0, bisect.bisect_right(self._starts, start) - 1)
        while start < stop:
            first = self._starts[part]
            end = min(stop, self._starts[part + 1])
            if start < end:
                reads.append(self._tokens_of(part)[start - first : end - first].read())
            start, part = end, part + 1
        return reads

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop): int32 of shape `(stop - start,)`."""
        return self.read_many(np.array([start]), stop - start)[0]

    def read_many(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The `length` tokens from each of `starts`: int32 of shape `(len(starts), length)`. All reads run at once."""
        reads = [self._pieces(int(start), int(start) + length) for start in starts]
        found = np.empty((len(reads), length), np.int32)
        for row, pieces in zip(found, reads, strict=True):
            filled = 0
            for piece in pieces:
                values = piece.result()
                row[filled : filled + len(values)] = values
                filled += len(values)
        return found

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where documents start: int64 of shape `(documents + 1,)`, the last one being the number of tokens."""
        reads = [self._open(part, OFFSETS_ARRAY).read() for part in range(len(self.ledger.parts))]
        starts = [read.result()[:-1] + first for read, first in zip(reads, self._starts, strict=False)]
        return np.concatenate([*starts, np.array([self.tokens], np.int64)])

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document, its end-of-document token included: int32 of shape `(tokens of it,)`."""
        return self.read(int(self.offsets[index]), int(self.offsets[index + 1]))
