"""Small projects of a user's own, run and worked on as a user does it: programs in folders, and `marin-pipeline`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import Ran, environment

TOOL = ("-c", "from marin_pipeline.tool import main; main()")

PYPROJECT = '[project]\nname = "counting"\nversion = "1"\n'

HELPER = """
def clean(text: str) -> str:
    return text.lower()
"""

PROGRAM = '''
import os
from dataclasses import dataclass

from helper import clean
from marin_pipeline import Artifact, Context, File, LocalFile, ShardContext, main, step


@dataclass(frozen=True)
class Rules:
    shortest: int = 1


@step
def read(ctx: Context, file: LocalFile, rules: Rules) -> int:
    assert file.name == "in.txt", file.name
    words = [word for word in clean(file.read_text()).split() if len(word) >= rules.shortest]
    (ctx.out / "words.txt").write_text("\\n".join(words))
    return len(words)


def raised(shard: ShardContext, word: str) -> str:
    (shard.out / "word.txt").write_text(word.upper())
    return word.upper()


@step(version=2)
def upper(ctx: Context, words: File) -> list[str]:
    """Shards whose files are adopted, and parts that are kept."""
    with ctx.work.writing("first") as folder:
        (folder / "first.txt").write_text("kept")
    found = ctx.map(raised, words.read_text().split())
    for number, result in enumerate(found):
        ctx.adopt(result, "word.txt", f"words/{number}.txt")
    return [result.value for result in found]


@step
def longest(ctx: Context, words: Artifact[list[str]], noise: int = 0, fails: bool = False) -> str:
    (ctx.out / "a.txt").write_text("the same\\n")
    if noise:
        (ctx.out / "b.txt").write_text("line one\\nline two " + os.urandom(noise).hex() + "\\n")
    if os.environ.get("FAIL_NOW"):
        raise ValueError("it was told to fail")
    return max(words.value, key=len)


def build(noise: int = 0) -> Artifact[str]:
    words = read(LocalFile(os.path.join(os.path.dirname(__file__), "in.txt")), rules=Rules(shortest=2))
    return longest(upper(words / "words.txt"), noise=noise)


if __name__ == "__main__":
    main(build)
'''


@dataclass
class Project:
    """A folder with a program, and the store that it writes."""

    folder: Path
    store: str
    """Prefix of the store that the program writes."""
    extra: dict[str, str] = field(default_factory=dict[str, str])
    """Further variables of the environment."""

    @classmethod
    def at(cls, folder: Path, files: Mapping[str, str] | None = None, name: str = "project") -> Project:
        """Write a project."""
        made = cls(folder / name, str(folder / "store"))
        given = {
            "pyproject.toml": PYPROJECT,
            "helper.py": HELPER,
            "program.py": PROGRAM,
            "in.txt": "The quick brown a fox",
        }
        for path, text in (files if files is not None else given).items():
            (made.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (made.folder / path).write_text(text)
        return made

    def run(self, *arguments: str, file: str = "program.py", python: str = sys.executable) -> Ran:
        """Run the program; it must succeed."""
        done = self._started([python, str(self.folder / file), "--json", *arguments], self.folder)
        assert done.code == 0, done.err
        return done

    def tool(self, *arguments: str, cwd: Path | None = None, **extra: str) -> Ran:
        """Run `marin-pipeline` from another folder than the project's."""
        return self._started([sys.executable, *TOOL, *arguments], cwd or self.folder.parent, extra)

    def reproduce(self, what: str, *options: str, cwd: Path | None = None, **extra: str) -> tuple[Ran, dict[str, Any]]:
        """`reproduce --json` from this project's store; what it did, and its last line."""
        done = self.tool("reproduce", what, "--from", self.store, "--json", *options, cwd=cwd, **extra)
        assert done.out, done.err
        return done, json.loads(done.out.splitlines()[-1])

    def bundle(self, key: str) -> Path:
        """The bundle of a key, as `share` writes it."""
        path = self.folder.parent / f"{key.replace('@', '-')}.bundle.json"
        done = self.tool("share", key, "--prefix", self.store, "--out", str(path))
        assert done.code == 0, done.err
        return path

    def _started(self, command: list[str], cwd: Path, extra: Mapping[str, str] | None = None) -> Ran:
        scratch = self.folder.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        variables = {
            **environment(self.prefix),
            "MARIN_PREFIX": self.store,
            "TMPDIR": str(scratch),
            **self.extra,
            **(extra or {}),
        }
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=variables, timeout=600, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)

    @property
    def prefix(self) -> Path:
        """The store, where it is a folder."""
        return Path(self.store)

    @property
    def left_over(self) -> list[str]:
        """What lies in the folder for temporary files."""
        return sorted(os.listdir(self.folder.parent / "scratch"))
