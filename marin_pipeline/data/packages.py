"""Installed Python packages as a pinned source of text.

A pin is what a distribution's own RECORD says of the selected files, so it costs milliseconds to read, moves when a
package does, and only then. Files are believed only when their bytes have the recorded sha256.
"""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from marin_pipeline.core.errors import InputError

CHUNK_BYTES = 2**20
LEFT_OUT_FOLDERS = frozenset({"test", "tests", "_tests", "_vendor", "vendored", "thirdparty_files"})
"""Tests have next to no docstrings and a third of the source; vendored code belongs to other distributions."""


@dataclass(frozen=True)
class PackagePin:
    """A distribution, or a part of it, at one content."""

    name: str
    """The distribution as pip names it (`numpy`), or a folder of it (`scipy/optimize`)."""
    version: str
    digest: str
    """sha256 over path and recorded sha256 of the selected files, 64 hex."""

    @property
    def distribution(self) -> str:
        """Name of the distribution."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class SourceFile:
    """A Python file as RECORD lists it."""

    path: str
    """Relative to the folder that the distribution is installed in."""
    sha256: str
    """64 hex."""
    bytes: int


@dataclass(frozen=True)
class SourceChunk:
    """Consecutive files of one distribution that are read together."""

    distribution: str
    files: tuple[SourceFile, ...]


def _selected(path: str, prefix: str) -> bool:
    *folders, file = PurePosixPath(path).parts
    if not file.endswith(".py") or file.startswith("test_") or file == "conftest.py" or ".." in folders:
        return False
    return path.startswith(prefix) and LEFT_OUT_FOLDERS.isdisjoint(folders)


def installed(name: str) -> tuple[PackagePin, tuple[SourceFile, ...]]:
    """What is installed under `name` here: its pin, and its selected files by path.

    Selected are the `.py` files outside of tests and vendored code. In `distribution/folder`, the folder is one of
    the package of that name.

    Raises:
        InputError: when the distribution is not installed, has no usable RECORD, or has no such files.
    """
    import importlib.metadata

    distribution, _, folder = name.partition("/")
    prefix = f"{distribution}/{folder.rstrip('/')}/" if folder else ""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"package {distribution!r} is not installed here; install it (pip install {distribution}) or leave it out"
        ) from error
    try:
        record = found.read_text("RECORD")
    except UnicodeDecodeError as error:
        raise InputError(f"package {distribution!r}: its RECORD is damaged ({error}); install it again") from error
    if record is None:
        raise InputError(f"package {distribution!r} has no RECORD of its files; install it from a wheel with pip")
    files = []
    for path, digest, size in csv.reader(line for line in record.splitlines() if ".py," in line or '.py",' in line):
        if _selected(path, prefix):
            if not digest.startswith("sha256=") or not size.isdigit():
                raise InputError(
                    f"package {distribution!r}: RECORD has no sha256 for {path}; install it from a wheel with pip"
                )
            decoded = base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "==")
            files.append(SourceFile(path, decoded.hex(), int(size)))
    if not files:
        raise InputError(f"package {name!r} has no Python files{' below ' + prefix if prefix else ''}; check the name")
    files.sort(key=lambda file: file.path)
    listing = "".join(f"{file.path} {file.sha256}\n" for file in files)
    return PackagePin(name, found.version, hashlib.sha256(listing.encode()).hexdigest()), tuple(files)


def pinned(names: Iterable[str]) -> tuple[PackagePin, ...]:
    """Pins of what is installed here, one a name, ordered by name: the argument that `package_docs` takes.

    Raises:
        InputError: as `installed` does.
    """
    return tuple(installed(name)[0] for name in sorted(set(names)))


def pinned_files(pin: PackagePin) -> tuple[SourceFile, ...]:
    """The files of a pin, when what is installed here is what was pinned.

    Raises:
        InputError: when version or content differ.
    """
    here, files = installed(pin.name)
    if here.version != pin.version:
        raise InputError(
            f"package {pin.name!r}: version {here.version} is installed, {pin.version} was pinned; "
            f"install it (pip install {pin.distribution}=={pin.version}) or declare the step again"
        )
    if here.digest != pin.digest:
        raise InputError(
            f"package {pin.name!r} {pin.version}: its RECORD lists other files than were pinned; "
            f"reinstall it (pip install --force-reinstall --no-deps {pin.distribution}=={pin.version}) "
            "or declare the step again"
        )
    return files


def chunks(distribution: str, files: Iterable[SourceFile]) -> list[SourceChunk]:
    """Files in runs of about 1 MiB of source, cut by the recorded sizes alone."""
    found: list[SourceChunk] = []
    run: list[SourceFile] = []
    for file in files:
        run.append(file)
        if sum(one.bytes for one in run) >= CHUNK_BYTES:
            found.append(SourceChunk(distribution, tuple(run)))
            run = []
    return [*found, SourceChunk(distribution, tuple(run))] if run else found


def package_root(distribution: str) -> Path:
    """The folder that a distribution is installed in, to which paths in its RECORD are relative."""
    import importlib.metadata

    return Path(str(importlib.metadata.distribution(distribution).locate_file("")))


def read_source(root: Path, distribution: str, file: SourceFile) -> bytes:
    """The content of a file, when it is the recorded one.

    Raises:
        InputError: when the file is missing or has other bytes.
    """
    try:
        content = (root / file.path).read_bytes()
    except OSError as error:
        raise InputError(
            f"package {distribution!r}: {file.path} cannot be read ({error.strerror}); reinstall the package"
        ) from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise InputError(
            f"package {distribution!r}: {file.path} is not the file that its RECORD lists; reinstall the package"
        )
    return content
