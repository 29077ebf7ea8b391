"""The commands that keep a store in order: what they print, as lines and as JSON, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import tool
from marin_pipeline.run import housekeeping
from tests.conftest import Ran
from tests.run.sample_steps import add, fails, number, times, words
from tests.run.sessions import Bench, step_folder

Command = Callable[..., Ran]


@pytest.fixture
def command(inline: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `marin-pipeline ARGUMENTS` in this process."""
    monkeypatch.setenv("MARIN_PREFIX", str(inline.prefix))
    monkeypatch.setenv("MARIN_OWNER", "ada")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["marin-pipeline", *arguments])
        with pytest.raises(SystemExit) as left:
            tool.main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ran(int(left.value.code or 0), printed.out, printed.err)

    return run


def test_a_name_is_given_listed_and_dropped(inline: Bench, command: Command) -> None:
    made = number(value=1)
    inline.run(made)
    assert command("name", made.key[:8], "kept/one").out == "ada/kept/one@1\n"
    assert "root" in command("name", "kept/one").out
    (line,) = command("name", "kept/one", "--json").events
    assert {**line, "at": ""} == {"name": "ada/kept/one@1", "id": number.id, "key": made.key, "at": "", "root": True}
    assert command("name", "--drop", "kept/one@1", "--json").events == [{"name": "ada/kept/one@1", "root": False}]
    assert "root" not in command("name", "kept/one").out
    for wrong in ([], ["a", "b", "c"], ["nothing", "x"], ["nothing"], ["--drop", "x"], ["x", "--drop", "x@1"]):
        assert command("name", *wrong).code == 2, wrong


def test_verify_ends_with_4_when_something_is_wrong_and_says_what_to_do(inline: Bench, command: Command) -> None:
    inline.run([times(count=words(text="a b")), number(value=1)])
    ran = command("verify")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("3 outputs, 5 files, ")
    assert ran.out.splitlines()[-1].endswith(": all objects are there, with the sizes that were committed")
    assert command("verify", "--level", "full").code == 0
    file = next(step_folder(inline, words(text="a b")).glob("attempts/*/out/words.txt"))
    file.write_bytes(b"x x")
    assert command("verify").code == 0
    ran = command("verify", "--level", "full")
    assert ran.code == 4
    assert f"{file}: its bytes are not those that were committed" in ran.out
    ending = f"invalidate {words(text='a b').key[:8]} --reason damaged --prefix {inline.prefix}"
    assert f"`marin-pipeline {ending}`" in ran.out
    ran = command("verify", "words", "--level", "full", "--json")
    line, summary = ran.events
    assert (line["ok"], line["key"], line["findings"][0]["where"]) == (False, words(text="a b").key, str(file))
    assert (summary["event"], summary["ok"], summary["findings"], ran.code) == ("summary", False, 1, 4)
    whole = command("verify", "number", "--level", "full")
    assert whole.out.splitlines()[-1] == "1 output, 1 file, 1 B: all bytes as they were committed"
    assert command("verify", "nothing").code == 2


def test_verify_says_now_and_then_how_far_an_output_is_read(
    inline: Bench, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = words(text="a b")
    inline.run(made)
    assert command("verify", "--level", "full").err == ""
    monkeypatch.setattr(housekeeping, "EVERY", 0.0)
    ran = command("verify", "--level", "full")
    size = inline.plan(made).nodes[made.key].look.commit
    assert size is not None
    assert ran.err.splitlines()[-1] == f"verify (full)  {made.key[:8]}  {size.bytes} B of {size.bytes} B, 3 of 3 files"


def test_the_command_that_verify_names_mends_what_it_found(inline: Bench, command: Command) -> None:
    target = times(count=words(text="a b"))
    inline.run(target)
    next(step_folder(inline, words(text="a b")).glob("attempts/*/out/words.txt")).unlink()
    (finding,) = [found for line in command("verify", "--json").events[:-1] for found in line["findings"]]
    assert command(*finding["remedy"].split("`")[1].split()[1:]).code == 0
    assert inline.outcomes(target) == {"words": "done", "times": "cached"}
    assert command("verify", "--level", "full").code == 0


def test_invalidate_ends_an_output_and_says_what_hangs_on_it(inline: Bench, command: Command) -> None:
    one = number(value=1)
    target = add(numbers=[add(numbers=[one]), number(value=2)])
    inline.run(target)
    ran = command("invalidate", one.key[:8], "--reason", "wrong", "--dry-run", "--json")
    (line,) = ran.events
    assert [each["direct"] for each in line["descendants"]] == [True, False]
    assert not line["done"]
    assert inline.statuses(one) == {"number": "cached"}
    ran = command("invalidate", one.key[:8], "--reason", "wrong")
    assert ran.code == 0
    assert "is stale if that is made again with other bytes" in ran.out
    assert inline.reasons(one) == {"number": "invalidated: wrong"}
    assert command("invalidate", one.key[:8], "--reason", "wrong").code == 2
    assert command("invalidate", one.key[:8]).code == 2
    assert command("invalidate", target.key[:8], "--reason", " ").code == 2
    assert inline.run(target).ok


def adopted(bench: Bench) -> tuple[Any, Any, Any]:
    """An output, an equal one that was taken from it, and one that is made from that."""
    source = add(numbers=[number(value=2)]).named("source")
    taken = add(numbers=[times(count=words(text="a b"))]).named("taken")
    below = add(numbers=[taken, number(value=5)]).named("below")
    bench.run(source)
    bench.run(below)
    return source, taken, below


def test_invalidate_tells_what_was_adopted_and_falls(inline: Bench, command: Command) -> None:
    source, taken, below = adopted(inline)
    for dry in (["--dry-run"], []):
        ran = command("invalidate", "source", "--reason", "wrong", "--json", *dry)
        (line,) = ran.events
        assert line["key"] == source.key
        assert [(each["key"], each["names"]) for each in line["adopted"]] == [(taken.key, ["taken"])]
        assert [(each["key"], each["names"]) for each in line["descendants"]] == [(below.key, ["below"])]
        if dry:
            text = command("invalidate", "source", "--reason", "wrong", "--dry-run").out
            assert "  taken  would fall with it: it was adopted from it\n" in text
            assert "  below  is stale if" in text
    again = command("invalidate", "taken", "--reason", "wrong")
    assert (again.code, "has ended already: adopted from" in again.err) == (2, True)
    assert inline.run([source, below]).ok
    assert "nothing else hangs on it" in command("invalidate", "below", "--reason", "wrong").out


def test_what_fell_is_ended_and_says_why(inline: Bench, command: Command) -> None:
    source, taken, _ = adopted(inline)
    shown = command("show", "taken").out
    assert f"from       source {source.key[:8]}, made in " in shown
    assert f"argument   numbers = [times ({times(count=words(text='a b')).key[:8]})]" in shown
    assert "~artifact" not in shown
    command("invalidate", "source", "--reason", "not right")
    shown = command("show", "taken").out
    assert (
        f"status     ended: adopted from {add.id} {source.key[:8]}, whose output was ended (invalidated: not right)"
        in shown
    )
    assert "ended      commit 1: invalidated: not right, 20" in command("show", "source").out
    statuses = {each["key"]: each for each in command("ls", "--json").events}
    assert statuses[taken.key]["status"] == "ended"
    assert "not right" in statuses[taken.key]["fallen"]
    assert "not right" in command("ls").out
    assert inline.run(source).ok
    shown = command("show", "source").out
    assert "status     done" in shown
    assert "ended      commit 1: invalidated: not right, 20" in shown
    assert command("show", "source", "--json").events[0]["ended"]["text"] == "not right"


def test_steps_without_an_output_are_found_by_name(inline: Bench, command: Command) -> None:
    failed = fails(word="a")
    inline.run([failed, number(value=1)])
    (line,) = command("show", "fails", "--json").events
    assert (line["key"], line["status"]) == (failed.key, "failed")
    assert "(user, 20" in command("show", "fails").out
    assert "has no output" in command("ls", "fails").err
    assert "has no current output" in command("invalidate", "fails", "--reason", "x").err
    assert "has no output" in command("verify", "fails").err
    assert command("name", "fails", "kept/fails").code == 0
    assert command("diff", "fails", "number").code == 1
    (row,) = [line for line in command("ls").out.splitlines() if failed.key[:8] in line]
    assert row.split()[0] == "failed"
    assert " user " in row


def test_a_damaged_commit_can_be_ended(inline: Bench, command: Command) -> None:
    inline.run(number(value=1))
    (step_folder(inline, number(value=1)) / "commits" / "1.json").write_bytes(b"\x00")
    assert command("verify").code == 4
    assert command("invalidate", "number", "--reason", "damaged").code == 0
    assert inline.outcomes(number(value=1)) == {"number": "done"}


def test_gc_is_dry_by_default_and_prints_a_table(inline: Bench, command: Command) -> None:
    inline.run(number(value=1))
    inline.run(number(value=2))
    assert command("gc").out == "nothing to collect with --grace 7d\n"
    ran = command("gc", "--grace", "0s")
    assert "would be ended" in ran.out
    assert "nothing was changed" in ran.out
    assert inline.statuses(number(value=1)) == {"number": "cached"}
    ran = command("gc", "--grace", "0s", "--delete", "--json")
    assert [event["event"] for event in ran.events] == ["end", "delete", "summary"]
    assert ran.events[-1]["delete"]["attempt"]["count"] == 1
    assert inline.statuses(number(value=1)) == {"number": "run"}
    assert inline.statuses(number(value=2)) == {"number": "cached"}
    assert command("gc", "--grace", "soon").code == 2


def test_gc_tells_what_it_cannot_read(inline: Bench, command: Command) -> None:
    inline.run(number(value=1))
    (inline.prefix / "experiments" / "broken.json").write_bytes(b"\x00")
    ran = command("gc", "--grace", "0s", "--delete")
    assert ran.code == 0
    assert "kept: " in ran.out
    assert "experiments/broken.json" in ran.out


def test_adopt_prints_key_and_digest_and_gives_the_name(inline: Bench, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("hello")
    (dry,) = command("adopt", str(file), "--as", "text", "--dry-run", "--json").events
    assert not inline.prefix.exists()
    first = command("adopt", str(file), "--as", "text")
    assert dry["key"] in first.out
    assert f'adopted("text", "{dry["digest"]}")' in first.out
    (again,) = command("adopt", str(file), "--as", "text", "--json").events
    assert again == {**dry, "name": "ada/text@1", "adopted": False}
    assert "root" in command("name", "text").out
    assert json.loads(command("show", "text", "--json").out)["arguments"] == {"content": dry["digest"]}
    assert command("show", "text").code == 0
    assert command("gc", "--grace", "0s", "--delete").out == "nothing to collect with --grace 0s\n"
    for wrong in ([str(tmp_path / "no"), "--as", "x"], [str(file), "--as", "A"], [str(file)]):
        assert command("adopt", *wrong).code == 2


@pytest.mark.parametrize("record", ["commits/1.json", "spec.json", "lease.json", "attempts/*/manifest.json"])
@pytest.mark.parametrize("data", [b"\x00", b"[]", b"{}", b"[" * 100_000])
def test_no_damaged_record_is_a_traceback(inline: Bench, command: Command, record: str, data: bytes) -> None:
    made: Any = number(value=1)
    inline.run([made, number(value=2)])
    (file,) = step_folder(inline, made).glob(record)
    file.write_bytes(data)
    collecting, ending = ["gc", "--grace", "0s", "--delete"], ["invalidate", made.key[:8], "--reason", "x"]
    for arguments in (["verify"], collecting, ["name", "number"], ending):
        assert command(*arguments, "--json").code in (0, 1, 2, 4)


def test_gc_takes_no_strange_number_for_one(inline: Bench, command: Command) -> None:
    inline.run(number(value=1))
    for folder in ("names", "roots"):
        strange = inline.prefix / folder / "ada" / "src@" / "².json"
        strange.parent.mkdir(parents=True)
        strange.write_text("{}")
    assert command("gc").code == 0
    for grace in ("800000d", "9" * 5000 + "d", "²d"):
        assert command("gc", "--grace", grace).code == 2, grace
