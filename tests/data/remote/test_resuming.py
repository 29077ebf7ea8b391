"""Whatever a server does in whatever order, and however often the reader is ended in between: what comes out are the
bytes of one state of the resource, or an error, never other bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from marin_pipeline.core.context import Work
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.http import HttpFile
from marin_pipeline.data.remote.kept import Kept
from marin_pipeline.data.remote.transfer import Halted, Patience, Watch
from tests.data.remote.conftest import Reader, web
from tests.faults.http_server import OLD, Act, HttpServer, Served

PATIENCE = Patience(tries=3, first_wait=0.0, longest_wait=0.0)
SIZE = 700
PART = 100


def version(number: int) -> bytes:
    """Bytes that no other version has at any place, and that repeat at none."""
    return hashlib.shake_256(b"%d" % number).digest(SIZE + 10 * (number % 3))


def changing(number: int) -> Callable[[Served], None]:
    def change(file: Served) -> None:
        file.data, file.etag = version(number), f'"{number}"'

    return change


cuts = st.builds(Act, cut=st.integers(0, SIZE + 30))
refusals = st.sampled_from([Act(500), Act(503), Act(416), Act(429)])
changes = st.builds(
    lambda number, cut: Act(changes=changing(number), cut=cut),
    st.integers(0, 4),
    st.none() | st.integers(0, SIZE),
)
told_lies = st.builds(
    lambda lie, cut: Act(cut=cut, **lie),
    st.sampled_from(
        [
            {"ignores_range": True},
            {"says_shift": 1},
            {"says_shift": -PART},
            {"says_total": SIZE + 1},
            {"says_length": SIZE + 100},
            {"ignores_if_range": True},
            {"framing": "chunked"},
            {"headers": {"Content-Range": "bytes 0-5/6"}},
            {"starts": 7},
            {"starts": 150},
            {"headers": {"ETag": 'W/"1"'}},
        ]
    ),
    st.none() | st.integers(0, SIZE),
)
"""What can be seen in the answer."""
silent_lies = st.builds(
    lambda lie, cut: Act(cut=cut, **lie),
    st.sampled_from(
        [
            {"shift": 1},
            {"shift": -7},
            {"headers": {"ETag": '"1"'}},
            {"ignores_if_range": True, "headers": {"ETag": ""}},
            {"says_length": 300},
        ]
    ),
    st.none() | st.integers(0, SIZE),
)
"""What only a digest can tell."""
ends = st.lists(st.integers(0, 12), max_size=3)
"""After how many pieces the reader is ended; then another one goes on."""


class Ending(Watch):
    """Ends a transfer at the n-th look."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def check(self) -> None:
        self._looks -= 1
        if self._looks < 0:
            self.halt()
        super().check()


def outcome(server: HttpServer, acts: list[Act], ended: list[int], etag: str, expected: dict[str, str]) -> bytes | None:
    """What the last reader gets; None for an error."""
    with tempfile.TemporaryDirectory() as folder:
        server.serve("/file", version(1), *acts, etag=etag, modified=OLD if etag else "")
        reader = Reader(Path(folder), part=PART)
        for looks in ended:
            reader.watch = Ending(looks)
            try:
                return reader.read(web(server), expected, PATIENCE)[0]
            except Halted:
                assert not (reader.folder / "file").exists()
            except InputError:
                pass  # the person runs it again
        reader.watch = Watch()
        try:
            return reader.read(web(server), expected, PATIENCE)[0]
        except InputError:
            return None


ordinary = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ordinary
@given(acts=st.lists(cuts | refusals | changes | told_lies, max_size=8), ended=ends)
def test_the_bytes_are_those_of_one_state(server: HttpServer, acts: list[Act], ended: list[int]) -> None:
    found = outcome(server, acts, ended, '"1"', {})
    event("error" if found is None else "bytes")
    assert found is None or found in [version(number) for number in range(5)]


@ordinary
@given(
    acts=st.lists(cuts | refusals | changes | told_lies | silent_lies, max_size=8),
    ended=ends,
    etag=st.sampled_from(['"1"', ""]),
)
def test_with_a_digest_no_lie_is_believed(server: HttpServer, acts: list[Act], ended: list[int], etag: str) -> None:
    found = outcome(server, acts, ended, etag, {"sha256": hashlib.sha256(version(1)).hexdigest()})
    event("error" if found is None else "bytes")
    assert found is None or found == version(1)


@ordinary
@given(acts=st.lists(cuts, max_size=6), ended=ends)
def test_an_honest_server_is_read_in_the_end(server: HttpServer, acts: list[Act], ended: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server.serve("/file", version(1), *acts)
        reader = Reader(Path(folder), part=PART)
        for looks in ended:
            reader.watch = Ending(looks)
            try:
                reader.read(web(server), patience=Patience(tries=10, first_wait=0.0))
            except Halted:
                continue
            break
        reader.watch = Watch()
        assert reader.read(web(server), patience=Patience(tries=10, first_wait=0.0))[0] == version(1)


def test_the_next_attempt_asks_only_for_what_is_missing(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", version(1), Act(cut=350), then=Act(500))
    with pytest.raises(InputError):
        reader.read(web(server))
    assert reader.left == ["000000", "000001", "000002"]
    server.asked.clear()
    server.files["/file"].then = Act()
    data, fetched = reader.read(web(server))
    assert data == version(1)
    assert [each.range for each in server.asked] == ["bytes=300-"]
    assert (fetched.kept, fetched.answers) == (300, 1)


def test_parts_of_an_earlier_state_are_not_used(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", version(1), Act(cut=350), then=Act(500))
    with pytest.raises(InputError):
        reader.read(web(server))
    server.serve("/file", version(3), Act(cut=100), then=Act(500), etag='"3"')
    with pytest.raises(InputError):
        reader.read(web(server))
    assert reader.left == ["000000", "000001", "000002"]  # the first of version 3, the others of version 1
    server.asked.clear()
    server.files["/file"].then = Act()
    assert reader.read(web(server))[0] == version(3)
    assert [each.range for each in server.asked] == ["bytes=100-"]


def test_a_whole_file_of_an_earlier_attempt_is_not_asked_for_again_where_it_is_fixed(
    server: HttpServer, reader: Reader
) -> None:
    server.serve("/file", version(1))
    expected = {"sha256": hashlib.sha256(version(1)).hexdigest()}
    reader.read(web(server), expected)
    server.asked.clear()
    data, fetched = reader.read(web(server), expected)
    assert (data, fetched.answers, fetched.kept, server.asked) == (version(1), 0, len(data), [])


def test_a_whole_file_of_an_earlier_attempt_is_taken_when_the_place_still_has_it(
    server: HttpServer, reader: Reader
) -> None:
    server.serve("/file", version(1))
    reader.read(web(server))
    server.serve("/file", version(1), Act(500), then=Act(cut=0))
    data, fetched = reader.read(web(server))
    assert (data, fetched.answers, fetched.kept) == (version(1), 2, len(data))


def test_a_whole_file_of_an_earlier_attempt_is_not_taken_when_the_place_has_another(
    server: HttpServer, reader: Reader
) -> None:
    server.serve("/file", version(1))
    reader.read(web(server))
    server.serve("/file", version(3), etag='"3"')
    data, fetched = reader.read(web(server))
    assert (data, fetched.answers, fetched.kept) == (version(3), 1, 0)


def test_parts_belong_to_the_whole_address_and_to_the_name_of_its_token(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", version(1))
    fixed = {"sha256": hashlib.sha256(version(1)).hexdigest()}  # what is found counts unasked
    reader.read(web(server, "/file?id=1", account="A"), fixed)
    assert reader.read(web(server, "/file?id=1", account="A"), fixed)[1].kept == len(version(1))
    assert reader.read(web(server, "/file?id=2", account="A"), fixed)[1].kept == 0
    assert reader.read(web(server, "/file?id=1", account="B"), fixed)[1].kept == 0


def test_a_damaged_part_is_read_anew(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", version(1))
    reader.read(web(server))
    (part,) = [file for file in (reader.folder / "store").rglob("data") if file.read_bytes() == version(1)[100:200]]
    part.write_bytes(b"x" * 100)
    server.asked.clear()
    assert reader.read(web(server))[0] == version(1)
    assert [each.range for each in server.asked] == ["bytes=100-"]


class _Parts:
    """Which parts there are, and nothing in them."""

    def __init__(self, items: list[str]) -> None:
        self._items = items

    def items(self) -> list[str]:
        return self._items


def test_the_memory_for_the_parts_of_many_files_does_not_grow_with_its_square() -> None:
    items = [f"{number:024x}-000000" for number in range(500)]
    kept = Kept(cast(Work, _Parts(items)))
    place = HttpFile("https://example.org/file", stall=5.0)
    tracemalloc.start()
    try:
        held = [kept.of(place) for _ in items]
        assert tracemalloc.get_traced_memory()[1] < 1000 * len(held)
    finally:
        tracemalloc.stop()
