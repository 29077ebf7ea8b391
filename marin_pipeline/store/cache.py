"""Local files with the bytes of remote objects."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marin_pipeline.store.objects import Wanted
    from marin_pipeline.store.remote_objects import RemoteObjects


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="marin-fetched-")


def fetched(objects: RemoteObjects, wanted: Sequence[Wanted]) -> list[Path]:
    """Local files with the objects' bytes."""
    found: list[Path] = []
    for each in wanted:
        target = Path(_folder().name) / objects.url.replace("://", "/") / each.path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            objects.download(each.path, target)
        found.append(target)
    return found
