"""What holds a secret is not kept: files, names and streams of a task that was given it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.secrets import guard, guarding
from marin_pipeline.store.guard import guarded, refuse_secret_in, refuse_secrets, remove_disclosed
from marin_pipeline.store.manifest import build_manifest, publish_all
from marin_pipeline.store.objects import FileToPublish, ObjectStore, open_objects

VALUE = "Value-That-Is-Secret"
BLOCK = 2**20


@pytest.fixture(params=["local", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_objects(f"memory://{tmp_path}" if request.param == "memory" else str(tmp_path / "store"))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TEST_KEPT", VALUE)
    with guarding(("TEST_KEPT",)):
        yield


def file_with(folder: Path, name: str, data: bytes) -> FileToPublish:
    (folder / name).write_bytes(data)
    return FileToPublish(name, folder / name, len(data))


@pytest.mark.parametrize("at", [0, 5, BLOCK - 20, BLOCK - 19, BLOCK - 1, BLOCK, 3 * BLOCK - 3])
def test_a_value_is_found_at_any_place_of_a_file(tmp_path: Path, given: None, at: int) -> None:
    fine = file_with(tmp_path, "fine", b"x" * (3 * BLOCK))
    refuse_secrets([fine])
    bad = file_with(tmp_path, "bad", b"x" * at + VALUE.encode() + b"x" * BLOCK)
    with pytest.raises(InputError, match=r"the output 'bad' holds the value of the secret TEST_KEPT, .*leave it out"):
        refuse_secrets([fine, bad])


def test_nothing_is_published_that_holds_a_secret(objects: ObjectStore, given: None) -> None:
    folder = objects.folder("steps/out")
    (folder / "a").write_text(f"token={VALUE}")
    for publish in (
        lambda: build_manifest(objects, folder, "steps/out", {}),
        lambda: publish_all(objects, "steps/out"),
    ):
        with pytest.raises(InputError, match="'a' holds the value of the secret TEST_KEPT"):
            publish()
    if not objects.in_place:
        assert objects.list("steps") == []


def test_a_name_that_holds_a_secret_is_refused_without_it(objects: ObjectStore, given: None) -> None:
    folder = objects.folder("steps/out")
    (folder / f"of-{VALUE}").mkdir()
    (folder / f"of-{VALUE}" / "a").write_text("")
    with pytest.raises(InputError, match=r"the name of the output 'of-<secret TEST_KEPT>/a' holds the value"):
        build_manifest(objects, folder, "steps/out", {})


@hypothesis.given(st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_a_stream_that_gets_a_value_in_pieces_is_refused(cuts: list[int], holds: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, guarding(("TEST_KEPT",)):
        patch.setenv("TEST_KEPT", VALUE)
        objects = open_objects("memory://guarded-stream")
        data = b"x" * 20 + (VALUE if holds else VALUE[:-1]).encode() + b"x" * 20
        edges = [0, *sorted(cuts), len(data)]
        writer = guarded(objects.writer("shards/a"), "a")

        def write() -> None:
            for start, stop in itertools.pairwise(edges):
                writer.write(data[start:stop])
            writer.close()

        if holds:
            with pytest.raises(InputError, match="the output 'a' holds the value of the secret TEST_KEPT"):
                write()
            with pytest.raises(InputError, match="holds the value"):
                writer.close()
            writer.abort()
            assert objects.read("shards/a") is None
        else:
            write()
            assert objects.read("shards/a") is not None
            objects.delete("shards/a")


def test_without_secrets_a_writer_is_the_stores_own(objects: ObjectStore) -> None:
    writer = objects.writer("shards/a")
    assert guarded(writer, VALUE) is writer
    writer.abort()
    refuse_secret_in(VALUE.encode(), "it")


def test_what_was_left_is_removed_where_it_holds_a_secret(tmp_path: Path, given: None) -> None:
    known = guard()
    assert known is not None
    (tmp_path / "deep" / VALUE).mkdir(parents=True)
    (tmp_path / "deep" / VALUE / "file").write_text("")
    (tmp_path / "deep" / "bad").write_text(VALUE)
    (tmp_path / "deep" / "fine").write_text(VALUE[1:])
    (tmp_path / "link").symlink_to(f"/{VALUE}/x")
    (tmp_path / "other").symlink_to("deep/bad")
    os.mkfifo(tmp_path / "pipe")
    remove_disclosed(known, [tmp_path, tmp_path / "not there"])
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "deep",
        "deep/fine",
        "other",
        "pipe",
    ]
