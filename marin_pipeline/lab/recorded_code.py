"""The code of a record, unpacked, and a process that runs with it: the engine and the steps are those of the snapshot,
and nothing of the project in which the caller happens to stand.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import InputError
from marin_pipeline.core.projects import project_name, root_of
from marin_pipeline.run.installed import normalized
from marin_pipeline.run.interrupts import while_steps_stop
from marin_pipeline.run.rerun import Request
from marin_pipeline.run.task import Target
from marin_pipeline.store.snapshots import Snapshot

_START = '''"""Leaves on the path what is installed and what PYTHONPATH names, and no project that is linked."""

import os
import re
import sys
import sysconfig

_named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
_standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]


def _stays(folder):
    if any(folder == each or folder.startswith(each + os.sep) for each in _standard) or folder.endswith(".zip"):
        return True
    return folder in _named or not {"site-packages", "dist-packages"}.isdisjoint(folder.split(os.sep))


sys.path[:] = [folder for folder in sys.path if _stays(folder)]
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in str(getattr(each, "__module__", ""))]
'''

_DROPPED = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "VIRTUAL_ENV"),
    *("MARIN_PREFIX", "MARIN_SUBSTITUTES"),
)
"""Of the caller's environment: what would change which code is run, where it writes, or whether it is run at all."""


class RecordedCode:
    """A snapshot, unpacked into a folder of its own.

    Raises:
        InputError: when the folder lies in a project, whose name and root would be taken for the snapshot's.
    """

    def __init__(self, snapshot: Snapshot, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        snapshot.unpack(self.folder)
        if not (self.folder / "project").is_dir():
            (self.folder / "project").mkdir()
        root = root_of(str(self.folder / "module.py"))
        if root != str(self.folder):
            raise InputError(
                f"{root}/pyproject.toml: the folder for temporary files lies in this project, so that code that is "
                "unpacked there would be taken for a part of it; set TMPDIR to another folder"
            )
        self._paths = frozenset(snapshot.files)
        start = self.folder / "start"
        start.mkdir()
        (start / "sitecustomize.py").write_text(_START)

    def target(self, recorded: Mapping[str, Any], id: str) -> Target:
        """Where a recorded function is found here.

        Raises:
            InputError: when its file is not in the snapshot.
        """
        file = str(recorded["file"])
        places = [f"project/{file}", f"packages/{file}"]
        if id.startswith("marin_pipeline/"):
            places.reverse()
        others = sorted(path for path in self._paths if path.startswith("others/") and path.split("/", 2)[2] == file)
        for place in [*places, *others]:
            if place in self._paths:
                found = str(self.folder / place)
                return Target(recorded["module"], found, recorded["qualname"], recorded["main"])
        raise InputError(f"{id}: its file {file!r} is not in the snapshot of the code")

    def lost_file(self, message: str) -> str:
        """The file beside the code, relative to its project, that is missing according to an error; empty for none."""
        if not re.search("FileNotFoundError|No such file", message):
            return ""
        inside = re.escape(f"{self.folder}{os.sep}") + r"(?:project|packages|others/[0-9]+)/([^'\"\n]+)"
        # A relative path is one below the project, in which the steps run.
        found = re.search(inside, message) or re.search(r"No such file or directory: '([^/'\n][^'\n]*)'", message)
        return found[1] if found and f"project/{found[1]}" not in self._paths else ""

    def search(self, targets: Iterable[Target]) -> list[str]:
        """The folders in which the modules of the snapshot are found, those of the targets first."""
        found: dict[str, None] = {}
        for target in targets:
            if target.main:
                found[os.path.dirname(target.file)] = None
        for target in targets:
            if not target.main and (base := _base(target)) is not None:
                found[base] = None
        roots = [self.folder / "project", *sorted(self.folder.glob("others/*")), self.folder / "packages"]
        for root in roots:
            found |= {str(folder): None for folder in (root, root / "src") if folder.is_dir()}
        return list(found)

    @property
    def distributions(self) -> set[str]:
        """Normalized names of the distributions whose code is here, as far as the projects say."""
        roots = [self.folder / "project", *self.folder.glob("others/*")]
        return {normalized(name) for root in roots if (name := project_name(root / "module.py"))}


def _base(target: Target) -> str | None:
    """The folder from which a module is imported by its name; None where its file does not tell."""
    parts = target.module.split(".")
    path, ending = os.path.splitext(target.file)
    if ending == ".py" and os.path.basename(path) == "__init__":
        path = os.path.dirname(path)
    tail = os.sep.join(parts)
    return path[: -len(tail) - 1] if path.endswith(os.sep + tail) else None


def run_with(code: RecordedCode, python: str, request: Request, event: Callable[[Mapping[str, Tree]], None]) -> int:
    """Run steps in a process with this code, and tell what it tells.

    Returns:
        Its exit code; 130 when it was interrupted, whatever it was at.
    """
    search = [str(code.folder / "start"), *code.search([step.target for step in request.steps])]
    environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    environment["PYTHONPATH"] = os.pathsep.join(search)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    # Programs that a step starts by name are those of its environment.
    environment["PATH"] = os.pathsep.join([os.path.dirname(python), environment.get("PATH", os.defpath)])
    noted: list[int] = []
    process: subprocess.Popen[str] | None = None

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if process is not None:
            process.terminate()

    with while_steps_stop(), _interrupts_told(note):
        process = subprocess.Popen(
            [python, "-P", "-m", "marin_pipeline.run.rerun"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=code.folder / "project",
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # an interruption is passed on to it, and ends it whatever it is at
        )
        if noted:
            process.terminate()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has ended already; its code tells
                process.stdin.write(request.dumps())
                process.stdin.close()
            for line in process.stdout:
                event(_event(line))
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            process.stdout.close()
            process.wait()
    return 130 if noted else process.returncode


def _event(line: str) -> Mapping[str, Tree]:
    """What a line tells; one that is no event is passed on as it is."""
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        tree = None
    return tree if isinstance(tree, dict) else {"event": "note", "text": line.rstrip("\n")}


@contextmanager
def _interrupts_told(note: Callable[[int, object], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end nothing here meanwhile: who runs the steps stops, and says so."""
    kept = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
