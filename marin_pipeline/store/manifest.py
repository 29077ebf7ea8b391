"""The files of an attempt, and the digest of what it made.

A manifest is built from what the store holds, joined with what was written; anything missing or different fails the
attempt. Readers go from the commit to the manifest to exactly these objects.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_pipeline.core.canonical import Tree, dumps
from marin_pipeline.core.errors import CorruptOutput, InputError, StoreError
from marin_pipeline.core.paths import is_path, problem_with
from marin_pipeline.store import layout
from marin_pipeline.store.guard import refuse_secret_folders, refuse_secrets
from marin_pipeline.store.objects import FileToPublish, ObjectInfo, ObjectStore, Wanted, Written, explain_os_error
from marin_pipeline.store.records import parsed

VALUE = "value.json"
"""The file that holds the returned value."""


@dataclass(frozen=True)
class Entry:
    """One file of an output."""

    path: str
    """Relative to the output."""
    object: str
    """Where the bytes lie, relative to the prefix. It may be in another folder than the attempt's."""
    size: int
    """Bytes."""
    sha256: str
    """64 hex; above 64 MiB the sha256 of the chunks' digests."""
    checksum: str | None = None
    """What the store itself says of the bytes, or None."""

    @classmethod
    def from_tree(cls, tree: Any) -> Entry:
        """Read an entry back.

        Raises:
            ValueError, KeyError, TypeError: for what is none, or has a path that leads out of the output, or an object
                that is none of an attempt, a part or a shard.
        """
        entry = cls(**tree)
        if not is_path(entry.path) or problem_with(entry.path):
            raise ValueError(f"{entry.path!a} is no path inside an output")
        if not layout.is_of_an_output(entry.object):
            raise ValueError(f"{entry.path!a} is said to lie at {entry.object!a}, where no file of an output lies")
        if type(entry.size) is not int or entry.size < 0 or not is_digest(entry.sha256):
            raise ValueError(f"the size or the sha256 of {entry.path!a} is none")
        if entry.checksum is not None and not (isinstance(entry.checksum, str) and entry.checksum.isprintable()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"the checksum of {entry.path!a} is none")
        return entry


_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_digest(digest: object) -> bool:
    """Whether something may be a sha256."""
    return isinstance(digest, str) and _SHA256.fullmatch(digest) is not None


@dataclass(frozen=True)
class Manifest:
    """The files of an output, sorted by path."""

    entries: Sequence[Entry]

    @property
    def files(self) -> Mapping[str, Entry]:
        """Entries by path, in order."""
        return {entry.path: entry for entry in self.entries}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @property
    def output_digest(self) -> str:
        """Digest over paths, sizes and contents, the value's file among them: where the bytes lie does not count."""
        # That of one canonical list, taken piece by piece: the entries need not all be in memory.
        found, entries, separator = hashlib.sha256(b"["), iter(self.entries), b""
        while some := [[entry.path, entry.size, entry.sha256] for entry in itertools.islice(entries, 1000)]:
            found.update(separator + dumps(some)[1:-1])
            separator = b","
        found.update(b"]")
        return found.hexdigest()

    def below(self, folder: str) -> Iterable[Entry]:
        """The entries of the files below a folder, in order."""
        return [entry for entry in self.entries if entry.path.startswith(f"{folder}/")]

    def named_objects(self) -> Iterator[Wanted]:
        """Everything that the manifest names: its pages, if it is in pages, and its files."""
        for entry in self.entries:
            yield Wanted(entry.object, entry.size, entry.sha256)

    def tree(self) -> Tree:
        """The manifest as it is written."""
        return {"schema": 1, "files": [vars(entry) for entry in self.entries]}

    def dumps(self) -> bytes:
        """The bytes that are written."""
        return dumps(self.tree())

    @classmethod
    def loads(cls, data: bytes, where: str) -> Manifest:
        """Read a manifest back.

        Raises:
            CorruptOutput: when it is not one.
        """
        try:
            return cls(entries_of(parsed(data)["files"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptOutput(
                f"{where}: not a manifest ({error}); run the step that made it again with --force"
            ) from error


def entries_of(trees: Iterable[Any]) -> tuple[Entry, ...]:
    """Read the entries of a manifest back: sorted by path, and no file the folder of another.

    Raises:
        ValueError, KeyError, TypeError: when one is damaged, or they do not go together.
    """
    entries = tuple(map(Entry.from_tree, trees))
    paths = [entry.path for entry in entries]
    known = set(paths)
    if len(known) < len(paths) or paths != sorted(paths):
        raise ValueError("its files are not sorted, each once")
    if (both := file_and_folder(known)) is not None:
        raise ValueError(f"{both[0]!a} is a file, and the folder of {both[1]!a}")
    return entries


def file_and_folder(paths: Collection[str]) -> tuple[str, str] | None:
    """A path and another one whose folder it would be, or None."""
    for path in paths:
        above = path
        while above := above.rpartition("/")[0]:
            if above in paths:
                return above, path
    return None


def files_below(folder: Path, what: str = "the output") -> Iterator[tuple[str, Path, int]]:
    """Relative path, path and size of the regular files below a folder, sorted.

    Args:
        what: what each of them is, for errors.

    Raises:
        InputError: for a link or anything else that is not a file: its content could not be kept; for a name that no
            file of an output can have.
    """
    found: list[tuple[str, Path, int]] = []
    waiting = [(os.fspath(folder), "")]
    while waiting:
        directory, above = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                relative = above + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{relative}/"))
                    continue
                if not entry.is_file(follow_symlinks=False):
                    kind = "a link" if entry.is_symlink() else "not a regular file"
                    raise InputError(f"{what} {relative!r} is {kind}; write the content itself")
                if problem := problem_with(relative):
                    raise InputError(f"{what} {relative!r} {problem}")
                found.append((relative, Path(entry.path), entry.stat(follow_symlinks=False).st_size))
    return iter(sorted(found))


def publish_all(objects: ObjectStore, path: str) -> None:
    """Publish the records in `objects.folder(path)`; what lies in place is only looked at: nobody needs its digest.

    Raises:
        InputError: for a link among the files, or one that holds a secret.
    """
    files = [FileToPublish(*each) for each in files_below(objects.folder(path), "the record")]
    _refuse_long(objects, path, [each.name for each in files], "the record")
    refuse_secrets(files, "the record")
    refuse_secret_folders(objects.folder(path), "the record")
    if not objects.in_place:
        objects.publish(path, files)


def refuse_link(folder: Path) -> None:
    """See that the folder of an output is one yet: through a link the content would lie outside of the store.

    Raises:
        InputError: when it is a link.
    """
    if folder.is_symlink() or folder.parent.is_symlink():
        raise InputError(f"{folder}: is a link by now; leave the folder there, and write the content itself into it")


def build_manifest(
    objects: ObjectStore,
    folder: Path,
    path: str,
    adopted: Mapping[str, Entry],
    streamed: Mapping[str, Written] | None = None,
) -> Manifest:
    """Publish the files of `folder` below `path` of the store and describe them, with what was streamed there and the
    adopted entries among them.

    Raises:
        StoreError: when what the store holds is not what was written.
        InputError: for a link among the files, one that holds a secret, or one that was written and adopted under one
            path.
    """
    refuse_link(folder)
    try:
        files = [FileToPublish(*each) for each in files_below(folder)]
    except OSError as error:
        raise explain_os_error(error, folder, "read what was written") from error
    known = dict(streamed or {})
    files = [each for each in files if each.name not in known]
    _refuse_long(objects, path, [*known, *(each.name for each in files)])
    refuse_secrets(files)
    refuse_secret_folders(folder)
    known.update((each.name, written) for each, written in zip(files, objects.publish(path, files), strict=True))
    held = {info.path: info for info in objects.list(path)}
    entries = dict(adopted)
    for relative, written in known.items():
        info = held.get(f"{path}/{relative}")
        _compare(f"{objects.url}/{path}/{relative}", written, info)
        if relative in adopted:
            raise InputError(f"the output {relative!r} was written and adopted from a shard; use two names")
        entries[relative] = Entry(relative, f"{path}/{relative}", written.size, written.sha256, written.checksum)
    if (adopted or streamed) and (both := file_and_folder(entries)) is not None:
        raise InputError(f"the output {both[0]!r} is a file, and the folder of {both[1]!r}; rename one of them")
    return Manifest(tuple(entries[relative] for relative in sorted(entries)))


def checksums_differ(one: str | None, other: str | None) -> bool:
    """Whether two checksums say that bytes differ: they say nothing when one is unknown, or when they are of two kinds,
    as those of two stores are. The kind is told by the length: GCS says the CRC32C in 8 characters of base64, S3 the
    MD5 in 32 of hex, or that of an upload in parts with their number (`…-3`), which another number of parts changes.
    """
    if one is None or other is None or one == other:
        return False
    return len(one.partition("-")[0]) == len(other.partition("-")[0])


def _refuse_long(objects: ObjectStore, path: str, names: Iterable[str], what: str = "the output") -> None:
    """Object stores take names of so many bytes in all, which is told before anything is uploaded."""
    if objects.longest is None:
        return
    for name in names:
        size = len(f"{path}/{name}".encode())
        if size > objects.longest:
            raise InputError(
                f"{what} {name!r} has a name that is {size - objects.longest} bytes too long to lie in "
                f"{objects.url}/{path}; choose a shorter one"
            )


def _compare(where: str, written: Written, info: ObjectInfo | None) -> None:
    """Hold what was written against what the store says it has.

    Raises:
        StoreError: when they are not the same.
    """
    if info is None:
        state = "is missing there"
    elif info.size != written.size:
        state = f"has {info.size} bytes there, not {written.size}"
    elif checksums_differ(info.checksum, written.checksum):
        state = f"has the checksum {info.checksum} there, not {written.checksum}"
    else:
        return
    raise StoreError(f"{where}: was written, but {state}; the attempt is given up, run again")
