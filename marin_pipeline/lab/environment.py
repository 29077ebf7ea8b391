"""The Python and the packages that a record was made with: whether they are those that are here, and where not, a
virtual environment of them.

An environment is built once and kept in the user's cache, named by what is in it. Only what an index has is installed,
in exactly the recorded versions and nothing beside them; `marin_pipeline` and the project itself are code, which the
snapshot has.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marin_pipeline.core.canonical import digest
from marin_pipeline.core.errors import InputError
from marin_pipeline.core.visible import OutputLost
from marin_pipeline.core.whole_file import write_whole
from marin_pipeline.run.figures import counted
from marin_pipeline.run.installed import packages as installed
from marin_pipeline.store.origins import Origin, Package

How = Literal["auto", "present", "recorded"]
"""`auto`: the present environment when its versions are the recorded ones, else one that is built."""

NEVER_INSTALLED = frozenset({"marin-pipeline", "pip"})
"""Code that comes with the snapshot, and the installer, which no step imports."""

COMPLETE = "complete.json"
"""Written last into an environment: what could not be installed there."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_NOT_THERE = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)==")
_NO_ANSWER = re.compile(r"WARNING: Retrying|onnection|name resolution|timed out|SSLError", re.IGNORECASE)
_INSTALLS = "Installing collected packages"
"""What pip says before it is silent for the longest time."""

EVERY = 5.0
"""Seconds between two lines about what is being built."""

NAMED = 8
"""Packages that are named one by one; more are counted."""


@dataclass(frozen=True)
class PackageChange:
    """A package that is not here as it was recorded."""

    name: str
    old: str | None
    """Version in the record; None for what was not installed."""
    new: str | None
    """Version here; equal where the same version holds other files."""

    def __str__(self) -> str:
        if self.old == self.new:
            return f"{self.name} {self.old} (the same version, other files)"
        return f"{self.name} {self.old} → {self.new or 'not installed'}"


@dataclass(frozen=True)
class Environment:
    """What runs the steps again."""

    python: str
    """The program."""
    built: bool
    """It is a virtual environment of the recorded versions."""
    differences: tuple[PackageChange, ...]
    """What is not in it as it was recorded."""
    skipped: tuple[str, ...] = ()
    """Packages that no index has."""
    is_other_python: bool = False
    """Its Python is of another minor version than the recorded one, whose wheels have other files."""

    @property
    def notes(self) -> Iterator[str]:
        """What a reader of the verdict should know."""
        if self.skipped:
            yield f"not in the environment, as no index has them: {', '.join(self.skipped)}"
        left = [each for each in self.differences if each.name not in self.skipped]
        versions = [each for each in left if each.old != each.new]
        files = [each for each in left if each.old == each.new]
        if versions:
            yield f"packages of other versions than the record: {named(versions)}"
        if files:
            which = "" if self.is_other_python else f" ({named([each.name for each in files])})"
            why = ", as this is another Python" if self.is_other_python else ""
            yield f"{counted(len(files), 'package')} of the recorded version with other files{which}{why}"


def named(changes: Collection[object]) -> str:
    """Some changes for people; more than a few are counted."""
    shown = ", ".join(str(each) for each in list(changes)[:NAMED])
    return shown if len(changes) <= NAMED else f"{shown} and {len(changes) - NAMED} more"


def choose(origin: Origin, how: How, own: Collection[str], tell: Callable[[str], None]) -> Environment:
    """What runs the steps of a record again.

    Args:
        own: names of distributions whose code the snapshot has.
        tell: told what takes a while.

    Raises:
        InputError: when an environment is to be built and cannot be.
    """
    wanted = {name: each for name, each in origin.packages.items() if name not in NEVER_INSTALLED | set(own)}
    here = installed()
    found = differences(wanted, here)
    versions = [change for change in found if change.old != change.new]
    present = ".".join(map(str, sys.version_info[:2]))
    is_other = minor(origin.python) != present
    is_same = not is_other and not versions
    if how == "present" or (how == "auto" and is_same):
        return Environment(sys.executable, False, tuple(found), is_other_python=is_other)
    if how == "auto":
        python = "" if not is_other else f"Python {origin.python} → {sys.version.split()[0]}; "
        tell(f"the environment is not the recorded one: {python}{named(versions)}".removesuffix("; "))
    return _built(origin.python, wanted, tell)


def differences(wanted: Mapping[str, Package], here: Mapping[str, Package]) -> list[PackageChange]:
    """The recorded packages that are not here, in another version, or with other files; by name. What is here beyond
    the record does not count.
    """
    found: list[PackageChange] = []
    for name, package in sorted(wanted.items()):
        present = here.get(name)
        if present is None or present.version != package.version:
            found.append(PackageChange(name, package.version, present.version if present else None))
        elif None not in (package.record, present.record) and package.record != present.record:
            found.append(PackageChange(name, package.version, present.version))
    return found


def minor(version: str) -> str:
    """`3.11` of `3.11.7`."""
    return ".".join(version.split(".")[:2])


def cache_folder() -> Path:
    """Where environments are kept: `XDG_CACHE_HOME`, else `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path("~/.cache").expanduser()) / "marin_pipeline" / "environments"


def _built(python: str, wanted: Mapping[str, Package], tell: Callable[[str], None]) -> Environment:
    versions = {name: package.version for name, package in wanted.items()}
    for name, version in versions.items():  # pip would take anything else for an option, or for an address
        if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
            raise InputError(f"the record names the package {name!a} {version!a}, which cannot be one")
    folder = cache_folder() / digest({"python": minor(python), "packages": versions})[:16]
    program = folder / "bin" / "python"
    try:
        with _alone(folder):
            if not (folder / COMPLETE).is_file():
                interpreter = find_python(python)
                tell(f"building an environment of {len(versions)} packages with {interpreter}: {folder}")
                _run([interpreter, "-m", "venv", "--clear", str(folder)], folder)
                skipped = _install(program, versions, folder, tell)
                _complete(folder, {"python": python, "skipped": skipped})
            skipped = json.loads((folder / COMPLETE).read_text())["skipped"]
    except OutputLost:  # of what is told
        raise
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder of your own, or say --environment present"
        raise InputError(
            f"{folder}: an environment of the recorded packages cannot be made there ({error.strerror}); {remedy}"
        ) from error
    here = installed([str(each) for each in folder.glob("lib/python*/site-packages")])
    return Environment(str(program), True, tuple(differences(wanted, here)), tuple(skipped))


def _complete(folder: Path, found: Mapping[str, object]) -> None:
    try:
        write_whole(folder / COMPLETE, json.dumps(found).encode())
    except OSError as error:
        raise InputError(
            f"{folder}: the environment is built and cannot be kept ({error.strerror}); make room or rights there, or "
            "set XDG_CACHE_HOME to another folder"
        ) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time builds an environment."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(program: Path, versions: Mapping[str, str], folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Install exact versions; the names of those that no index has."""
    left, skipped = dict(versions), list[str]()
    while left:
        requirements = folder / "requirements.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in sorted(left.items())))
        command = [str(program), "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"]
        failed = _output_of([*command, "--requirement", str(requirements)], tell)
        if failed is None:
            break
        # Without an index that answers pip says the same of every package.
        missing = None if _NO_ANSWER.search(failed) else _NOT_THERE.search(failed)
        name = missing[1].lower().replace("_", "-").replace(".", "-") if missing else ""
        if name not in left:
            raise InputError(f"{folder}: the recorded packages cannot be installed; pip says:\n{_last_lines(failed)}")
        tell(f"no index has {name}=={left.pop(name)}; it is left out")
        skipped.append(name)
    return skipped


def find_python(version: str) -> str:
    """A Python of the recorded minor version, the exact one if it is there: the present one, one on PATH, one of pyenv.

    Raises:
        InputError: when there is none.
    """
    wanted = minor(version)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser()) / "versions"
    candidates = [
        sys.executable,
        shutil.which(f"python{wanted}"),
        *(str(each) for each in sorted(pyenv.glob(f"{wanted}.*/bin/python"))),
    ]
    found = {name: told for name in candidates if name and (told := _version_of(name)) and minor(told) == wanted}
    if not found:
        raise InputError(
            f"Python {wanted} is not here (the record was made with {version}), neither as python{wanted} on PATH nor "
            "under pyenv; install it, or say --environment present to run with the one that is here"
        )
    return next((name for name, told in found.items() if told == version), next(iter(found)))


def _version_of(program: str) -> str | None:
    """What a Python says it is; None for what does not answer, as a shim of pyenv without its version."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _run(command: list[str], folder: Path) -> None:
    failed = _output_of(command)
    if failed is not None:
        raise InputError(f"{folder}: the virtual environment cannot be made:\n{_last_lines(failed)}")


def _output_of(command: list[str], tell: Callable[[str], None] = lambda text: None) -> str | None:
    """What a command printed that failed; None for one that did not. Meanwhile it is told what it is at."""
    # The caller's path for modules is not the environment's.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    lines, told = list[str](), time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            is_last = line.startswith(_INSTALLS)
            if is_last or time.monotonic() - told >= EVERY:
                told = time.monotonic()
                tell(f"pip      {'all are here, and are being installed' if is_last else line.strip()[:100]}")
    return None if process.returncode == 0 else "".join(lines)


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-6:])
