"""Documents on disk for the steps' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from marin_pipeline import Artifact, local_artifact
from marin_pipeline.data.document import Document, sort_key
from marin_pipeline.data.funnel import Funnel
from marin_pipeline.data.schema import Documents
from marin_pipeline.data.writers import write_documents

StoreDocuments = Callable[[Iterable[Document]], Artifact[Documents]]


@pytest.fixture
def stored(tmp_path: Path) -> StoreDocuments:
    """Writes documents to a folder of their own and binds an artifact to it."""
    made: list[Path] = []

    def store(documents: Iterable[Document]) -> Artifact[Documents]:
        folder = tmp_path / f"documents-{len(made)}"
        folder.mkdir()
        made.append(folder)
        rows = sorted(documents, key=sort_key)
        funnel = Funnel()
        for row in rows:
            funnel.keep(row)
        return local_artifact(folder, write_documents(folder, rows, funnel.report()))

    return store
