"""Damage in local files, in memory, and in buckets: it is named, nothing is built on it, and the remedy works."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact
from marin_pipeline.core.errors import StoreError
from marin_pipeline.run.driver import Options, RunResult, Session
from marin_pipeline.store import layout
from marin_pipeline.store.manifest import VALUE, Manifest
from marin_pipeline.store.names import key_folders
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.verify import Level, Verifier
from tests.run.sample_steps import number, times, words
from tests.run.sessions import digests, failure, outcomes

WORDS, NUMBER = words(text="a b"), number(value=1)
TARGET = [times(count=WORDS), NUMBER]


@dataclass
class Store:
    """One store and the runs in it."""

    prefix: str

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.prefix)

    def run(self, target: Artifact[Any] | list[Artifact[Any]], **options: Any) -> RunResult:
        targets = target if isinstance(target, list) else [target]
        settings = Options(prefix=self.prefix, backend="inline", **options)
        return Session.open(targets, settings, "tests/damage").run()

    def folder(self, artifact: Artifact[Any]) -> str:
        """Where everything about a key lies."""
        assert artifact.declaration is not None
        return layout.step(artifact.declaration.step.id, artifact.key)

    def damage(self, path: str, change: Callable[[bytes], bytes] | None) -> None:
        """Replace an object by what is made of it; None: remove it."""
        objects = self.objects
        found = objects.read(path)
        assert found is not None, path
        if change is None:
            objects.delete(path)
        else:
            assert objects.swap(path, change(found.data), found.version) is not None

    def only(self, artifact: Artifact[Any], ending: str) -> str:
        """The one object of a key whose path ends so."""
        (found,) = [info.path for info in self.objects.list(self.folder(artifact)) if info.path.endswith(ending)]
        return found

    def findings(self, level: Level) -> list[str]:
        """What is wrong, whatever it is."""
        verifier = Verifier(self.objects, level)
        found = [verified for id, short in key_folders(self.objects) if (verified := verifier.verify(id, short))]
        return [str(finding) for verified in found for finding in verified.findings]


@pytest.fixture
def store(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    # What another test has read from another store would be found by its content, without a look at the damaged object.
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    return Store(prefix)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def garbage(data: bytes) -> bytes:
    return b"\x00garbage"


@pytest.mark.parametrize(
    ("change", "level", "what"),
    [
        (None, "present", "is missing"),
        (lambda data: data[:-1], "intact", "bytes, but"),
        (flipped, "full", "than was committed|its bytes are not those that were committed"),
    ],
    ids=["missing", "truncated", "flipped"],
)
@pytest.mark.parametrize("file", [VALUE, "words.txt", "deep/length"])
def test_damage_in_an_output_is_found_and_not_read_and_force_makes_it_again(
    store: Store, file: str, change: Callable[[bytes], bytes] | None, level: Level, what: str
) -> None:
    before = digests(store.run(WORDS))
    assert store.findings("full") == []
    path = store.only(WORDS, f"/out/{file}")
    checksums = any(info.checksum for info in store.objects.list(store.folder(WORDS)))
    store.damage(path, change)
    (finding,) = store.findings(level)
    assert f"/{path}: " in finding
    assert re.search(what, finding)
    # A store that tells a checksum gives a flipped byte away without being read.
    assert len(store.findings("intact")) == (level != "full" or checksums)
    result = store.run(times(count=WORDS))
    if file == "words.txt":
        assert result.ok  # `times` does not read that one
    else:
        assert result.exit_code == 1
        assert file in failure(result)
        assert "--force" in failure(result)
    again = store.run(times(count=WORDS), force=["words"])
    assert again.ok
    assert digests(again)["words"] == before["words"]
    assert store.findings("full") == []


def test_a_manifest_that_names_an_object_that_never_was_is_found_and_not_read(store: Store) -> None:
    store.run(WORDS)
    path = store.only(WORDS, "/manifest.json")

    def renamed(data: bytes) -> bytes:
        manifest = Manifest.loads(data, path)
        return manifest.dumps().replace(b"/out/value.json", b"/out/other.json")

    store.damage(path, renamed)
    assert any("is not the manifest that was committed" in finding for finding in store.findings("present"))
    assert "the manifest is not the one that was committed" in failure(store.run(times(count=WORDS)))
    assert store.run(times(count=WORDS), force=["words"]).ok


@pytest.mark.parametrize(
    ("ending", "told"),
    [("/commits/1.json", "commits/1.json: not a commit"), ("/manifest.json", "manifest.json: the manifest is not")],
)
def test_a_damaged_record_stops_what_needs_it_and_force_gets_past(store: Store, ending: str, told: str) -> None:
    before = digests(store.run(TARGET))
    store.damage(store.only(WORDS, ending), garbage)
    result = store.run([times(count=WORDS, factor=2), NUMBER])
    assert outcomes(result)["times"] != "done"
    assert outcomes(result)["number"] == "cached"
    assert told in failure(result)
    assert store.run(TARGET, force=["words"]).ok
    assert digests(store.run(TARGET)) == before


@pytest.mark.parametrize(
    ("ending", "told"), [("/lease.json", "lease.json: not a lease"), ("/spec.json", "spec.json: is not the spec")]
)
def test_a_damaged_lease_or_spec_is_named_and_its_removal_is_the_remedy(store: Store, ending: str, told: str) -> None:
    store.run(TARGET)
    path = store.only(NUMBER, ending)
    store.damage(path, garbage)
    result = store.run(TARGET, force=["number"])
    assert outcomes(result)["number"] == "failed"
    assert told in failure(result)
    store.damage(path, None)
    assert store.run(TARGET, force=["number"]).ok


@pytest.fixture
def nowhere(request: pytest.FixtureRequest, prefix: str) -> str:
    """A prefix in a bucket that does not exist."""
    if prefix.partition("://")[0] not in ("gs", "s3"):
        pytest.skip("has no buckets")
    scheme = prefix.partition("://")[0]
    return f"{scheme}://not-there-{request.node.name.split('[')[0].replace('_', '-')[:20]}/a"


def test_a_run_in_a_bucket_that_does_not_exist_is_told_at_once(nowhere: str) -> None:
    with pytest.raises(StoreError, match=r"not-there-.*bucket"):
        Store(nowhere).run(NUMBER)
