"""What a training run keeps of the order of its data: the text from which the same order is made again.

The order itself is never written down. This and the stores of the sources are all that it depends on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream

RECORD_FILE = "data.json"


@dataclass(frozen=True)
class SourceRecord:
    """One source, as a run found it."""

    tokens: int
    """Token ids in its store."""
    sequences: int
    """Sequences that it holds at the run's length."""
    packed: bool
    """Whether whole documents were packed into rows; else tokens were cut wherever documents end."""


@dataclass(frozen=True)
class OrderRecord:
    """What decides the order of a run, and how many steps of it were made."""

    sources: Mapping[str, SourceRecord]
    """By name."""
    mixture: Mixture
    batch_size: int
    """Sequences a step."""
    sequence_length: int
    """Predicted tokens a sequence."""
    seed: int
    """Of the order."""
    shuffle: Shuffle
    separate: bool
    """Whether attention stays within a document."""
    steps: int
    """Updates in all."""

    def order(self) -> TrainingOrder:
        """The order of the run."""
        sequences = {name: source.sequences for name, source in self.sources.items()}
        return TrainingOrder(
            Stream(self.mixture, self.sequence_length), sequences, self.batch_size, self.seed, self.shuffle
        )

    def to_json(self) -> str:
        """The record as the text of its file."""
        content = {
            "sources": {name: dataclasses.asdict(source) for name, source in self.sources.items()},
            "mixture": {
                "sources": list(self.mixture.names),
                "phases": [{"start": each.start, "weights": dict(each.weights)} for each in self.mixture.phases],
            },
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "seed": self.seed,
            "shuffle": self.shuffle.plain(),
            "separate": self.separate,
            "steps": self.steps,
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str, where: str = RECORD_FILE) -> OrderRecord:
        """The record that `to_json` wrote.

        Raises:
            InputError: naming `where`, for any other text, and for a shuffle that is not known here.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            sources = {name: SourceRecord(**source) for name, source in fields.pop("sources").items()}
            mixture = fields.pop("mixture")
            shuffle = fields.pop("shuffle")
            made = Shuffle(shuffle.get("block"), shuffle.get("window", Shuffle.window))
            if made.plain() != shuffle:
                raise InputError(
                    f"{where}: the sequences were permuted by {shuffle.get('name')!r}, which is not known here; "
                    "use the version of marin_pipeline that trained"
                )
            return OrderRecord(
                sources=sources,
                mixture=Mixture(
                    tuple(Source(name, max_epochs=None) for name in mixture["sources"]),
                    tuple(Phase(phase["start"], phase["weights"]) for phase in mixture["phases"]),
                ),
                shuffle=made,
                **fields,
            )
        except InputError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(
                f"{where}: not the record of an order ({type(error).__name__}: {error}); the file is not as it was "
                "written"
            ) from error
