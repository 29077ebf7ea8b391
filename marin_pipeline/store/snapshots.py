"""The code of a run as one archive, named by what is in it: equal code is kept once, whatever machine it came from.

A snapshot that comes from elsewhere is data until its paths and its digest have been checked: nothing in it is run or
imported here, and nothing is written outside of the folder that it is unpacked in.
"""

from __future__ import annotations

import functools
import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marin_pipeline.core.canonical import digest
from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.store import layout
from marin_pipeline.store.objects import ObjectStore, explain_os_error, put, write_anew

ROOTS = ("project", "packages", "others")
"""Folders at the top: the project of the run, this distribution's packages where they lie elsewhere, and other
projects, each in a folder of its number."""

MOST_FILES = 20_000
MOST_BYTES = 64 * 2**20
"""Of all files together, unpacked."""
MOST_PACKED = 2 * MOST_BYTES
"""Of the archive, with the names of its files."""
LONGEST_PATH = 1000

_ENTRY = b"PK\x01\x02"
"""What each entry of an archive's list of files begins with."""

_DATE = (1980, 1, 1, 0, 0, 0)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    OSError,
    LookupError,
)
"""What reading an archive raises whose bytes are not those of one."""


@dataclass(frozen=True)
class Snapshot:
    """Files of code by their path in the archive.

    Raises:
        InputError: for a path that would lead out of the folder it is unpacked in, or more than a snapshot holds.
    """

    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        size = sum(map(len, self.files.values()))
        if len(self.files) > MOST_FILES or size > MOST_BYTES:
            raise InputError(
                f"a snapshot of code holds at most {MOST_FILES:,} files and {MOST_BYTES >> 20} MiB, not "
                f"{len(self.files):,} and {size / 2**20:.0f} MiB; keep data out of .py files"
            )
        folders = {path[:at] for path in self.files for at, letter in enumerate(path) if letter == "/"}
        for path in self.files:
            if not _stays_inside(path) or path in folders:
                raise InputError(f"{path[:200]!a} is no path of a file in a snapshot of code")

    @functools.cached_property
    def digest(self) -> str:
        """Over paths and contents, 64 hex."""
        return digest([[path, hashlib.sha256(data).hexdigest()] for path, data in sorted(self.files.items())])

    def packed(self) -> bytes:
        """The archive; the same bytes for the same files."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in sorted(self.files.items()):
                entry = zipfile.ZipInfo(path, _DATE)
                entry.create_system = 3  # Unix, on every machine
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, data)
        return buffer.getvalue()

    @classmethod
    def unpacked(cls, data: bytes, expected: str, where: str) -> Snapshot:
        """Read an archive back.

        Args:
            expected: the digest that it must have.
            where: for errors.

        Raises:
            CorruptOutput: when it is none, or holds other files.
        """
        try:
            found = cls(_files(data))
        except _BROKEN as error:
            raise CorruptOutput(f"{where}: not a snapshot of code ({error})") from error
        if found.digest != expected:
            raise CorruptOutput(f"{where}: holds other files than its name says")
        return found

    def unpack(self, folder: Path) -> None:
        """Write the files below a folder that is not there yet.

        Raises:
            InputError: when it is there.
            StoreError: when it cannot be written.
        """
        try:
            folder.mkdir(parents=True)
            for path, data in self.files.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        except FileExistsError as error:
            raise InputError(f"{folder}: is there already; unpack into a new folder") from error
        except OSError as error:
            raise explain_os_error(error, error.filename or folder, "write") from error


def keep_snapshot(objects: ObjectStore, snapshot: Snapshot) -> None:
    """Write a snapshot, unless the store has it; other bytes in its place are replaced."""
    with suppress(CorruptOutput):
        read_snapshot(objects, snapshot.digest)
        return
    path, data = layout.snapshot(snapshot.digest), snapshot.packed()
    if put(objects, path, data, MOST_PACKED).data != data:
        write_anew(objects, path, data)


def read_snapshot(objects: ObjectStore, expected: str) -> Snapshot:
    """The snapshot with a digest.

    Raises:
        CorruptOutput: when it is missing, or is not the one that was kept.
    """
    path = layout.snapshot(expected)
    found = objects.read(path, MOST_PACKED)
    if found is None:
        raise CorruptOutput(f"{objects.url}/{path}: the snapshot of the code is missing")
    return Snapshot.unpacked(found.data, expected, f"{objects.url}/{path}")


def _stays_inside(path: str) -> bool:
    parts = path.split("/")
    if len(path) > LONGEST_PATH or len(parts) < 2 or parts[0] not in ROOTS or "\\" in path or not path.isprintable():
        return False
    return all(part not in ("", ".", "..") for part in parts)


def _files(data: bytes) -> dict[str, bytes]:
    """The files of an archive, no more of each than it says, and no more in all than a snapshot holds.

    Raises:
        ValueError: for an entry that is no plain file, or one of two of a name.
    """
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    if data.count(_ENTRY) > 2 * MOST_FILES:  # before all of its list is read; in a file's bytes it is there by chance
        raise ValueError(f"more than {MOST_FILES:,} files")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_FILES:
            raise ValueError(f"{len(entries):,} files, and {MOST_FILES:,} is the most")
        for entry in entries:
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG) or entry.is_dir() or entry.filename != entry.orig_filename:
                raise ValueError(f"{entry.filename[:200]!a} is no plain file")
            if entry.filename in found:
                raise ValueError(f"{entry.filename[:200]!a} is there twice")
            with archive.open(entry) as file:
                content = file.read(left + 1)
            left -= len(content)
            if left < 0:
                raise ValueError(f"more than {MOST_BYTES >> 20} MiB")
            found[entry.filename] = content
    return found
