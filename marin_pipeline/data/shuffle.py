"""How the sequences of a source are permuted: a declaration of plain values that can be part of a step's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.checks import check_whole


@dataclass(frozen=True)
class Shuffle:
    """Over the whole of a source, or in two levels where it is read from far away.

    Raises:
        InputError: for a block or a window that is no whole number of at least 1.
    """

    block: int | None = None
    """Consecutive sequences that are read together; None permutes single sequences over the whole source."""
    window: int = 256
    """Blocks among whose sequences a batch draws; unused without blocks."""

    def __post_init__(self) -> None:
        check_whole("shuffle", or_none=True, block=self.block)
        check_whole("shuffle", window=self.window)
        if (self.block is not None and self.block < 1) or self.window < 1:
            raise InputError(f"shuffle: block={self.block} and window={self.window}: both must be at least 1")

    def plain(self) -> dict[str, Any]:
        """What decides the order, under the name of the permutation."""
        if self.block is None:
            return {"name": "feistel-1"}
        return {"name": "feistel-blocks-1", "block": self.block, "window": self.window}
