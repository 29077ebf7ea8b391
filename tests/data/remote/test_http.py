"""A file over HTTP ends with the bytes of one state of the resource, whatever breaks on the way, or with an error."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.http import bearer
from marin_pipeline.data.remote.transfer import Halted
from tests.data.remote.conftest import QUICK, Reader, web
from tests.faults.http_server import OLD, Act, HttpServer, Served
from tests.run.sessions import wait_until

DATA = bytes(range(256)) * 4
OTHER = bytes(reversed(DATA))
NEWER = "Tue, 02 Jan 2024 00:00:00 GMT"
SHA256 = hashlib.sha256(DATA).hexdigest()


def ranges(server: HttpServer) -> list[str]:
    return [each.range for each in server.of("/file")]


def test_a_file_is_read_once_and_its_bytes_are_those_that_are_stored(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA)
    data, fetched = reader.read(web(server))
    assert (data, fetched.sha256, fetched.size, fetched.answers) == (DATA, SHA256, len(DATA), 1)
    (asked,) = server.asked
    assert asked.headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in asked.headers
    assert fetched.state.facts["etag"] == '"1"'


@pytest.mark.parametrize("data", [b"", b"x", DATA[:100], DATA[:101]])
def test_files_of_every_length_around_a_part(server: HttpServer, reader: Reader, data: bytes) -> None:
    server.serve("/file", data)
    assert reader.read(web(server))[0] == data


def test_a_broken_connection_goes_on_where_it_broke(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, Act(cut=150), Act(cut=150), Act(cut=1))
    data, fetched = reader.read(web(server))
    assert data == DATA
    assert fetched.answers == 4
    assert ranges(server) == ["", "bytes=150-", "bytes=300-", "bytes=301-"]
    assert {each.headers.get("If-Range") for each in server.asked[1:]} == {'"1"'}


def test_a_resource_that_changed_begins_anew(server: HttpServer, reader: Reader) -> None:
    def change(file: Served) -> None:
        file.data, file.etag = OTHER, '"2"'

    server.serve("/file", DATA, Act(cut=500), Act(changes=change))
    assert reader.read(web(server))[0] == OTHER
    assert [each.status for each in server.asked] == [200, 200]
    assert ranges(server) == ["", "bytes=500-"]


def test_a_server_that_knows_no_ranges_begins_anew(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, Act(cut=500), then=Act(ignores_range=True))
    assert reader.read(web(server))[0] == DATA


def test_without_a_validator_a_broken_connection_begins_anew_and_leaves_no_parts(
    server: HttpServer, reader: Reader
) -> None:
    server.serve("/file", DATA, Act(cut=500), etag='W/"1"', modified="")
    assert reader.read(web(server))[0] == DATA
    assert ranges(server) == ["", ""]
    assert reader.left == []


def test_a_time_of_change_is_a_validator_once_it_is_over(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, Act(cut=500), etag="", modified=OLD)
    assert reader.read(web(server))[0] == DATA
    assert server.asked[1].headers["If-Range"] == OLD
    server.asked.clear()
    server.serve("/other", DATA, Act(cut=500, headers={"Date": OLD}), etag="", modified=OLD)
    assert Reader(reader.folder / "other", part=100).folder is not None
    assert reader.read(web(server, "/other"))[0] == DATA
    assert [each.range for each in server.of("/other")] == ["", ""]


@pytest.mark.parametrize(
    "other",
    [{"modified": NEWER}, {"etag": 'W/"2"'}, {"etag": '"2"'}, {"etag": ""}],
    ids=["time", "weak", "strong", "no etag"],
)
def test_ranges_of_two_versions_are_not_joined_where_the_server_ignores_if_range(
    server: HttpServer, reader: Reader, other: dict[str, str]
) -> None:
    def change(file: Served) -> None:
        file.data = OTHER
        vars(file).update(other)

    server.serve("/file", DATA, Act(cut=500), Act(changes=change, ignores_if_range=True), etag='W/"1"', modified=OLD)
    assert reader.read(web(server))[0] == OTHER
    assert ranges(server) == ["", "bytes=500-", ""]


def test_a_range_without_a_time_of_change_goes_on(server: HttpServer, reader: Reader) -> None:
    def change(file: Served) -> None:
        file.modified = ""

    server.serve("/file", DATA, Act(cut=500), Act(changes=change, ignores_if_range=True), etag="", modified=OLD)
    assert reader.read(web(server))[0] == DATA
    assert ranges(server) == ["", "bytes=500-"]


@pytest.mark.parametrize(
    "lie",
    [
        Act(says_shift=1),
        Act(says_shift=-10),
        Act(says_total=len(DATA) + 1),
        Act(headers={"Content-Range": "bytes 500-700/1024"}),
        Act(headers={"Content-Range": "bytes 400-1023/1024"}, framing="chunked", shift=-100),
        Act(headers={"Content-Range": "bytes 600-1023/1024"}, framing="chunked", shift=100),
        Act(headers={"Content-Range": ""}),
        Act(headers={"Content-Range": "pages 1-2/3"}),
        Act(says_length=7),
        Act(headers={"ETag": '"9"'}),
        Act(headers={"Last-Modified": NEWER}),
    ],
)
def test_a_range_that_is_not_what_was_asked_for_is_refused_and_the_file_begun_anew(
    server: HttpServer, reader: Reader, lie: Act
) -> None:
    server.serve("/file", DATA, Act(cut=500), lie)
    assert reader.read(web(server))[0] == DATA
    assert ranges(server) == ["", "bytes=500-", ""]


def test_a_server_that_only_lies_is_given_up(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, then=Act(cut=500, says_shift=3))
    with pytest.raises(InputError, match=r"Content-Range bytes 503-.* tries in a row came to nothing, run again"):
        reader.read(web(server))
    assert not (reader.folder / "file").exists()


def test_other_bytes_in_a_true_looking_range_are_found_by_the_digest(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA * 2, Act(cut=500), Act(shift=1, says_length=2 * len(DATA) - 501), Act(shift=-8))
    whole = hashlib.sha256(DATA * 2).hexdigest()
    assert reader.read(web(server), {"sha256": whole})[0] == DATA * 2
    assert ranges(server)[-1] == ""


def test_another_digest_is_an_error_that_shows_both_and_leaves_nothing(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", OTHER)
    found = hashlib.sha256(OTHER).hexdigest()
    with pytest.raises(InputError, match=f"1,024 bytes have the sha256 {found}, not {SHA256}; the file was changed"):
        reader.read(web(server), {"sha256": SHA256})
    assert not (reader.folder / "file").exists()
    assert reader.left == []
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("act", "asked"),
    [
        (Act(says_length=len(DATA) + 50), ["", "bytes=1024-", ""]),
        (Act(says_length=len(DATA), cut=1000), ["", "bytes=1000-"]),
        (Act(framing="chunked", cut=300), ["", "bytes=300-"]),
    ],
)
def test_a_body_that_ends_too_early_is_noticed(server: HttpServer, reader: Reader, act: Act, asked: list[str]) -> None:
    server.serve("/file", DATA, act)
    assert reader.read(web(server))[0] == DATA
    assert ranges(server) == asked


def test_a_body_that_is_not_as_long_as_the_place_is_known_to_be_is_never_taken(
    server: HttpServer, reader: Reader
) -> None:
    server.serve("/file", DATA, then=Act(framing="chunked"))
    with pytest.raises(InputError, match=r"it ended after 1,024 of 1,029 bytes|416"):
        reader.read(web(server, size=len(DATA) + 5, fixed="1"))
    with pytest.raises(InputError, match=r"more than the 1,019 bytes that were to come"):
        Reader(reader.folder / "again").read(web(server, size=len(DATA) - 5, fixed="1"))


def test_a_body_in_chunks_is_whole(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, then=Act(framing="chunked"))
    data, fetched = reader.read(web(server))
    assert (data, fetched.size) == (DATA, len(DATA))


def test_a_body_whose_end_nothing_tells_needs_a_digest(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, then=Act(framing="close"))
    with pytest.raises(InputError, match=r"does not say how long it is.*give the source a sha256"):
        reader.read(web(server))
    assert reader.read(web(server, must_have_length=False), {"sha256": SHA256})[0] == DATA
    server.serve("/file", DATA, Act(framing="close", cut=300), then=Act(framing="close"))
    again = Reader(reader.folder / "again")
    assert again.read(web(server, must_have_length=False), {"sha256": SHA256})[0] == DATA
    assert "the bytes have the sha256" in again.told[0]
    server.serve("/file", DATA, then=Act(framing="close", cut=300))
    with pytest.raises(InputError, match="300 bytes have the sha256"):
        Reader(reader.folder / "third").read(web(server, must_have_length=False), {"sha256": SHA256})


def test_an_encoded_body_is_kept_as_it_is_stored(server: HttpServer, reader: Reader) -> None:
    stored = gzip.compress(DATA)
    server.serve("/file", stored, then=Act(headers={"Content-Encoding": "gzip"}))
    data, fetched = reader.read(web(server))
    assert data == stored
    assert fetched.state.facts["content_encoding"] == "gzip"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_what_may_pass_is_tried_again(server: HttpServer, reader: Reader, status: int) -> None:
    server.serve("/file", DATA, Act(status), Act(status))
    assert reader.read(web(server))[0] == DATA
    assert len(server.asked) == 3
    assert str(status) in reader.told[0]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, 'may not be read; give the source token=Secret\\("NAME"\\)'),
        (403, "may not be read"),
        (404, "is not there; check the address"),
        (410, "is not there any more; check the address"),
        (400, "400 Bad Request; check the address"),
        (451, "451"),
    ],
)
def test_what_will_not_pass_fails_at_once(server: HttpServer, reader: Reader, status: int, told: str) -> None:
    server.serve("/file", DATA, Act(status))
    with pytest.raises(InputError, match=told):
        reader.read(web(server))
    assert len(server.asked) == 1


@pytest.mark.parametrize("as_date", [False, True])
def test_a_server_that_asks_for_time_gets_it(server: HttpServer, reader: Reader, as_date: bool) -> None:
    begun = time.time()
    until = int(begun + 2.5) if as_date else begun + 1
    text = formatdate(until, usegmt=True) if as_date else "1"
    server.serve("/file", DATA, Act(429, {"Retry-After": text}))
    reader.read(web(server))
    assert until - 0.1 < time.time() < until + 30


def test_a_server_that_asks_for_too_much_time_is_told(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, Act(503, {"Retry-After": "86400"}))
    with pytest.raises(InputError, match="asks to be left alone for 86,400 s; run again after that"):
        reader.read(web(server))


def test_tries_are_bounded_and_counted_anew_with_each_gain(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, then=Act(500))
    with pytest.raises(InputError, match="500 Internal Server Error; 4 tries in a row came to nothing, run again"):
        reader.read(web(server))
    assert len(server.asked) == 4
    data = DATA * 1024
    server.serve("/file", data, then=Act(cut=100_000))
    assert Reader(reader.folder, part=2**20).read(web(server))[0] == data


def test_the_wait_doubles_up_to_a_bound() -> None:
    patience = replace(QUICK, first_wait=1.0, longest_wait=5.0)
    waits = [max(patience.wait(failures) for _ in range(200)) for failures in (1, 2, 3, 4, 60)]
    for wait, longest in zip(waits, (1, 2, 4, 5, 5), strict=True):
        assert 0.8 * longest < wait <= longest
    assert len({patience.wait(1) for _ in range(20)}) > 1


def test_silence_is_a_broken_connection_and_dripping_is_not(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, Act(silent=60.0), Act(drip=256))
    begun = time.monotonic()
    assert reader.read(web(server, stall=1.0))[0] == DATA
    assert time.monotonic() - begun < 50
    assert "TimeoutError" in reader.told[0] or "Timeout" in reader.told[0]


def test_nobody_there_is_told_with_the_host(reader: Reader, server: HttpServer) -> None:
    from tests.servers import free_port

    place = web(server)
    place.url = f"http://127.0.0.1:{free_port()}/file"
    with pytest.raises(InputError, match=r"no answer from 127\.0\.0\.1:\d+ \(ConnectionRefusedError\); 4 tries"):
        reader.read(place)


def test_redirects_are_followed_and_the_token_stays_with_its_host(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", b"", then=Act(302, {"Location": f"{server.elsewhere}/there?signature=abc"}))
    server.serve("/there", b"", then=Act(307, {"Location": f"{server.url}/back"}))
    server.serve("/back", DATA, Act(cut=500))
    data, fetched = reader.read(web(server, headers=bearer("sesame")))
    assert data == DATA
    tokens = {each.path.partition("?")[0]: each.headers.get("Authorization") for each in server.asked}
    assert tokens == {"/file": "Bearer sesame", "/there": None, "/back": "Bearer sesame"}
    assert "abc" not in str(fetched)
    assert [each.range for each in server.of("/back")] == ["", "bytes=500-"]


def test_a_redirect_leads_to_the_web_and_not_in_circles(server: HttpServer, reader: Reader) -> None:
    for target, told in (("file:///etc/passwd", "no other address of the web"), ("/file", "no other address")):
        server.serve("/file", b"", then=Act(302, {"Location": target}))
        with pytest.raises(InputError, match=told):
            reader.read(web(server))
    server.serve("/file", b"", then=Act(302, {"Location": "/other"}))
    server.serve("/other", b"", then=Act(302, {"Location": "/file"}))
    with pytest.raises(InputError, match="redirected more than 10 times"):
        reader.read(web(server))


def test_an_error_behind_a_redirect_shows_no_signature(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", b"", then=Act(302, {"Location": f"{server.elsewhere}/there?X-Amz-Signature=abc"}))
    server.serve("/there", b"", then=Act(403))
    with pytest.raises(InputError, match=r"403 Forbidden \(from http://localhost:\d+/there\?…\)") as caught:
        reader.read(web(server))
    assert "abc" not in str(caught.value)


def test_a_token_that_is_not_accepted_is_not_shown(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, token="sesame")
    assert reader.read(web(server, headers=bearer("sesame")))[0] == DATA
    with pytest.raises(InputError, match="401 Unauthorized") as caught:
        Reader(reader.folder / "again").read(web(server, headers=bearer("wrong-one")))
    assert "wrong-one" not in str(caught.value)


LONG = "9" * 5000


@pytest.mark.parametrize("text", [LONG, "-1", "1_0", "ten", "5, 6", "1e3", "+5"])
def test_a_length_that_is_no_number_is_told_with_the_address_and_the_header(
    server: HttpServer, reader: Reader, text: str
) -> None:
    server.serve("/file", DATA, then=Act(headers={"Content-Length": text}))
    with pytest.raises(InputError, match=r"/file: .*Content-Length ('.*' )?is no length; check") as error:
        reader.read(web(server))
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("text", [f"bytes 500-{LONG}/*", f"bytes {LONG}-{LONG}/{LONG}", "bytes ٥٠٠-1023/1024", "ten"])
def test_a_range_that_is_none_begins_anew(server: HttpServer, reader: Reader, text: str) -> None:
    header = {"Content-Range": text.encode().decode("latin-1")}
    server.serve("/file", DATA, Act(cut=500), Act(headers=header))
    assert reader.read(web(server))[0] == DATA
    assert ranges(server) == ["", "bytes=500-", ""]
    assert any("does not say what it is (Content-Range" in each for each in reader.told)
    assert max(map(len, reader.told)) < 300


def test_a_wait_that_nobody_waits_is_told(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, then=Act(status=503, headers={"Retry-After": LONG}))
    with pytest.raises(InputError, match="asks to be left alone for 1,000,000,000 s"):
        reader.read(web(server))


@pytest.mark.parametrize("etag", [f'"{LONG}"', '"a\x01"', '"\xe9"'])
def test_what_no_request_can_bear_is_no_validator(server: HttpServer, reader: Reader, etag: str) -> None:
    server.serve("/file", DATA, Act(cut=500), etag=etag, modified=f"Mon, 01 Jan {LONG} 00:00:00 GMT")
    data, fetched = reader.read(web(server))
    assert data == DATA
    assert ranges(server) == ["", ""]
    assert max(map(len, fetched.state.facts.values())) <= 1000


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_pipeline.data.remote.pace.WINDOW", 0.4)


def dripped(head: bytes, drip: bytes) -> Callable[[Any], bool]:
    """An answer that goes on, a byte now and then, for as long as the client listens."""

    def answer(handler: Any) -> bool:
        handler.close_connection = True
        with suppress(OSError):
            handler.wfile.write(head)
            while True:
                handler.wfile.write(drip)
                time.sleep(0.02)
        return True

    return answer


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "head",
    [
        b"HTT",
        b"HTTP/1.1 200 OK\r\nX-A: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_server_that_sends_a_byte_now_and_then_is_one_that_is_silent(
    server: HttpServer, reader: Reader, head: bytes
) -> None:
    server.answers["/slow"] = dripped(head, b"1")
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"4 tries in a row came to nothing"):
        reader.read(web(server, "/slow", stall=0.3))
    assert time.monotonic() - begun < 60


@pytest.mark.usefixtures("impatient")
def test_who_reads_slowly_is_no_fault_of_the_server(server: HttpServer, reader: Reader) -> None:
    data = DATA * 100
    server.serve("/file", data, Act(drip=len(data) // 4))
    file = web(server, stall=5.0)
    blocks = []
    with closing(file.open(0, None)) as reply:
        for block in reply.blocks():
            blocks.append(block)
            time.sleep(0.05)
    assert b"".join(blocks) == data


@pytest.mark.usefixtures("impatient")
def test_a_slow_server_above_the_least_pace_is_read_to_its_end(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA, Act(drip=50))
    assert reader.read(web(server, stall=0.3, least=50.0))[1].answers == 1


def test_more_than_was_declared_is_refused_at_once(server: HttpServer, reader: Reader) -> None:
    server.serve("/file", DATA)
    server.answers["/endless"] = dripped(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")
    for path in ("/file", "/endless"):
        with pytest.raises(InputError, match="has more than the 5 bytes that it is declared to have"):
            reader.read(web(server, path), most=5)
    assert reader.read(web(server), most=len(DATA))[0] == DATA


def test_an_endless_body_is_told_and_ends_when_it_is_to_stop(server: HttpServer, reader: Reader) -> None:
    server.answers["/endless"] = dripped(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(reader.read, web(server, "/endless"))
        wait_until(lambda: reader.watch.taken.get(0, 0) > 3)
        reader.watch.halt()
        with pytest.raises(Halted):
            running.result(60)
