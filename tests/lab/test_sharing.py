"""`share` and `pull` as programs: what they print and refuse, and that what was pulled is as good as what was made."""

from __future__ import annotations

import datetime
import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import LocalFile, load, run, tool
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.lab.bundle import Bundle
from marin_pipeline.lab.share import bundle_of
from marin_pipeline.run import housekeeping
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.copying import copy_output
from marin_pipeline.store.gc import collect
from marin_pipeline.store.objects import LOCAL, open_objects
from marin_pipeline.store.sealed import seal, unseal
from tests.conftest import ROOT, Program, Ran
from tests.run.conftest import inline
from tests.run.sample_steps import add, echo, random_bytes, sizes, squares, times, words
from tests.run.sessions import Bench, step_folder
from tests.run.unpinned_steps import both, fetch
from tests.store.test_copying import large

__all__ = ["inline"]

Command = Callable[..., Ran]
TARGET = times(count=words(text="a b"), factor=3)


@pytest.fixture
def command(inline: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `marin-pipeline ARGUMENTS` in this process; on the bench's store unless `--prefix` is given."""
    monkeypatch.setenv("MARIN_PREFIX", str(inline.prefix))
    monkeypatch.setenv("MARIN_OWNER", "ada")

    def ran(*arguments: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["marin-pipeline", *arguments])
        with pytest.raises(SystemExit) as left:
            tool.main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ran(int(left.value.code or 0), printed.out, printed.err)

    return ran


@pytest.fixture
def bundle(inline: Bench, command: Command, tmp_path: Path) -> Path:
    """The bundle of `times`, in a file."""
    inline.run(TARGET)
    assert command("share", "times", "--out", str(tmp_path / "b.json")).code == 0
    return tmp_path / "b.json"


def pull(command: Command, inline: Bench, given: Path | str, to: Path, *options: str) -> Ran:
    return command("pull", str(given), "--from", str(inline.prefix), "--prefix", str(to), *options)


# Share ----------------------------------------------------------------------------------------------------------------


def test_share_prints_the_bundle_and_nothing_else_on_stdout(inline: Bench, command: Command, bundle: Path) -> None:
    for options in ([], ["--json"]):
        ran = command("share", TARGET.key[:8], *options)
        assert ran.code == 0
        assert ran.out.encode() == bundle.read_bytes()
    (line,) = command("share", "times", "--json", "--out", str(bundle)).events
    assert (line["event"], line["key"], line["steps"], line["bytes"]) == ("shared", TARGET.key, 2, len(ran.out))
    found = Bundle.loads(bundle.read_bytes(), "b")
    assert (found.key, found.name, [step.id for step in found.steps]) == (TARGET.key, "times", [words.id, times.id])
    assert found.source == "a local store"
    assert str(inline.prefix) not in ran.out
    assert found.target.exact == "bitwise"


def test_share_refuses_a_key_without_a_current_output(inline: Bench, command: Command, tmp_path: Path) -> None:
    inline.run(TARGET)
    assert command("share", "nothing").code == 2
    list(housekeeping.end_output(inline.objects, "times", "wrong", False, False))
    ran = command("share", TARGET.key, "--out", str(tmp_path / "b.json"))
    assert ran.code == 2
    assert "has no current output" in ran.err
    assert not (tmp_path / "b.json").exists()


def test_share_writes_no_bundle_that_pull_would_not_read(
    inline: Bench, command: Command, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bundle.read_bytes()
    monkeypatch.setattr("marin_pipeline.lab.share.LARGEST", 1000)
    ran = command("share", "times", "--out", str(bundle))
    assert (ran.code, "`pull` reads 1,000 at most" in ran.err) == (4, True)
    assert bundle.read_bytes() == before


def test_share_says_of_a_file_that_cannot_be_written_what_was_asked_for(
    inline: Bench, command: Command, tmp_path: Path
) -> None:
    inline.run(TARGET)
    ran = command("share", TARGET.key, "--out", str(tmp_path / "nowhere" / "b.json"))
    assert (ran.code, f"--out {tmp_path}/nowhere/b.json: there is no folder {tmp_path}/nowhere" in ran.err) == (2, True)
    (tmp_path / "file").write_text("")
    ran = command("share", TARGET.key, "--out", str(tmp_path / "file" / "b.json"))
    assert ran.code != 0
    assert "choose another file" in ran.err
    assert "--prefix" not in ran.err


def test_what_no_key_fixes_is_told_once_at_its_source_with_how_much_rests_on_it(
    inline: Bench, command: Command, tmp_path: Path
) -> None:
    given = fetch(address="a").named("open")
    upper = both(parts=[given, fetch(address="c", sha256="0" * 64)]).named("upper")
    target = both(parts=[upper, fetch(address="b").named("other"), given])
    inline.run(target)
    told = command("share", target.key, "--out", str(tmp_path / "b.json")).err.splitlines()
    begun, ends = f"warning: {fetch.id} ", "reads what no key fixes: whoever makes it again may get other bytes"
    assert [line for line in told if "no key fixes" in line] == [
        f"{begun}{given.key[:8]} {ends}; 2 steps rest on it",
        f"{begun}{fetch(address='b').key[:8]} {ends}; 1 step rests on it",
    ]


def change_file(inline: Bench) -> None:
    next(step_folder(inline, words(text="a b")).glob("attempts/*/out/words.txt")).write_text("longer than before")


def lose_file(inline: Bench) -> None:
    next(step_folder(inline, words(text="a b")).glob("attempts/*/out/words.txt")).unlink()


def change_manifest(inline: Bench) -> None:
    next(step_folder(inline, words(text="a b")).glob("attempts/*/manifest.json")).write_text("{}")


def change_spec(inline: Bench) -> None:
    (step_folder(inline, words(text="a b")) / "spec.json").write_text("{}")


def change_commit(inline: Bench) -> None:
    (step_folder(inline, words(text="a b")) / "commits" / "1.json").write_text("{}")


def lose_step(inline: Bench) -> None:
    shutil.rmtree(step_folder(inline, words(text="a b")))


def lose_code(inline: Bench) -> None:
    shutil.rmtree(inline.prefix / "code")


def lose_origin(inline: Bench) -> None:
    shutil.rmtree(inline.prefix / "origins")


def end_ancestor(inline: Bench) -> None:
    list(housekeeping.end_output(inline.objects, "words", "wrong", False, False))


@pytest.mark.parametrize(
    "damage",
    [
        change_file,
        lose_file,
        change_manifest,
        change_spec,
        change_commit,
        lose_step,
        lose_code,
        lose_origin,
        end_ancestor,
    ],
)
def test_share_refuses_what_was_made_from_what_is_damaged_or_missing(
    inline: Bench,
    command: Command,
    damage: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inline.run(TARGET)
    damage(inline)
    ran = command("share", "times")
    assert ran.code == 4
    assert ran.out == ""
    assert "cannot be shared" in ran.err
    assert "for the owner" not in ran.err
    monkeypatch.chdir(tmp_path)
    for done, *theirs in (["pulled", "pull"], ["reproduced", "reproduce", "--to", "to"]):
        told = command(*theirs[:1], "times", "--from", str(inline.prefix), *theirs[1:], "--prefix", "mine").err
        assert f"cannot be {done}, " in told
        assert f"what follows is for the owner of {inline.prefix} to do:\n" in told
    told = command("reproduce", "times").err
    assert "cannot be reproduced, " in told
    assert "for the owner" not in told
    assert {lose_code: "code/", lose_origin: "origins/"}.get(damage, words(text="a b").key[:8]) in ran.err


FORGED: list[tuple[str, Any]] = [
    ("number", 7),
    ("arguments", []),
    ("arguments", {}),
    ("arguments", {"text": {"~file": "0" * 64, "local": "/a/\ud800"}}),
    ("arguments", {"text": {"~file": "0" * 64, "local": "x" * 256}}),
    ("arguments", {"text": {"~file": "x"}}),
    ("arguments", {"text": {"~secret": "PATH\ud800"}}),
    ("arguments", {"text": {"~secret": 5}}),
    ("arguments", {"text": {"~artifact": "0" * 64}}),
    ("pieces", {}),
    ("pieces", []),
    ("fingerprint", None),
    ("seconds", "1"),
    ("bytes", -5),
    ("target", {"module": "", "file": "a.py", "qualname": "words", "main": False}),
    ("target", {"module": "a", "file": "a.py", "qualname": "\ud800", "main": False}),
    ("target", {"module": "a", "file": "../a.py", "qualname": "words", "main": False}),
    ("target", {"module": "a"}),
]


@pytest.mark.parametrize(("name", "value"), FORGED, ids=ascii)
def test_a_commit_that_was_edited_and_sealed_anew_is_neither_shared_nor_copied_nor_breaks_what_reads_it(
    inline: Bench, command: Command, name: str, value: Any, tmp_path: Path
) -> None:
    inline.run(TARGET)
    target = words(text="a b")
    file = step_folder(inline, target) / "commits" / "1.json"
    tree = unseal(file.read_bytes())
    file.chmod(0o644)
    file.write_bytes(seal({**tree, name: value}))
    ran = command("share", "times")
    assert (ran.code, ran.out) == (4, "")
    assert "cannot be shared" in ran.err
    found = look(inline.objects, words.id, target.key)
    elsewhere = open_objects(str(tmp_path / "other"))
    if found.commit is None:
        assert found.damage
    else:
        with pytest.raises(CorruptOutput, match="it cannot be taken"):
            copy_output(inline.objects, elsewhere, words.id, target.key, found.commit)
    assert look(elsewhere, words.id, target.key).commit is None
    for each in (["show", "words"], ["ls", "--table"], ["diff", "words", "times"]):
        assert command(*each).code in (0, 1, 2, 4)


def test_share_refuses_what_is_stale_and_says_by_which_input(inline: Bench, command: Command) -> None:
    text = random_bytes(seed=1)
    target = echo(text=text)
    inline.run(target)
    list(housekeeping.end_output(inline.objects, "random_bytes", "again", False, False))
    inline.run(text)
    ran = command("share", "echo")
    assert ran.code == 4
    assert f"{echo.id} {target.key[:8]}: is stale, since its input text was made again" in ran.err


@pytest.mark.parametrize("known", [True, False])
def test_what_rests_on_what_stayed_in_a_substitute_is_shared_once_that_is_taken(
    inline: Bench, command: Command, tmp_path: Path, known: bool
) -> None:
    lab = replace(inline, prefix=tmp_path / "lab")
    lab.run(TARGET)
    target = add(numbers=[TARGET])
    inline.run(target, substitutes=[str(lab.prefix)])
    if known:  # it was begun here once
        (step_folder(inline, words(text="a b"))).mkdir(parents=True)
        shutil.copy(step_folder(lab, words(text="a b")) / "spec.json", step_folder(inline, words(text="a b")))
    for name in ("share", "reproduce"):
        ran = command(name, "add")
        assert ran.code == 4
        assert f"{words(text='a b').key[:8]}: has no current output in {inline.prefix}" in ran.err
    remedy = ran.err.partition("`marin-pipeline ")[2].partition("`")[0]
    assert remedy == f"pull {TARGET.key[:8]} --from {lab.prefix} --deep --prefix {inline.prefix}"
    assert command(*remedy.split()).code == 0
    assert command("share", "add").code == 0


def test_share_warns_of_what_is_of_an_earlier_version(inline: Bench, command: Command, tmp_path: Path) -> None:
    inline.run(TARGET)
    for file in inline.prefix.glob("steps/**/commits/1.json"):
        commit = Commit.loads(file.read_bytes(), "")
        file.write_bytes(replace(commit, origin="", target=None).dumps())
    ran = command("share", "times")
    assert ran.code == 0
    assert "nothing says with which code" in ran.err
    (tmp_path / "b.json").write_text(ran.out)
    ran = pull(command, inline, tmp_path / "b.json", tmp_path / "to", "--deep")
    assert ran.code == 0
    assert command("verify", "--level", "full", "--prefix", str(tmp_path / "to")).code == 0


def test_no_user_and_password_are_in_a_bundle() -> None:
    prefix = "memory://ada:pw-7f3a@shared/prefix"
    run(TARGET, prefix=prefix, backend="inline", quiet=True)
    bundle = bundle_of(open_objects(prefix), times.id, TARGET.key)
    assert bundle.source == "memory://shared/prefix"
    assert b"pw-7f3a" not in bundle.dumps()


# Pull -----------------------------------------------------------------------------------------------------------------


def test_pull_takes_the_target_and_says_what_it_left(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    ran = pull(command, inline, bundle, to)
    assert ran.code == 0
    assert "2 steps checked" in ran.out
    assert "ada/pulled/times@1" in ran.out
    assert "left there: 1 step that it was made from" in ran.out
    assert load("pulled/times", prefix=str(to)).value == 6
    assert load(TARGET.key, prefix=str(to)).output.digest == load("times").output.digest
    assert command("verify", "--level", "full", "--prefix", str(to)).code == 0
    assert command("show", "pulled/times", "--prefix", str(to)).code == 0
    again = pull(command, inline, bundle, to, "--json")
    assert [event["event"] for event in again.events] == ["checked", "pull", "summary"]
    assert again.events[1]["status"] == "there"
    assert (again.events[2]["fetched"], again.events[2]["there"], again.events[2]["bytes"]) == (0, 1, 0)


def test_pull_deep_takes_all_and_an_experiment_goes_on_from_it(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    ran = pull(command, inline, bundle, to, "--deep", "--as", "theirs/times", "--json")
    assert ran.code == 0
    assert {event["status"] for event in ran.events[1:-1]} == {"fetched"}
    assert (ran.events[-1]["name"], ran.events[-1]["left"]) == ("ada/theirs/times@1", 0)
    inline.ran()
    here = replace(inline, prefix=to)
    assert here.outcomes(add(numbers=[TARGET])) == {"words": "cached", "times": "cached", "add": "done"}
    assert set(inline.ran()) == {"add"}
    shutil.rmtree(inline.prefix)
    assert command("verify", "--level", "full", "--prefix", str(to)).code == 0


def test_pull_says_how_much_comes_before_it_begins_and_refuses_more(
    inline: Bench, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("x" * 1000)
    target = sizes(files={"a": LocalFile(tmp_path / "text")})
    inline.run(target)
    size = look(inline.objects, sizes.id, target.key).commit.bytes + 1000  # pyright: ignore
    to = tmp_path / "to"
    refused = pull(command, inline, "sizes", to, "--max-transfer", "1kB")
    assert refused.code == 2
    assert f"would be transferred, and 1 kB is the most: fetches 1.0 kB from {inline.prefix}: {sizes.id}" in refused.err
    monkeypatch.setenv("MARIN_MAX_TRANSFER", "999")
    assert pull(command, inline, "sizes", to).code == 2
    assert command("reproduce", "sizes").code == 2
    assert pull(command, inline, "sizes", to, "--max-transfer", "1GX").code == 2
    dry = pull(command, inline, "sizes", to, "--dry-run", "--json", "--max-transfer", "1MB")
    assert dry.code == 0
    assert [(each["event"], each.get("status"), each["bytes"]) for each in dry.events] == [
        ("checked", None, size),
        ("pull", "missing", size - 1000),
        ("summary", None, size),
    ]
    assert [dry.events[-1][each] for each in ("ok", "dry_run", "fetched", "name")] == [True, True, 0, "pulled/sizes"]
    assert (
        pull(command, inline, "sizes", to, "--dry-run", "--max-transfer", "1MB").out.splitlines()[-1]
        == "nothing was fetched"
    )
    assert not to.exists()
    ran = pull(command, inline, "sizes", to, "--max-transfer", "1MB")
    assert ran.code == 0
    assert "1 step checked" in ran.out
    assert "; 1.0 kB to fetch" in ran.out
    assert pull(command, inline, "sizes", to).code == 0  # nothing is fetched


def test_a_large_file_is_told_of_while_it_comes(
    inline: Bench, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_pipeline.lab.pull.EVERY", 0.0)
    inline.run(large(size=8 * 2**20))
    ran = pull(command, inline, "large", tmp_path / "to")
    assert len([line for line in ran.err.splitlines() if line.startswith("pull ") and " of 16.8 MB" in line]) > 8


def test_shards_and_local_files_and_code_come_along(inline: Bench, command: Command, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one line")
    mapped = squares(numbers=[1, 2])
    target = sizes(files={"a": LocalFile(tmp_path / "text"), "b": mapped / "squares" / "0.txt"})
    inline.run(target)
    to = tmp_path / "to"
    assert pull(command, inline, "sizes", to, "--deep").code == 0
    shutil.rmtree(inline.prefix)
    assert command("verify", "--level", "full", "--prefix", str(to)).code == 0
    for pattern in ("origins/*", "code/*", "files/*/*", "shards/**/square.txt"):
        assert list(to.glob(pattern)), pattern


def test_pull_reads_stdin_and_takes_a_key_of_the_store(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bundle.read_bytes())))
    assert pull(command, inline, "-", tmp_path / "one").code == 0
    for number_, given in enumerate(("times", TARGET.key, TARGET.key[:8])):
        assert pull(command, inline, given, tmp_path / f"to{number_}").code == 0
        assert load(TARGET.key, prefix=str(tmp_path / f"to{number_}")).value == 6


def test_wrong_use_of_pull_is_2_and_takes_nothing(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    assert pull(command, inline, "missing.json", to).code == 2
    assert pull(command, inline, "nothing", to).code == 2
    assert pull(command, inline, "a\0b", to).code == 2
    assert pull(command, inline, "x" * 5000, to).code == 2
    assert pull(command, inline, bundle, to, "--as", "../x").code == 2
    assert command("pull", str(bundle), "--from", str(tmp_path / "nowhere"), "--prefix", str(to)).code == 2
    assert command("pull", str(bundle), "--prefix", str(to)).code == 2
    assert not list(to.glob("steps/**/*"))


def test_an_error_names_the_option_that_the_store_was_given_by(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for option, given in (
        ("--from", ("pull", str(bundle))),
        ("--from", ("reproduce", str(bundle))),
        ("--to", ("reproduce", "times")),
    ):
        ran = command(*given, option, "gs:/lab/a")
        assert (ran.code, f"{option} gs:/lab/a: is written gs://lab/a" in ran.err) == (2, True)
    ran = command("reproduce", "times", "--to", str(tmp_path / "file"))
    assert (ran.code != 0, "choose another prefix with --to" in ran.err) == (True, True)


def test_a_bundle_edited_by_hand_is_4(inline: Bench, command: Command, bundle: Path, tmp_path: Path) -> None:
    bundle.write_text(bundle.read_text().replace('\\"factor\\":3', '\\"factor\\":4'))
    for options in ([], ["--json"]):
        ran = pull(command, inline, bundle, tmp_path / "to", *options)
        assert ran.code == 4
        assert "its bytes are not those that were written" in ran.err
    assert (ran.events[-1]["event"], ran.events[-1]["ok"]) == ("summary", False)
    assert not (tmp_path / "to").exists()


def test_another_output_for_the_key_is_told_and_left(inline: Bench, command: Command, tmp_path: Path) -> None:
    text = random_bytes(seed=1)
    inline.run(text)
    assert command("share", "random_bytes", "--out", str(tmp_path / "b.json")).code == 0
    here = replace(inline, prefix=tmp_path / "to")
    here.run(text)
    before = look(here.objects, random_bytes.id, text.key)
    ran = pull(command, inline, tmp_path / "b.json", here.prefix)
    assert ran.code == 4
    assert before.commit is not None
    assert f"has the output {before.commit.output[:8]} for this key" in ran.err
    ending = f"invalidate {text.key[:8]} --reason TEXT --prefix {here.prefix}"
    assert f"`marin-pipeline {ending}` ends it, or pull into another --prefix" in ran.err
    assert look(here.objects, random_bytes.id, text.key) == before
    assert command("invalidate", text.key, "--reason", "theirs", "--prefix", str(here.prefix)).code == 0
    assert pull(command, inline, tmp_path / "b.json", here.prefix).code == 0


def test_an_ancestor_that_came_out_otherwise_here_is_told(inline: Bench, command: Command, tmp_path: Path) -> None:
    text = random_bytes(seed=1)
    inline.run(echo(text=text))
    here = replace(inline, prefix=tmp_path / "to")
    here.run(text)
    ran = pull(command, inline, "echo", here.prefix)
    assert ran.code == 0
    assert f"here {random_bytes.id} {text.key[:8]} came out otherwise" in ran.out


def test_a_store_that_has_moved_on_is_told_and_nothing_is_taken(
    inline: Bench, command: Command, tmp_path: Path
) -> None:
    text = random_bytes(seed=1)
    inline.run(text)
    assert command("share", "random_bytes", "--out", str(tmp_path / "b.json")).code == 0
    inline.run(text, force="random_bytes")
    ran = pull(command, inline, tmp_path / "b.json", tmp_path / "to")
    assert ran.code == 4
    assert "there, and the bundle says" in ran.err
    assert not (tmp_path / "to").exists()


def test_a_store_that_has_nothing_of_a_bundle_is_told_in_one_line_with_where_it_was(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    other = replace(inline, prefix=tmp_path / "other")
    other.run(echo(text=random_bytes(seed=1)))
    for shared_from, told in (
        ("gs://lab/a", "the bundle says that it was gs://lab/a, which --from can name"),
        (LOCAL, "ask where it was shared from"),
    ):
        tree = Bundle.loads(bundle.read_bytes(), "it")
        bundle.write_bytes(replace(tree, source=shared_from).dumps())
        ran = pull(command, other, bundle, tmp_path / "to")
        line = f"{other.prefix}: nothing of the bundle is there; {told}"
        assert (ran.code, ran.err) == (4, f"error: {line}\nnothing was taken\n")
        ran = command("reproduce", str(bundle), "--from", str(other.prefix))
        assert ran.code == 4
        assert ran.out.splitlines()[-1] == f"could not be verified: {line}"


def test_a_store_that_a_pull_has_filled_stands_for_the_one_that_was_shared_from(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    """How one publishes: computed in one store, pulled into another, and the bundle sent."""
    public, mine = tmp_path / "public", tmp_path / "mine"
    assert pull(command, inline, bundle, public, "--deep").code == 0
    assert command("share", "pulled/times", "--prefix", str(public), "--out", str(tmp_path / "second.json")).code == 0
    shutil.rmtree(inline.prefix)
    for number, given in enumerate((bundle, tmp_path / "second.json")):
        to = f"{mine}{number}"
        ran = command("pull", str(given), "--from", str(public), "--prefix", to, "--deep", "--json")
        assert (ran.code, ran.events[-1]["name"]) == (0, "ada/pulled/times@1"), ran.err
        assert command("verify", "--level", "full", "--prefix", to).code == 0
        assert str(tmp_path) not in given.read_text()


def test_a_store_in_which_the_same_was_made_again_stands_for_the_one_that_was_shared_from(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    there = replace(inline, prefix=tmp_path / "there")
    there.run(TARGET)
    assert pull(command, there, bundle, tmp_path / "mine", "--deep").code == 0
    assert command("verify", "--level", "full", "--prefix", str(tmp_path / "mine")).code == 0
    taken, made = (look(open_objects(str(at)), times.id, TARGET.key).commit for at in (tmp_path / "mine", there.prefix))
    assert taken is not None
    assert made is not None
    assert (taken.attempt, taken.started) == (made.attempt, made.started)  # it says who made these bytes


@pytest.mark.parametrize(
    "pattern", ["attempts/*/out/words.txt", "attempts/*/manifest.json", "spec.json", "commits/1.json"]
)
@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_what_is_damaged_in_the_store_is_named_and_not_committed(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path, pattern: str, how: str
) -> None:
    file = next(step_folder(inline, words(text="a b")).glob(pattern))
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:] if how == "flipped" else data[:-1])
    if how == "missing":
        file.unlink()
    ran = pull(command, inline, bundle, tmp_path / "to", "--deep")
    assert ran.code == 4
    assert words(text="a b").key[:8] in ran.err or file.name in ran.err
    assert not list((tmp_path / "to").glob(f"steps/{words.id}/*/commits/*"))
    if how == "flipped" and pattern.endswith("words.txt"):
        assert "take it from another store, or have it made anew there with --force" in ran.err
    file.write_bytes(data)
    assert pull(command, inline, bundle, tmp_path / "to", "--deep").code == 0
    assert command("verify", "--level", "full", "--prefix", str(tmp_path / "to")).code == 0


@pytest.mark.parametrize(
    "pattern",
    ["steps/**/manifest.json", "steps/**/spec.json", "steps/**/commits/1.json", "origins/*", "code/*"],
)
@pytest.mark.parametrize("how", ["huge", "endless"])
def test_a_record_without_end_is_named_and_not_read(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path, pattern: str, how: str
) -> None:
    file = next(inline.prefix.glob(pattern))
    file.unlink()
    if how == "huge":
        with file.open("wb") as opened:
            opened.truncate(2**40)
    else:
        file.symlink_to("/dev/zero")
    ran = pull(command, inline, bundle, tmp_path / "to", "--deep")
    assert ran.code == 4
    assert str(file) in ran.err
    assert how == "endless" or "bytes, which no such object has; it is damaged or not ours" in ran.err
    ran = command("reproduce", str(bundle), "--from", str(inline.prefix), "--deep", "--to", str(tmp_path / "again"))
    if pattern != "origins/*":  # the bundle has them
        assert ran.code != 0
        assert str(file) in ran.err + ran.out
    assert command("verify", "--level", "full").code != 0
    assert pattern == "code/*" or command("share", "times").code != 0


@pytest.mark.parametrize("pattern", ["origins/*", "code/*", "files/*/*"])
@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_provenance_that_is_damaged_in_the_store_is_named_and_nothing_is_committed(
    inline: Bench, command: Command, tmp_path: Path, pattern: str, how: str
) -> None:
    (tmp_path / "text").write_text("one line")
    inline.run(sizes(files={"a": LocalFile(tmp_path / "text")}))
    assert command("share", "sizes", "--out", str(tmp_path / "b.json")).code == 0
    (file,) = inline.prefix.glob(pattern)
    data = file.read_bytes()
    file.unlink()
    if how == "flipped":
        file.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:] if len(data) > 50 else b"one LINE")
    ran = pull(command, inline, tmp_path / "b.json", tmp_path / "to")
    assert ran.code == 4
    assert str(file) in ran.err
    assert not list((tmp_path / "to").glob("steps/**/commits/*"))


def test_what_was_pulled_is_a_root_until_it_is_dropped(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    pull(command, inline, bundle, to)
    objects = open_objects(str(to))
    assert not collect(objects, datetime.timedelta(0), delete=True).items
    assert command("name", "--drop", "pulled/times@1", "--prefix", str(to)).code == 0
    assert command("name", "number", "x", "--prefix", str(to)).code == 2


def test_a_pulled_output_can_be_shared_and_pulled_again(
    inline: Bench, command: Command, bundle: Path, tmp_path: Path
) -> None:
    pull(command, inline, bundle, tmp_path / "one", "--deep")
    shutil.rmtree(inline.prefix)
    ran = command("share", "pulled/times", "--prefix", str(tmp_path / "one"), "--out", str(tmp_path / "second.json"))
    assert ran.code == 0
    source = ("--from", str(tmp_path / "one"), "--prefix", str(tmp_path / "two"))
    assert command("pull", str(tmp_path / "second.json"), *source, "--deep").code == 0
    assert load(TARGET.key, prefix=str(tmp_path / "two")).value == 6


def test_another_process_pulls_what_a_program_has_made(program: Program, tmp_path: Path) -> None:
    """The whole way with programs: run, share, pull, run again with nothing to do."""
    hello, theirs, mine = ROOT / "experiments" / "hello.py", tmp_path / "theirs", tmp_path / "mine"
    tool_program = ("-c", "from marin_pipeline.tool import main; main()")
    assert program(hello, prefix=theirs).code == 0
    shared = program(*tool_program, "share", "multiply", "--out", str(tmp_path / "b.json"), prefix=theirs)
    assert shared.code == 0
    ran = program(*tool_program, "pull", str(tmp_path / "b.json"), "--from", str(theirs), "--deep", prefix=mine)
    assert ran.code == 0, ran.err
    shutil.rmtree(theirs)
    again = program(hello, "--json", prefix=mine)
    assert {step["status"] for step in again.summary.values()} == {"cached"}
