"""A reader goes from the commit to the manifest to exactly the objects that it names, and believes no other bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.manifest import Entry, Manifest, build_manifest
from marin_pipeline.store.output import FileSet


@pytest.fixture
def files(tmp_path: Path) -> FileSet:
    objects = LocalObjects(tmp_path)
    out = objects.folder("out")
    (out / "parts").mkdir()
    (out / "parts" / "a").write_text("alpha")
    (out / "parts" / "b").write_text("beta")
    return FileSet(objects, build_manifest(objects, out, "out", {}), "the output of x")


def test_a_file_and_a_folder_are_found_by_the_manifest_and_not_by_the_disk(files: FileSet, tmp_path: Path) -> None:
    (tmp_path / "out" / "parts" / "stray").write_text("nobody committed this")
    assert files.local("parts/a").read_text() == "alpha"
    assert files.local("parts") == tmp_path / "out" / "parts"
    with pytest.raises(InputError, match="has no file 'parts/stray'; it has parts/a, parts/b"):
        files.local("parts/stray")


def test_changed_bytes_of_the_same_size_are_not_believed(files: FileSet, tmp_path: Path) -> None:
    (tmp_path / "out" / "parts" / "a").write_text("alphA")
    with pytest.raises(CorruptOutput, match=r"out/parts/a: its bytes are not those that were committed .*--force"):
        files.local("parts/a")
    assert files.local("parts/b").read_text() == "beta"


def test_a_shortened_or_missing_file_is_not_believed(files: FileSet, tmp_path: Path) -> None:
    (tmp_path / "out" / "parts" / "a").write_text("al")
    with pytest.raises(CorruptOutput, match="has 2 bytes, but 5 were committed"):
        files.local("parts")
    (tmp_path / "out" / "parts" / "a").unlink()
    with pytest.raises(CorruptOutput, match="cannot be read"):
        files.local("parts/a")


def test_a_folder_whose_files_lie_in_several_places_is_one_folder_for_its_reader(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    entries: list[Entry] = []
    for number, home in enumerate(["shards/1", "shards/2"]):
        out = objects.folder(home)
        (out / "data").write_text(home)
        (entry,) = build_manifest(objects, out, home, {}).entries
        entries.append(Entry(f"parts/{number}.txt", entry.object, entry.size, entry.sha256))
    folder = FileSet(objects, Manifest(tuple(entries)), "x").local("parts")
    assert sorted((file.name, file.read_text()) for file in folder.iterdir()) == [
        ("0.txt", "shards/1"),
        ("1.txt", "shards/2"),
    ]
