"""The supported Pythons that this machine has, and programs run on them with nothing installed."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERSIONS = ("3.11", "3.12", "3.13")


@functools.lru_cache
def python(version: str) -> str:
    """An interpreter of this version that really runs; skips the test where there is none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (*map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))), shutil.which(f"python{version}")):
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip(f"no Python {version} runs here: looked in {pyenv} and for python{version} on the PATH")


def start(python: str, *arguments: str, path: tuple[Path, ...], folder: Path, seed: str) -> subprocess.Popen[str]:
    """Starts a program that finds no installed package, only what lies in `path`."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONHASHSEED": seed,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.Popen(
        [python, "-S", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str], given: str = "") -> str:
    """What a started program prints, when it succeeds."""
    out, err = process.communicate(given, timeout=120)
    assert process.returncode == 0, err
    return out
