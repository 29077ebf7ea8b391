"""What the tests share: programs that are run as a user runs them, each against a store of its own."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.stores import counted, gs_prefix, gs_server, prefix, s3_prefix, s3_server, shared_prefix

__all__ = ["gs_prefix", "gs_server", "prefix", "s3_prefix", "s3_server", "shared_prefix"]

# The same examples each time: a check that passes once passes again. `MARIN_TEST_PROFILE=searching` tries others.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("searching", deadline=None)
hypothesis.settings.load_profile(os.environ.get("MARIN_TEST_PROFILE", "repeatable"))


def pytest_configure(config: pytest.Config) -> None:
    """What jax compiles is compiled once for all processes of a run of the tests, which start many for the same small
    models. The folder is new for each run and gone after it; variables that are set already are left as they are.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="compiled-")
    kept = {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    os.environ.update(kept)

    def leave() -> None:
        for name in kept:
            os.environ.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(leave)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was tested on which store."""
    passed = [each for each in terminalreporter.stats.get("passed", []) if each.when == "call"]
    if lines := list(counted(passed)):
        terminalreporter.section("passed, by store")
        for line in lines:
            terminalreporter.line(line)


ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Ran:
    """What a program did."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout; every line must be one."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """The steps of the last line of `run --json`, by name."""
        last = self.events[-1]
        assert last["event"] == "summary", last
        return {step["name"]: step for step in last["steps"]}


Program = Callable[..., Ran]


@pytest.fixture(autouse=True, scope="session")
def permissions_of_the_tests() -> Iterator[None]:
    """Committed files are read-only, and many tests damage them, as disks and careless people do: whoever runs the
    tests is not stopped by that, as root is not.
    """
    opened: Any = Path.open

    def forced(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            return opened(self, mode, *args, **kwargs)
        except PermissionError:
            if not set(mode) & set("wa+") or not self.is_file():
                raise
            self.chmod(self.stat().st_mode | 0o200)
            return opened(self, mode, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", forced)
        yield


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no program that a test starts, writes into this user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


def standard_docstrings(package: str) -> Iterator[str]:
    """Real text that every machine has: the docstrings of a package of the standard library."""
    for file in sorted((Path(sysconfig.get_path("stdlib")) / package).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield text


def environment(prefix: Path | str) -> dict[str, str]:
    """The environment of a program whose store lies at `prefix`."""
    return {**os.environ, "MARIN_PREFIX": str(prefix), "COLUMNS": "120"}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs `python FILE ARGUMENTS` with a store under the test's own folder."""

    def run(
        file: Path | str,
        *arguments: str,
        prefix: Path = tmp_path / "store",
        extra: Mapping[str, str] | None = None,
        python: tuple[str, ...] = (),
    ) -> Ran:
        done = subprocess.run(
            [sys.executable, *python, str(file), *arguments],
            capture_output=True,
            text=True,
            env={**environment(prefix), **(extra or {})},
            timeout=600,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
