"""A bundle may be anybody's: reading one runs no code and writes nothing, and whatever is changed in it is found."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline import LocalFile
from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, MarinError
from marin_pipeline.lab.bundle import LARGEST, Bundle, BundleError
from marin_pipeline.lab.pull import Asked, Pull
from marin_pipeline.lab.share import bundle_of
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.manifest import Manifest
from marin_pipeline.store.sealed import seal
from marin_pipeline.store.verify import Verifier
from tests.conftest import ROOT
from tests.run.sample_steps import add, first_line, number, sizes, squares, times, words
from tests.run.sessions import Bench


@dataclass(frozen=True)
class Shared:
    """A store with a graph, and the bundle of its last step."""

    store: Path
    data: bytes

    @property
    def tree(self) -> dict[str, Any]:
        """The bundle as JSON values, without its seal."""
        tree = json.loads(self.data)
        del tree["seal"], tree["schema"]
        return tree


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("shared")
        bench = Bench.at(folder, "inline", patch)
        (folder / "text").write_text("one line")
        file = LocalFile(folder / "text")
        mapped = squares(numbers=[1, 2])
        files = sizes(files={"a": file, "b": words(text="a b") / "words.txt", "c": mapped / "squares" / "0.txt"})
        target = add(numbers=[times(count=words(text="a b c"), factor=2), files, number(value=5)])
        assert bench.run([target, first_line(file=file)]).ok
        yield Shared(bench.prefix, bundle_of(bench.objects, add.id, target.key).dumps())


def pulled(data: bytes, source: Path, to: Path, deep: bool = True) -> None:
    file = to / "bundle.json"
    to.mkdir(exist_ok=True)
    file.write_bytes(data)
    asked = Asked(str(file), str(source), deep, None)
    Pull(LocalObjects(source), LocalObjects(to / "store"), asked, lambda event: None, lambda *_: None).run()


def refuse_damage(store: Path) -> int:
    """Verify everything that is committed; how many outputs that is."""
    objects, count = LocalObjects(store), 0
    for file in store.glob("steps/**/commits/1.json"):
        id, short = str(file.parents[1].parent.relative_to(store / "steps")), file.parents[1].name
        verified = Verifier(objects, "full").verify(id, short)
        assert verified is not None
        assert verified.findings == []
        count += 1
    return count


def test_a_bundle_reads_back_as_it_was_written_and_can_be_pulled(shared: Shared, tmp_path: Path) -> None:
    bundle = Bundle.loads(shared.data + b"\n", "x")
    assert bundle.dumps() == shared.data
    assert len(bundle.steps) == 7
    assert list(bundle.files.values()) == [8]
    pulled(shared.data, shared.store, tmp_path)
    assert refuse_damage(tmp_path / "store") == 7


NUMBERS = [None, True, False, 0, 1, -1, 2**70, 1.5]
TEXTS = ["", "x", "..", "../../x", "/etc/x", "a\0b", "\ud800", "\x1b[2J", "0" * 64, "20260101T000000.000000-00000000"]
TREES = [[], {}, [5], [[]], {"a": 5}, {"~artifact": "0" * 64}]
OTHERS = st.sampled_from([*NUMBERS, *TEXTS, *TREES])


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside a JSON value."""
    for name, each in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, name)
        yield from places(each, (*path, name))


def changed(tree: Any, data: st.DataObject) -> Any:
    """The same with one value in it replaced, removed, doubled, or taken from elsewhere in it."""
    tree = json.loads(json.dumps(tree))
    known = list(places(tree))
    *above, last = data.draw(st.sampled_from(known))
    inside = tree
    for name in above:
        inside = inside[name]
    how = data.draw(st.sampled_from(["other", "other", "gone", "again", "moved", "digit", "new"]))
    if how == "gone":
        del inside[last]
    elif how == "again" and isinstance(inside, list):
        inside.append(inside[last])
    elif how == "moved":
        other: Any = tree
        for name in data.draw(st.sampled_from(known)):
            other = other[name]
        inside[last] = json.loads(json.dumps(other))
    elif how == "digit" and isinstance(inside[last], str) and inside[last]:
        inside[last] = ("1" if inside[last][0] == "0" else "0") + inside[last][1:]
    elif how == "new" and isinstance(inside, dict):
        inside["another"] = data.draw(OTHERS)
    else:
        inside[last] = data.draw(OTHERS)
    return tree


def refuse_other_records(source: Path, store: Path) -> None:
    """Every commit is that of the source, but for where it came from."""
    for file in store.glob("steps/**/commits/1.json"):
        found = Commit.loads(file.read_bytes(), "here")
        there = Commit.loads((source / file.relative_to(store)).read_bytes(), "there")
        assert replace(found, copied_from="") == there


@settings(max_examples=100)
@given(data=st.data())
def test_nothing_wrong_is_committed_whatever_is_changed_in_a_bundle_and_sealed_again(
    shared: Shared, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tree = changed(shared.tree, data)
    try:
        sealed = seal(tree)
    except ValueError:
        return
    if sealed == shared.data:
        return
    try:
        bundle = Bundle.loads(sealed, "x")
    except BundleError:
        return
    folder = tmp_path_factory.mktemp("pulled")
    try:
        pulled(sealed, shared.store, folder)
    except MarinError:
        refuse_damage(folder / "store")
    else:
        assert refuse_damage(folder / "store") == 7
        assert bundle.by_key.keys() == Bundle.loads(shared.data, "x").by_key.keys()
    finally:
        # What it is called, and where it was, is all that a bundle alone says: the records are those of the store.
        refuse_other_records(shared.store, folder / "store")
        shutil.rmtree(folder)


@settings(max_examples=300)
@given(data=st.data())
def test_a_bundle_whose_seal_was_not_made_again_is_refused_whatever_was_changed(
    shared: Shared, data: st.DataObject
) -> None:
    tree = json.loads(shared.data)
    other = changed(tree, data)
    try:
        written = dumps(other)
    except ValueError:
        return
    if written != shared.data:
        with pytest.raises(BundleError):
            Bundle.loads(written, "x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "empty"),
        (b"not json", "Expecting value"),
        (b"null", "no bundle at all"),
        (b"[]", "no bundle at all"),
        (b"{}", "no bundle at all"),
        (b'{"bundle":1}', "has no schema"),
        (b'{"bundle":2}', "another version"),
        (b'{"bundle":true}', "another version"),
        (b'{"bundle":1,"schema":2}', "another version"),
        (b"\xff\xfe", "not a bundle"),
        (b"\xfa", "decode"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"bundle":1,"a":' * 100_000, "nested too deeply"),
        (b'{"bundle":1,"schema":1,"x":' + b"1" * 5000 + b"}", "integer"),
        (b'{"bundle":1,"schema":1,"x":NaN}', "not a bundle"),
    ],
)
def test_what_is_no_bundle_is_said_to_be_none(text: bytes, why: str) -> None:
    with pytest.raises(BundleError, match=why):
        Bundle.loads(text, "b.json")


@pytest.mark.parametrize("value", [b"{}", b"[]", b"1", b'""', b'{"a":1}'])
def test_one_of_millions_of_values_is_refused_before_they_take_memory(value: bytes) -> None:
    count = (LARGEST - 1000) // (len(value) + 1)
    data = b'{"bundle":1,"schema":1,"x":[' + value + (b"," + value) * (count - 1) + b"]}"
    assert len(data) < LARGEST
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match="more than 4,000,000 values, which no record has"):
            Bundle.loads(data, "b.json")
        assert tracemalloc.get_traced_memory()[1] < 2 * LARGEST
    finally:
        tracemalloc.stop()


def test_a_huge_one_is_not_read(monkeypatch: pytest.MonkeyPatch, shared: Shared) -> None:
    monkeypatch.setattr("marin_pipeline.lab.bundle.LARGEST", len(shared.data) - 1)
    with pytest.raises(BundleError, match="more than"):
        Bundle.loads(shared.data, "b.json")


def test_fields_that_stand_twice_and_other_forms_of_the_same_are_refused(shared: Shared) -> None:
    def sealed(text: bytes) -> bytes:
        before, after = text.split(b',"steps":', 1)
        return before + b',"seal":"' + hashlib.sha256(text).hexdigest().encode() + b'","steps":' + after

    plain = dumps({"schema": 1, **shared.tree})
    assert Bundle.loads(sealed(plain), "x")
    for other in (
        plain.replace(b'{"bundle":1', b'{"bundle":1,"bundle":1'),
        plain.replace(b'"name":"', b'"name":"other","name":"'),
        plain.replace(b'"bytes":', b'"bytes": '),
        plain.replace(b'"number":1', b'"number":1.0'),
    ):
        assert other != plain
        with pytest.raises(BundleError):
            Bundle.loads(sealed(other), "x")


def test_reading_a_bundle_imports_no_step_and_writes_nothing(shared: Shared, tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    file.write_bytes(shared.data)
    program = (
        "import sys; from pathlib import Path; from marin_pipeline.lab.bundle import Bundle\n"
        f"Bundle.loads(Path({str(file)!r}).read_bytes(), 'x')\n"
        "print([name for name in sys.modules if name.startswith(('tests', 'steps', 'pickle', 'jax', 'numpy'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == [file]


# A store and a bundle that agree, of somebody who lies ----------------------------------------------------------------


def lie(shared: Shared, folder: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A store in which the commit of the target was changed, and a bundle that says the same."""
    shutil.copytree(shared.store, folder / "source", copy_function=os.link)
    tree = shared.tree
    step = tree["steps"][-1]
    change(step["commit"])
    step["output"], step["manifest_sha256"] = step["commit"].get("output"), step["commit"].get("manifest")
    path = folder / "source" / layout.commit(step["id"], step["key"], 1)
    path.unlink()
    path.write_bytes(seal(step["commit"]))
    return seal(tree)


@settings(max_examples=25)
@given(data=st.data())
def test_a_store_and_a_bundle_that_lie_together_give_nothing_that_does_not_verify(
    shared: Shared, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("lies")
    (folder / "victim").write_text("untouched")

    def change(commit: dict[str, Any]) -> None:
        new = changed(commit, data)
        commit.clear()
        commit.update(new)

    try:
        sealed = lie(shared, folder, change)
        pulled(sealed, folder / "source", folder / "to", deep=False)
    except (ValueError, MarinError):
        pass
    finally:
        assert {path.name for path in folder.iterdir()} <= {"victim", "source", "to"}
        refuse_damage(folder / "to" / "store")
        shutil.rmtree(folder)


HOSTILE = ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\0b", "a/", 5, None, ["x"]]


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("field", ["path", "object"])
def test_a_manifest_that_leads_out_of_the_store_is_refused(
    shared: Shared, tmp_path: Path, path: Any, field: str
) -> None:
    step = shared.tree["steps"][-1]
    where = layout.manifest(step["id"], step["key"], step["commit"]["attempt"])
    tree = json.loads((shared.store / where).read_bytes())
    tree["files"][0][field] = path
    written = dumps(tree)
    digest = "0" * 64
    if isinstance(path, str):
        entries = Manifest.loads((shared.store / where).read_bytes(), "").entries
        entries = (replace(entries[0], **{field: path}), *entries[1:])
        digest = Manifest(entries).output_digest

    def change(commit: dict[str, Any]) -> None:
        commit["manifest"] = hashlib.sha256(written).hexdigest()
        commit["output"] = commit["compared"] = digest

    sealed = lie(shared, tmp_path, change)
    (tmp_path / "source" / where).unlink()
    (tmp_path / "source" / where).write_bytes(written)
    with pytest.raises(MarinError) as refused:
        pulled(sealed, tmp_path / "source", tmp_path / "to", deep=False)
    assert isinstance(refused.value, CorruptOutput)
    assert not list((tmp_path / "to").glob("store/steps/**/commits/*"))


def test_a_spec_that_does_not_hash_to_its_key_is_named(shared: Shared) -> None:
    tree = shared.tree
    tree["steps"][0]["spec"] = tree["steps"][0]["spec"].replace("a b", "a c")
    with pytest.raises(BundleError, match="its spec does not hash to its key"):
        Bundle.loads(seal(tree), "x")


def test_an_ancestor_that_was_left_out_or_stands_too_late_is_named(shared: Shared) -> None:
    tree = shared.tree
    late = next(step for step in tree["steps"] if step["id"] == times.id)
    tree["steps"] = [late, *(step for step in tree["steps"] if step is not late)]
    with pytest.raises(BundleError, match="does not stand before it"):
        Bundle.loads(seal(tree), "x")
    tree = shared.tree
    tree["steps"] = tree["steps"][-1:]
    with pytest.raises(BundleError, match="does not stand before it"):
        Bundle.loads(seal(tree), "x")


def test_what_is_pulled_is_the_commit_of_the_store_but_for_where_it_came_from(shared: Shared, tmp_path: Path) -> None:
    pulled(shared.data, shared.store, tmp_path)
    steps = Bundle.loads(shared.data, "x").steps
    assert len(steps) == 7
    for step in steps:
        found = look(LocalObjects(tmp_path / "store"), step.id, step.key).commit
        assert found is not None
        assert replace(found, copied_from="", number=step.commit.number) == step.commit
        assert isinstance(found, Commit)
