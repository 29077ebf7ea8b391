"""Every Python block of the README and of docs/ runs, and every command of a `console` block; of an `sh` block those
that run an experiment, which takes minutes.

A Python or TOML block that begins with a comment naming a file is written to that file, where later blocks and commands
find it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment, standard_docstrings

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|toml|console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_code_blocks_run(document: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    variables = environment(tmp_path / "store")
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    for kind, text in BLOCK.findall(document.read_text()):
        if kind in ("python", "toml"):
            named = re.match(r"# (\S+\.(py|toml))\n", text)
            file = folder / (named.group(1) if named else "block.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            commands = [] if named or kind == "toml" else [f"python {file}"]
        else:
            commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        for command in commands:
            succeeds(command, folder, variables)


def succeeds(command: str, folder: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(
        shlex.split(command, comments=True),
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_the_commands_of_the_readme_run_an_experiment(tmp_path: Path) -> None:
    variables = environment(tmp_path / "store")
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    texts = tmp_path / "my" / "texts"
    texts.mkdir(parents=True)
    rows = [text for name in ("email", "logging", "asyncio") for text in standard_docstrings(name)]
    (texts / "docs.jsonl").write_text("".join(json.dumps({"text": text, "body": text}) + "\n" for text in rows))
    blocks = [text for kind, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "sh"]
    commands = [line for text in blocks for line in text.splitlines() if line.startswith("python ")]
    assert len(commands) >= 6
    for command in commands:
        succeeds(command, tmp_path, variables)
