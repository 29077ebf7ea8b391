"""Orders for tests."""

from __future__ import annotations

from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream

SEQUENCE_LENGTH = 8


def one_source(sequences: int, batch_size: int, seed: int = 7) -> TrainingOrder:
    """An order of one source, repeated without end."""
    mixture = Mixture((Source("web", None),), (Phase(0, {"web": 1}),))
    return TrainingOrder(Stream(mixture, SEQUENCE_LENGTH), {"web": sequences}, batch_size, seed)


def mixed(
    web: int = 37, code: int = 11, batch_size: int = 6, seed: int = 7, max_epochs: int | None = None, block: int = 0
) -> TrainingOrder:
    """An order of two sources whose shares change inside of a batch; epochs begin there too."""
    phases = (Phase(0, {"web": "2/3", "code": "1/3"}), Phase(SEQUENCE_LENGTH * 50, {"web": "1/4", "code": "3/4"}))
    mixture = Mixture((Source("web", max_epochs), Source("code", max_epochs)), phases)
    shuffle = Shuffle(block, 2) if block else Shuffle()
    return TrainingOrder(Stream(mixture, SEQUENCE_LENGTH), {"web": web, "code": code}, batch_size, seed, shuffle)
