"""`make` says of a Python that it cannot use what is wrong with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_a_python_that_is_not_there_is_told_from_one_that_is_too_old(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for python, told in (("python3.99", "there is no command python3.99"), (str(old), f"{old} is too old")):
        ran = subprocess.run(
            ["make", f"PYTHON={python}", "lint"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode != 0
        assert told in ran.stdout
        assert ("too old" in ran.stdout) == (python == str(old))
