"""What comes from afar is shown before anything runs, and more than is allowed is refused."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline import Artifact, Context, step
from marin_pipeline.core.errors import UsageError
from marin_pipeline.run.transfer import Budget, Part, Transfers, crosses, transfers_of
from marin_pipeline.run.words import bytes_text
from marin_pipeline.store import location
from marin_pipeline.store.gcs_objects import GcsObjects
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.location import HERE, asked_region, is_loopback, machine_region
from marin_pipeline.store.objects import open_objects
from marin_pipeline.store.sizes import parse_size
from tests.conftest import Program
from tests.run.conftest import inline
from tests.run.sample_steps import add, increment, number, times, words
from tests.run.sessions import Bench, outcomes

__all__ = ["inline"]

COUNT: Artifact[Any] = words(text="to be or not to be")
PRODUCT: Artifact[Any] = times(count=COUNT, factor=2)
TOTAL: Artifact[Any] = add(numbers=[PRODUCT, number(value=5)])


def known(arguments: Mapping[str, Any]) -> list[int | None]:
    return list(arguments["sizes"])


@step(transfers=known)
def brings(ctx: Context, sizes: list[int | None]) -> int:
    """Says what it downloads."""
    return len(sizes)


@given(st.integers(0, 10**16))
def test_a_size_that_is_printed_is_read_back_to_two_digits(size: int) -> None:
    assert abs(parse_size(bytes_text(size)) - size) <= 0.051 * max(size, 1)


@pytest.mark.parametrize(
    ("source", "here", "far"),
    [
        (HERE, "", False),
        (HERE, "us-central1", False),
        ("us-central1", "us-central1", False),
        ("us-central1", "europe-west4", True),
        ("us-central1", "", True),
        ("", "us-central1", True),
        ("", "", True),
        ("us", "us-central1", True),
    ],
)
def test_bytes_come_from_afar_unless_both_regions_are_known_and_equal(source: str, here: str, far: bool) -> None:
    assert crosses(source, here) == far


def planned(bench: Bench, target: Any, region: str, here: str = "europe-west4", **options: Any) -> Transfers:
    session = bench.session(target, **options)
    return transfers_of(session.plan(), "gs://bucket/store", region, here, session.options.limit)


def test_inputs_that_running_steps_read_from_another_region_count_once(inline: Bench) -> None:
    assert inline.run(TOTAL).ok
    commits = {
        each.node.name: each.look.commit for each in inline.plan(TOTAL).nodes.values() if each.look.commit is not None
    }
    total = TOTAL.named("total")
    targets: list[Artifact[Any]] = [increment(before=total), increment(before=PRODUCT), add(numbers=[PRODUCT, total])]
    transfers = planned(inline, targets, "us-central1")
    (part,) = transfers.parts
    assert (part.kind, part.source, part.region) == ("reads", "gs://bucket/store", "us-central1")
    assert sorted(part.what) == ["times", "total"]
    assert transfers.bytes == commits["add"].bytes + commits["times"].bytes
    assert transfers.lines() == [
        f"transfer reads {transfers.bytes} B from gs://bucket/store (us-central1) here (europe-west4): "
        + ", ".join(part.what)
    ]


@pytest.mark.parametrize(("region", "here"), [("europe-west4", "europe-west4"), (HERE, "")])
def test_inputs_that_lie_in_the_same_region_or_here_do_not_count(inline: Bench, region: str, here: str) -> None:
    assert inline.run(TOTAL).ok
    assert planned(inline, increment(before=TOTAL), region, here).parts == []


def test_what_is_done_reads_nothing(inline: Bench) -> None:
    assert inline.run(TOTAL).ok
    assert planned(inline, TOTAL, "us-central1").parts == []


def test_a_region_that_is_not_known_counts_and_is_said(inline: Bench) -> None:
    assert inline.run(TOTAL).ok
    (line,) = planned(inline, increment(before=TOTAL), "", "").lines()
    assert "(region not known) here (region not known)" in line


def test_inputs_that_the_run_makes_itself_are_said_to_be_unknown_yet(inline: Bench) -> None:
    transfers = planned(inline, TOTAL, "us-central1", max_transfer="1GB")
    (part,) = transfers.parts
    assert (part.bytes, sorted(part.made)) == (0, ["number", "times", "words"])
    assert transfers.refusal() == ""
    assert "reads what is made in this run from gs://bucket/store" in transfers.lines()[0]


def test_declared_downloads_count_and_unknown_ones_are_said(inline: Bench) -> None:
    transfers = planned(inline, [brings(sizes=[10**9, 2 * 10**9]).named("wiki"), brings(sizes=[None, 5])], HERE)
    (part,) = transfers.parts
    assert (part.kind, part.bytes, part.unknown) == ("downloads", 3 * 10**9 + 5, ["brings"])
    assert transfers.lines() == ["transfer downloads 3.0 GB and an unknown number of bytes: wiki, brings"]


def test_more_than_the_limit_is_refused_before_anything_runs_and_says_what_and_what_to_do(inline: Bench) -> None:
    target = [brings(sizes=[10**9]).named("wiki"), number(value=5)]
    with pytest.raises(UsageError) as error:
        inline.run(target, max_transfer="500 MB")
    assert str(error.value).startswith("1.0 GB would be transferred, and 500 MB is the most: downloads 1.0 GB: wiki.")
    assert "Nothing was started; allow more (--max-transfer)" in str(error.value)
    assert error.value.exit_code == 2
    assert inline.ran() == Counter()
    assert not inline.prefix.exists()
    assert inline.run(target, max_transfer="1 GB").ok


def test_an_unknown_size_does_not_pass_under_a_limit(inline: Bench) -> None:
    target = brings(sizes=[5, None])
    with pytest.raises(UsageError, match=r"not known.*declare the size of what brings downloads, or leave --max"):
        inline.run(target, max_transfer="10TB")
    assert inline.run(target).ok
    assert inline.run(target, max_transfer="0").ok  # it is done


def test_the_limit_may_stand_in_the_environment_and_is_a_number_in_python(
    inline: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="would be transferred"):
        inline.run(brings(sizes=[1000]), max_transfer=999)
    monkeypatch.setenv("MARIN_MAX_TRANSFER", "999")
    with pytest.raises(UsageError, match="would be transferred"):
        inline.run(brings(sizes=[1000]))
    monkeypatch.setenv("MARIN_MAX_TRANSFER", "lots")
    with pytest.raises(UsageError, match="is no size"):
        inline.run(brings(sizes=[1000]))
    monkeypatch.delenv("MARIN_MAX_TRANSFER")
    for size in (-1, 10**400, "9" * 5000 + "GB", "١٠GB", float("nan")):
        with pytest.raises(UsageError, match=r"^--max-transfer"):
            inline.run(brings(sizes=[1000]), max_transfer=size)


def test_what_is_taken_from_another_store_counts_and_what_is_left_there_does_not(inline: Bench, tmp_path: Path) -> None:
    other = replace(inline, prefix=tmp_path / "theirs")
    assert other.run(TOTAL).ok
    inline.ran()
    options: dict[str, Any] = {"substitutes": [str(other.prefix)]}
    transfers = planned(inline, TOTAL, HERE, **options)
    (part,) = transfers.parts
    assert (part.kind, part.source, part.what) == ("fetches", str(other.prefix), ["add"])
    with pytest.raises(UsageError, match="fetches 2 B from"):
        inline.run(TOTAL, max_transfer=transfers.bytes - 1, **options)
    assert inline.run(TOTAL, max_transfer=transfers.bytes, **options).ok
    assert inline.ran() == Counter()


def test_what_a_step_reads_of_what_the_run_made_is_held_against_the_limit_when_it_is_known(
    inline: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalObjects, "location", lambda self: "us-central1")
    monkeypatch.setenv("MARIN_REGION", "europe-west4")
    machine_region.cache_clear()
    size = 165  # of what `words` writes, which `times` reads
    result = inline.run(TOTAL, max_transfer=size - 1)
    assert outcomes(result) == {"words": "done", "times": "blocked", "number": "done", "add": "blocked"}
    message = result.settled[PRODUCT.key].message
    assert "with words, which this run has made, 165 B would be transferred, and 164 B is the most" in message
    assert inline.run(TOTAL, max_transfer="1kB").ok
    machine_region.cache_clear()


def test_a_budget_counts_each_input_once() -> None:
    budget = Budget(Transfers([Part("reads", "gs://b", "us", 10, ["a", "b"], [], ["b"])], "eu", 100, True))
    assert budget.refusal({"a": 10, "b": 80}) == ""
    assert budget.refusal({"a": 10, "b": 80}) == ""
    assert budget.refusal({"c": 10}) == ""
    assert "with d, which this run has made" in budget.refusal({"d": 1})


def test_a_budget_without_a_limit_or_from_near_refuses_nothing() -> None:
    assert Budget(Transfers([], "eu", None, True)).refusal({"a": 10**18}) == ""
    assert Budget(Transfers([], "eu", 1, False)).refusal({"a": 10**18}) == ""


EXPERIMENT = """
from marin_pipeline import Context, main, step

@step(transfers=lambda arguments: [arguments["size"]])
def wiki(ctx: Context, size: int) -> int:
    return size

if __name__ == "__main__":
    main(wiki(size=3_200_000_000))
"""


def test_a_plan_and_a_program_show_what_comes_from_afar(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "experiment.py"
    file.write_text(EXPERIMENT)
    assert "transfer downloads 3.2 GB: wiki" in program(file, "plan").out
    out = program(file, "plan", "--max-transfer", "10GB").out
    assert "transfer 3.2 GB in all, within --max-transfer 10 GB" in out
    ran = program(file, "plan", "--json", "--max-transfer", "1GB")
    assert ran.code == 2  # as the run
    assert "error: 3.2 GB would be transferred, and 1 GB is the most" in ran.err
    step, end = ran.events
    assert step["status"] == "run"
    assert end == {
        "transfer": {
            "bytes": 3_200_000_000,
            "limit": 10**9,
            "refused": True,
            "here": None,
            "parts": [
                {
                    "kind": "downloads",
                    "from": None,
                    "region": None,
                    "bytes": 3_200_000_000,
                    "what": ["wiki"],
                    "unknown": [],
                    "made": [],
                }
            ],
        }
    }
    refused = program(file, "--max-transfer", "1GB")
    assert refused.code == 2
    assert "error: 3.2 GB would be transferred, and 1 GB is the most" in refused.err
    for command in (["plan"], ["plan", "--check"]):
        refused = program(file, *command, "--max-transfer", "1GB")
        assert refused.code == 2
        assert "3.2 GB in all, more than --max-transfer 1 GB: a run is refused" in refused.out
    assert program(file, "--max-transfer", "1GX").code == 2
    told = program(file, "plan", extra={"MARIN_MAX_TRANSFER": "1GX"})
    assert (told.code, told.err.partition(":")[2].startswith(" MARIN_MAX_TRANSFER '1GX'")) == (2, True)
    done = program(file, "--json", "--max-transfer", "10 GB")
    assert done.code == 0
    assert [event["bytes"] for event in done.events if event["event"] == "transfer"] == [3_200_000_000]
    assert len(program(file, "plan", "--json").events) == 1


# Where things lie -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:4443", True),
        ("http://localhost:4443/x", True),
        ("http://[::1]:1", True),
        ("http://127.9.9.9", True),
        ("https://storage.googleapis.com", False),
        ("http://10.0.0.1:9000", False),
        ("http://localhost.example.org", False),
    ],
)
def test_the_loopback_is_here(url: str, here: bool) -> None:
    assert is_loopback(url) == here


def test_folders_memory_and_servers_on_the_loopback_are_here(prefix: str) -> None:
    assert open_objects(prefix).location() == HERE


def test_the_region_of_a_bucket_is_asked_of_the_server(request: pytest.FixtureRequest) -> None:
    from tests.stores import new_prefix

    objects = open_objects(new_prefix(request, "gs"))
    assert isinstance(objects, GcsObjects)
    assert objects.region().lower() == "us-central1"  # what this server says of every bucket


def test_the_region_of_this_machine_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_region.cache_clear()
    monkeypatch.setenv("MARIN_REGION", " Europe-West4 ")
    assert machine_region() == "europe-west4"
    machine_region.cache_clear()
    monkeypatch.delenv("MARIN_REGION")
    monkeypatch.setattr(location, "_FIRMWARE", Path("/nonexistent"))
    assert machine_region() == ""
    machine_region.cache_clear()


class Metadata(BaseHTTPRequestHandler):
    """Answers as the clouds' documentation says that their metadata servers do."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/computeMetadata/v1/instance/zone" and self.headers["Metadata-Flavor"] == "Google":
            self._answer(b"projects/123456/zones/europe-west4-b")
        elif self.path == "/latest/meta-data/placement/region" and self.headers["X-aws-ec2-metadata-token"] == "t0":
            self._answer(b"eu-west-1")
        else:
            self.send_error(403)

    def do_PUT(self) -> None:
        ok = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        if ok:
            self._answer(b"t0")
        else:
            self.send_error(400)

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def metadata() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_machine_of_a_cloud_asks_it_for_its_region_and_another_asks_nobody(metadata: str, tmp_path: Path) -> None:
    assert asked_region("gs", metadata) == "europe-west4"
    assert asked_region("s3", metadata) == "eu-west-1"
    Metadata.asked.clear()
    assert asked_region("", metadata) == ""
    assert Metadata.asked == []
    assert asked_region("gs", "http://127.0.0.1:1") == ""
    (tmp_path / "product_name").write_text("Google Compute Engine\n")
    assert location._cloud(tmp_path) == "gs"
    (tmp_path / "product_name").write_text("Standard PC\n")
    assert location._cloud(tmp_path) == ""
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    assert location._cloud(tmp_path) == "s3"


def test_a_plan_in_which_nothing_is_read_asks_for_no_region(inline: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: LocalObjects) -> str:
        raise AssertionError("asked")

    assert inline.run(TOTAL).ok
    monkeypatch.setattr(LocalObjects, "location", ask)
    session = inline.session([TOTAL, number(value=7)])
    assert session.transfers(session.plan()).parts == []
    assert json.dumps(session.transfers(session.plan()).tree()) == "{}"


@pytest.mark.parametrize(
    ("part", "limit", "told"),
    [
        (
            Part("downloads", "", "", 0, ["a"], ["a"]),
            10,
            "an unknown number of bytes in all, and --max-transfer 10 B is",
        ),
        (
            Part("downloads", "", "", 7, ["a"], ["a"]),
            10,
            "7 B and an unknown number of bytes in all, and --max-transfer",
        ),
        (
            Part("downloads", "", "", 11, ["a"], ["a"]),
            10,
            "11 B in all, more than --max-transfer 10 B: a run",
        ),
        (Part("downloads", "", "", 10, ["a"]), 10, "10 B in all, within --max-transfer 10 B"),
    ],
)
def test_the_line_of_the_limit_says_what_is_known_and_what_a_run_would_do(part: Part, limit: int, told: str) -> None:
    transfers = Transfers([part], "", limit)
    assert f"transfer {told}" in transfers.lines()[-1]
    assert transfers.lines()[-1].endswith("a run is refused") == bool(transfers.refusal())


def test_a_step_that_brings_nothing_in_is_not_counted(inline: Bench) -> None:
    assert inline.session(brings(sizes=[]), max_transfer=0).transfers(inline.plan(brings(sizes=[]))).lines() == []
