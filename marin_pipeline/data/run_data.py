"""The data of a training run, found again from its committed state: its order, its stores, its documents' names.

The state's record says the order, and the lineage of the state says which tokens, tokenizer and documents it was made
from. Nothing is opened before it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from marin_pipeline.core.errors import InputError, StoreError
from marin_pipeline.data.document_names import DocumentName, DocumentNames
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.order_record import RECORD_FILE, OrderRecord
from marin_pipeline.data.packed_sequences import PackedSequences
from marin_pipeline.data.schema import Documents, Packing, Tokenizer, Tokens
from marin_pipeline.data.sequences import DocumentSource, Sequences
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import tokenizers

    from marin_pipeline import Artifact

METRICS_FILE = "metrics.jsonl"

_UNKNOWN = {
    "documents": "were made from no documents that are known here, as when they were imported; ask for a document by "
    "its number",
    "tokenizer": "were made by no tokenizer that is known here; ask without --text",
}


class RunData:
    """What one run read, and in which order."""

    def __init__(self, state: Artifact[Any], name: str) -> None:
        """Read the record of a committed state that has one.

        Args:
            name: what the state is called by whoever asks.

        Raises:
            InputError: for a record that cannot be read.
        """
        self.name = name
        self.record = OrderRecord.from_json((state / RECORD_FILE).read_text(), f"{name}/{RECORD_FILE}")
        self.order: TrainingOrder = self.record.order()
        self._state = state
        self.source = cache(self._source)
        self.names = cache(self._names)
        self.tokenizer = cache(self._tokenizer)

    @property
    def state(self) -> dict[str, Any]:
        """Which state is looked at, as JSON values: a later run of the same name may have failed, and left none."""
        return {"key": self._state.key[:8], "step": self.record.steps}

    def __str__(self) -> str:
        return f"{self.name} (state {self._state.key[:8]} at step {self.record.steps:,})"

    def batch(self, step: int) -> Batch:
        """What a step read, held against what the run recorded when it read it.

        Args:
            step: from 1 on, as the metrics count: the step that made the state at `step`.

        Raises:
            InputError: for a step that the run did not make, or when it recorded another batch.
        """
        if not 1 <= step <= self.record.steps:
            raise InputError(f"step {step}: {self.name} made {self.record.steps:,} steps, numbered from 1")
        batch = self.order.batch(step - 1)
        digest, recorded = self.order.digest(batch), self._recorded.get(step)
        if recorded not in (None, digest):
            raise InputError(
                f"step {step} of {self.name}: the batch that the run recorded is {recorded}, and this version of "
                f"marin_pipeline makes {digest} of the same record: look with the version that trained"
            )
        return batch

    @cached_property
    def _recorded(self) -> dict[int, str]:
        """Digests of batches by step, as far as the run recorded them."""
        if METRICS_FILE not in self._state.files:
            return {}
        lines = map(json.loads, (self._state / METRICS_FILE).read_text().splitlines())
        return {line["step"]: line["batch"] for line in lines if "batch" in line}

    def sources(self, names: Iterable[str]) -> dict[str, DocumentSource]:
        """Some of the sources, by name."""
        return {name: self.source(name) for name in names}

    def _source(self, name: str) -> DocumentSource:
        """The sequences of a source, as the run read them.

        Raises:
            StoreError: when the tokens are not in the store any more.
            InputError: for a source that the run does not have, or whose tokens are not those that it read.
        """
        if name not in self.record.sources:
            raise InputError(
                f"source {name!r} is none of {self.name}: these are {', '.join(map(repr, self.record.sources))}"
            )
        recorded, store = self.record.sources[name], TokenStore(self._tokens(name))
        if recorded.packed:
            found = PackedSequences(store, self._read("packing", name, Packing))
        else:
            found = Sequences(store, self.record.sequence_length, self.record.separate)
        if (store.tokens, len(found)) != (recorded.tokens, recorded.sequences):
            raise InputError(
                f"source {name!r} of {self.name} has {store.tokens:,} tokens in {len(found):,} sequences, where the "
                f"run read {recorded.tokens:,} in {recorded.sequences:,}: other tokens"
            )
        return found

    def _names(self, source: str) -> DocumentNames:
        """The names of a source's documents.

        Raises:
            StoreError: when the documents are not in the store any more.
            InputError: when the tokens were made from none.
        """
        made = self._made_from(source, "documents", Documents)
        return DocumentNames(made, self.source(source).store.ledger)

    def _tokenizer(self, source: str) -> tokenizers.Tokenizer:
        """The tokenizer that made a source's tokens.

        Raises:
            StoreError: when it is not in the store any more.
            InputError: when the tokens were made by none, or by another one.
        """
        made = self._made_from(source, "tokenizer", Tokenizer)
        file = made / made.value.path
        self.source(source).store.ledger.check_tokenizer(file.sha256, f"the tokenizer of {source!r}")
        return load_tokenizer(file)

    def _tokens(self, source: str) -> Artifact[Tokens]:
        return self._read("tokens", source, Tokens)

    def _read(self, what: str, source: str, kind: type[Any]) -> Artifact[Any]:
        """What the state was made from: of several sources each has a role of its own."""
        from marin_pipeline import Artifact

        inputs = self._state.inputs
        role = next((each for each in (f"{what}[{source}]", what) if each in inputs), None)
        if role is None:
            raise InputError(
                f"{self.name} does not say which {what} of {source!r} it read; its inputs are "
                f"{', '.join(inputs) or 'none'}"
            )
        return inputs[role].typed(Artifact[kind])

    def _made_from(self, source: str, role: str, kind: type[Any]) -> Artifact[Any]:
        from marin_pipeline import Artifact

        tokens = self._tokens(source)
        if role not in tokens.inputs:
            raise InputError(f"the tokens of {source!r} ({tokens.name} {tokens.key[:8]}) {_UNKNOWN[role]}")
        return tokens.inputs[role].typed(Artifact[kind])

    def name_of(self, source: str, document: int) -> DocumentName | None:
        """What a document is called; None where its source's documents are not to be had."""
        try:
            return self.names(source).of(document)
        except (InputError, StoreError):
            return None
