"""Adopting: bytes made elsewhere become an output like any other, and their key follows from them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import adopted, load
from marin_pipeline.core.errors import CorruptOutput, InputError, StoreError, UsageError
from marin_pipeline.run.adoption import Content, adopt
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, Invalidation, invalidate, look
from marin_pipeline.store.lease import Waiting
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.verify import Verifier
from tests.faults.faulty_objects import FaultyObjects, nth
from tests.run.sample_steps import sizes
from tests.run.sessions import Bench

LIFE = 5.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "elsewhere"
    (found / "deep").mkdir(parents=True)
    (found / "a.txt").write_text("one")
    (found / "deep" / "b.txt").write_text("three")
    return found


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(str(tmp_path / "store"))


def taken(objects: ObjectStore, path: Path, name: str = "wiki", value: str = "null") -> tuple[Content, Commit]:
    content = Content.of(path, name, value)
    commit, _ = adopt(objects, content, LIFE)
    return content, commit


def total(made: Any) -> Any:
    return sizes(files={"a": made / "a.txt", "b": made / "deep/b.txt"})


def test_what_was_adopted_is_cached_and_another_step_depends_on_it(bench: Bench, folder: Path) -> None:
    content = Content.of(folder, "wiki", "null")
    made = adopted("wiki", content.digest)
    assert made.key == content.key
    assert bench.outcomes(total(made)) == {"wiki": "blocked", "sizes": "blocked"}
    assert "marin-pipeline adopt PATH --as wiki" in bench.reasons(total(made))["wiki"]
    adopt(bench.objects, content, LIFE)
    assert bench.outcomes(total(made)) == {"wiki": "cached", "sizes": "done"}
    assert load("sizes", prefix=str(bench.prefix)).value == 8
    assert bench.statuses(total(made)) == {"wiki": "cached", "sizes": "cached"}
    assert Verifier(bench.objects, "full").verify(content.id, content.key) is not None


def test_the_commit_says_whose_it_is_and_is_damage_under_another_key(objects: ObjectStore, folder: Path) -> None:
    content, commit = taken(objects, folder)
    assert commit.key == content.key
    (folder / "a.txt").write_text("other")
    other = Content.of(folder, "wiki", "null")
    found = objects.read(layout.commit(content.id, content.key, 1))
    assert found is not None
    objects.create(layout.commit(other.id, other.key, 1), found.data)
    assert f"is the commit of {content.key[:8]}" in look(objects, other.id, other.key).damage


def test_its_key_and_that_of_its_dependents_move_with_the_bytes(inline: Bench, folder: Path) -> None:
    before, _ = taken(inline.objects, folder)
    assert inline.run(total(adopted("wiki", before.digest))).ok
    (folder / "a.txt").write_text("once")
    after, _ = taken(inline.objects, folder)
    assert after.key != before.key
    assert inline.outcomes(total(adopted("wiki", after.digest))) == {"wiki": "cached", "sizes": "done"}
    assert load("sizes", prefix=str(inline.prefix)).value == 9
    assert load("sizes@1", prefix=str(inline.prefix)).value == 8


def test_where_the_bytes_lie_does_not_count_and_their_paths_do(folder: Path, tmp_path: Path) -> None:
    before = Content.of(folder, "wiki", "null").digest
    moved = folder.rename(tmp_path / "moved")
    assert Content.of(moved, "wiki", "null").digest == before
    (moved / "a.txt").rename(moved / "c.txt")
    assert Content.of(moved, "wiki", "null").digest != before


def test_doing_it_twice_changes_nothing(objects: ObjectStore, folder: Path) -> None:
    content, commit = taken(objects, folder)
    before = objects.list("steps")
    assert adopt(objects, content, LIFE) == (commit, False)
    assert objects.list("steps") == before


def test_a_file_is_adopted_under_its_name_and_the_source_is_not_touched(objects: ObjectStore, folder: Path) -> None:
    before = (folder / "a.txt").stat()
    content, commit = taken(objects, folder / "a.txt")
    assert (folder / "a.txt").stat() == before
    assert list(content.files) == ["a.txt"]
    assert objects.read(f"{layout.attempt(content.id, content.key, commit.attempt)}/out/a.txt")


def test_a_value_with_a_key_twice_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--value: an object in it has the key 'a' twice; give each key once"):
        Content.of(folder, "wiki", '[{"b": {"a": 1, "a": 1}}]')


def test_a_value_is_read_and_counts_in_the_key(objects: ObjectStore, folder: Path) -> None:
    plain, _ = taken(objects, folder)
    valued, _ = taken(objects, folder, value='{"rows": 3, "~odd": [1.5, null]}')
    assert valued.key != plain.key
    assert load(valued.key, prefix=objects.url).value == {"rows": 3, "~odd": [1.5, None]}
    assert load(plain.key, prefix=objects.url).value is None
    with pytest.raises(UsageError, match="not JSON"):
        Content.of(folder, "wiki", "{rows: 3}")


def test_what_outputs_may_not_hold_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(folder / "a.txt")
    with pytest.raises(InputError, match="'link' is a link"):
        Content.of(folder, "wiki", "null")
    with pytest.raises(UsageError, match="is a link"):
        Content.of(folder / "link", "wiki", "null")
    (folder / "link").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match="'pipe' is not a regular file"):
        Content.of(folder, "wiki", "null")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        Content.of(folder / "pipe", "wiki", "null")
    (folder / "pipe").unlink()
    (folder / "value.json").write_text("1")
    with pytest.raises(InputError, match=r"holds value\.json"):
        Content.of(folder, "wiki", "null")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no files"):
        Content.of(tmp_path / "empty", "wiki", "null")
    with pytest.raises(UsageError, match="cannot be read"):
        Content.of(tmp_path / "nothing", "wiki", "null")


def test_a_file_that_changes_while_it_is_copied_is_not_adopted(objects: ObjectStore, folder: Path) -> None:
    content = Content.of(folder, "wiki", "null")
    (folder / "a.txt").write_text("two")
    with pytest.raises(InputError, match=r"a\.txt: was written while it was copied"):
        adopt(objects, content, LIFE)
    assert look(objects, content.id, content.key).commit is None
    assert not objects.list(f"{layout.step(content.id, content.key)}/attempts")


@pytest.mark.parametrize("ending", ["spec.json", "manifest.json", "commits/1.json"])
@pytest.mark.parametrize("fault", ["before", "after", "denied after", "full"])
def test_whatever_write_fails_the_next_try_adopts(objects: ObjectStore, folder: Path, ending: str, fault: Any) -> None:
    content = Content.of(folder, "wiki", "null")
    faulty = FaultyObjects(objects, nth("create", ending, fault))
    if fault == "full":  # a store that is only silent is asked again
        with pytest.raises(StoreError):
            adopt(faulty, content, LIFE)
    commit, _ = adopt(faulty, content, LIFE)
    assert faulty.faults
    assert look(objects, content.id, content.key).commit == commit
    verified = Verifier(objects, "full").verify(content.id, content.key)
    assert verified is not None
    assert verified.ok


def test_one_that_was_ended_is_adopted_again_under_the_next_number(objects: ObjectStore, folder: Path) -> None:
    content, commit = taken(objects, folder)
    invalidate(objects, content.id, content.key, 1, Invalidation("invalidated", "", ""))
    again, new = adopt(objects, content, LIFE)
    assert (new, again.number, again.output) == (True, 2, commit.output)


def test_a_damaged_record_is_named_with_its_remedy(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    content, _ = taken(objects, folder)
    path = layout.commit(content.id, content.key, 1)
    (tmp_path / "store" / path).write_bytes(b"\x00")
    with pytest.raises(
        CorruptOutput,
        match=rf"1\.json: not a commit .*invalidate {content.key[:8]} --reason damaged --prefix {tmp_path}/store`",
    ):
        adopt(objects, content, LIFE)


def test_one_that_somebody_else_adopts_is_waited_for(objects: ObjectStore, folder: Path) -> None:
    content = Content.of(folder, "wiki", "null")
    lease = Waiting(objects, layout.lease(content.id, content.key), LIFE).attempt()
    assert lease is not None
    threading.Timer(0.3, lease.release).start()
    _, new = adopt(objects, content, 0.4)
    assert new
