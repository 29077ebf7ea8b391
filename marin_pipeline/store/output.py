"""A committed output, as its readers see it: from the commit to the manifest to exactly the objects that it names."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CacheError, CorruptOutput, InputError, StoreError
from marin_pipeline.core.reading import decode
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, InputRecord, read_commit
from marin_pipeline.store.digests import digest_at
from marin_pipeline.store.manifest import VALUE, Entry, Manifest
from marin_pipeline.store.names import key_folders
from marin_pipeline.store.objects import ObjectStore, Wanted
from marin_pipeline.store.pages import read_manifest
from marin_pipeline.store.records import parsed

SMALL = 2**23
"""Bytes up to which a file is fetched whole when it is opened: it takes one call, and all of it is verified."""

_REMEDY = "run the step that made it again with --force"


State = tuple[int, int]
"""Size of a file, and when it was written last (ns)."""


def _state(information: os.stat_result) -> State:
    return information.st_size, information.st_mtime_ns


def verified(objects: ObjectStore, entry: Entry) -> Path:
    """The local file of an entry, its size and bytes checked.

    Raises:
        CorruptOutput: when the object is missing, or its bytes are not those that were committed.
    """
    return all_verified(objects, [entry])[0]


def all_verified(objects: ObjectStore, entries: Sequence[Entry], states: dict[Path, State] | None = None) -> list[Path]:
    """The local files of entries, in order, their sizes and bytes checked; what is not at hand is fetched in one go.

    Args:
        states: gets the state in which each file was checked.

    Raises:
        CorruptOutput: when an object is missing, or its bytes are not those that were committed.
        CacheError: when what was fetched cannot be read here.
    """
    try:
        paths = objects.fetch([Wanted(entry.object, entry.size, entry.sha256) for entry in entries])
    except OSError as error:
        path = error.filename or entries[0].object
        if os.path.isabs(path) and not objects.in_place:
            raise CacheError(f"{path}: {error.strerror}; set MARIN_CACHE to a folder of your own") from error
        where = path if os.path.isabs(path) else f"{objects.url}/{path}"
        raise _unreadable(where, error) from error
    for path, entry in zip(paths, entries, strict=True):
        where = f"{objects.url}/{entry.object}"
        try:
            information = path.stat()
            if information.st_size != entry.size:
                raise CorruptOutput(
                    f"{where}: has {information.st_size} bytes, but {entry.size} were committed; {_REMEDY}"
                )
            if states is not None:
                states[path] = _state(information)
            if digest_at(path, information) != entry.sha256:
                raise CorruptOutput(f"{where}: its bytes are not those that were committed (sha256 differs); {_REMEDY}")
        except OSError as error:
            if not objects.in_place:
                gone = "is there no more" if isinstance(error, FileNotFoundError) else f"gives {error.strerror}"
                raise CacheError(
                    f"{path}: was fetched from {where}, and {gone}; see what removes files there, and run again"
                ) from error
            raise _unreadable(where, error) from error
    return paths


def _unreadable(where: str, error: OSError) -> CorruptOutput:
    return CorruptOutput(f"{where}: the committed file cannot be read ({error.strerror or 'missing'}); {_REMEDY}")


class FileSet:
    """The files of a manifest, found by relative path."""

    def __init__(self, objects: ObjectStore, manifest: Manifest, what: str) -> None:
        self.objects = objects
        self.manifest = manifest
        self.what = what
        """Whose files these are, for errors."""
        self._states: dict[Path, State] = {}
        """Of the files that lie in place, as they were when they were checked."""

    @functools.cached_property
    def files(self) -> Mapping[str, Entry]:
        """Entries by path."""
        return self.manifest.files

    def local(self, path: str) -> Path:
        """The local file, or a local folder with the files below `path`; verified.

        Raises:
            InputError: when there is no such file.
            CorruptOutput: when the bytes are not those that were committed.
        """
        if path in self.files:
            return self._verified([self.files[path]])[0]
        inside = {entry.path: entry for entry in self.manifest.below(path)}
        if not inside:
            raise self._unknown(path)
        found = dict(zip(inside, self._verified(list(inside.values())), strict=True))
        folders = {_folder_of(file, name, path) for name, file in found.items()}
        only = folders.pop() if len(folders) == 1 else None
        return only if only is not None else self._gathered(path, found)

    def _unknown(self, path: str) -> InputError:
        known = ", ".join(itertools.islice(self.files, 10)) or "none"
        return InputError(f"{self.what} has no file {path!r}; it has {known}")

    def open(self, path: str) -> BinaryIO:
        """The file, opened for reading. A large one that is not at hand is read by ranges.

        Raises:
            InputError: when there is no such file.
            CorruptOutput: when the bytes are not those that were committed.
        """
        if path not in self.files:
            raise self._unknown(path)
        entry = self.files[path]
        if entry.size > SMALL and not self.objects.is_at_hand(Wanted(entry.object, entry.size, entry.sha256)):
            from marin_pipeline.store.range_reader import open_ranges

            if (file := open_ranges(self.objects, entry)) is not None:
                return file
        return self._verified([entry])[0].open("rb")

    def _verified(self, entries: Sequence[Entry]) -> list[Path]:
        return all_verified(self.objects, entries, self._states if self.objects.in_place else None)

    def refuse_changed(self, where: str) -> None:
        """See that the files that were read, and lie in the store itself, are as they were when they were checked.

        Args:
            where: the step that has read them.

        Raises:
            InputError: when one was written meanwhile.
        """
        for path, state in self._states.items():
            try:
                same = _state(path.stat()) == state
            except OSError:
                same = False
            if not same:
                raise InputError(
                    f"{where}: its input {os.fspath(path)} was written or removed while it ran. That is a file of "
                    f"{self.what}, which is committed: a step writes to ctx.out only, and changes copies. Nothing of "
                    f"this attempt is kept; mend the input ({_REMEDY}), and run again"
                )

    def _gathered(self, path: str, found: Mapping[str, Path]) -> Path:
        """A folder of links, for files that lie in several places."""
        for name, file in found.items():
            link = self._links / name
            try:
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    os.symlink(file, link)
                fits = os.readlink(link) == os.fspath(file)
            except OSError:
                fits = False
            if not fits:
                raise CorruptOutput(
                    f"{self.what}: {name!a} cannot lie beside its other files here: a file is no folder too, and some "
                    "file systems (a Mac's) do not tell names apart that differ in case or Unicode form only"
                )
        return self._links / path

    @functools.cached_property
    def _links(self) -> Path:
        import tempfile

        from marin_pipeline.store.own_folder import scratch_folder

        # It lives as long as the process, since a path outlives what it was asked from.
        return Path(tempfile.mkdtemp(dir=scratch_folder()))


def _folder_of(file: Path, name: str, path: str) -> Path | None:
    """The folder that holds `path`, if `file` lies below it under its own name."""
    tail = Path(name).relative_to(path).parts
    return file.parents[len(tail) - 1] if file.parts[-len(tail) :] == tail else None


class _Written(Mapping[str, Entry]):
    """The files of a manifest without the value's."""

    def __init__(self, files: Mapping[str, Entry]) -> None:
        self._files = files

    def __getitem__(self, path: str) -> Entry:
        if path == VALUE:
            raise KeyError(path)
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return (path for path in self._files if path != VALUE)

    def __len__(self) -> int:
        return len(self._files) - (VALUE in self._files)


class CommittedOutput:
    """The output of a key: `files`, `value`, and local files on demand."""

    def __init__(self, objects: ObjectStore, id: str, key: str, commit: Commit) -> None:
        self.objects = objects
        self.id = id
        self.key = key
        self.commit = commit
        """The record that it is read through."""
        # Not `cached_property`, which before Python 3.12 lets one output of all be read at a time.
        self._lock = threading.RLock()
        self._manifest: Manifest | None = None
        self._files_read: FileSet | None = None
        self._value: tuple[Tree] | None = None

    @property
    def digest(self) -> str:
        """Output digest, 64 hex."""
        return self.commit.output

    @property
    def unpinned(self) -> tuple[str, ...]:
        """Names of what it was made from and no key fixes."""
        return self.commit.unpinned

    @property
    def inputs(self) -> Mapping[str, CommittedOutput]:
        """What was read to make it, by role; each is looked up when it is asked for."""
        return _Inputs(self.objects, f"{self.id} {self.key[:8]}", self.commit.inputs)

    @property
    def folder(self) -> str:
        """Folder of the committed files, relative to the prefix; of an adopted output, where they were written."""
        made = self.commit.adopted_from
        if made is not None:
            return f"{layout.attempt(made.id, made.key, made.attempt)}/out"
        return f"{layout.attempt(self.id, self.key, self.commit.attempt)}/out"

    @property
    def manifest(self) -> Manifest:
        """The manifest, checked against the commit.

        Raises:
            CorruptOutput: when it is missing or not the one that was committed.
        """
        with self._lock:
            if self._manifest is None:
                self._manifest = read_manifest(self.objects, self.id, self.key, self.commit)
            return self._manifest

    @property
    def _file_set(self) -> FileSet:
        with self._lock:
            if self._files_read is None:
                self._files_read = FileSet(self.objects, self.manifest, f"the output of {self.id} {self.key[:8]}")
            return self._files_read

    def refuse_changed(self, where: str) -> None:
        """See that what was read of it is as it was when it was read.

        Raises:
            InputError: when a file of it was written meanwhile.
        """
        if self._files_read is not None:
            self._files_read.refuse_changed(where)

    @property
    def files(self) -> Mapping[str, Entry]:
        """The files that the step wrote, without the value's."""
        return _Written(self._file_set.files)

    @property
    def value_tree(self) -> Tree:
        """The returned value, as it is written."""
        with self._lock:
            if self._value is None:
                self._value = (self._read_value(),)
            return self._value[0]

    def _read_value(self) -> Tree:
        file = self._file_set.local(VALUE)
        try:
            return parsed(file.read_bytes())
        except ValueError as error:
            raise CorruptOutput(
                f"{file}: not a value ({error}); run the step that made it again with --force"
            ) from error

    def value(self, annotation: Any) -> Any:
        """The returned value, checked against `annotation`."""
        return decode(self.value_tree, annotation, f"{self.id} {self.key[:8]} value")

    def local(self, path: str) -> Path:
        """The local file or folder that holds `path`, verified."""
        return self._file_set.local(path)

    def open(self, path: str) -> BinaryIO:
        """A file, opened for reading; a large one that is not at hand by ranges."""
        return self._file_set.open(path)

    def url(self, path: str) -> str:
        """Where `path` lies in the store."""
        files = self._file_set.files
        return f"{self.objects.url}/{files[path].object if path in files else f'{self.folder}/{path}'}"


class _Inputs(Mapping[str, CommittedOutput]):
    """The outputs that a commit says were read, with the very bytes; one that was ended since counts, while it lies
    there.
    """

    def __init__(self, objects: ObjectStore, reader: str, records: Mapping[str, InputRecord]) -> None:
        self._objects = objects
        self._reader = reader
        self._records = records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, role: str) -> CommittedOutput:
        """The output that was read in a role.

        Raises:
            StoreError: when the store has it no more.
        """
        record = self._records[role]
        for id, short in self._folders:
            if record.key.startswith(short):
                for number in itertools.count(1):
                    commit = read_commit(self._objects, id, record.key, number)
                    if commit is None:
                        break
                    if commit.output == record.output:
                        return CommittedOutput(self._objects, id, record.key, commit)
        raise StoreError(
            f"{self._objects.url}: {role} of {self._reader}, which is {record.key[:8]} with output "
            f"{record.output[:8]}, is not there any more; make it again, or look into a store that has it"
        )

    @functools.cached_property
    def _folders(self) -> list[tuple[str, str]]:
        """Id and first digits of every key: a commit names what was read by its key alone."""
        return list(key_folders(self._objects))
