"""Writing one part of a token store: token ids as they come, where documents end, and a digest of both.

Equal tokens give equal bytes, however they were handed over: zarr3, with a chunk grid that no worker or machine can
move. Memory: at most one chunk of tokens is held (256 MiB of uint16) and twice as much again while it is written, and
8 bytes a document.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.token_ledger import TokenPart, token_dtype

TOKENS_ARRAY = "tokens"
OFFSETS_ARRAY = "offsets"
CHUNK_ELEMENTS = 2**27
"""Elements a file: 256 MiB of uint16."""
INNER_CHUNK_ELEMENTS = 2**16
"""Elements a read fetches at least; each such chunk has a crc32c of its own, checked on reading."""


def zarr3(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The TensorStore spec of an array in a folder of this machine.

    A chunk that is not there is an error, never zeros: so chunks of zeros are written too.
    """
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": os.path.abspath(path)},
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }


def digest_bytes(values: np.ndarray) -> memoryview:
    """The bytes of an array of shape `(n,)` that its digest is taken of: little-endian, without padding."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).view(np.uint8).data


class _ArrayWriter:
    """An array of which the length is known at the end; written a chunk at a time."""

    def __init__(self, path: Path, dtype: str) -> None:
        import tensorstore

        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        sharding = {"chunk_shape": [INNER_CHUNK_ELEMENTS], "codecs": codecs, "index_codecs": codecs}
        metadata = {
            "shape": [0],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK_ELEMENTS]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }
        self._array = tensorstore.open({**zarr3(path), "metadata": metadata}, create=True).result()
        # Pages of it that were never written take no memory.
        self._buffer = np.empty(CHUNK_ELEMENTS, dtype)
        self._held = 0
        self._written = 0
        self._digest = hashlib.sha256()

    @property
    def length(self) -> int:
        return self._written + self._held

    def append(self, values: np.ndarray) -> None:
        while len(values):
            count = min(len(values), CHUNK_ELEMENTS - self._held)
            self._buffer[self._held : self._held + count] = values[:count]
            self._held += count
            values = values[count:]
            if self._held == CHUNK_ELEMENTS:
                self._flush()

    def finish(self) -> str:
        """Write the rest; the sha256 of all."""
        self._flush()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        if self._held:
            length = self.length
            values = self._buffer[: self._held]
            self._digest.update(digest_bytes(values))
            self._array = self._array.resize(exclusive_max=[length], expand_only=True).result()
            self._array[self._written : length].write(values).result()
            self._written, self._held = length, 0


class TokenWriter:
    """One part, in a folder of its own: `tokens` and `offsets` in it."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """Begin a part.

        Args:
            folder: becomes the part's folder.
            vocabulary: number of ids; it decides the type of the array.
        """
        self._folder = folder
        self._vocabulary = vocabulary
        self._tokens = _ArrayWriter(folder / TOKENS_ARRAY, token_dtype(vocabulary))
        self._offsets = [np.zeros(1, np.int64)]
        self.documents = 0
        """Documents that have ended so far."""

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._tokens.length

    def append(self, tokens: np.ndarray, ends: np.ndarray | Sequence[int]) -> None:
        """Add tokens, which go on with the document that is open.

        Args:
            tokens: ids of shape `(n,)`, the end-of-document tokens included.
            ends: where in `tokens` documents end, ascending: 3 when `tokens[2]` is the last of one.

        Raises:
            InputError: for an id that the vocabulary does not have, or ends outside of the tokens.
        """
        ends = np.asarray(ends, np.int64)
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocabulary:
            raise InputError(
                f"{self._folder.name}: ids from {tokens.min()} to {tokens.max()} where the vocabulary has "
                f"{self._vocabulary}; give the vocabulary of the tokenizer that made them"
            )
        if len(ends) and (ends[0] < 0 or ends[-1] > len(tokens) or (np.diff(ends) < 0).any()):
            raise InputError(f"{self._folder.name}: documents end outside of the {len(tokens)} tokens that were given")
        self._offsets.append(ends + self.tokens)
        self.documents += len(ends)
        self._tokens.append(tokens)

    def finish(self, bytes: int, truncated: int = 0) -> TokenPart:
        """Write what is left; the part, named as its folder is.

        Args:
            bytes: UTF-8 bytes of the text.
            truncated: documents that were cut.

        Raises:
            InputError: when the last document has not ended.
        """
        offsets = np.concatenate(self._offsets)
        if offsets[-1] != self.tokens:
            raise InputError(f"{self._folder.name}: {self.tokens - offsets[-1]} tokens after the end of a document")
        starts = _ArrayWriter(self._folder / OFFSETS_ARRAY, "int64")
        starts.append(offsets)
        return TokenPart(
            name=self._folder.name,
            tokens=self.tokens,
            documents=self.documents,
            bytes=bytes,
            truncated=truncated,
            empty=int((np.diff(offsets) <= 1).sum()),
            tokens_sha256=self._tokens.finish(),
            offsets_sha256=starts.finish(),
        )


def write_token_part(
    folder: Path, documents: Iterable[Sequence[int] | np.ndarray], vocabulary: int, bytes: int
) -> TokenPart:
    """Write one part from documents in memory.

    Args:
        folder: becomes the part's folder; the part is named as it is.
        documents: token ids of each document, the end-of-document token included.
        vocabulary: number of ids; it decides the type of the array.
        bytes: UTF-8 bytes of the text.
    """
    writer = TokenWriter(folder, vocabulary)
    for ids in documents:
        writer.append(np.asarray(ids, np.int64), [len(ids)])
    return writer.finish(bytes)
