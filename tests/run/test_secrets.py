"""The value of a secret is nowhere: not in the store, not on the screen, not in the events, done or failed."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from marin_pipeline import Secret
from marin_pipeline.core.errors import InputError
from marin_pipeline.store.commit import Failure, record_failure, write_spec
from marin_pipeline.store.local_objects import LocalObjects
from marin_pipeline.store.origins import Git, Origin, keep_origin
from tests.conftest import ROOT, Program, Ran
from tests.run import leaking_steps as leaking
from tests.run.leaking_steps import KEEPS, MAPS, RAISES

PROGRAM = ROOT / "tests" / "run" / "leaking_steps.py"
PLAIN = "hf_Pl4ntedTokenOfNobody0123456789"
ODD = 'p/lan+ted "quo\'ted" \\ tö ken&<1>%41'
MULTILINE = "-----BEGIN KEY-----\nUGxhbnRlZExpbmVPbmUxMjM0\nUGxhbnRlZExpbmVUd281Njc4\n-----END KEY-----"
BACKENDS = {"local": ["--backend", "local"], "inline": ["--backend", "inline", "--ending", "false"]}
HOLDS = "holds the value of the secret LEAK_TOKEN"


def everything_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of all that lies below a folder."""
    for path in sorted(folder.rglob("*")):
        yield f"the name of {path}", os.fsencode(path)
        if path.is_symlink():
            yield f"the link {path}", os.fsencode(os.readlink(path))
        elif path.is_file():
            yield str(path), path.read_bytes()


def where_known(value: str, folder: Path, ran: Ran) -> list[str]:
    """Where the value stands in some form."""
    quoted = urllib.parse.quote(value, safe="")
    forms = [
        *(each.encode() for each in (value, json.dumps(value)[1:-1], repr(value)[1:-1], quoted, html.escape(value))),
        value.encode().hex().encode(),
        value.encode("utf-16")[2:],
        *(b64encode(f"{user}{value}".encode())[4:-4] for user in ("", "u:", "us:", "use:", "user:")),
        *(line.encode() for line in value.splitlines() if len(line) > 20),
    ]
    found = [*everything_in(folder), ("stdout", ran.out.encode()), ("stderr", ran.err.encode())]
    return [where for where, data in found if any(form in data for form in forms)]


@pytest.mark.parametrize("value", [PLAIN, ODD, MULTILINE], ids=["plain", "odd", "multiline"])
@pytest.mark.parametrize("backend", ["local", "inline"])
def test_a_secret_that_is_given_away_in_every_way_stands_nowhere(
    backend: str, value: str, program: Program, tmp_path: Path
) -> None:
    ran = program(PROGRAM, "--json", *BACKENDS[backend], extra={"LEAK_TOKEN": value, "PYTHONUTF8": "1"})
    assert ran.code == 1, ran.err
    assert where_known(value, tmp_path, ran) == []
    events = {event["name"]: event for event in ran.events if event["event"] == "fail"}
    summary = ran.summary
    assert {name for name, step in summary.items() if step["status"] == "done"} == {"prints", "maps/fine"}
    for how in KEEPS:
        text = events[f"keeps/{how}"]["text"]
        assert (HOLDS in text) or (how == "link" and "is a link" in text), text
    for how in ("file", "value", "argument", "item"):
        assert HOLDS in events[f"maps/{how}"]["text"]
    for how in RAISES:
        if how not in ("ends", "killed"):
            assert "<secret LEAK_TOKEN>" in events[f"raises/{how}"]["text"] + events[f"raises/{how}"]["traceback"], how
    assert "<secret LEAK_TOKEN>" in events["maps/raises"]["text"]
    assert "the output 'deep/file.txt' holds" in events["keeps/file"]["text"]
    assert "the returned value holds" in events["keeps/value"]["text"]
    assert "the record 'log.txt' holds" in events["keeps/record"]["text"]
    (progress,) = [event for event in ran.events if event["event"] == "progress"]
    assert progress["figures"] == {"loss <secret LEAK_TOKEN>": 1.0}
    logs = list((tmp_path / "store").glob("steps/**/log.txt"))
    (printed,) = [text for log in logs if "the end" in (text := log.read_text())]
    assert printed.count("<secret LEAK_TOKEN>") >= 20
    assert len(logs) == len(summary) + (backend == "local") * RETRIED
    of_shards = [log.read_text() for log in (tmp_path / "store").glob("shards/**/log.txt")]
    where_they_print = of_shards if backend == "local" else [log.read_text() for log in logs]
    assert sum(text.count("shard <secret LEAK_TOKEN>") for text in where_they_print) >= 8


@pytest.mark.parametrize("backend", ["local", "inline"])
def test_the_screen_shows_no_secret_and_the_last_words_are_kept(backend: str, program: Program, tmp_path: Path) -> None:
    ran = program(PROGRAM, "-v", *BACKENDS[backend], extra={"LEAK_TOKEN": PLAIN})
    assert ran.code == 1
    assert where_known(PLAIN, tmp_path, ran) == []
    assert "ValueError: bad token <secret LEAK_TOKEN>" in ran.err
    if backend == "inline":
        assert "python <secret LEAK_TOKEN>" in ran.err
        assert "child <secret LEAK_TOKEN>" in ran.err
        assert "x" * 2**20 in ran.err
    else:
        logs = [log.read_text() for log in (tmp_path / "store").glob("steps/**/log.txt")]
        assert logs.count("last words <secret LEAK_TOKEN>\n") == 2 + RETRIED
    shown = program("-c", "from marin_pipeline.tool import main; main()", "show", "--json", "raises/message")
    assert "<secret LEAK_TOKEN>" in shown.out


RETRIED = 2
"""How often a step is begun again whose worker was killed."""


def test_a_secret_on_the_command_line_is_refused_and_not_shown(program: Program, tmp_path: Path) -> None:
    for word, told in (
        (f"prints.text={PLAIN}", "the command line holds the value of the secret LEAK_TOKEN"),
        (f"--reason=because of {PLAIN}", "the command line holds the value of the secret LEAK_TOKEN"),
        (f"prints.token={PLAIN}", "LEAK_TOKEN"),
        (f"--unknown={PLAIN}", "<secret LEAK_TOKEN>"),
        (f"prints.nothing.here={PLAIN}", "LEAK_TOKEN"),
    ):
        for command in ("run", "plan"):
            ran = program(PROGRAM, command, word, extra={"LEAK_TOKEN": PLAIN})
            assert ran.code == 2, word
            assert told in ran.err
            assert where_known(PLAIN, tmp_path, ran) == []
    assert not (tmp_path / "store" / "steps").exists()


def test_a_token_that_is_given_for_a_secret_is_not_shown_though_nobody_knows_it(program: Program) -> None:
    other = "hf_AnotherTokenThatNobodyDeclared123"
    ran = program(PROGRAM, f"prints.token={other}", extra={"LEAK_TOKEN": PLAIN})
    assert ran.code == 2
    assert "prints.token takes a secret, which is never given on the command line" in ran.err
    assert other not in ran.err + ran.out


def test_a_value_that_was_read_where_a_step_is_declared_is_refused(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "early.py"
    file.write_text(
        "from marin_pipeline import Context, Runtime, Secret, main, step\n"
        "@step\n"
        "def use(ctx: Context, text: str, other: Runtime[str] = '') -> int:\n    return 1\n"
        "if __name__ == '__main__':\n"
        "    import sys\n"
        "    value = Secret('LEAK_TOKEN').value\n"
        "    how = sys.argv.pop(1)\n"
        "    if how == 'raises':\n        raise RuntimeError(value)\n"
        "    main(use(text=value if how == 'plain' else 'x', other=value).named('used'))\n"
    )
    for how, argument in (("plain", "text"), ("runtime", "other")):
        ran = program(file, how, extra={"LEAK_TOKEN": PLAIN})
        assert ran.code == 2
        assert f"used.{argument} holds the value of the secret LEAK_TOKEN" in ran.err
        assert 'pass Secret("LEAK_TOKEN")' in ran.err
        assert where_known(PLAIN, tmp_path / "store", ran) == []
    ran = program(file, "raises", extra={"LEAK_TOKEN": PLAIN})
    assert "RuntimeError: <secret LEAK_TOKEN>" in ran.err
    assert where_known(PLAIN, tmp_path / "store", ran) == []


@pytest.mark.parametrize("hook", ["unpinned", "chain", "pinning"])
def test_what_a_step_says_of_itself_with_the_value_is_refused(hook: str, program: Program, tmp_path: Path) -> None:
    file = tmp_path / "says.py"
    value = "os.environ.get('LEAK_TOKEN', '')"
    said = {
        "unpinned": f"unpinned=lambda a: ['https://x/?t=' + {value}]",
        "chain": f"chain=lambda a: Chain({value}, 1, int)",
        "pinning": f"unpinned=lambda a: ['x'], pinning='see ' + {value}",
    }
    file.write_text(
        "import os\n"
        "from marin_pipeline import Chain, Context, Secret, main, step\n"
        f"@step({said[hook]})\n"
        "def says(ctx: Context, token: Secret) -> int:\n    return 1\n"
        "if __name__ == '__main__':\n    main(says(token=Secret('LEAK_TOKEN')))\n"
    )
    for command in (["run"], ["plan"], ["plan", "--json"], ["graph"], ["explain", "says"]):
        ran = program(file, *command, extra={"LEAK_TOKEN": PLAIN})
        assert ran.code == 2, ran.err
        assert f"says: what its step says by {hook}= {HOLDS}" in ran.err
        assert where_known(PLAIN, tmp_path, ran) == []


def test_a_record_that_would_hold_the_value_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAK_TOKEN", PLAIN)
    objects = LocalObjects(tmp_path)
    git = Git("0" * 40, f"https://host.invalid/{PLAIN}", None, "", "")
    failure = Failure("a", "user", PLAIN, "", "")
    for write in (
        partial(keep_origin, objects, Origin("0" * 64, git, "3", {}, {})),
        partial(record_failure, objects, "says", "0" * 64, failure),
        partial(write_spec, objects, "says", "0" * 64, json.dumps(PLAIN).encode()),
    ):
        with pytest.raises(InputError, match=f"would hold the value of the secret {leaking.TOKEN.name}"):
            write()
    assert not list(tmp_path.rglob("*.json"))


GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=main"]
USES = (
    "from marin_pipeline import Context, LocalFile, Secret, main, step\n"
    "@step\n"
    "def use(ctx: Context, token: Secret, file: LocalFile | None = None) -> int:\n    return 1\n"
    "if __name__ == '__main__':\n"
    "    import os\n"
    "    file = LocalFile('given') if os.path.exists('given') else None\n"
    "    main(use(token=Secret('LEAK_TOKEN'), file=file))\n"
)


def test_where_outputs_come_from_is_kept_without_secrets(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the remote's URL, in its path, in the branch, in what was changed since the commit, in flags."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (project / "use.py").write_text(USES)
    (project / "notes.txt").write_text("nothing")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "x"],
        ["checkout", "-qb", f"of-{PLAIN}"],
        ["remote", "add", "origin", f"https://user:{PLAIN}@host.invalid/{PLAIN}/x.git"],
    ):
        subprocess.run([*GIT, *words], check=True)
    (project / "notes.txt").write_text(f"the token is {PLAIN}")
    flags = {"LEAK_TOKEN": PLAIN, "XLA_FLAGS": f"--xla_dump_to=/{PLAIN}"}
    ran = program("use.py", "--json", extra=flags)
    assert ran.code == 0, ran.err
    assert where_known(PLAIN, tmp_path / "store", ran) == []
    (origin,) = [json.loads(path.read_text()) for path in (tmp_path / "store" / "origins").glob("*.json")]
    assert origin["git"]["remote"] == "https://host.invalid/<secret LEAK_TOKEN>/x.git"
    assert origin["git"]["patch"] is None
    assert "the patch holds the value of the secret LEAK_TOKEN" in json.dumps(origin["git"])


@pytest.mark.parametrize("where", ["code", "pyproject", "file"])
def test_code_or_a_local_file_that_holds_a_secret_is_refused_where_it_would_be_kept(
    where: str, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n" + (f"# {PLAIN}" if where == "pyproject" else ""))
    (project / "use.py").write_text(USES + (f"# {PLAIN}\n" if where == "code" else ""))
    if where == "file":
        (project / "given").write_text(f"token={PLAIN}")
    ran = program("use.py", extra={"LEAK_TOKEN": PLAIN})
    assert ran.code != 0
    assert HOLDS in ran.err
    assert where_known(PLAIN, tmp_path / "store", ran) == []


def test_a_secret_that_is_too_short_is_refused_before_the_step_begins(program: Program, tmp_path: Path) -> None:
    ran = program(PROGRAM, "--json", "--only", "prints", extra={"LEAK_TOKEN": "abc1234"})
    assert ran.code == 2
    assert "error: prints.token: the secret LEAK_TOKEN has a value of fewer than 8 characters" in ran.err
    assert "abc1234" not in ran.out + ran.err
    assert not (tmp_path / "store").exists()


GIVEN = (
    "from dataclasses import dataclass\n"
    "from marin_pipeline import Artifact, Context, Runtime, Secret, main, step\n"
    "@dataclass(frozen=True)\n"
    "class Place:\n    url: str\n    token: Runtime[Secret | None] = None\n"
    "@step\n"
    "def before(ctx: Context) -> int:\n    return 1\n"
    "@step\n"
    "def fetch(ctx: Context, made: Artifact[int], places: list[Place]) -> int:\n"
    "    return len(places[0].token.value)\n"
    "if __name__ == '__main__':\n"
    "    main(fetch(made=before(), places=[Place('a', Secret('LEAK_TOKEN'))]))\n"
)


@pytest.mark.parametrize("backend", ["local", "inline"])
def test_a_secret_that_is_not_set_is_told_by_the_plan_and_refuses_the_run_before_anything_starts(
    backend: str, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "given.py"
    file.write_text(GIVEN)
    told = "fetch.places[0].token: the secret LEAK_TOKEN is not set; export LEAK_TOKEN=... where the step runs"
    ran = program(file, "plan")
    assert (ran.code, ran.out.splitlines()[-1].split(maxsplit=2)[::2]) == (0, ["secret", told])
    before, fetch = program(file, "plan", "--json").events
    assert "unset_secrets" not in before
    (unset,) = fetch["unset_secrets"]
    assert (unset["argument"], unset["variable"]) == ("places[0].token", "LEAK_TOKEN")
    ran = program(file, "--backend", backend)
    assert (ran.code, ran.err) == (2, f"error: {told}\nnothing was started\n")
    assert not (tmp_path / "store").exists()
    assert program(file, "--until", "before", "--backend", backend).code == 0
    assert program(file, "--only", "before", "--backend", backend).code == 0
    assert program(file, "--backend", backend, extra={"LEAK_TOKEN": PLAIN}).code == 0
    ran = program(file, "--backend", backend)  # what is done needs none
    assert ran.code == 0
    assert "is not set" not in program(file, "plan").out


@pytest.mark.parametrize("backend", ["local", "inline"])
def test_a_child_that_outlives_its_step_holds_nothing_up(backend: str, program: Program, tmp_path: Path) -> None:
    file = tmp_path / "leaves.py"
    file.write_text(
        "import subprocess\n"
        "from marin_pipeline import Context, Secret, main, step\n"
        "@step\n"
        "def leaves(ctx: Context, token: Secret) -> int:\n"
        "    subprocess.Popen(['sh', '-c', 'sleep 120; echo late'])\n"
        "    print('before', token.value)\n"
        "    return 1\n"
        "if __name__ == '__main__':\n    main(leaves(token=Secret('LEAK_TOKEN')))\n"
    )
    done = subprocess.run(
        [sys.executable, str(file), "--backend", backend],
        env={**os.environ, "LEAK_TOKEN": PLAIN, "MARIN_PREFIX": str(tmp_path / "store")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0
    (log,) = (tmp_path / "store").glob("steps/**/log.txt")
    assert log.read_text() == "before <secret LEAK_TOKEN>\n"


def test_a_step_without_secrets_prints_to_its_file(program: Program, tmp_path: Path) -> None:
    """No pipe and no process: the log is what descriptor 1 is."""
    file = tmp_path / "plain.py"
    file.write_text(
        "import os\n"
        "from marin_pipeline import Context, main, step\n"
        "@step\n"
        "def plain(ctx: Context) -> bool:\n    return os.path.sameopenfile(1, 2) and os.lseek(1, 0, 1) >= 0\n"
        "if __name__ == '__main__':\n    main(plain())\n"
    )
    ran = program(file, "--json")
    assert ran.code == 0
    assert (Path(ran.summary["plain"]["path"]) / "value.json").read_text() == "true"


def test_names_of_secrets_are_in_specs_and_records(program: Program, tmp_path: Path) -> None:
    ran = program(PROGRAM, "--only", "prints", extra={"LEAK_TOKEN": PLAIN})
    assert ran.code == 0, ran.err
    (spec,) = (tmp_path / "store").glob("steps/**/spec.json")
    assert '{"~secret":"LEAK_TOKEN"}' in spec.read_text()


def test_all_ways_are_tried() -> None:
    assert len(leaking.all_of()) == 1 + len(RAISES) + len(KEEPS) + len(MAPS)
    assert Secret("LEAK_TOKEN").name == leaking.TOKEN.name
