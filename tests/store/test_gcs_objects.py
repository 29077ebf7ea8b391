"""Objects in Google Cloud Storage keep what all stores promise; and what is this store's own."""

from __future__ import annotations

import pytest

from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.store.conformance import Conformance


class TestGcs(Conformance):
    @pytest.fixture
    def objects(self, gcs_prefix: str) -> ObjectStore:
        return open_objects(gcs_prefix)
