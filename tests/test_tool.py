"""The program `marin-pipeline`: its options, and what it says of a store that is not there or is empty."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from marin_pipeline import tool
from marin_pipeline.core.visible import visible
from marin_pipeline.store import layout
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.sealed import seal, unseal
from tests.conftest import Ran, environment
from tests.run.conftest import inline
from tests.run.sample_steps import number
from tests.run.sessions import Bench
from tests.stores import environment_of

__all__ = ["inline"]


def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    monkeypatch.setattr("sys.argv", ["marin-pipeline", *arguments])
    with pytest.raises(SystemExit) as left:
        tool.main()
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return Ran(int(left.value.code or 0), printed.out, printed.err)


def test_prefix_and_json_may_stand_before_the_command_and_after(
    inline: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inline.run(number(value=1))
    prefix = str(inline.prefix)
    after = ran(monkeypatch, capsys, "show", "number", "--prefix", prefix, "--json")
    assert after.events[0]["key"] == number(value=1).key
    for before in (["--prefix", prefix, "--json"], ["--json", f"--prefix={prefix}"]):
        assert ran(monkeypatch, capsys, *before, "show", "number") == after
    assert ran(monkeypatch, capsys, "--prefix", prefix, "show", "number", "--json") == after


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = importlib.metadata.version("marin_pipeline")
    assert ran(monkeypatch, capsys, "--version") == Ran(0, f"marin-pipeline {version}\n", "")


def test_each_command_has_a_help_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ran(monkeypatch, capsys, "--help").out
    for command in tool.COMMANDS:
        assert command.name in whole
        asked = ran(monkeypatch, capsys, *command.name.split(), "--help")
        assert asked.out.startswith(f"usage: marin-pipeline {command.name} ")
    check, accept = (ran(monkeypatch, capsys, "code", action, "--help").out for action in ("check", "accept"))
    assert ("--run" in check, "--all" in check) == (True, False)
    assert ("--run" in accept, "--all" in accept) == (False, True)
    assert ran(monkeypatch, capsys, "code").code == 2
    assert ran(monkeypatch, capsys).code == 2


def test_a_store_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nosuch"
    words = {
        "show": ["x"],
        "logs": ["x"],
        "share": ["x"],
        "diff": ["x", "y"],
        "name": ["x"],
        "invalidate": ["x", "--reason", "y"],
    }
    asked = [command.name for command in tool.COMMANDS if command.store == "there"]
    assert len(asked) == 10
    for name in asked:
        found = ran(monkeypatch, capsys, name, *words.get(name, []), "--prefix", str(nowhere))
        assert found.code == 2
        assert f"{nowhere}: no store is there" in found.err
    assert not nowhere.exists()
    file = tmp_path / "file"
    file.write_text("text")
    assert ran(monkeypatch, capsys, "adopt", str(file), "--as", "text", "--prefix", str(nowhere)).code == 0
    assert nowhere.exists()


def test_the_code_is_checked_without_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARIN_PREFIX", "ftp://x")
    found = ran(monkeypatch, capsys, "code", "check", "--folder", str(tmp_path))
    assert "ftp" not in found.err
    assert "golden.py" in found.err


def test_an_empty_store_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, said in {
        "ls": "no step has been tried there",
        "runs": "nothing has been run there",
        "verify": "there is no output to verify",
        "gc": "nothing to collect",
    }.items():
        found = ran(monkeypatch, capsys, name, "--prefix", str(tmp_path))
        assert (found.code, said in found.out) == (0, True), found


def test_on_a_terminal_the_steps_have_a_header(inline: Bench) -> None:
    inline.run(number(value=1))
    above, below = os.openpty()
    program = "from marin_pipeline.tool import main; main()"
    subprocess.run(
        [sys.executable, "-c", program, "ls"], stdout=below, env=environment(inline.prefix), timeout=60, check=True
    )
    os.close(below)
    header, row = os.read(above, 10_000).decode().splitlines()
    os.close(above)
    assert header.split() == ["status", "key", "made", "step", "names"]
    assert row.split()[0] == "done"


STEERING = "\x1b]0;evil\x07\x9b2J\rx\u202e"


def tampered(objects: ObjectStore, id: str, key: str) -> None:
    """Everything that a record may say to people says it to the terminal."""
    path = layout.commit(id, key, 1)
    found = objects.read(path)
    assert found
    tree = unseal(found.data)
    (machine := tree["fingerprint"])["python"] = machine["processor"] = f"3{STEERING}"
    tree["arguments"] = {f"value{STEERING}": STEERING}
    objects.delete(path)
    objects.create(path, seal(tree))
    log = layout.attempt_log(id, key, tree["attempt"])
    objects.delete(log)
    objects.create(log, f"printed {STEERING}\n".encode())
    failed = {"attempt": "one", "kind": f"user{STEERING}", "message": STEERING, "traceback": "", "at": STEERING}
    objects.create(layout.failure("x", "ab" * 32, "one"), json.dumps(failed).encode())
    objects.create(layout.spec("x", "ab" * 32), b"{}")
    for run in [info.path for info in objects.list("experiments")]:
        record = objects.read(run)
        assert record
        changed = json.loads(record.data)
        changed |= {"title": STEERING, "argv": [STEERING], "owner": f"me{STEERING}"}
        objects.delete(run)
        objects.create(run, json.dumps(changed).encode())


def test_nothing_that_a_store_says_steers_the_terminal(
    inline: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = inline.run([number(value=1).named("one"), number(value=2).named("two")])
    objects = inline.objects
    for node in result.graph.nodes.values():
        tampered(objects, node.id, node.key)
    commands = ["show one", "ls", "ls --table", "ls one", "logs one", "logs one --follow", "runs", "runs tests/bench"]
    commands += [
        "diff one two",
        "diff tests/bench tests/bench",
        "name one",
        "verify",
        "gc",
        "invalidate one --reason x",
    ]
    shown = ""
    for command in commands:
        for form in ([], ["--json"]):
            found = ran(monkeypatch, capsys, *command.split(), *form, "--prefix", str(inline.prefix))
            text = found.out + found.err
            assert text == visible(text), command
            shown += f"{command}: {text}"
    assert "printed \\u001b]0;evil" in shown
    assert "Python 3\\u001b]0;evil" in shown


def test_nor_does_what_a_server_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    body = json.dumps(
                        {"error": {"code": 403, "message": f"no {STEERING}"}}, ensure_ascii=False
                    ).encode()
                    head = f"HTTP/1.1 403 {STEERING.replace(chr(13), '')}\r\nContent-Length: {len(body)}\r\n"
                    connection.sendall(
                        (head + "Content-Type: application/json\r\nConnection: close\r\n\r\n").encode() + body
                    )

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        for kind in ("gs", "s3"):
            done = subprocess.run(
                [sys.executable, "-c", "from marin_pipeline.tool import main; main()", "ls"],
                env={**environment(tmp_path), **environment_of(kind, url), "MARIN_PREFIX": f"{kind}://bucket/x"},
                capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            text = (done.stdout + done.stderr).decode()
            assert done.returncode
            assert text.startswith("error: "), text
            assert text == visible(text)
            assert kind == "s3" or "evil" in text  # the client of S3 takes no such answer for one


def test_ctrl_c_before_a_command_has_begun_ends_it_without_a_word(tmp_path: Path) -> None:
    """While words are parsed, where argparse puts back what it has not kept yet, and fails with an error of its own."""
    program = """
import argparse, os, signal, time
from marin_pipeline import tool

def interrupted(self, words):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
    finally:
        self.save_nargs

argparse.ArgumentParser.parse_intermixed_args = interrupted
tool.main()
"""
    command = [sys.executable, "-c", program, "ls", "--prefix", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
