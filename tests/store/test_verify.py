"""Verifying: whatever was changed in what is believed is found, where it is, with a remedy that works."""

from __future__ import annotations

import errno
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_pipeline.core.canonical import digest
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store import layout, verify
from marin_pipeline.store.forwarding import Forwarding
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.manifest import Manifest
from marin_pipeline.store.names import key_folders
from marin_pipeline.store.objects import RECORD, Found, NoAnswer, ObjectInfo, ObjectStore
from marin_pipeline.store.verify import Finding, Level, Listings, Verifier
from tests.run.conftest import inline
from tests.run.sample_steps import number, squares, times, words
from tests.run.sessions import Bench, step_folder

__all__ = ["inline"]

LEVELS: tuple[Level, ...] = ("present", "intact", "full")


def findings(bench: Bench, level: Level) -> list[Finding]:
    verifier = Verifier(bench.objects, level)
    found = [verified for id, short in key_folders(bench.objects) if (verified := verifier.verify(id, short))]
    return [finding for verified in found for finding in verified.findings]


@pytest.fixture
def made(inline: Bench) -> Bench:
    assert inline.run([times(count=words(text="a b")), squares(numbers=[2, 3])]).ok
    assert [findings(inline, level) for level in LEVELS] == [[], [], []]
    return inline


def test_a_missing_file_is_found_at_every_level(made: Bench) -> None:
    file = next(step_folder(made, words(text="a b")).glob("attempts/*/out/words.txt"))
    file.unlink()
    for level in LEVELS:
        (finding,) = findings(made, level)
        assert finding.where == str(file)
        assert finding.what == "is missing"
        assert f"marin-pipeline invalidate {words(text='a b').key[:8]}" in finding.remedy


def test_another_size_is_found_from_intact_on_and_other_bytes_at_full(made: Bench) -> None:
    file = next(step_folder(made, words(text="a b")).glob("attempts/*/out/words.txt"))
    file.write_bytes(b"a\nb\n")
    assert [len(findings(made, level)) for level in LEVELS] == [0, 1, 1]
    assert findings(made, "intact")[0].what == "has 4 bytes, but 3 were committed"
    file.write_bytes(b"a b")
    assert [len(findings(made, level)) for level in LEVELS] == [0, 0, 1]
    assert "sha256 differs" in findings(made, "full")[0].what


def test_a_file_that_was_taken_from_a_shard_is_verified_where_it_lies(made: Bench) -> None:
    file = next((made.prefix / "shards").rglob("square.txt"))
    file.unlink()
    for level in LEVELS:
        (finding,) = findings(made, level)
        assert finding.where == str(file)


@pytest.mark.parametrize("data", [b"", b"\x00", b"{}", b"[]", b"[" * 100_000, b'{"schema": 2}'])
@pytest.mark.parametrize("record", ["commits/1.json", "spec.json", "attempts/*/manifest.json"])
def test_a_damaged_record_is_a_finding_at_every_level_and_no_traceback(made: Bench, record: str, data: bytes) -> None:
    (file,) = step_folder(made, words(text="a b")).glob(record)
    file.write_bytes(data)
    for level in LEVELS:
        (finding,) = findings(made, level)
        assert finding.where == str(file)
        assert finding.what
        assert finding.remedy


@pytest.mark.parametrize("record", ["spec.json", "attempts/*/manifest.json"])
def test_a_missing_record_is_a_finding(made: Bench, record: str) -> None:
    (file,) = step_folder(made, words(text="a b")).glob(record)
    file.unlink()
    (finding,) = findings(made, "intact")
    assert "is missing" in finding.what


def test_every_byte_that_is_believed_counts(made: Bench) -> None:
    """One bit of any object that a commit rests on, wherever it is."""
    chance = random.Random(0)
    folder = step_folder(made, squares(numbers=[2, 3]))
    files = [folder / "spec.json", folder / "commits" / "1.json", *folder.glob("attempts/*/manifest.json")]
    files += [*folder.glob("attempts/*/out/**/*.json"), *(made.prefix / "shards").rglob("square.txt")]
    assert len(files) == 6
    for file in files:
        whole = file.read_bytes()
        for _ in range(8):
            damaged = bytearray(whole)
            damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            assert findings(made, "full"), file
        file.write_bytes(whole)
    assert not findings(made, "full")


def test_a_manifest_that_was_exchanged_with_its_commit_gives_itself_away(made: Bench) -> None:
    """The digests over what a manifest names are compared too, and not only its own."""
    folder = step_folder(made, words(text="a b"))
    (path,) = folder.glob("attempts/*/manifest.json")
    manifest = Manifest.loads(path.read_bytes(), "")
    other = Manifest(manifest.entries[:-1]).dumps()
    path.write_bytes(other)
    import hashlib
    import json

    commit = json.loads((folder / "commits" / "1.json").read_text())
    commit["manifest"] = hashlib.sha256(other).hexdigest()
    del commit["seal"]
    commit["seal"] = digest(commit)
    (folder / "commits" / "1.json").write_text(json.dumps(commit, sort_keys=True, separators=(",", ":")))
    found = [finding.what for finding in findings(made, "present")]
    assert "gives another output digest than was committed" in found


def test_what_was_ended_is_not_verified(made: Bench) -> None:
    file = next(step_folder(made, words(text="a b")).glob("attempts/*/out/words.txt"))
    file.unlink()
    made.objects.create(layout.invalidation(words.id, words(text="a b").key, 1), b"")
    assert not findings(made, "full")


def test_the_remedy_works(made: Bench) -> None:
    file = next(step_folder(made, words(text="a b")).glob("attempts/*/out/words.txt"))
    file.write_bytes(b"x")
    made.objects.create(layout.invalidation(words.id, words(text="a b").key, 1), b"{}")
    assert made.outcomes(times(count=words(text="a b"))) == {"words": "done", "times": "cached"}
    assert not findings(made, "full")


class Counted(LocalObjects):
    """Counts what a store is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()

    def list(self, folder: str) -> list[ObjectInfo]:
        self.asked["list"] += 1
        return super().list(folder)

    def read(self, path: str, most: int = RECORD) -> Found | None:
        self.asked["read"] += 1
        return super().read(path, most)

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self.asked["blocks"] += 1
        return super().blocks(path, start, stop)


def test_objects_are_found_by_listings_and_never_one_by_one(inline: Bench) -> None:
    assert inline.run([squares(numbers=list(range(12))), number(value=1)]).ok
    objects = Counted(inline.prefix)
    (short,) = objects.names(f"steps/{squares.id}")
    assert Verifier(objects, "intact").verify(squares.id, short)
    # The attempt, twelve shards, the origins and their code; the commit, whether it ended, spec, manifest and origin.
    assert objects.asked == {"list": 15, "read": 5}


class Unread(Forwarding):
    """A store that is not read, or not listed."""

    def __init__(self, objects: ObjectStore, error: Exception | None) -> None:
        super().__init__(objects)
        self._error = error

    def list(self, folder: str) -> list[ObjectInfo]:
        return super().list(folder) if self._error else []

    def blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        if self._error:
            raise self._error
        return super().blocks(path, start, stop)


@pytest.mark.parametrize(
    "error",
    [
        StoreError("far: cannot read: the credentials have expired; get new ones"),
        NoAnswer("far: the store does not answer"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.ESTALE, "Stale file handle"),
    ],
)
def test_who_cannot_look_finds_nothing_wrong_and_is_told_why(made: Bench, error: Exception) -> None:
    told = f": cannot be read ({error.strerror}), so its" if isinstance(error, OSError) else str(error)
    with pytest.raises(StoreError, match=re.escape(told)):
        Verifier(Unread(made.objects, error), "full").verify(words.id, words(text="a b").key)


@pytest.mark.parametrize("error", [CorruptOutput("far: it is another"), OSError(errno.EIO, "Input/output error")])
def test_what_is_damaged_below_is_a_finding(made: Bench, error: Exception) -> None:
    verified = Verifier(Unread(made.objects, error), "full").verify(words.id, words(text="a b").key)
    assert verified is not None
    assert verified.findings
    assert all("cannot be read" in each.what for each in verified.findings)


def test_what_a_listing_does_not_show_is_asked_for_before_it_is_missing(made: Bench) -> None:
    for level in LEVELS:
        for step, artifact in ((words, words(text="a b")), (squares, squares(numbers=[2, 3]))):
            verified = Verifier(Unread(made.objects, None), level).verify(step.id, artifact.key)
            assert verified is not None
            assert not verified.findings
    next(step_folder(made, words(text="a b")).glob("attempts/*/out/words.txt")).unlink()
    verified = Verifier(Unread(made.objects, None), "present").verify(words.id, words(text="a b").key)
    assert verified is not None
    assert [each.what for each in verified.findings] == ["is missing"]


def test_listings_are_kept_as_long_as_they_are_small_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LISTED", 12)
    objects = Counted(tmp_path)
    for folder, size in (("a", 3), ("b", 3), ("c", 3), ("large", 20)):
        for index in range(size):
            objects.create(f"{folder}/{index}", b"")
    listings = Listings(objects)

    def asked(*folders: str) -> int:
        before = objects.asked["list"]
        for folder in folders:
            assert listings.below(folder).keys() == {info.path for info in LocalObjects(tmp_path).list(folder)}
        return objects.asked["list"] - before

    assert asked("a", "b", "c", "a", "b") == 3
    assert asked("large", "large") == 1
    assert asked("c", "large") == 2
