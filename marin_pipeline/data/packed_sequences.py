"""Training sequences of whole documents: the rows of a packing plan, by number.

Every token of every document is the target of one position of one row; what is left of a row is padding. The first
input of a document is the end-of-document token, also for the first one of a store; that of a piece that goes on with a
document is the token before it. Attention stays within a row's documents.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import numpy as np

from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.data.checks import check_whole, whole_numbers
from marin_pipeline.data.damage import remedy, state
from marin_pipeline.data.packing import Plan, open_plan
from marin_pipeline.data.packing_ledger import PackingLedger
from marin_pipeline.data.schema import Packing, Stored
from marin_pipeline.data.sequences import NO_TARGET, Piece, Rows
from marin_pipeline.data.token_store import TokenStore


@dataclass(frozen=True)
class PackedRow:
    """What fills one row, one piece after another."""

    starts: np.ndarray
    """First target of each piece, as a position in the store: int64 of shape `(pieces,)`."""
    lengths: np.ndarray
    """Targets of each piece: int64 of shape `(pieces,)`."""
    continued: bool
    """The first piece goes on with a document that began in another row."""


class PackedSequences:
    """The rows of a packing plan over a token store; a `SequenceSource`."""

    def __init__(self, store: TokenStore, packing: Stored[Packing]) -> None:
        """Open a plan beside its tokens; the plan of a part is opened when a row of it is first read.

        Raises:
            InputError: when the plan's ledger is missing or was changed, or the plan belongs to other tokens.
        """
        value = packing.value
        path = os.fspath(packing / value.ledger)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: no readable packing plan ({error}); pack the tokens again") from error
        self.ledger = PackingLedger.from_json(text, path)
        """What the plan holds, by part."""
        for name in ("sequence_length", "rows", "documents", "tokens"):
            said, found = getattr(value, name), getattr(self.ledger, name)
            if said != found:
                raise InputError(
                    f"{path}: {name} is {found}, where the output has {said}: not its ledger; pack the tokens again"
                )
        self.ledger.check_tokens(store.ledger, path)
        self.store = store
        self.sequence_length = self.ledger.sequence_length
        """Positions of a row."""
        self._packing = packing
        self._plans: dict[int, Plan] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.ledger.rows

    def row(self, id: int) -> PackedRow:
        """What fills a row; reads a few numbers of the plan.

        Raises:
            InputError: for a row that the plan does not have, or a plan that was changed or lost.
        """
        check_whole("a packing plan", row=id)
        if not 0 <= id < len(self):
            raise InputError(f"row {id} of a packing plan that has {len(self)}, numbered from 0")
        part = self.ledger.part_of_row(id)
        plan, place = self._plan(part), id - self.ledger.row_starts[part]
        begin, end = plan.places[place : place + 2].tolist()
        pieces = np.array(plan.pieces[begin:end])
        return PackedRow(pieces[:, 0] + self.store.ledger.token_starts[part], pieces[:, 1], place < plan.continued)

    def read(self, ids: np.ndarray) -> Rows:
        """Rows by number. Positions of padding hold the end-of-document token, `NO_TARGET` and document 0.

        Raises:
            InputError: for a row that the plan does not have, or a part of plan or tokens that was changed or lost.
        """
        ids = whole_numbers("rows of a packing plan", ids)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self):
            raise InputError(f"rows {ids.min()} to {ids.max()} were asked of a packing plan that has {len(self)}")
        end_of_document = self.store.ledger.end_of_document
        # A row is a text of one token more than it has positions; each position predicts the next token.
        tokens = np.full((len(ids), self.sequence_length + 1), end_of_document, np.int32)
        documents = np.zeros((len(ids), self.sequence_length), np.int32)
        reads: list[tuple[int, np.ndarray]] = []
        for place, id in enumerate(ids.tolist()):
            row, filled = self.row(id), 0
            for number, (start, length) in enumerate(zip(row.starts.tolist(), row.lengths.tolist(), strict=True), 1):
                before = int(row.continued and number == 1)
                reads.append((start - before, tokens[place, filled + 1 - before : filled + 1 + length]))
                documents[place, filled : filled + length] = number
                filled += length
        self.store.read_into(reads)
        padding = documents == 0
        inputs, targets = tokens[:, :-1].copy(), tokens[:, 1:]
        inputs[:, 1:][documents[:, 1:] != documents[:, :-1]] = end_of_document
        inputs[padding] = end_of_document
        targets[padding] = NO_TARGET
        return Rows(inputs, targets, documents)

    def pieces(self, sequence: int) -> list[Piece]:
        """What a row predicts, by document; what comes after them is padding.

        Raises:
            InputError: for a row that the plan does not have, or a part of plan or tokens that was changed or lost.
        """
        row, found = self.row(sequence), list[Piece]()
        for start, length in zip(row.starts.tolist(), row.lengths.tolist(), strict=True):
            document = self.store.document_at(start)
            within = start - self.store.document_range(document)[0]
            found.append(Piece(document, within, within + length))
        return found

    def sequences_of(self, document: int) -> list[int]:
        """The rows with a piece of a document, in the order of the pieces; looks through the plan of its part.

        Raises:
            InputError: for a document that the store does not have, or a plan that was changed or lost.
        """
        begin, end = self.store.document_range(document)
        part = self.store.ledger.part_of_document(document)
        plan, first = self._plan(part), self.store.ledger.token_starts[part]
        starts = plan.pieces[:, 0]
        found = np.flatnonzero((starts >= begin - first) & (starts < end - first))
        found = found[np.argsort(starts[found], kind="stable")]
        rows = np.searchsorted(plan.places, found, side="right") - 1
        return (rows + self.ledger.row_starts[part]).tolist()

    def _plan(self, part: int) -> Plan:
        with self._lock:
            if part not in self._plans:
                entry = self.ledger.parts[part]
                try:
                    path = os.fspath(self._packing / entry.name)
                except (CorruptOutput, InputError) as error:
                    told = f"{entry.name}: the plan is {state(error)}; {remedy(self._packing)}"
                    raise InputError(told) from error
                self._plans[part] = open_plan(path, entry.rows, entry.continued, entry.sha256)
            return self._plans[part]
