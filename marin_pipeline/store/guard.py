"""Looks through what a task writes for the values of the secrets that it was given, before it is kept, and through each
record for those of all secrets that the process knows.

Where a task has none, nothing of it is read. What was compressed or encrypted is not found.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.redaction import Redactor
from marin_pipeline.core.secrets import guard, redacted, redactor
from marin_pipeline.store.objects import (
    FileToPublish,
    Found,
    ObjectStore,
    ObjectWriter,
    Written,
    explain_os_error,
    put,
)

_BLOCK = 2**20


def refuse_secrets(files: Sequence[FileToPublish], what: str = "the output") -> None:
    """Look through files that are to be kept, and through their names.

    Args:
        what: what each of them is, for errors.

    Raises:
        InputError: naming the file and the secret, and what to do.
    """
    known = guard()
    if known is None:
        return
    for name, file, _ in files:
        refuse_secret_name(name, what)
        try:
            found = _found_in(known, file)
        except OSError as error:
            raise explain_os_error(error, file, "read what was written") from error
        if found is not None:
            raise _refused(f"{what} {name!r}", found)


def refuse_secret_folders(folder: Path, what: str = "the output") -> None:
    """Look at the names of all folders below one: an empty one is no file of an output, and lies there all the same.

    Raises:
        InputError: when the value of a secret is part of one.
    """
    if guard() is None:
        return
    for path in _below(folder):
        if path.is_dir():
            refuse_secret_name(path.relative_to(folder).as_posix(), f"{what}'s folder")


def refuse_secrets_beside(folder: Path, kept: Collection[str]) -> None:
    """Look through what a step has left in the folder of its attempt beside its output.

    Args:
        kept: what is looked through by others: names in the folder, or paths of files.

    Raises:
        InputError: when something holds the value of a secret, or bears it in its name.
    """
    known = guard()
    if known is None:
        return
    for top in folder.iterdir():
        if top.name not in kept:
            for path in (*(() if top.is_symlink() else _below(top)), top):
                name = path.relative_to(folder).as_posix()
                if name not in kept and (found := _disclosed_by(known, path, name)):
                    raise _refused(f"{redacted(name)!r}, which was written beside ctx.out,", found)


def refuse_secret_name(name: str, what: str = "the output") -> None:
    """Look at the name that a file is to have.

    Args:
        what: what it is, for errors.

    Raises:
        InputError: when the value of a secret is part of it.
    """
    known = guard()
    found = known and known.find(name.encode("utf-8", "surrogateescape"))
    if found:
        raise _refused(f"the name of {what} {redacted(name)!r}", found)


def refuse_secret_in(data: bytes, what: str) -> None:
    """Look through bytes that are to be kept.

    Raises:
        InputError: when they hold the value of a secret.
    """
    known = guard()
    found = known and known.find(data)
    if found:
        raise _refused(what, found)


def put_record(objects: ObjectStore, path: str, data: bytes) -> Found:
    """Create a record, as `put` does. Records are kept and handed on, whoever they are of: none says the value of a
    secret that this process knows.

    Raises:
        InputError: when this one would.
    """
    known = redactor()
    found = known and known.find(data)
    if found:
        raise InputError(
            f"{path}: would hold the value of the secret {found}, and was not written; leave the value out of what the "
            "step, its names and its environment say"
        )
    return put(objects, path, data)


def _refused(what: str, secret: str) -> InputError:
    return InputError(
        f"{what} holds the value of the secret {secret}, and what a step reads and writes is kept and handed on; leave "
        "it out: whoever needs it takes the secret as an argument"
    )


class GuardedWriter(ObjectWriter):
    """A writer that gets no value of a secret, also none that comes in pieces."""

    def __init__(self, writer: ObjectWriter, name: str, known: Redactor) -> None:
        self._writer = writer
        self._name = name
        self._known = known
        self._before = b""
        self._error: InputError | None = None

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        """As `write` says it.

        Raises:
            InputError: when the bytes hold the value of a secret; then nothing can be made of it but `abort`.
        """
        left = memoryview(data).cast("B")
        for start in range(0, len(left), _BLOCK):
            block = self._before + bytes(left[start : start + _BLOCK])
            found = self._known.find(block)
            if found is not None:
                self._error = _refused(f"the output {self._name!r}", found)
                raise self._error
            self._before = _tail(block, self._known.overlap)
        return self._writer.write(data)

    def _close(self) -> Written:
        if self._error is not None:
            raise self._error
        return self._writer.close()

    def _abort(self) -> None:
        self._writer.abort()


def guarded(writer: ObjectWriter, name: str) -> ObjectWriter:
    """`writer` for an output of this name; looked through where the running task was given secrets.

    Raises:
        InputError: when the value of a secret is part of the name.
    """
    known = guard()
    if known is None:
        return writer
    try:
        refuse_secret_name(name)
    except InputError:
        writer.abort()
        raise
    return GuardedWriter(writer, name, known)


def _tail(block: bytes, size: int) -> bytes:
    return block[-size:] if size else b""


def _found_in(known: Redactor, file: Path) -> str | None:
    before = b""
    with file.open("rb", buffering=0) as source:
        while data := source.read(_BLOCK):
            block = before + data
            found = known.find(block)
            if found is not None:
                return found
            before = _tail(block, known.overlap)
    return None


def remove_disclosed(known: Redactor, folders: Iterable[Path]) -> None:
    """Delete the files below folders that hold the value of a secret, or bear it in their path: what a task has left
    that did not come to its end.
    """
    for folder in folders:
        for path in _below(folder):
            if _disclosed_by(known, path, path.relative_to(folder).as_posix()):
                with suppress(OSError):  # it has gone, or is not ours
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _disclosed_by(known: Redactor, path: Path, name: str) -> str | None:
    """The secret whose value a file holds, a link leads to, or a name bears."""
    found = known.find(os.fsencode(name))
    with suppress(OSError):  # it has gone, or is not ours to read
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found = found or known.find(os.fsencode(os.readlink(path)))
        elif stat.S_ISREG(mode):
            found = found or _found_in(known, path)
    return found


def _below(folder: Path) -> Iterator[Path]:
    """Everything below a folder, a folder after what is in it."""
    for directory, folders, files in os.walk(folder, topdown=False):
        yield from (Path(directory, name) for name in (*files, *folders))
