"""Copies a committed output from one store into another, byte for byte, under the paths that it has.

Nothing is believed because the source says so: the spec must hash to the key, the manifest to the commit, every object
to the manifest, before the target's commit is written, last and create-only. Killed at any moment it leaves objects
that nothing names; the next copy goes on from them. The source is only read.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event, Lock
from typing import TypeVar

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.errors import CorruptOutput, OtherBytes, StoreError
from marin_pipeline.core.visible import as_line
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name, now
from marin_pipeline.store.commit import Commit, Invalidation, Look, invalidate, look_again, publish_commit, write_spec
from marin_pipeline.store.kept_files import copy_file
from marin_pipeline.store.manifest import Entry, Manifest
from marin_pipeline.store.objects import (
    ObjectInfo,
    ObjectStore,
    answered,
    command,
    put,
    shown_url,
    together,
    told_url,
)
from marin_pipeline.store.origins import keep_origin, read_origin
from marin_pipeline.store.pages import PagedManifest, manifest_bytes, read_manifest
from marin_pipeline.store.provenance import named_by
from marin_pipeline.store.records import spec_tree
from marin_pipeline.store.snapshots import keep_snapshot, read_snapshot
from marin_pipeline.store.soundness import problem_with

T = TypeVar("T")

AT_ONCE = 16
"""Objects that are copied at the same time."""

WHOLE = 4 * 2**20
"""Bytes up to which an object is held in memory and written by one call; `AT_ONCE` of them are 64 MiB."""

_PLACE = re.compile(
    r"(?P<unit>steps/[^/]+(?:/[^/]+)*?/[0-9a-f]{16}/(?:attempts/[^/]+(?=/out/|/manifest/[0-9]+\.json)|work/[^/]+(?=/[^/]+/[^/]+/))"
    r"|shards/[0-9a-f]{2}/[0-9a-f]+/[^/]+(?=/))/.+"
)
"""Where the objects of an output may lie, and the folder that is listed to find them: what an attempt wrote, the pages
of a manifest, a part or a shard, and never a record.
"""

BATCH = 4096
"""Files that are dealt with at a time: what they need besides the listing of those that are there, which is in memory
as a whole (some 400 bytes a file).
"""


def elsewhere(source: ObjectStore) -> str:
    """What to do where the source has not got what it says."""
    verifying = command("verify --level full", source)
    return (
        "it cannot be taken from there: take it from another store, or have it made anew there with --force "
        f"({verifying} says what is damaged)"
    )


def copy_output(
    source: ObjectStore,
    target: ObjectStore,
    id: str,
    key: str,
    commit: Commit,
    *,
    report: Callable[[int], None] = lambda size: None,
    known: set[str] | None = None,
) -> Commit:
    """Copy what `commit` of the source names, and make it the output of its key in the target.

    Args:
        report: told, one call at a time, of every so many bytes that are there now; what it raises ends the copy.
        known: what outputs share (origins, code, local files) and was found to be right in the target, or written
            there, since this set was made; added to. It is not read again.

    Returns:
        The commit that counts in the target: ours, or one that was there already or came first.

    Raises:
        CorruptOutput: when the source has not got what it says, naming the file and the object; nothing is committed.
        StoreError: when a store does not answer, or other bytes lie where an object of the output belongs.
    """
    found = look_again(target, id, key, Look(1, None, None, None))
    if found.damage:
        raise CorruptOutput(found.damage)
    if found.commit is not None:
        return found.commit
    if found.fallen:
        invalidate(target, id, key, found.number, Invalidation("invalidated", found.fallen, now()))
        found = replace(found, number=found.number + 1)
    spec = checked_spec(source, id, key)
    if problem := problem_with(id, key, spec, commit):
        where = f"{source.url}/{layout.commit(id, key, commit.number)}"
        raise CorruptOutput(f"{where}: {problem}; it cannot be taken")
    manifest = answered(partial(read_manifest, source, id, key, commit))
    if manifest.output_digest != commit.output:
        where = f"{source.url}/{layout.manifest(id, key, commit.attempt)}"
        raise CorruptOutput(f"{where}: gives another output digest than was committed; {elsewhere(source)}")
    _Copy(source, target, layout.attempt(id, key, commit.attempt), manifest, report).run()
    copy_provenance(source, target, commit, set() if known is None else known)
    write_spec(target, id, key, spec)
    _copy_manifest(source, target, id, key, commit)
    # What lies elsewhere may be read by strangers.
    place = shown_url(source.url) if "://" not in target.url else told_url(source.url)
    taken = replace(commit, number=found.number, key=key, copied_from=as_line(place))
    return publish_commit(target, id, key, taken)[0]


def checked_spec(objects: ObjectStore, id: str, key: str) -> bytes:
    """The spec of a key, whose sha256 is the key.

    Raises:
        CorruptOutput: when it is missing or another one.
    """
    path = layout.spec(id, key)
    found = answered(partial(objects.read, path))
    if found is None or hashlib.sha256(found.data).hexdigest() != key:
        state = "is missing" if found is None else "does not hash to its key"
        raise CorruptOutput(f"{objects.url}/{path}: the spec of {key[:8]} {state}; {elsewhere(objects)}")
    if spec_tree(found.data, f"{objects.url}/{path}", elsewhere(objects))["step"] != id:
        raise CorruptOutput(f"{objects.url}/{path}: is the spec of another step than {id}; {elsewhere(objects)}")
    return found.data


def copy_provenance(source: ObjectStore, target: ObjectStore, commit: Commit, known: set[str]) -> None:
    """Copy what a commit names beside its files: the record of its origin, the code of that, the local files. What is
    there already is read, and other bytes are replaced: each is named by what it holds.

    Raises:
        CorruptOutput: when the source has not got it, or other bytes.
    """
    named = named_by(commit) - known
    for path in sorted(named):
        if path.startswith("files/"):
            copy_file(source, target, path.rpartition("/")[2], None)
    if layout.origin(commit.origin) in named:
        origin = _sound(read_origin, target, source, commit.origin)
        keep_snapshot(target, _sound(read_snapshot, target, source, origin.snapshot))
        keep_origin(target, origin)
    known |= named


def _sound(read: Callable[[ObjectStore, str], T], target: ObjectStore, source: ObjectStore, digest: str) -> T:
    """What has a digest, from the target, or else from the source."""
    with suppress(CorruptOutput):
        return answered(partial(read, target, digest))
    return answered(partial(read, source, digest))


def _copy_manifest(source: ObjectStore, target: ObjectStore, id: str, key: str, commit: Commit) -> None:
    """Byte for byte."""
    path = layout.manifest(id, key, commit.attempt)
    data = answered(partial(manifest_bytes, source, id, key, commit))
    if put(target, path, data).data != data:
        raise StoreError(f"{target.url}/{path}: another manifest lies there; delete it, and copy again")


class _Stopped(Exception):
    """Another object's copy has failed."""


class _Copy:
    """The objects of one output on their way."""

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        attempt: str,
        manifest: Manifest,
        report: Callable[[int], None],
    ) -> None:
        self._source = source
        self._target = target
        self._attempt = attempt
        self._manifest = manifest
        self._report = report
        self._lock = Lock()
        self._stopped = Event()
        self._units = sorted({self._unit(entry) for entry in self._named()})

    def _named(self) -> Iterator[Entry]:
        """Every object to copy: the pages of the manifest, if it is in pages, and the files."""
        if isinstance(self._manifest, PagedManifest):
            for page in self._manifest.entries.pages:
                yield Entry("a page of the manifest", page.object, page.size, page.sha256)
        yield from self._manifest.entries

    def run(self) -> None:
        """Copy what is not there yet; every object of the target is then one that was checked."""
        # `gc` tells the age of an attempt by its name, and these are as old as they were at the source.
        mark = attempt_name()
        ours = {self._attempt, *(unit for unit in self._units if unit.startswith("steps/"))}
        together(self._target, *(partial(put, self._target, f"{unit}/copied/{mark}", b"{}\n") for unit in ours))
        held = self._held()
        named = self._named()
        while batch := list(itertools.islice(named, BATCH)):
            self._all(partial(self._copy, held), batch)
        held = self._held()
        for entry in self._named():
            info = held.get(entry.object)
            if info is None or info.size != entry.size:
                state = "is missing" if info is None else f"has {info.size} bytes, not {entry.size}"
                raise StoreError(f"{self._where(entry, self._target)}: was copied, but {state}; copy again")

    def _unit(self, entry: Entry) -> str:
        """The folder to list.

        Raises:
            CorruptOutput: for an object where no output lies: a copy must not write records.
        """
        found = _PLACE.fullmatch(entry.object)
        if found is None or {"..", ".", ""} & set(entry.object.split("/")):
            raise CorruptOutput(f"{self._where(entry)}: is no place of an output's file; {elsewhere(self._source)}")
        return found["unit"]

    def _held(self) -> dict[str, ObjectInfo]:
        """What the target has got of it."""
        listed = together(self._target, *(partial(answered, partial(self._target.list, unit)) for unit in self._units))
        return {info.path: info for infos in listed for info in infos}

    def _all(self, work: Callable[[Entry], None], entries: Sequence[Entry]) -> None:
        """`work` of each, several at once; ends all when one fails."""
        self._stopped.clear()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(work, entry) for entry in entries]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
        errors = [error for each in running if not each.cancelled() and (error := each.exception()) is not None]
        if errors:  # the first that is no consequence of another
            raise next((error for error in errors if not isinstance(error, _Stopped)), errors[0])

    def _where(self, entry: Entry, objects: ObjectStore | None = None) -> str:
        return f"{(objects or self._source).url}/{entry.object} (the file {entry.path!r})"

    def _copy(self, held: dict[str, ObjectInfo], entry: Entry) -> None:
        info = held.get(entry.object)
        if info is not None:
            self._refuse_other(entry, info)
            self._add(entry.size)
        elif entry.size <= WHOLE:
            data = b"".join(self._checked(entry))
            there = put(self._target, entry.object, data)
            if there.data != data:
                self._refuse_other(entry, None)
            self._add(entry.size)
        else:
            self._stream(entry)

    def _stream(self, entry: Entry) -> None:
        with self._target.writer(entry.object) as writer:
            for block in self._checked(entry):
                writer.write(block)
                self._add(len(block))
            written = writer.close()
        if (written.size, written.sha256) != (entry.size, entry.sha256):
            self._target.delete(entry.object)
            raise StoreError(f"{self._where(entry, self._target)}: other bytes were written than were read; copy again")

    def _checked(self, entry: Entry) -> Iterator[bytes]:
        """The source's bytes; the last block comes when all of them were found to be those of the manifest."""
        content, kept = ContentHash(), b""
        try:
            for block in self._source.blocks(entry.object):
                if kept:
                    yield kept
                if self._stopped.is_set():
                    raise _Stopped
                content.update(block)
                kept = bytes(block)
                if content.size > entry.size:
                    break
        except FileNotFoundError as error:
            raise CorruptOutput(f"{self._where(entry)}: is missing; {elsewhere(self._source)}") from error
        except OSError as error:
            raise StoreError(f"{self._where(entry)}: cannot be read ({error.strerror or error})") from error
        if (content.size, content.hexdigest()) != (entry.size, entry.sha256):
            size = f"{content.size}" if content.size <= entry.size else f"more than {entry.size}"
            state = "its bytes are not those that were committed (sha256 differs)"
            if content.size != entry.size:
                state = f"has {size} bytes, but {entry.size} were committed"
            raise OtherBytes(f"{self._where(entry)}: {state}; {elsewhere(self._source)}", entry.path)
        if kept:
            yield kept

    def _refuse_other(self, entry: Entry, info: ObjectInfo | None) -> None:
        """What is there already must be what is copied: it may be another output's, and is not replaced. It is read:
        a checksum that the source's manifest says is not held against the store's, since anybody can make other bytes
        of that checksum.

        Raises:
            StoreError: when it is not.
        """
        same = info is not None and info.size == entry.size
        if same:
            content = ContentHash()
            for block in self._target.blocks(entry.object):
                if self._stopped.is_set():
                    raise _Stopped
                content.update(block)
            same = (content.size, content.hexdigest()) == (entry.size, entry.sha256)
        if not same:
            where = self._where(entry, self._target)
            raise StoreError(f"{where}: other bytes lie there than those that are copied; delete it, and copy again")

    def _add(self, size: int) -> None:
        with self._lock:
            self._report(size)
