"""A manifest describes exactly what the store holds; what cannot be kept is refused by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from marin_pipeline.core.errors import CorruptOutput, InputError, StoreError
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.manifest import Entry, Manifest, build_manifest, files_below
from marin_pipeline.store.objects import FileToPublish, Told, Written, untold


class Lossy(LocalObjects):
    """Keeps only the last file of a folder, as an uploader with an indentation error does."""

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        written = super().publish(path, files, told)
        for each in files[:-1]:
            each.file.unlink()
        return written


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def test_a_file_that_the_store_lost_fails_the_attempt(tmp_path: Path) -> None:
    objects = Lossy(tmp_path)
    out = objects.folder("a/out")
    for name in "abc":
        (out / name).write_text(name)
    with pytest.raises(StoreError, match=r"a/out/a: was written, but is missing there"):
        build_manifest(objects, out, "a/out", {})


def test_the_digest_is_over_paths_and_bytes_and_not_over_where_they_lie(objects: LocalObjects) -> None:
    digests: list[str] = []
    for attempt in ("one", "two"):
        out = objects.folder(f"steps/{attempt}/out")
        (out / "x").mkdir()
        (out / "x" / "y").write_bytes(b"data")
        manifest = build_manifest(objects, out, f"steps/{attempt}/out", {})
        assert manifest.entries[0].object == f"steps/{attempt}/out/x/y"
        assert manifest.entries[0].sha256 == hashlib.sha256(b"data").hexdigest()
        assert Manifest.loads(manifest.dumps(), "here") == manifest
        digests.append(manifest.output_digest)
    assert digests[0] == digests[1]
    assert Manifest((Entry("x/z", "", 4, manifest.entries[0].sha256),)).output_digest != digests[0]


def test_a_link_is_refused_by_name(objects: LocalObjects) -> None:
    out = objects.folder("out")
    (out / "real").mkdir()
    for target in ("real", "nowhere"):
        link = out / "link"
        link.symlink_to(target)
        with pytest.raises(InputError, match="the output 'link' is a link; write the content itself"):
            list(files_below(out))
        link.unlink()


def test_what_is_no_file_is_refused_by_name(objects: LocalObjects) -> None:
    out = objects.folder("out")
    os.mkfifo(out / "pipe")
    with pytest.raises(InputError, match="the output 'pipe' is not a regular file"):
        list(files_below(out))


def test_a_name_that_is_not_utf_8_is_refused(objects: LocalObjects) -> None:
    out = objects.folder("out")
    try:
        (Path(os.fsdecode(os.fsencode(out) + b"/\xff"))).write_text("")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(InputError, match="has a name that is not UTF-8; rename it"):
        list(files_below(out))


def test_odd_but_valid_names_are_kept(objects: LocalObjects) -> None:
    out = objects.folder("steps/out")
    names = sorted(
        ["a b", "quote\"'", "a%2Fb", "A B", "u\u0308", "u\u0308n", "\u2028", "ünï", ".hidden", "-rf", "a\\b", "*"]
    )
    for name in names:
        (out / name).write_text(name)
    manifest = build_manifest(objects, out, "steps/out", {})
    again = Manifest.loads(manifest.dumps(), "here")
    assert [entry.path for entry in again.entries] == names
    assert all(b"".join(objects.blocks(entry.object)) == entry.path.encode() for entry in again.entries)


def test_a_file_written_and_adopted_under_one_path_is_refused(objects: LocalObjects) -> None:
    out = objects.folder("out")
    (out / "a").write_text("")
    with pytest.raises(InputError, match="written and adopted"):
        build_manifest(objects, out, "out", {"a": Entry("a", "shards/a", 0, "0" * 64)})


@pytest.mark.parametrize("damage", [b"", b"[]", b"null", b'{"files": 3}', b'{"files": [{"path": "x"}]}'])
def test_a_damaged_manifest_is_named_with_its_remedy(damage: bytes) -> None:
    with pytest.raises(CorruptOutput, match=r"there: not a manifest .*--force"):
        Manifest.loads(damage, "there")
