"""A manifest of many files is in pages: readers of one file read one page, everybody else sees the same as without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, load, step
from marin_pipeline.core.canonical import digest
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.run import adoption, inspection, output_difference
from marin_pipeline.store import layout, pages
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.gc import collect
from marin_pipeline.store.inventory import read_state
from marin_pipeline.store.manifest import VALUE, Entry, Manifest
from marin_pipeline.store.objects import RECORD, Found, ObjectStore, open_objects
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.pages import PagedManifest, read_manifest, write_manifest
from marin_pipeline.store.verify import Verifier
from tests.run.conftest import inline
from tests.run.sessions import Bench, step_folder
from tests.store.test_commit import COMMIT, ID, KEY
from tests.store.test_gc import GRACE, later

__all__ = ["inline"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 10)
    monkeypatch.setattr(pages, "PAGE", 4)
    monkeypatch.setattr(pages, "AT_ONCE", 2)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(str(tmp_path))


NAMES = sorted([f"parts/{number:03}" for number in range(30)] + ["a", "parts", "parts-b", "parts.c/x", "z", "ü"])


def manifest_of(names: list[str]) -> Manifest:
    return Manifest(
        tuple(Entry(name, f"shards/x/{name}", number, f"{number:064x}") for number, name in enumerate(names))
    )


def committed(objects: ObjectStore, manifest: Manifest) -> Commit:
    return replace(COMMIT, attempt="one", manifest=write_manifest(objects, ID, KEY, "one", manifest))


def test_a_manifest_in_pages_says_what_it_says_without(objects: ObjectStore) -> None:
    plain = manifest_of(NAMES)
    paged = read_manifest(objects, ID, KEY, committed(objects, plain))
    assert isinstance(paged, PagedManifest)
    assert [page.files for page in paged.entries.pages] == [4] * 9
    assert list(paged.entries) == list(plain.entries)
    assert [paged.entries[index] for index in range(36)] == list(plain.entries)
    assert list(paged.entries[-7:30:2]) == list(plain.entries[-7:30:2])
    assert (paged.size, paged.output_digest) == (plain.size, plain.output_digest)
    assert plain.output_digest == digest([[entry.path, entry.size, entry.sha256] for entry in plain.entries])
    assert dict(paged.files) == plain.files
    for folder in ("parts", "parts.c", "nothing", "", "a", "zz", "parts/0"):
        assert list(paged.below(folder)) == list(plain.below(folder)), folder
    for name in ("", "b", "parts/", "parts/0", "parts/030", "z/", "ÿ"):
        assert name not in paged.files


def test_up_to_the_bound_there_are_no_pages_and_the_same_bytes(objects: ObjectStore) -> None:
    plain = manifest_of(NAMES[:10])
    write_manifest(objects, ID, KEY, "one", plain)
    found = objects.read(layout.manifest(ID, KEY, "one"))
    assert found is not None
    assert found.data == plain.dumps()
    assert json.loads(found.data)["schema"] == 1
    assert objects.names(layout.attempt(ID, KEY, "one")) == ["manifest.json"]


def test_a_reader_of_one_file_reads_one_page_and_of_a_folder_its_pages(objects: ObjectStore) -> None:
    commit = committed(objects, manifest_of(NAMES))
    asked: list[str] = []

    class Counting:
        url = objects.url

        def read(self, path: str, most: int = RECORD) -> Found | None:
            asked.append(path.removeprefix(f"{layout.attempt(ID, KEY, 'one')}/"))
            return objects.read(path, most)

    counting: Any = Counting()
    output = CommittedOutput(counting, ID, KEY, commit)
    assert output.files["parts/017"].path == "parts/017"
    assert asked == ["manifest.json", "manifest/5.json"]
    assert [entry.path for entry in output.manifest.below("parts.c")] == ["parts.c/x"]
    assert asked[2:] == ["manifest/0.json"]
    assert len(output.files) == 36
    assert asked[3:] == ["manifest/8.json"]  # whether the value is among them


def test_it_names_its_pages_and_its_files(objects: ObjectStore) -> None:
    paged = read_manifest(objects, ID, KEY, committed(objects, manifest_of(NAMES)))
    named = [each.path for each in paged.named_objects()]
    assert named[:9] == [layout.manifest_page(ID, KEY, "one", number) for number in range(9)]
    assert named[9:] == [f"shards/x/{name}" for name in NAMES]
    for each in list(paged.named_objects())[:9]:
        found = objects.read(each.path)
        assert found is not None
        assert len(found.data) == each.size


def test_an_attempt_that_has_the_name_of_another_is_refused(objects: ObjectStore) -> None:
    committed(objects, manifest_of(NAMES))
    committed(objects, manifest_of(NAMES))
    with pytest.raises(StoreError, match="another attempt has this name"):
        committed(objects, manifest_of([*NAMES[:-1], "zzz"]))


@pytest.mark.parametrize("how", ["gone", "empty", "changed", "exchanged"])
def test_a_damaged_page_is_named_and_the_others_are_read(objects: ObjectStore, tmp_path: Path, how: str) -> None:
    paged = read_manifest(objects, ID, KEY, committed(objects, manifest_of(NAMES)))
    page, other = (tmp_path / layout.manifest_page(ID, KEY, "one", number) for number in (2, 3))
    if how == "gone":
        page.unlink()
    else:
        changed = page.read_bytes().replace(b'"size":9', b'"size":8')
        page.write_bytes({"empty": b"", "changed": changed, "exchanged": other.read_bytes()}[how])
    with pytest.raises(CorruptOutput, match=r"manifest/2.json: the page of the manifest is .*--force"):
        assert paged.files[NAMES[9]]
    assert paged.files[NAMES[7]].size == 7
    assert paged.files[NAMES[12]].size == 12


def test_pages_that_are_not_what_the_manifest_says_are_not_believed(objects: ObjectStore) -> None:
    """Although each has its digest."""
    committed(objects, manifest_of(NAMES))
    found = objects.read(layout.manifest(ID, KEY, "one"))
    assert found is not None
    for field, value in (("first", "b"), ("last", "b"), ("files", 3)):
        tree = json.loads(found.data)
        tree["pages"][0][field] = value
        told = pages.manifest_of(objects, json.dumps(tree).encode(), "there")
        with pytest.raises(CorruptOutput, match="has other files than the manifest says"):
            list(told.entries)
    for tree in ({"pages": 3}, {"pages": [{}]}, {"pages": [{**json.loads(found.data)["pages"][0], "files": "3"}]}):
        with pytest.raises(CorruptOutput, match="there: not a manifest"):
            pages.manifest_of(objects, json.dumps(tree).encode(), "there")


@step
def many(ctx: Context, count: int, marks: list[int]) -> int:
    (ctx.out / "parts").mkdir()
    for number in range(count):
        (ctx.out / "parts" / f"{number:05}").write_text(f"{number}{'!' if number in marks else ''}")
    return count


@step
def reading(ctx: Context, parts: Artifact[int]) -> str:
    folder = (parts / "parts").path
    assert len(list(folder.iterdir())) == parts.value == len(parts.files)
    return (parts / "parts/00017").read_text()


def problems(bench: Bench) -> list[str]:
    verifier, found = Verifier(bench.objects, "full"), list[str]()
    for folder in sorted((bench.prefix / "steps").rglob("commits")):
        id, short = str(folder.relative_to(bench.prefix / "steps").parent.parent), folder.parent.name
        verified = verifier.verify(id, short)
        assert verified is not None
        found += [f"{finding.where.removeprefix(str(bench.prefix))}: {finding.what}" for finding in verified.findings]
    return found


def test_every_reader_reads_pages(inline: Bench) -> None:
    made, other = many(count=30, marks=[]).named("old"), many(count=30, marks=[17]).named("new")
    result = inline.run([reading(parts=made), other])
    assert result.ok
    assert result.artifacts["reading"].value == "17"
    assert problems(inline) == []
    (listed,) = [list(inspection.list_files(inline.objects, "old", False))]
    assert len(listed) == 31
    old, new = (load(name, prefix=str(inline.prefix)).output for name in ("old", "new"))
    assert isinstance(old, CommittedOutput)
    assert isinstance(new, CommittedOutput)
    changed = [each for each in output_difference._files(old, new) if each.change != "same"]
    assert [each.path for each in changed] == ["parts/00017"]


def test_verify_finds_a_damaged_page_and_what_is_wrong_in_the_others(inline: Bench) -> None:
    made = many(count=30, marks=[])
    assert inline.run(made).ok
    (page,) = step_folder(inline, made).glob("attempts/*/manifest/2.json")
    (part,) = step_folder(inline, made).glob("attempts/*/out/parts/00001")
    page.write_bytes(page.read_bytes().replace(b'"schema":1', b'"schema":2'))
    part.unlink()
    lost, damaged = problems(inline)
    assert lost.endswith("parts/00001: is missing")
    assert damaged.endswith("manifest/2.json: the page of the manifest is not the one that was committed")
    assert inline.run(made, force=["many"]).ok
    assert problems(inline) == []


@step(version=1, id="tests/pages/first")
def first(ctx: Context, spelling: str) -> None:
    (ctx.out / "a").write_text("the same")


@step(version=1, id="tests/pages/second")
def second(ctx: Context, given: Artifact[None]) -> int:
    for number in range(20):
        (ctx.out / f"{number}").write_text((given / "a").read_text())
    return 1


def test_an_equal_result_in_pages_is_adopted_and_gc_keeps_what_it_points_to(inline: Bench) -> None:
    made, taken = (second(given=first(spelling=each)).named(each) for each in ("one", "two"))
    assert inline.run(made).ok
    assert inline.outcomes(taken)["two"] == "cached"
    found = look(inline.objects, second.id, taken.key).commit
    assert found is not None
    assert found.adopted_from is not None
    (folder,) = step_folder(inline, taken).glob("attempts/*")
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    state = read_state(inline.objects, second.id, taken.key[:16])
    (refers,) = state.refers.values()
    assert {path for path in refers if "/manifest/" in path} != set()
    collect(inline.objects, GRACE, delete=True, clock=later(30))
    collect(inline.objects, GRACE, delete=True, clock=later(60))
    assert problems(inline) == []
    assert load("two", prefix=str(inline.prefix)).value == 1


def test_a_folder_of_many_files_is_taken_in(inline: Bench, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(25):
        (tmp_path / "texts" / f"{number}").write_text(f"{number}")
    content = adoption.Content.of(tmp_path / "texts", "texts", "null")
    commit, new = adoption.adopt(inline.objects, content, 30)
    assert new
    output = CommittedOutput(inline.objects, content.id, content.key, commit)
    assert isinstance(output.manifest, PagedManifest)
    assert VALUE not in output.files
    assert len(output.files) == 25
    assert problems(inline) == []


def test_twelve_thousand_files_are_written_and_read(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("MARIN_TEST_COUNTS", str(inline.counts))
    made = many(count=12_000, marks=[])
    result = inline.run(reading(parts=made))
    assert result.ok
    assert result.artifacts["reading"].value == "17"
    (folder,) = step_folder(inline, made).glob("attempts/*/manifest")
    assert sorted(path.name for path in folder.iterdir()) == ["0.json", "1.json", "2.json"]
    assert problems(inline) == []
