"""Artifacts and files: inert before they have run; a file is named by what it holds."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NewType

import pytest

from marin_pipeline import Artifact, Documents, File, LocalFile, Resources, Secret, Tokens, local_artifact
from marin_pipeline.core.artifact import CHUNK, content_digest, relative_path
from marin_pipeline.core.canonical import encode
from marin_pipeline.core.errors import DeclarationError, InputError, NotRunError

KEY = "0123456789abcdef" * 4


def test_an_artifact_that_has_not_run_can_only_be_passed_on() -> None:
    artifact = Artifact[int](KEY, name="counts")
    for read in (lambda: artifact.value, lambda: artifact.files, (artifact / "a").read_text):
        with pytest.raises(NotRunError, match="counts is declared but has no output here"):
            read()


def test_a_bound_artifact_reads_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("words")
    artifact = local_artifact(tmp_path, 3)
    file = artifact / "sub/a.txt"
    assert artifact.value == 3
    assert artifact.files == ["sub/a.txt"]
    assert file.read_text() == Path(os.fspath(file)).read_text() == "words"
    assert (artifact / "sub" / "a.txt").read_bytes() == b"words"
    assert (file.name, file.size, file.sha256) == ("a.txt", 5, hashlib.sha256(b"words").hexdigest())
    with file.open() as opened:
        assert opened.read() == b"words"
    with pytest.raises(InputError, match="can only be read"):
        file.open("w")
    with pytest.raises(InputError, match=r"has no file 'b'; it has sub/a.txt"):
        _ = (artifact / "b").sha256


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/..", "/etc/passwd", "", ".", "./"])
def test_a_path_never_leaves_the_output(path: str) -> None:
    with pytest.raises(DeclarationError, match="not a path inside an output"):
        _ = Artifact[int](KEY) / path
    with pytest.raises(DeclarationError, match="not a path inside an output"):
        _ = Artifact[int](KEY) / "folder" / path


def test_spellings_of_one_path_are_one_file() -> None:
    assert relative_path("a//b/./c/") == "a/b/c"
    assert encode(Artifact[int](KEY) / "./a" / "b", "x") == {"~artifact": KEY, "path": "a/b"}


@pytest.mark.parametrize("name", ["", "A", "a b", "/a", "a/", "a//b", "a.b", "é", "a\n", "~a"])
def test_a_name_has_plain_characters(name: str) -> None:
    with pytest.raises(DeclarationError, match="a name is made of"):
        Artifact[int](KEY).named(name)


def test_names_and_resources_are_copies_that_keep_the_key() -> None:
    artifact = Artifact[int](KEY)
    other = artifact.named("tokenized/wiki-2_b").using(Resources(cpus=4))
    assert (other.key, other.name, other.resources.cpus) == (KEY, "tokenized/wiki-2_b", 4)
    assert (artifact.label, artifact.name, artifact.resources) == (None, KEY[:8], Resources())
    assert encode(other, "x") == encode(artifact, "x")


Words = NewType("Words", int)


@dataclass(frozen=True)
class MoreDocuments(Documents):
    pass


@pytest.mark.parametrize(
    ("kind", "wanted", "fits"),
    [
        (Documents, Documents, True),
        (Documents, Tokens, False),
        (MoreDocuments, Documents, True),
        (Documents, MoreDocuments, False),
        (Documents, Documents | Tokens, True),
        (Documents, object, True),
        (Any, Tokens, True),
        (Documents, Any, True),
        (Documents | None, Documents, False),
        (int, float, True),
        (Words, int, True),
        (Words, Words, True),
        (int, Words, False),
        (float, int, False),
        (list[int], list[int], True),
        (list[int], list[str], False),
        (dict[str, int], Mapping[str, int], True),
        (type(None), type(None), True),
    ],
)
def test_an_artifact_fits_where_its_value_would(kind: Any, wanted: Any, fits: bool) -> None:
    assert Artifact[Any](KEY, kind=kind).fits(Artifact[wanted]) is fits


def test_a_local_file_is_named_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    one, other = LocalFile("a.txt"), LocalFile(tmp_path / "elsewhere" / "b.txt")
    assert encode(one, "x") == encode(other, "x") == {"~file": hashlib.sha256(b"words").hexdigest()}
    monkeypatch.chdir("/")
    assert (one.name, one.size, one.read_text()) == ("a.txt", 5, "words")
    assert str(tmp_path) not in repr(one)


def test_a_local_file_that_changed_after_its_declaration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words")
    declared = LocalFile(path)
    path.write_text("other")
    with pytest.raises(InputError, match="has changed since it was declared"):
        LocalFile(path, sha256=declared.sha256, stamp=declared.stamp)


def test_a_local_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"LocalFile\('missing.txt'\): cannot be read"):
        LocalFile("missing.txt")
    with pytest.raises(InputError, match="not a file; list a folder's files"):
        LocalFile(tmp_path)


def test_a_large_file_is_named_by_its_chunks(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(CHUNK)
    assert content_digest(path) == hashlib.sha256(bytes(CHUNK)).hexdigest()
    with path.open("ab") as file:
        file.write(b"!")
    parts = hashlib.sha256(bytes(CHUNK)).digest() + hashlib.sha256(b"!").digest()
    assert content_digest(path) == hashlib.sha256(parts).hexdigest()


def test_large_files_are_hashed_by_many_threads_in_little_memory(tmp_path: Path) -> None:
    """As after the first look at a cache: 12 files of more than a chunk at the same time."""
    paths = [tmp_path / f"{number}" for number in range(12)]
    for path in paths:
        with path.open("wb") as file:
            file.truncate(CHUNK + 2**20)
    parts = hashlib.sha256(bytes(CHUNK)).digest() + hashlib.sha256(bytes(2**20)).digest()
    tracemalloc.start()
    with ThreadPoolExecutor(12) as pool:
        digests = set(pool.map(content_digest, paths))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert digests == {hashlib.sha256(parts).hexdigest()}
    assert peak < 32 * 2**20


def test_the_value_of_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "hunter2-value")
    secret = Secret("TEST_TOKEN")
    assert secret.value == "hunter2-value"
    assert "hunter2" not in f"{secret!r} {secret} {encode(secret, 'x')} {vars(secret)}"
    monkeypatch.delenv("TEST_TOKEN")
    with pytest.raises(InputError, match="the secret TEST_TOKEN is not set; export TEST_TOKEN"):
        _ = secret.value


def test_a_token_given_for_a_name_is_refused_and_not_shown() -> None:
    with pytest.raises(DeclarationError) as caught:
        Secret("sk-proj-hunter2/value")
    assert "environment variable" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_files_are_references_with_a_key_and_a_path() -> None:
    file = Artifact[int](KEY, name="made") / "a/b"
    assert isinstance(file, File)
    assert repr(file) == "<file made/a/b>"


def test_a_name_that_is_too_long_for_a_path_is_refused() -> None:
    artifact = Artifact[int](KEY, name="counts")
    assert artifact.named("n" * 200).name == "n" * 200
    with pytest.raises(DeclarationError, match=r"counts.named\(...\): a name has at most 200 characters, not 300"):
        artifact.named("n" * 300)
