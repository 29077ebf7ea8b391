"""A store that stands before another one is that one in everything that it does not change."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from marin_pipeline.store.conditions import SingleWriter
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.manifest import Entry, Manifest
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import SMALL, FileSet
from marin_pipeline.store.read_only import ReadOnlyObjects
from tests.faults.faulty_objects import FaultyObjects, nth
from tests.faults.turns import TakingTurns
from tests.store.far_objects import FarObjects

METHODS = [name for name, _ in inspect.getmembers(ObjectStore, inspect.isfunction) if not name.startswith("_")]
ATTRIBUTES = [name for name in inspect.get_annotations(ObjectStore) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_passed_on(name: str) -> None:
    assert name in vars(Forwarding)


def test_every_attribute_and_the_location_are_the_others(tmp_path: Path) -> None:
    class Far(FarObjects):
        def __init__(self) -> None:
            super().__init__(tmp_path)
            self.parallel, self.longest, self.single_writer = 7, 99, True

        def location(self) -> str:
            return "far-away"

    far = Far()
    for objects in (
        Forwarding(far),
        SingleWriter(far),
        ReadOnlyObjects(far),
        FaultyObjects(far, lambda operation, path: None),
        TakingTurns(far, lambda operation, path: None),
    ):
        changed = ["parallel"] if isinstance(objects, TakingTurns) else []
        for name in ATTRIBUTES:
            assert name in changed or getattr(objects, name) == getattr(far, name), name
        assert objects.location() == "far-away"


@pytest.mark.parametrize("operation", ["info", "blocks"])
def test_a_large_file_of_a_faulty_store_is_read_by_ranges(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    far = FarObjects(tmp_path / "far")
    data = bytes(SMALL) + b"end"
    with far.writer("a/x") as writer:
        writer.write(data)
        written = writer.close()
    objects = FaultyObjects(far, nth(operation, "a/x", "before"))
    entry = Entry("x", "a/x", written.size, written.sha256)
    with FileSet(objects, Manifest((entry,)), "the output of x").open("x") as file:
        assert file.read() == data
    assert objects.faults == [(operation, "a/x")]
    assert not (tmp_path / "cache" / "objects").exists()
