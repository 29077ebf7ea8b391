"""The state of the repository that a project lies in, as the program `git` tells it. Nothing is asked of a network or
of a person, and without git or a repository there is none.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from marin_pipeline.core.secrets import redacted, redactor
from marin_pipeline.store.origins import Git

SECONDS = 10.0
"""How long git is waited for, all its calls together."""

LONGEST_PATCH = 2**20
"""Bytes."""

_HOST = r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*"
_PATH = r"[A-Za-z0-9_.~+-]+(?:/[A-Za-z0-9_.~+-]+)*/?"
_URL = re.compile(rf"((?:https?|ssh|git)://)(?:[^/\s]*@)?({_HOST}(?::[0-9]+)?/{_PATH})")
_SHORT_URL = re.compile(rf"(?:(git@)|[A-Za-z0-9._-]+@)?({_HOST}\.[A-Za-z0-9-]+:/?{_PATH})")
"""As in `git@host:path`. `git` is a name that everybody has there, and without which it does not answer."""


def git_state(folder: Path, files: Sequence[str] = ()) -> Git | None:
    """The state of the repository around a folder.

    Args:
        folder: root of the project.
        files: paths below it of the code that is kept; it is told which of them git does not track.
    """
    git = _Git(folder, time.monotonic() + SECONDS)
    lines = git.text("rev-parse", "HEAD", "--show-prefix").splitlines()
    if not lines or not re.fullmatch(r"[0-9a-f]{40,64}", lines[0]):  # no repository, or one without a commit
        return None
    root = lines[1].rstrip("/") if len(lines) > 1 else ""
    patch, note = _patch(git)
    branch = git.text("symbolic-ref", "--quiet", "--short", "HEAD").strip()
    remote = git.text("config", "--get", f"branch.{branch}.remote").strip() if branch else ""
    url = git.text("config", "--get", f"remote.{remote or 'origin'}.url").strip()
    place = without_credentials(url)
    untracked = _untracked(git, files)
    return Git(lines[0], place and redacted(place), redacted(branch) or None, patch, root, note, untracked)


def without_credentials(url: str) -> str | None:
    """A remote's URL without user and password; None for what is no place on a network, and for all that is not
    plainly written as one: a password may stand anywhere in it.
    """
    found = _URL.fullmatch(url) or _SHORT_URL.fullmatch(url)
    return found and f"{found[1] or ''}{found[2]}"


def _patch(git: _Git) -> tuple[str | None, str]:
    """What tracked files have beyond the commit; or None, and why."""
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--src-prefix=a/", "--dst-prefix=b/")
    data = git.data("diff", *options, "--ignore-submodules=dirty", "HEAD", most=LONGEST_PATCH)
    if data is None:
        return None, "git did not say what was changed"
    if len(data) > LONGEST_PATCH:
        return None, f"the patch is longer than {LONGEST_PATCH >> 10} KiB"
    known = redactor()
    if known and (found := known.find(data)):
        return None, f"the patch holds the value of the secret {found}"
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        return None, "the patch is not UTF-8"


def _untracked(git: _Git, files: Sequence[str]) -> tuple[str, ...]:
    """The files that git does not track, those that it ignores among them."""
    if not files:
        return ()
    data = git.data("--literal-pathspecs", "ls-files", "-z", "--others", "--", *files, most=LONGEST_PATCH) or b""
    found = set(data.decode("utf-8", "replace").split("\0"))
    return tuple(sorted(found & set(files)))


class _Git:
    """Calls of the program in one folder."""

    def __init__(self, folder: Path, until: float) -> None:
        self._folder = folder
        self._until = until
        # What a hook or a shell has set would be of another repository.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}

    def text(self, *words: str) -> str:
        """What a call prints; nothing when it fails."""
        return (self.data(*words, most=2**16) or b"").decode("utf-8", "replace")

    def data(self, *words: str, most: int) -> bytes | None:
        """What a call prints, and when that is more than `most` bytes one more than that; None when it fails."""
        command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", *words]
        try:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the run
            )
        except OSError:
            return None

        def end() -> None:
            with suppress(OSError):  # with all that it has started
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(max(0.0, self._until - time.monotonic()), end)
        timer.start()
        try:
            assert process.stdout is not None
            data = process.stdout.read(most + 1)
            if len(data) > most:
                end()
                return data
            return data if process.wait() == 0 else None
        finally:
            timer.cancel()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
