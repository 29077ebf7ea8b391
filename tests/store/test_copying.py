"""Copying an output from store to store: all of it or nothing, and nothing that was not checked."""

from __future__ import annotations

import datetime
import errno
import hashlib
import random
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, LocalFile, step
from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store import copying, layout, pages
from marin_pipeline.store.clock import now, utc
from marin_pipeline.store.commit import Commit, Invalidation, invalidate, look
from marin_pipeline.store.copying import copy_output, shown_url
from marin_pipeline.store.gc import collect
from marin_pipeline.store.kept_files import copy_file, keep_file
from marin_pipeline.store.manifest import Entry, Manifest, checksums_differ
from marin_pipeline.store.names import give_name, key_folders
from marin_pipeline.store.objects import ObjectInfo, ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.pages import read_manifest
from marin_pipeline.store.verify import Verifier
from tests.faults.faulty_objects import Fault, FaultyObjects
from tests.run.conftest import inline
from tests.run.sample_steps import add, first_line, increment, number, squares, words
from tests.run.sessions import Bench
from tests.stores import new_prefix

__all__ = ["inline"]

WORDS = words(text="to be or not to be")
SQUARES = squares(numbers=[2, 3, 4])


@step
def large(ctx: Context, size: int) -> int:
    """A file over one chunk, and one over what is copied whole."""
    data = random.Random(1).randbytes(2**20)
    for name, length in (("large.bin", size), ("larger.bin", size + 1)):
        with (ctx.out / name).open("wb") as file:
            for start in range(0, length, len(data)):
                file.write(data[: length - start])
    return size


class Killed(BaseException):
    """Ends a copy wherever it is."""


@pytest.fixture
def target(prefix: str) -> ObjectStore:
    return open_objects(prefix)


def step_id(artifact: Artifact[Any]) -> str:
    assert artifact.declaration is not None
    return artifact.declaration.step.id


def made(bench: Bench, artifact: Artifact[Any]) -> Commit:
    """The commit of an artifact, made where it is missing."""
    assert bench.run(artifact).ok
    return current(bench.objects, artifact)


def current(objects: ObjectStore, artifact: Artifact[Any]) -> Commit:
    commit = look(objects, step_id(artifact), artifact.key).commit
    assert commit is not None
    return commit


def copied(source: ObjectStore, target: ObjectStore, artifact: Artifact[Any], **options: Any) -> Commit:
    return copy_output(source, target, step_id(artifact), artifact.key, current(source, artifact), **options)


def output(objects: ObjectStore, artifact: Artifact[Any]) -> CommittedOutput:
    return CommittedOutput(objects, step_id(artifact), artifact.key, current(objects, artifact))


def findings(objects: ObjectStore) -> list[str]:
    verifier = Verifier(objects, "full")
    found = [each for id, short in key_folders(objects) if (each := verifier.verify(id, short))]
    return [str(finding) for each in found for finding in each.findings]


def is_believed(objects: ObjectStore, artifact: Artifact[Any]) -> bool:
    return look(objects, step_id(artifact), artifact.key).commit is not None


def entries(objects: ObjectStore, artifact: Artifact[Any]) -> list[Entry]:
    return list(read_manifest(objects, step_id(artifact), artifact.key, current(objects, artifact)).entries)


def test_a_copy_has_the_same_bytes_manifest_and_record_and_says_where_it_comes_from(
    inline: Bench, target: ObjectStore
) -> None:
    for artifact in (WORDS, SQUARES):
        theirs = made(inline, artifact)
        ours = copied(inline.objects, target, artifact)
        place = str(inline.prefix) if "://" not in target.url else "a local store"
        assert ours == replace(theirs, copied_from=place) == current(target, artifact)
        manifest = layout.manifest(step_id(artifact), artifact.key, theirs.attempt)
        here, there = target.read(manifest), inline.objects.read(manifest)
        assert here is not None
        assert there is not None
        assert here.data == there.data
        assert output(target, artifact).value_tree == output(inline.objects, artifact).value_tree
    assert output(target, WORDS).local("words.txt").read_text() == "to\nbe\nor\nnot\nto\nbe"
    assert output(target, SQUARES).local("squares/2.txt").read_text() == "16"
    assert findings(target) == []


@step
def many(ctx: Context, files: int) -> int:
    for index in range(files):
        (ctx.out / f"{index:05}.txt").write_text(str(index % 7))
    return files


def test_an_output_with_a_manifest_in_pages_is_copied(
    inline: Bench, target: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST", 40)
    monkeypatch.setattr(pages, "PAGE", 16)
    monkeypatch.setattr(copying, "BATCH", 7)
    artifact = many(files=pages.MOST + 1)
    commit = made(inline, artifact)
    copied(inline.objects, target, artifact)
    assert findings(target) == []
    assert len(read_manifest(target, step_id(artifact), artifact.key, commit).entries) == pages.MOST + 2
    page = next(inline.prefix.rglob("manifest/1.json"))
    page.write_bytes(page.read_bytes()[:-1])
    with pytest.raises(CorruptOutput, match=str(page)):
        copied(inline.objects, open_objects(f"memory://{uuid.uuid4().hex}"), artifact)


def test_what_was_copied_needs_the_source_no_more(inline: Bench, target: ObjectStore) -> None:
    made(inline, SQUARES)
    copied(inline.objects, target, SQUARES)
    shutil.rmtree(inline.prefix)
    assert output(target, SQUARES).local("squares").is_dir()
    assert findings(target) == []


def test_it_goes_from_each_store_to_a_folder(inline: Bench, target: ObjectStore, tmp_path: Path) -> None:
    commit = made(inline, SQUARES)
    copied(inline.objects, target, SQUARES)
    third = open_objects(str(tmp_path / "third"))
    assert copied(target, third, SQUARES) == replace(commit, copied_from=target.url)
    assert output(third, SQUARES).local("squares/2.txt").read_text() == "16"
    assert findings(third) == []


def test_a_file_of_several_chunks_arrives_whole_through_little_memory(
    inline: Bench, target: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "WHOLE", 2**20)
    artifact = large(size=65 * 2**20)
    size = made(inline, artifact).bytes
    told: list[int] = []
    copied(inline.objects, target, artifact, report=told.append)
    assert sum(told) == size
    assert findings(target) == []


def test_copying_twice_changes_nothing(inline: Bench, target: ObjectStore) -> None:
    made(inline, WORDS)
    first = copied(inline.objects, target, WORDS)
    before = target.list("steps")
    assert copied(inline.objects, target, WORDS) == first
    assert target.list("steps") == before


def test_two_that_copy_at_once_make_one_commit(inline: Bench, target: ObjectStore) -> None:
    made(inline, SQUARES)
    found: list[Commit] = []
    start = threading.Barrier(4)

    def copy() -> None:
        start.wait()
        found.append(copied(inline.objects, target, SQUARES))

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(each == found[0] for each in found)
    assert target.names(f"{layout.step(step_id(SQUARES), SQUARES.key)}/commits") == ["1.json"]
    assert target.names(f"{layout.step(step_id(SQUARES), SQUARES.key)}/divergences") == []
    assert findings(target) == []


def test_what_the_target_has_counts_and_is_not_replaced(inline: Bench, tmp_path: Path) -> None:
    made(inline, WORDS)
    other = replace(inline, prefix=tmp_path / "other")
    own = made(other, WORDS)
    assert copied(inline.objects, other.objects, WORDS) == own
    assert own.copied_from == ""


def test_after_an_end_the_copy_is_the_next_commit(inline: Bench, tmp_path: Path) -> None:
    made(inline, WORDS)
    other = replace(inline, prefix=tmp_path / "other")
    made(other, WORDS)
    invalidate(other.objects, step_id(WORDS), WORDS.key, 1, Invalidation("collected", "", now()))
    taken = copied(inline.objects, other.objects, WORDS)
    assert (taken.number, taken.copied_from) == (2, str(inline.prefix))
    assert findings(other.objects) == []


class Killing(FaultyObjects):
    """Ends the copy at one of its writes, before or after it is done."""

    def __init__(self, objects: ObjectStore, at: int, after: bool) -> None:
        super().__init__(objects, lambda operation, path: None)
        self._at = at
        self._after = after
        self.writes: list[str] = []

    def create(self, path: str, data: bytes) -> str | None:
        self.writes.append(path)
        if len(self.writes) == self._at and not self._after:
            raise Killed
        answer = super().create(path, data)
        if len(self.writes) == self._at:
            raise Killed
        return answer


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_nothing_is_believed_before_the_commit_and_the_next_copy_goes_on(
    inline: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(copying, "AT_ONCE", 1)
    made(inline, SQUARES)
    whole = Killing(open_objects(str(tmp_path / "whole")), 0, after)
    copied(inline.objects, whole, SQUARES)
    assert len(whole.writes) == 10  # a mark, 3 files, the value, the code, the origin, spec, manifest, commit
    for index in range(1, len(whole.writes) + 1):
        target = open_objects(str(tmp_path / f"target-{index}"))
        with pytest.raises(Killed):
            copied(inline.objects, Killing(target, index, after), SQUARES)
        assert is_believed(target, SQUARES) == (after and index == len(whole.writes))
        copied(inline.objects, target, SQUARES)
        assert findings(target) == []
        assert is_believed(target, SQUARES)


def test_what_is_there_already_is_not_copied_again(inline: Bench, target: ObjectStore) -> None:
    made(inline, SQUARES)
    read: list[str] = []

    class Source(FaultyObjects):
        def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            read.append(path)
            yield from super().blocks(path, start, stop)

    source = Source(inline.objects, lambda operation, path: None)
    commits = layout.commit(step_id(SQUARES), SQUARES.key, 1)

    def before_the_commit(operation: str, path: str) -> Fault | None:
        if (operation, path) == ("create", commits):
            raise Killed
        return None

    with pytest.raises(Killed):
        copied(source, FaultyObjects(target, before_the_commit), SQUARES)
    assert len(read) == 4
    read.clear()
    copied(source, target, SQUARES)
    assert read == []
    assert findings(target) == []


def test_the_origin_the_code_and_the_local_files_come_with_the_output(
    inline: Bench, tmp_path: Path, target: ObjectStore
) -> None:
    (tmp_path / "given.txt").write_text("a given line\n")
    artifact = first_line(file=LocalFile(tmp_path / "given.txt"))
    commit = made(inline, artifact)
    copied(inline.objects, target, artifact)
    assert findings(target) == []
    for folder in ("origins", "code", "files"):
        assert [info.path for info in target.list(folder)] == [info.path for info in inline.objects.list(folder)]
    for folder in ("origins", "code", "files"):
        file = inline.prefix / inline.objects.list(folder)[0].path
        data = file.read_bytes()
        file.write_bytes(b"something else\n")
        other = open_objects(str(tmp_path / folder))
        with pytest.raises(CorruptOutput, match=str(file)):
            copy_output(inline.objects, other, step_id(artifact), artifact.key, commit)
        assert not is_believed(other, artifact)
        file.write_bytes(data)


def corrupt(how: str, file: Path) -> None:
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"flipped": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "longer": data + b"x"}[how])


@pytest.mark.parametrize("how", ["missing", "flipped", "cut", "longer"])
def test_a_damaged_object_of_the_source_is_named_and_nothing_is_committed(
    inline: Bench, target: ObjectStore, how: str
) -> None:
    made(inline, SQUARES)
    entry = next(each for each in entries(inline.objects, SQUARES) if each.path == "squares/1.txt")
    corrupt(how, inline.prefix / entry.object)
    with pytest.raises(CorruptOutput) as error:
        copied(inline.objects, target, SQUARES)
    assert entry.object in str(error.value)
    assert "squares/1.txt" in str(error.value)
    size = entry.size
    told = {
        "missing": "is missing",
        "flipped": "its bytes are not those that were committed",
        "cut": f"has {size - 1} bytes, but {size} were committed",
        "longer": f"has more than {size} bytes, but {size} were committed",
    }
    assert told[how] in str(error.value)
    assert not is_believed(target, SQUARES)
    assert target.read(entry.object) is None


@pytest.mark.parametrize("size", [10, 12 * 2**20])
@pytest.mark.parametrize("how", ["missing", "flipped", "longer", "unreadable"])
def test_a_kept_file_that_is_another_one_is_not_taken(
    how: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its size is known or not; where it is, no more is read than tells."""
    source, target = open_objects(str(tmp_path / "source")), open_objects(str(tmp_path / "target"))
    (tmp_path / "file").write_bytes(bytes(size))
    digest = content_digest(tmp_path / "file")
    keep_file(source, tmp_path / "file", digest, size)
    file = tmp_path / "source" / layout.kept_file(digest)
    if how == "longer":
        file.chmod(0o644)
        with file.open("ab") as opened:
            opened.truncate(size + 40 * 2**20)
    elif how == "unreadable":

        def refuse(path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            if stop is None:
                raise OSError(errno.EIO, "Input/output error")
            yield b""

        monkeypatch.setattr(source, "blocks", refuse)
    else:
        corrupt(how, file)
    error, told = {
        "missing": (CorruptOutput, "the file that a step was given is missing"),
        "unreadable": (StoreError, "cannot be read"),
    }.get(how, (CorruptOutput, "is not the file that a step was given"))
    for known in (size, None):
        with pytest.raises(error, match=told):
            copy_file(source, target, digest, known)
    assert target.list("files") == target.list("tmp") == []


@pytest.mark.parametrize("how", ["missing", "flipped", "cut"])
@pytest.mark.parametrize("record", ["spec.json", "attempts/*/manifest.json"])
def test_a_damaged_record_of_the_source_is_named_and_nothing_is_committed(
    inline: Bench, target: ObjectStore, how: str, record: str
) -> None:
    commit = made(inline, WORDS)
    (file,) = (inline.prefix / layout.step(step_id(WORDS), WORDS.key)).glob(record)
    corrupt(how, file)
    with pytest.raises(CorruptOutput, match=str(file)):
        copy_output(inline.objects, target, step_id(WORDS), WORDS.key, commit)
    assert not is_believed(target, WORDS)


def forged(bench: Bench, artifact: Artifact[Any], object: str) -> Commit:
    """A commit whose manifest, though its digests are right, says that the first file lies at `object`."""
    commit = current(bench.objects, artifact)
    path = bench.prefix / layout.manifest(step_id(artifact), artifact.key, commit.attempt)
    first, *others = entries(bench.objects, artifact)
    manifest = Manifest((replace(first, object=object), *others))
    path.write_bytes(manifest.dumps())
    return replace(commit, manifest=hashlib.sha256(manifest.dumps()).hexdigest())


@pytest.mark.parametrize(
    "object",
    [
        "names/me/x@/1.json",
        "steps/a/0123456789abcdef/commits/1.json",
        "steps/a/0123456789abcdef/lease.json",
        "steps/a/0123456789abcdef/attempts/x/manifest.json",
        "steps/a/0123456789abcdef/work/x/part/record.json",
        "steps/a/0123456789abcdef/attempts/x/out/../../../commits/1.json",
        "shards/ab/ab01/record.json",
        "/etc/passwd",
        "../outside",
        "shards/ab/ab01/x//y",
    ],
)
def test_a_manifest_that_names_a_record_or_a_place_outside_is_refused(
    inline: Bench, tmp_path: Path, object: str
) -> None:
    made(inline, WORDS)
    target = open_objects(str(tmp_path / "target"))
    with pytest.raises(CorruptOutput, match=r"is no place of an output's file|where no file of an output lies"):
        copy_output(inline.objects, target, step_id(WORDS), WORDS.key, forged(inline, WORDS, object))
    assert not target.is_there()


def test_other_bytes_of_the_target_are_never_replaced(inline: Bench, target: ObjectStore) -> None:
    made(inline, WORDS)
    entry = next(each for each in entries(inline.objects, WORDS) if each.path == "words.txt")
    target.create(entry.object, b"what another output has")
    with pytest.raises(StoreError, match=r"words\.txt.*other bytes lie there"):
        copied(inline.objects, target, WORDS)
    found = target.read(entry.object)
    assert found is not None
    assert found.data == b"what another output has"
    assert not is_believed(target, WORDS)


@pytest.mark.parametrize("said", [False, True])
def test_bytes_of_the_right_size_that_lie_in_the_target_are_read_whatever_a_manifest_says_of_them(
    inline: Bench, target: ObjectStore, said: bool
) -> None:
    commit = made(inline, WORDS)
    entry = next(each for each in entries(inline.objects, WORDS) if each.path == "words.txt")
    target.create(entry.object, b"X" * entry.size)
    if said:  # a manifest that agrees with what the target says of the other bytes
        info = target.info(entry.object)
        assert info is not None
        manifest = Manifest(tuple(replace(each, checksum=info.checksum) for each in entries(inline.objects, WORDS)))
        path = inline.prefix / layout.manifest(step_id(WORDS), WORDS.key, commit.attempt)
        path.write_bytes(manifest.dumps())
        commit = replace(commit, manifest=hashlib.sha256(manifest.dumps()).hexdigest())
    with pytest.raises(StoreError, match=r"words\.txt.*other bytes lie there"):
        copy_output(inline.objects, target, step_id(WORDS), WORDS.key, commit)
    assert not is_believed(target, WORDS)
    target.delete(entry.object)
    copy_output(inline.objects, target, step_id(WORDS), WORDS.key, commit)
    assert findings(target) == []


@pytest.mark.parametrize("size", [20, 9 * 2**20])
def test_other_bytes_in_place_of_code_an_origin_or_a_local_file_are_replaced_by_a_copy(
    inline: Bench, tmp_path: Path, target: ObjectStore, size: int
) -> None:
    (tmp_path / "given.txt").write_text("a line\n" + "x" * size)
    artifact = first_line(file=LocalFile(tmp_path / "given.txt"))
    made(inline, artifact)
    for folder in ("origins", "code", "files"):
        (info,) = inline.objects.list(folder)
        target.create(info.path, b"X" * info.size)
    known: set[str] = set()
    copied(inline.objects, target, artifact, known=known)
    assert findings(target) == []
    assert {path.partition("/")[0] for path in known} == {"origins", "files"}


def test_what_outputs_share_is_read_once_in_the_target(inline: Bench, target: ObjectStore) -> None:
    read: list[str] = []

    def note(operation: str, path: str) -> Fault | None:
        if operation == "read":
            read.append(path.partition("/")[0])
        return None

    made(inline, WORDS)
    known: set[str] = set()
    for turn in (1, 2):
        copied(inline.objects, FaultyObjects(target, note), WORDS, known=known)
        invalidate(target, step_id(WORDS), WORDS.key, turn, Invalidation("invalidated", "", now()))
        assert ({"code", "origins"} <= set(read)) is (turn == 1)
        read.clear()


def test_an_adopted_output_is_copied_with_its_bytes_and_falls_with_nothing_here(inline: Bench, tmp_path: Path) -> None:
    made(inline, increment(before=number(value=1)))
    adopted = increment(before=add(numbers=[number(value=0), number(value=1)]))
    source = made(inline, adopted).adopted_from
    assert source is not None
    other = replace(inline, prefix=tmp_path / "other")
    taken = copied(inline.objects, other.objects, adopted)
    assert taken.adopted_from == source
    assert taken.falls_with is None
    invalidate(other.objects, source.id, source.key, source.number, Invalidation("invalidated", "", now()))
    assert output(other.objects, adopted).value_tree == 2
    assert findings(other.objects) == []
    # And what is adopted from the copy falls with the copy.
    again = increment(before=add(numbers=[number(value=1), number(value=0)]))
    taken_again = made(other, again)
    assert taken_again.adopted_from is None or taken_again.adopted_from.key == adopted.key


def test_gc_keeps_what_was_copied_however_old_it_is_and_what_a_killed_copy_left_for_the_grace_period(
    inline: Bench, tmp_path: Path
) -> None:
    made(inline, increment(before=number(value=1)))
    adopted = increment(before=add(numbers=[number(value=0), number(value=1)]))
    made(inline, adopted)
    target = open_objects(str(tmp_path / "target"))
    in_30_days = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)

    def killed(operation: str, path: str) -> Fault | None:
        if operation == "create" and "/commits/" in path:
            raise Killed
        return None

    later = partial(collect, grace=datetime.timedelta(days=7), delete=True)
    frozen: list[Callable[[], datetime.datetime]] = [
        lambda: in_30_days,
        lambda: in_30_days + datetime.timedelta(days=8),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "attempt_name", lambda: in_30_days.strftime("%Y%m%dT%H%M%S.%f-00000000"))
        with pytest.raises(Killed):
            copied(inline.objects, FaultyObjects(target, killed), adopted)
    objects = [entry.object for entry in entries(inline.objects, adopted)]
    later(target, clock=frozen[0])
    assert all(target.read(each) is not None for each in objects)
    later(target, clock=frozen[1])
    assert all(target.read(each) is None for each in objects)


def test_gc_ends_what_nothing_needs_beside_an_adopted_output_that_was_copied(inline: Bench, tmp_path: Path) -> None:
    made(inline, increment(before=number(value=1)))
    adopted = increment(before=add(numbers=[number(value=0), number(value=1)]))
    source = made(inline, adopted).adopted_from
    assert source is not None
    made(inline, WORDS)
    target = open_objects(str(tmp_path / "target"))
    copied(inline.objects, target, adopted)
    copied(inline.objects, target, WORDS)
    give_name(target, "kept", step_id(adopted), adopted.key)

    def kept(days: float) -> list[str]:
        collection = collect(
            target, datetime.timedelta(days=7), delete=True, clock=lambda: utc() + datetime.timedelta(days=days)
        )
        return collection.kept

    assert [kept(days) for days in (8, 16)] == [[], []]
    assert not is_believed(target, WORDS)
    assert not target.list(layout.attempt(step_id(WORDS), WORDS.key, current(inline.objects, WORDS).attempt))
    assert is_believed(target, adopted)
    assert findings(target) == []
    for folder in ("roots", "names"):
        target.delete(folder)
    assert [kept(days) for days in (24, 32)] == [[], []]
    assert not is_believed(target, adopted)
    assert not target.list(f"{layout.step(source.id, source.key)}/attempts")


def test_what_the_report_raises_ends_the_copy(inline: Bench, target: ObjectStore) -> None:
    made(inline, SQUARES)

    def stop(size: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        copied(inline.objects, target, SQUARES, report=stop)
    assert not is_believed(target, SQUARES)


def test_a_prefix_is_written_down_without_user_and_password() -> None:
    assert shown_url("s3://user:password@bucket/prefix") == "s3://bucket/prefix"
    assert shown_url("gs://bucket/prefix") == "gs://bucket/prefix"
    assert shown_url("/home/me/store@2") == "/home/me/store@2"


def test_checksums_of_two_kinds_say_nothing() -> None:
    """As they are of the bytes "a" and "b"; the last is that of an upload in parts."""
    crc32cs = ["wdBDMA==", "0oCwxA=="]
    md5s = ["0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f", f"{'ab' * 16}-3"]
    for kind in (crc32cs, md5s):
        for one in kind:
            assert [checksums_differ(one, other) for other in kind] == [one != other for other in kind]
            assert not any(checksums_differ(one, other) for other in (None, *(md5s if kind is crc32cs else crc32cs)))


@pytest.mark.parametrize("kinds", [("s3", "gs"), ("gs", "s3")], ids=" to ".join)
def test_after_a_copy_to_another_kind_of_store_no_byte_is_read_to_see_that_it_is_intact(
    kinds: tuple[str, str], inline: Bench, request: pytest.FixtureRequest
) -> None:
    inline.url, second = (new_prefix(request, kind) for kind in kinds)
    made(inline, WORDS)
    target = open_objects(second)
    copied(inline.objects, target, WORDS)
    asked: set[tuple[str, str]] = set()
    noted = FaultyObjects(target, lambda *call: asked.add(call))  # pyright: ignore[reportArgumentType] - no fault
    verified = Verifier(noted, "intact").verify(step_id(WORDS), WORDS.key[:16])
    assert verified is not None
    assert verified.ok
    assert asked
    assert not [call for call in asked if call[0] in ("blocks", "fetch") or call[1].endswith("words.txt")]


class Saying(FaultyObjects):
    """A store that says a checksum of each object."""

    def list(self, folder: str) -> list[ObjectInfo]:
        return [replace(info, checksum=uuid.uuid4().hex) for info in super().list(folder)]


def test_where_a_store_says_another_checksum_of_a_copy_its_bytes_decide(inline: Bench, tmp_path: Path) -> None:
    commit = made(inline, WORDS)
    path = inline.prefix / layout.manifest(step_id(WORDS), WORDS.key, commit.attempt)
    manifest = Manifest(tuple(replace(each, checksum="ab" * 16) for each in entries(inline.objects, WORDS)))
    path.write_bytes(manifest.dumps())
    commit = replace(commit, manifest=hashlib.sha256(manifest.dumps()).hexdigest())
    target = Saying(open_objects(str(tmp_path / "target")), lambda operation, path: None)
    copy_output(inline.objects, target, step_id(WORDS), WORDS.key, commit)
    short = WORDS.key[:16]
    verified = Verifier(target, "intact").verify(step_id(WORDS), short)
    assert verified is not None
    assert verified.ok
    words = tmp_path / "target" / next(each.object for each in manifest.entries if each.path == "words.txt")
    words.write_bytes(words.read_bytes()[::-1])
    verified = Verifier(target, "intact").verify(step_id(WORDS), short)
    assert verified is not None
    assert [finding.what for finding in verified.findings] == [
        "its bytes are not those that were committed (sha256 differs)"
    ]
