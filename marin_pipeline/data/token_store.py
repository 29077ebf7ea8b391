"""The token store: per part two TensorStore arrays, token ids and document starts, and one ledger that lists the parts.

Parts are never copied to bring them together: the ledger says how they follow each other, and a read finds its part by
bisection. What was changed or lost since it was written stops the read, naming the part; `verify` looks at all of it.
Memory: all stores of a process share one cache of 64 MiB; a store keeps up to 256 arrays open, and no file.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.data.checks import check_whole, whole_numbers
from marin_pipeline.data.damage import remedy, state
from marin_pipeline.data.schema import Stored, Tokens
from marin_pipeline.data.token_ledger import Ledger
from marin_pipeline.data.token_writer import OFFSETS_ARRAY, TOKENS_ARRAY, digest_bytes, zarr3

CACHE_BYTES = 64 * 2**20
"""Of chunks that were read, for all stores of a process."""
OPEN_ARRAYS = 256
"""Of one store; another one is opened again when it is read."""
VERIFY_ELEMENTS = 2**22
"""Elements that `verify` holds at a time."""


@functools.cache
def _shared_context() -> Any:
    import tensorstore

    return tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


class TokenStore:
    """Random access to the tokens of all parts, numbered from 0 as if they were one array. Threads may share it."""

    def __init__(self, tokens: Stored[Tokens], tokenizer: str | os.PathLike[str] | None = None) -> None:
        """Open the store of an output that has been made; arrays are opened when they are first read.

        Args:
            tokens: the output.
            tokenizer: the file of the tokenizer that is meant to go with it; checked where it is given.

        Raises:
            InputError: when the ledger is missing, was changed, or is of another output or another tokenizer.
        """
        self._stored = tokens
        self._remedy = remedy(tokens)
        value = tokens.value
        path = os.fspath(tokens / value.ledger)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: no readable ledger of tokens ({error}); {self._remedy}") from error
        self.ledger = Ledger.from_json(text, path)
        """What the store holds."""
        for name in ("tokens", "documents", "bytes", "vocabulary", "end_of_document"):
            said, found = getattr(value, name), getattr(self.ledger, name)
            if said != found:
                raise InputError(
                    f"{path}: {name} is {found}, where the output has {said}: not its ledger; {self._remedy}"
                )
        if tokenizer is not None:
            with open(tokenizer, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            self.ledger.check_tokenizer(found, os.fspath(tokenizer))
        self._arrays: OrderedDict[tuple[int, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.ledger.tokens

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.ledger.documents

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop): int32 of shape `(stop - start,)`.

        Raises:
            InputError: for a range outside of the store, or a part that was changed or lost.
        """
        check_whole("a token store", start=start, stop=stop)
        return self.read_many(np.array([start]), stop - start)[0]

    def read_many(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The `length` tokens from each of `starts`: int32 of shape `(len(starts), length)`. All reads run at once.

        Raises:
            InputError: for a range outside of the store, or a part that was changed or lost.
        """
        check_whole("a token store", length=length)
        reads = [self._pieces(start, start + length) for start in whole_numbers("positions", starts).tolist()]
        found = np.empty((len(reads), max(0, length)), np.int32)
        for row, pieces in zip(found, reads, strict=True):
            self._fill(row, pieces)
        return found

    def read_into(self, reads: Iterable[tuple[int, np.ndarray]]) -> None:
        """Fill each array with the tokens from a position on. All reads run at once.

        Args:
            reads: positions, and arrays of shape `(tokens,)`.

        Raises:
            InputError: for a range outside of the store, or a part that was changed or lost.
        """
        begun = [(array, self._pieces(start, start + len(array))) for start, array in reads]
        for array, pieces in begun:
            self._fill(array, pieces)

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document, its end-of-document token included: int32 of shape `(tokens of it,)`."""
        start, stop = self.document_range(index)
        return self.read(start, stop)

    def document_range(self, index: int) -> tuple[int, int]:
        """Where in the store's tokens a document starts and stops; one read of two numbers.

        Raises:
            InputError: for a document that the store does not have.
        """
        check_whole("a token store", document=index)
        if not 0 <= index < self.documents:
            raise InputError(f"document {index} of a store that has {self.documents}, numbered from 0")
        part = self.ledger.part_of_document(index)
        place = index - self.ledger.document_starts[part]
        read = self._open(part, OFFSETS_ARRAY)[place : place + 2].read()
        start, stop = self._result(part, OFFSETS_ARRAY, read).tolist()
        first = self.ledger.token_starts[part]
        return first + start, first + stop

    def document_at(self, position: int) -> int:
        """The document that a token belongs to; by bisection, with a few reads of two numbers.

        Raises:
            InputError: for a token that the store does not have.
        """
        check_whole("a token store", position=position)
        if not 0 <= position < self.tokens:
            raise InputError(f"token {position} of a store that holds {self.tokens}, numbered from 0")
        part = self.ledger.part_of_token(position)
        starts = self.ledger.document_starts
        documents = range(starts[part], starts[part + 1])
        # Of documents that start at one place only the last one has tokens.
        return documents[bisect_right(documents, position, key=lambda index: self.document_range(index)[0]) - 1]

    def part_offsets(self, part: int) -> np.ndarray:
        """Where the documents of a part start, counted from the part's first token: int64 of shape `(documents + 1,)`.

        The last one is the number of the part's tokens.
        """
        return self._result(part, OFFSETS_ARRAY, self._open(part, OFFSETS_ARRAY).read())

    @property
    def offsets(self) -> np.ndarray:
        """Where documents start: int64 of shape `(documents + 1,)`, the last one being the number of tokens.

        Of all parts: 8 bytes a document, read anew each time.
        """
        starts = self.ledger.token_starts
        found = [self.part_offsets(part)[:-1] + starts[part] for part in range(len(self.ledger.parts))]
        return np.concatenate([*found, np.array([self.tokens], np.int64)])

    def verify(self) -> None:
        """Read all of it from the disk and compare it with the ledger's digests; holds some 32 MiB at a time.

        Raises:
            InputError: naming each part that is missing or not as it was written.
        """
        problems = [problem for part in range(len(self.ledger.parts)) for problem in self._problems(part)]
        if problems:
            raise InputError(
                "; ".join(
                    [f"{len(problems)} arrays of the token store are not as they were written", *problems, self._remedy]
                )
            )

    def _problems(self, part: int) -> list[str]:
        import tensorstore

        entry = self.ledger.parts[part]
        found = []
        for name, written in ((TOKENS_ARRAY, entry.tokens_sha256), (OFFSETS_ARRAY, entry.offsets_sha256)):
            digest = hashlib.sha256()
            try:
                # Without the cache: what counts is what lies on the disk.
                array = self._opened(part, name, tensorstore.Context())
                for start in range(0, array.shape[0], VERIFY_ELEMENTS):
                    stop = min(start + VERIFY_ELEMENTS, array.shape[0])
                    digest.update(digest_bytes(array[start:stop].read().result()))
            except InputError as error:
                found.append(str(error).removesuffix(f"; {self._remedy}"))
                continue
            except ValueError as error:
                found.append(f"{entry.name}/{name}: {_reason(error)}")
                continue
            if digest.hexdigest() != written:
                found.append(f"{entry.name}/{name}: sha256 {digest.hexdigest()[:16]}…, written was {written[:16]}…")
        return found

    def _pieces(self, start: int, stop: int) -> list[tuple[int, Any]]:
        """Parts, and reads of them already under way, that cover tokens [start, stop) one after another."""
        if not 0 <= start <= stop <= self.tokens:
            raise InputError(f"tokens [{start}, {stop}) of a store that holds {self.tokens}")
        starts = self.ledger.token_starts
        reads = []
        part = self.ledger.part_of_token(start)
        while start < stop:
            end = min(stop, starts[part + 1])
            if start < end:
                array = self._open(part, TOKENS_ARRAY)
                reads.append((part, array[start - starts[part] : end - starts[part]].read()))
            start, part = end, part + 1
        return reads

    def _fill(self, array: np.ndarray, pieces: list[tuple[int, Any]]) -> None:
        """Put what was read into an array, one piece after another."""
        filled = 0
        for part, piece in pieces:
            values = self._result(part, TOKENS_ARRAY, piece)
            array[filled : filled + len(values)] = values
            filled += len(values)

    def _open(self, part: int, name: str) -> Any:
        key = (part, name)
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
                return self._arrays[key]
        array = self._opened(part, name, _shared_context())
        with self._lock:
            self._arrays[key] = array
            while len(self._arrays) > OPEN_ARRAYS:
                self._arrays.popitem(last=False)
        return array

    def _opened(self, part: int, name: str, context: Any) -> Any:
        import tensorstore

        entry = self.ledger.parts[part]
        try:
            folder = os.fspath(self._stored / f"{entry.name}/{name}")
        except (CorruptOutput, InputError) as error:
            raise self._damaged(part, name, state(error)) from error
        # What the cache has from before an array was opened is compared with the disk; after that, nothing changes.
        spec = {**zarr3(folder), "recheck_cached_data": "open"}
        try:
            array = tensorstore.open(spec, context=context, read=True, open=True).result()
        except ValueError as error:
            raise self._damaged(part, name, _reason(error)) from error
        shape, dtype = (
            ((entry.tokens,), self.ledger.dtype) if name == TOKENS_ARRAY else ((entry.documents + 1,), "int64")
        )
        if (array.shape, array.dtype.name) != (shape, dtype):
            said = f"{array.shape[0]} elements of {array.dtype.name}, where the ledger has {shape[0]} of {dtype}"
            raise self._damaged(part, name, said)
        return array

    def _result(self, part: int, name: str, read: Any) -> np.ndarray:
        try:
            return read.result()
        except ValueError as error:
            raise self._damaged(part, name, _reason(error)) from error

    def _damaged(self, part: int, name: str, reason: str) -> InputError:
        return InputError(f"{self.ledger.parts[part].name}/{name}: {reason}; {self._remedy}")


def _reason(error: ValueError) -> str:
    """What TensorStore says, by whether bytes are missing or others."""
    text = str(error)
    kind = "missing" if text.startswith("NOT_FOUND") else "damaged"
    return f"{kind} ({text})"
