"""Every command that looks at a store does so in object storage as in a folder, and outputs go from one to another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_pipeline import LocalFile, load, run, tool
from marin_pipeline.run.driver import Options, Session
from tests.conftest import Ran
from tests.run.sample_steps import fails, sizes, squares, times, words
from tests.servers import Server
from tests.stores import environment_of, gs_server, new_prefix, s3_server, set_environment, shared_prefix

pytestmark = pytest.mark.slow

__all__ = ["gs_server", "s3_server", "shared_prefix"]

Command = Callable[..., Ran]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `marin-pipeline ARGUMENTS` in this process."""
    monkeypatch.setenv("MARIN_OWNER", "ada")

    def ran(*arguments: str) -> Ran:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["marin-pipeline", *arguments])
        with pytest.raises(SystemExit) as left:
            tool.main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ran(int(left.value.code or 0), printed.out, printed.err)

    return ran


def made(prefix: str, tmp_path: Path) -> str:
    """A small graph in a store; the key of its target."""
    (tmp_path / "text").write_text("one line")
    file, mapped = LocalFile(tmp_path / "text"), squares(numbers=[1, 2])
    target = sizes(files={"a": file, "b": words(text="a b") / "words.txt", "c": mapped / "squares" / "0.txt"})
    run(target, prefix=prefix, backend="inline", quiet=True)
    return target.key


def test_each_command_tells_of_every_store_what_it_tells_of_a_folder(
    shared_prefix: str, command: Command, tmp_path: Path
) -> None:
    prefix = ("--prefix", shared_prefix)
    target = times(count=words(text="a b"), factor=3)
    session = Session.open([target, fails(word="no")], Options(prefix=shared_prefix, backend="inline"), "tests/servers")
    for _ in range(2):
        assert not session.run().ok
    (shown,) = command("show", "times", *prefix, "--json").events
    assert (shown["key"], shown["status"], shown["origin"]["digest"]) == (
        target.key,
        "done",
        shown["commit"]["origin"],
    )
    assert f"code       {shared_prefix}/code/" in command("show", "times", *prefix).out
    statuses = {event["id"].rpartition(".")[2]: event["status"] for event in command("ls", *prefix, "--json").events}
    assert statuses == {"words": "done", "times": "done", "fails": "failed"}
    files = [event["path"] for event in command("ls", "words", *prefix, "--json").events]
    assert files == ["deep/length", "value.json", "words.txt"]
    assert command("ls", "--table", "times", *prefix, "--json").events[0]["key"] == target.key
    assert "count" in command("logs", "words", *prefix).out
    assert command("logs", "words", *prefix, "--json").events
    verified = command("verify", *prefix, "--level", "full", "--json")
    assert verified.code == 0
    assert (verified.events[-1]["ok"], verified.events[-1]["keys"]) == (True, 2)
    assert len(command("runs", *prefix, "--json").events) == 2
    assert command("diff", "words", "times", *prefix, "--json").code == 1
    assert command("diff", "tests/servers@1", "tests/servers@2", *prefix, "--json").code == 0
    assert command("name", "times", "kept/times", *prefix, "--json").events[0]["name"] == "ada/kept/times@1"
    assert command("name", "kept/times", *prefix, "--json").events[0]["key"] == target.key
    assert command("gc", *prefix, "--json").code == 0
    assert command("invalidate", "times", "--reason", "x", "--dry-run", *prefix, "--json").code == 0
    assert json.loads(command("share", "times", *prefix).out)["key"] == target.key


def test_what_is_shared_from_every_store_can_be_pulled_into_a_folder(
    shared_prefix: str, command: Command, tmp_path: Path
) -> None:
    key = made(shared_prefix, tmp_path)
    bundle, to = str(tmp_path / "b.json"), str(tmp_path / "to")
    assert command("share", key, "--prefix", shared_prefix, "--out", bundle).code == 0
    ran = command("pull", bundle, "--from", shared_prefix, "--prefix", to, "--deep", "--json")
    assert ran.code == 0
    assert (ran.events[-1]["fetched"], ran.events[-1]["left"]) == (3, 0)
    assert command("verify", "--level", "full", "--prefix", to).code == 0
    assert load(key, prefix=to).value == load(key, prefix=shared_prefix).value


def test_a_folder_can_be_pulled_into_every_store(
    shared_prefix: str, command: Command, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = new_prefix(request, "local")
    key = made(source, tmp_path)
    ran = command("pull", key, "--from", source, "--prefix", shared_prefix, "--deep", "--json")
    assert ran.code == 0
    assert command("verify", "--level", "full", "--prefix", shared_prefix).code == 0
    again = command("pull", key, "--from", source, "--prefix", shared_prefix, "--deep", "--json")
    assert (again.events[-1]["fetched"], again.events[-1]["there"]) == (0, 3)
    assert load("pulled/sizes", prefix=shared_prefix).key == key


@pytest.mark.parametrize(("source", "to"), [("gs", "s3"), ("s3", "gs")])
def test_an_output_goes_from_one_cloud_to_the_other(
    source: str, to: str, command: Command, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    theirs, mine = new_prefix(request, source), new_prefix(request, to)
    key = made(theirs, tmp_path)
    assert command("pull", key, "--from", theirs, "--prefix", mine, "--deep").code == 0
    assert command("verify", "--level", "full", "--prefix", mine).code == 0


def test_a_bucket_that_is_not_there_is_told_of_by_the_option_that_names_it(
    s3_server: Server, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, environment_of("s3", s3_server.url))
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    for given in (("pull", "times"), ("reproduce", "times")):
        ran = command(*given, "--from", "s3://nosuchbucket/a")
        assert "there is no such bucket" in ran.err
        assert "choose another --from" in ran.err
    run(words(text="a b"), prefix=str(tmp_path / "store"), backend="inline", quiet=True)
    ran = command("reproduce", "words", "--to", "s3://nosuchbucket/a")
    assert "choose another --to" in ran.err
