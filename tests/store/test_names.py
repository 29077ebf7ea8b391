"""Names are aliases of keys: each change is a record of its own, and what a person named is a root."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.core.key import key_of
from marin_pipeline.store import layout
from marin_pipeline.store.commit import write_spec
from marin_pipeline.store.memory_objects import MemoryObjects
from marin_pipeline.store.names import (
    current_names,
    drop_root,
    enter_name,
    find_keys,
    give_name,
    history_of,
    is_root,
    owner,
    resolve,
)
from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.faults.faulty_objects import FaultyObjects, nth

SPECS = [f'{{"arguments":{{"x":{number}}}}}'.encode() for number in range(3)]
A, B, C = (("project/step", key_of(spec)) for spec in SPECS)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("MARIN_OWNER", "ada")
    found = open_objects(str(tmp_path))
    for spec in SPECS:
        write_spec(found, "project/step", key_of(spec), spec)
    return found


def test_a_name_stands_for_its_latest_key_and_each_number_for_its_own(objects: ObjectStore) -> None:
    given = [str(give_name(objects, "wiki", *each)) for each in (A, B, B, A)]
    assert given == ["ada/wiki@1", "ada/wiki@2", "ada/wiki@2", "ada/wiki@3"]
    for text, key in (("wiki", A), ("wiki@1", A), ("wiki@2", B), ("ada/wiki", A), ("ada/wiki@2", B)):
        assert resolve(objects, text) == key
    assert [(record.number, record.key) for record in history_of(objects, "ada/wiki")] == [
        (1, A[1]),
        (2, B[1]),
        (3, A[1]),
    ]


def test_keys_are_found_by_six_digits_or_more(objects: ObjectStore) -> None:
    for length in (6, 16, 20, 64):
        assert resolve(objects, B[1][:length]) == B
        assert find_keys(objects, B[1][:length]) == [B]
    for text in (B[1][:5], "0" * 64, "nothing", "", "@", "wiki@", "a/b/c@2"):
        with pytest.raises(UsageError, match="is no name and no key"):
            resolve(objects, text)
    assert len(find_keys(objects, "")) == 3


@pytest.mark.parametrize("text", ["wiki@0", "wiki@3", "ada/wiki@9"])
def test_a_number_that_is_not_there_is_told_with_those_that_are(objects: ObjectStore, text: str) -> None:
    give_name(objects, "wiki", *A)
    give_name(objects, "wiki", *B)
    with pytest.raises(UsageError, match="has the numbers 1 to 2"):
        resolve(objects, text)


def test_other_peoples_names_begin_with_who_they_are(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    give_name(objects, "data/wiki", *A)
    monkeypatch.setenv("MARIN_OWNER", "grace")
    assert str(give_name(objects, "ada/data/wiki", *B)) == "ada/data/wiki@2"
    assert str(give_name(objects, "grace/data/wiki", *C)) == "grace/data/wiki@1"
    assert str(give_name(objects, "nobody/wiki", *C)) == "grace/nobody/wiki@1"
    assert resolve(objects, "data/wiki") == C
    assert resolve(objects, "ada/data/wiki") == B
    assert current_names(objects) == {B[1]: ["ada/data/wiki"], C[1]: ["data/wiki", "nobody/wiki"]}


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a//b", "/a", "a/", "a@b", "é", "a" * 201])
def test_what_cannot_be_a_name_is_refused(objects: ObjectStore, name: str) -> None:
    with pytest.raises(UsageError, match="a name is made of"):
        give_name(objects, name, *A)
    assert not objects.list("names")
    assert not objects.list("roots")


def test_two_at_once_get_a_number_of_their_own(objects: ObjectStore) -> None:
    start, given = threading.Barrier(8), list[str]()

    def give(number: int) -> None:
        start.wait()
        given.append(str(give_name(objects, "wiki", "project/step", f"{number:064x}")))

    threads = [threading.Thread(target=give, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == [f"ada/wiki@{number}" for number in range(1, 9)]
    assert {record.key for record in history_of(objects, "wiki")} == {f"{number:064x}" for number in range(8)}


def test_a_store_that_tells_no_versions_gives_no_second_number() -> None:
    """An S3 server need not answer a write with an ETag."""

    class Mute(MemoryObjects):
        def create(self, path: str, data: bytes) -> str | None:
            assert path.endswith("/1.json")
            return None if super().create(path, data) is None else ""

    assert enter_name(Mute("mute://"), "ada", "wiki", *A, anew=True).number == 1


def test_a_lost_reply_gives_no_second_number(objects: ObjectStore) -> None:
    faulty = FaultyObjects(objects, nth("create", "wiki@/1.json", "denied after"))
    assert str(give_name(faulty, "wiki", *A)) == "ada/wiki@1"
    assert faulty.faults
    assert len(history_of(objects, "wiki")) == 1


def test_a_given_name_is_a_root_until_it_is_dropped_and_the_history_stays(objects: ObjectStore) -> None:
    enter_name(objects, "ada", "wiki", *A)
    (entered,) = history_of(objects, "wiki")
    assert not is_root(objects, entered)
    with pytest.raises(UsageError, match="is no root"):
        drop_root(objects, "wiki@1")
    assert str(give_name(objects, "wiki", *A)) == "ada/wiki@1"
    assert is_root(objects, entered)
    drop_root(objects, "ada/wiki@1")
    drop_root(objects, "wiki@1")
    assert not is_root(objects, entered)
    assert resolve(objects, "wiki") == A
    again = give_name(objects, "wiki", *A)
    assert str(again) == "ada/wiki@2", "a root that was dropped is not taken up again: it has a record that ends it"
    assert is_root(objects, again)


@pytest.mark.parametrize("text", ["wiki", "@1", "wiki@", "wiki@x", "other@1", "../x@1"])
def test_what_cannot_be_dropped_is_told(objects: ObjectStore, text: str) -> None:
    give_name(objects, "wiki", *A)
    with pytest.raises(UsageError, match=r"is no root|say which number"):
        drop_root(objects, text)


@pytest.mark.parametrize("data", [b"\x00", b"[]", b"{}", b"[" * 100_000])
def test_a_damaged_record_of_a_name_is_named_with_its_remedy(objects: ObjectStore, data: bytes) -> None:
    objects.create(f"{layout.names('ada', 'wiki')}/1.json", data)
    for read in (resolve, history_of):
        with pytest.raises(CorruptOutput, match=r"wiki@/1\.json: not what a name stands for .*delete it"):
            read(objects, "wiki")
    assert current_names(objects) == {}


@pytest.mark.parametrize(
    ("user", "usable"), [("../../evil", "_.._evil"), ("DOMAIN\\ada", "DOMAIN_ada"), ("..", "somebody"), ("ada", "ada")]
)
def test_any_users_name_becomes_one_that_a_folder_can_have(
    user: str, usable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MARIN_OWNER", raising=False)
    monkeypatch.setenv("LOGNAME", user)
    assert owner() == usable


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1.0"])
def test_a_number_of_a_name_is_written_in_plain_digits(objects: ObjectStore, number: str) -> None:
    give_name(objects, "wiki", *A)
    for ask in (resolve, drop_root, history_of):
        with pytest.raises(UsageError):
            ask(objects, f"wiki@{number}")
