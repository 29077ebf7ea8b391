"""Every Python block of the README and of docs/ runs, and every command of a `console` block; of an `sh` block those
that run an experiment, which takes minutes.

A Python block that begins with a comment naming a file is written to that file, where later blocks and commands find
it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_code_blocks_run(document: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    variables = environment(tmp_path / "store")
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    for kind, text in BLOCK.findall(document.read_text()):
        if kind == "python":
            named = re.match(r"# (\S+\.py)\n", text)
            file = folder / (named.group(1) if named else "block.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            commands = [] if named else [f"python {file}"]
        else:
            commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        for command in commands:
            done = subprocess.run(
                shlex.split(command),
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{document.name}: {command}\n{done.stdout}{done.stderr}"
