"""A run keeps where its outputs come from: the code that was declared, repository, packages, local files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from marin_pipeline import LocalFile
from marin_pipeline.core.errors import InputError
from marin_pipeline.core.source import code_digest, content_of
from marin_pipeline.run import git_state as git_module
from marin_pipeline.run.git_state import git_state, without_credentials
from marin_pipeline.run.installed import packages
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.objects import open_objects
from marin_pipeline.store.origins import Origin, read_origin
from marin_pipeline.store.snapshots import Snapshot, read_snapshot
from marin_pipeline.store.verify import Verifier
from tests.conftest import ROOT, Program
from tests.run.sample_steps import add, first_line, number, sizes, times, words
from tests.run.sessions import Bench, step_folder

HELPER = "FACTOR = 2\n"
EXPERIMENT = """
from marin_pipeline import Artifact, Context, main, step
from tools.helper import FACTOR


@step
def one(ctx: Context, x: int) -> int:
    return x * FACTOR


@step
def two(ctx: Context, x: Artifact[int]) -> int:
    return x.value


if __name__ == "__main__":
    main(two(x=one(x=3)))
"""


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, env=environment, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "project"
    (folder / "tools").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    (folder / "tools" / "__init__.py").write_text("# tools\n")
    (folder / "tools" / "helper.py").write_text(HELPER)
    (folder / "tools" / "unused.py").write_text("")
    (folder / "experiment.py").write_text(EXPERIMENT)
    return folder


def commits(store: Path) -> list[Commit]:
    return [Commit.loads(file.read_bytes(), str(file)) for file in sorted(store.glob("steps/**/commits/*.json"))]


def origins(store: Path) -> list[Path]:
    return sorted(store.glob("origins/*.json"))


def kept(store: Path) -> tuple[Origin, Snapshot]:
    """The one origin of a store, and its code."""
    (file,) = origins(store)
    objects = open_objects(str(store))
    origin = read_origin(objects, file.stem)
    return origin, read_snapshot(objects, origin.snapshot)


def test_a_run_keeps_its_code_and_every_commit_names_it(program: Program, project: Path, tmp_path: Path) -> None:
    assert program(project / "experiment.py").code == 0
    store = tmp_path / "store"
    origin, snapshot = kept(store)
    assert {commit.origin for commit in commits(store)} == {origin.digest}
    assert [dict(commit.target or {}) for commit in commits(store)] == [
        {"module": "experiment", "file": "experiment.py", "qualname": name, "main": True} for name in ("one", "two")
    ]
    mine = {path: data.decode() for path, data in snapshot.files.items() if path.startswith("project/")}
    assert mine == {
        "project/pyproject.toml": '[project]\nname = "mine"\n',
        "project/experiment.py": EXPERIMENT,
        "project/tools/__init__.py": "# tools\n",
        "project/tools/helper.py": HELPER,
    }
    engine = {str(path.relative_to(ROOT)) for path in (ROOT / "marin_pipeline").rglob("*.py")}
    assert {f"packages/{path}" for path in engine} <= snapshot.files.keys()
    assert {"packages/marin_pipeline/py.typed", "packages/steps/code.lock"} <= snapshot.files.keys()
    assert str(tmp_path) not in origin.data.decode()
    assert (origin.git, origin.python) == (None, ".".join(map(str, sys.version_info[:3])))
    assert origin.packages["numpy"].version == origin.fingerprint["versions"]["numpy"]


def test_the_snapshot_runs_somewhere_else_and_gives_the_same_keys(
    program: Program, project: Path, tmp_path: Path
) -> None:
    assert program(project / "experiment.py").code == 0
    _, snapshot = kept(tmp_path / "store")
    shutil.rmtree(project)
    snapshot.unpack(tmp_path / "elsewhere")
    path = {"PYTHONPATH": str(tmp_path / "elsewhere" / "packages")}
    again = program(tmp_path / "elsewhere" / "project" / "experiment.py", "plan", "--json", extra=path)
    assert {event["status"] for event in again.events} == {"cached"}


def test_code_inside_the_project_is_kept_there_once(program: Program, tmp_path: Path) -> None:
    assert program(ROOT / "experiments" / "hello.py").code == 0
    _, snapshot = kept(tmp_path / "store")
    assert {path.partition("/")[0] for path in snapshot.files} == {"project"}
    assert {"project/experiments/hello.py", "project/marin_pipeline/cli.py", "project/steps/train.py"} <= (
        snapshot.files.keys()
    )


def test_a_run_that_finds_everything_done_writes_no_origin(program: Program, project: Path, tmp_path: Path) -> None:
    assert program(project / "experiment.py").code == 0
    (project / "experiment.py").write_text(f"{EXPERIMENT}# said anew\n")
    assert program(project / "experiment.py").code == 0
    assert len(origins(tmp_path / "store")) == 1
    assert len(list((tmp_path / "store").glob("code/*"))) == 1
    assert program(project / "experiment.py", "one.x=4").code == 0
    assert len(origins(tmp_path / "store")) == 2, "the comment is part of the code that is kept"


def test_runs_of_one_state_share_their_record(program: Program, project: Path, tmp_path: Path) -> None:
    for x in (3, 4, 5):
        assert program(project / "experiment.py", f"one.x={x}").code == 0
    assert len(commits(tmp_path / "store")) == 6
    assert len(origins(tmp_path / "store")) == 1


def test_two_projects_are_told_apart(program: Program, project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text("")
    (other / "shared_step.py").write_text(
        "from marin_pipeline import Context, step\n\n\n@step\ndef shared(ctx: Context) -> int:\n    return 1\n"
    )
    text = EXPERIMENT.replace("from tools", "from shared_step import shared\nfrom tools")
    (project / "experiment.py").write_text(text.replace("one(x=3)", "shared()"))
    assert program(project / "experiment.py", extra={"PYTHONPATH": f"{other}:{ROOT}"}).code == 0
    _, snapshot = kept(tmp_path / "store")
    assert {"others/1/shared_step.py", "others/1/pyproject.toml"} <= snapshot.files.keys()
    targets = {commit.target["qualname"]: commit.target for commit in commits(tmp_path / "store") if commit.target}
    assert targets["shared"] == {
        "module": "shared_step",
        "file": "shared_step.py",
        "qualname": "shared",
        "main": False,
    }


def test_bytes_that_were_digested_are_what_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("def f():\n    return 1\n")
    (stamp,) = code_digest(file, "f").files
    file.write_text("def f():\n    return 2\n")
    assert content_of(stamp) == b"def f():\n    return 1\n", "they are still in memory"
    code_digest(file, "f")
    with pytest.raises(InputError, match=r"code\.py: was edited after the steps were declared"):
        content_of(stamp)
    file.write_text("# a comment\ndef f():\n    return 1\n")
    assert content_of(stamp) == file.read_bytes()


# Git ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(project: Path) -> Path:
    git(project.parent, "init", "-q")
    git(project.parent, "add", ".")
    git(project.parent, "commit", "-qm", "first")
    return project.parent


def test_a_clean_tree_and_a_dirty_one(repository: Path) -> None:
    project = repository / "project"
    clean = git_state(project)
    assert clean is not None
    assert (clean.commit, clean.branch, clean.root) == (git(repository, "rev-parse", "HEAD"), "main", "project")
    assert (clean.patch, clean.is_dirty, clean.remote, clean.note) == ("", False, None, "")
    (project / "untracked.py").write_text("x")
    assert git_state(project) == clean
    (project / "experiment.py").write_text(f"{EXPERIMENT}# é\n")
    git(repository, "add", "project/experiment.py")
    (project / "tools" / "helper.py").write_text("FACTOR = 5\n")
    dirty = git_state(project)
    assert dirty is not None
    assert dirty.is_dirty
    git(repository, "stash")
    (repository / "a.patch").write_text(dirty.patch or "")
    git(repository, "apply", "a.patch")
    assert (project / "tools" / "helper.py").read_text() == "FACTOR = 5\n"
    assert (project / "experiment.py").read_text() == f"{EXPERIMENT}# é\n"


def test_code_that_git_does_not_track_is_named(repository: Path) -> None:
    project = repository / "project"
    files = ["experiment.py", "exp.py", "tools/ignored.py", "tools/helper.py", "[a].py"]
    assert (state := git_state(project, files[:1])) is not None
    assert (state.untracked, state.is_dirty) == ((), False)
    (repository / ".git" / "info" / "exclude").write_text("ignored.py\n")
    for name in ("exp.py", "tools/ignored.py", "[a].py", "not_kept.py"):
        (project / name).write_text("x = 1\n")
    state = git_state(project, files)
    assert state is not None
    assert (state.untracked, state.patch, state.is_dirty) == (("[a].py", "exp.py", "tools/ignored.py"), "", True)


def test_a_long_patch_or_one_that_is_no_text_is_left_out_and_that_is_said(repository: Path) -> None:
    (repository / "project" / "experiment.py").write_text("x" * (git_module.LONGEST_PATCH + 1))
    found = git_state(repository)
    assert found is not None
    assert (found.patch, found.note, found.is_dirty) == (None, "the patch is longer than 1024 KiB", True)
    (repository / "project" / "experiment.py").write_bytes(b"caf\xe9\n")
    found = git_state(repository)
    assert found is not None
    assert (found.patch, found.note) == (None, "the patch is not UTF-8")


def test_without_git_a_repository_or_a_commit_there_is_no_state(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(tmp_path) is None
    git(project, "init", "-q")
    assert git_state(project) is None
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    assert git_state(project) is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(project) is None


def test_a_git_that_hangs_or_asks_is_not_waited_for(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_module, "SECONDS", 0.2)
    assert git_state(project) is None


def test_what_a_hook_has_set_does_not_mislead(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_state(repository) is not None


def test_no_program_of_the_repository_is_run(repository: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    for option in ("core.fsmonitor", "diff.external", "diff.x.command", "diff.x.textconv", "core.pager"):
        git(repository, "config", option, f"touch {seen}; true")
    (repository / ".gitattributes").write_text("*.py diff=x\n")
    (repository / "project" / "experiment.py").write_text("changed = 1\n")
    found = git_state(repository)
    assert found is not None
    assert "changed = 1" in (found.patch or "")
    assert not seen.exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ada:secret@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://se:cr@et@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://secret@example.org/a/b.git?token=secret#secret", None),
        ("https://se/cret@example.org/a/b.git", None),
        ("https://a:1/cret@example.org/a/b.git", None),
        ("https://se?cret@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://example.org/a/b.git;token=secret", None),
        ("https://example.org/a%3btoken=secret", None),
        ("https:/ada:secret@example.org/a/b.git", None),
        ("https:/secret/b.git", None),
        ("oauth2:secret@example.org:a/b.git", None),
        ("ada:secret@example.org:a", None),
        ("ext::ssh -i key ada:secret@example.org %S a/b.git", None),
        ("ssh://git@example.org:a/b.git", None),
        ("ssh://git@example.org:22/a/b.git", "ssh://example.org:22/a/b.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("secret@example.org:a/b.git", "example.org:a/b.git"),
        ("/home/ada/b.git", None),
        ("../b", None),
        ("https://[::1/b.git", None),
        ("file:///home/ada/b.git", None),
        ("", None),
    ],
)
def test_no_credentials_are_in_a_remote(url: str, shown: str | None, repository: Path) -> None:
    assert without_credentials(url) == shown
    if url:
        git(repository, "remote", "add", "origin", url)
        found = git_state(repository)
        assert found is not None
        assert found.remote == shown


# Packages -------------------------------------------------------------------------------------------------------------


def distribution(folder: Path, name: str, version: str, record: str | None) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: other\n"
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(text)
    if record is not None:
        (folder / f"{name}-{version}.dist-info" / "RECORD").write_text(record)


def test_a_package_has_one_digest_wherever_it_is_installed(tmp_path: Path) -> None:
    code = "a/x.py,sha256=abc,5\na/y.so,sha256=def,6\n"
    distribution(tmp_path / "one", "My.Package", "1.0", f"../../bin/a,sha256=1,2\n{code}a/__pycache__/x.pyc,,\n")
    distribution(tmp_path / "two", "My.Package", "1.0", f"{code}My.Package-1.0.dist-info/INSTALLER,sha256=9,3\n")
    distribution(tmp_path / "three", "My.Package", "1.0", code.replace("abc", "abd"))
    one, two, three = (packages([str(tmp_path / name)]) for name in ("one", "two", "three"))
    assert one == two != three
    assert list(one) == ["my-package"]
    assert one["my-package"].version == "1.0"


def test_of_two_of_one_name_the_one_that_is_imported_counts(tmp_path: Path) -> None:
    distribution(tmp_path / "one", "a_b", "2", None)
    distribution(tmp_path / "two", "a-b", "1", "")
    (tmp_path / "two" / "broken-1.dist-info").mkdir()
    found = packages([str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "missing"), ""])
    assert (found["a-b"].version, found["a-b"].record) == ("2", None)
    assert "broken" not in found


# Local files ----------------------------------------------------------------------------------------------------------


def test_local_files_are_kept_by_their_content(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_pipeline.store.kept_files.SMALL", 10)
    texts = {"small": "small", "large": "large" * 1000, "empty": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = {name: LocalFile(tmp_path / name) for name in texts}
    target = sizes(files={**files, "twice": LocalFile(tmp_path / "small")})
    assert bench.run(target).ok
    for name, file in files.items():
        assert (bench.prefix / layout.kept_file(file.sha256)).read_text() == texts[name]
    assert len(list(bench.prefix.glob("files/*/*"))) == 3


def test_a_step_that_fails_keeps_no_local_file(inline: Bench, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff")
    assert not inline.run(first_line(file=LocalFile(tmp_path / "text"))).ok
    assert not list(inline.prefix.glob("files/*/*"))


# The store ------------------------------------------------------------------------------------------------------------


def findings(bench: Bench, key: str, level: str = "full") -> list[str]:
    (id,) = (id for id in (number.id, first_line.id) if (bench.prefix / layout.step(id, key)).exists())
    verified = Verifier(bench.objects, level).verify(id, key)  # pyright: ignore[reportArgumentType]
    assert verified is not None
    return [str(finding) for finding in verified.findings]


def test_verify_finds_what_is_missing_or_changed_of_an_origin(inline: Bench, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one line")
    target = first_line(file=LocalFile(tmp_path / "text"))
    inline.run(target)
    assert findings(inline, target.key) == []
    for pattern in ("origins/*", "code/*", "files/*/*"):
        (file,) = inline.prefix.glob(pattern)
        data = file.read_bytes()
        file.write_bytes(data[:-3])
        (problem,) = findings(inline, target.key)
        assert problem.startswith(f"{file}: ")
        file.unlink()
        for level in ("present", "intact", "full"):
            (problem,) = findings(inline, target.key, level)
            assert problem.startswith(f"{file}: is missing")
        file.write_bytes(data)
    assert findings(inline, target.key) == []


def test_commits_without_an_origin_are_read_and_verified_as_before(inline: Bench) -> None:
    target = number(value=1)
    inline.run(target)
    (file,) = step_folder(inline, target).glob("commits/1.json")
    commit = Commit.loads(file.read_bytes(), "")
    older = replace(commit, origin="", target=None)
    assert not {"origin", "target"} & json.loads(older.dumps()).keys()
    file.write_bytes(older.dumps())
    assert look(inline.objects, number.id, target.key).commit == older
    for folder in ("origins", "code"):
        shutil.rmtree(inline.prefix / folder)
    assert findings(inline, target.key) == []
    assert inline.outcomes(add(numbers=[target])) == {"number": "cached", "add": "done"}


def test_what_was_taken_over_keeps_the_origin_of_what_made_it(inline: Bench) -> None:
    first = add(numbers=[number(value=2)])
    inline.run(first)
    second = add(numbers=[times(count=words(text="a b"))])
    inline.run(second)
    made, taken = (look(inline.objects, add.id, each.key).commit for each in (first, second))
    assert made is not None
    assert taken is not None
    assert taken.adopted_from is not None
    assert (taken.origin, taken.target) == (made.origin, made.target)
