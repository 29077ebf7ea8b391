"""Takes a file or a folder that was made elsewhere into a store, as an output whose key follows from its bytes."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_pipeline.core.adopted import adopted_id, adopted_spec
from marin_pipeline.core.artifact import content_digest
from marin_pipeline.core.canonical import Tree, digest, dumps, encode
from marin_pipeline.core.errors import CorruptOutput, InputError, MarinError, StoreError, UsageError
from marin_pipeline.core.key import key_of
from marin_pipeline.core.paths import problem_with
from marin_pipeline.run.keeper import LeaseKeeper
from marin_pipeline.store import layout
from marin_pipeline.store.clock import attempt_name, now
from marin_pipeline.store.commit import Commit, look, publish_commit, write_spec
from marin_pipeline.store.lease import Lease, Waiting
from marin_pipeline.store.manifest import VALUE, Entry, Manifest, build_manifest, files_below
from marin_pipeline.store.objects import ObjectStore, command, explain_os_error
from marin_pipeline.store.pages import write_manifest

POLL = 1.0
"""Seconds between two tries to get the lease that another one holds."""


@dataclass(frozen=True)
class Content:
    """What is to be adopted: its files, hashed where they lie, and its value."""

    name: str
    files: dict[str, Path]
    """By path in the output."""
    manifest: Manifest
    value: bytes

    @classmethod
    def of(cls, path: Path, name: str, value: str) -> Content:
        """Hash a file or a folder.

        Args:
            value: JSON; what dependents read as `.value`.

        Raises:
            UsageError: for a path that is not there, a value that is no JSON or has a key twice, or what cannot be a
                name.
            InputError: for a link among the files, or anything else that is no file.
        """
        adopted_id(name)
        try:
            data = dumps(encode(json.loads(value, object_pairs_hook=_once), "--value"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--value {value!r}: not JSON ({error}); text needs double quotes of its own") from error
        files = _files(path)
        if VALUE in files:
            raise InputError(f"{path}: holds {VALUE}, which is kept for the value; rename it, or give it with --value")
        try:
            entries = {each: Entry(each, "", file.stat().st_size, content_digest(file)) for each, file in files.items()}
        except OSError as error:
            raise explain_os_error(error, error.filename or path, "read") from error
        # A value of null says nothing, and then the digest is that of the files alone.
        if data != b"null":
            entries[VALUE] = Entry(VALUE, "", len(data), hashlib.sha256(data).hexdigest())
        return cls(name, files, Manifest(tuple(entries[each] for each in sorted(entries))), data)

    @property
    def digest(self) -> str:
        """Over paths, sizes and sha256; what `adopted(name, digest)` takes."""
        return self.manifest.output_digest

    @property
    def id(self) -> str:
        """Id of the step that stands for it."""
        return adopted_id(self.name)

    @property
    def spec(self) -> bytes:
        """The spec, whose sha256 is the key."""
        return adopted_spec(self.name, self.digest)

    @property
    def key(self) -> str:
        """64 hex."""
        return key_of(self.spec)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a value, whose keys are there once."""
    found: dict[str, Any] = {}
    for name, each in pairs:
        if name in found:
            raise UsageError(f"--value: an object in it has the key {name!r} twice; give each key once")
        found[name] = each
    return found


def _files(path: Path) -> dict[str, Path]:
    """Files by their path in the output: those below a folder, or the one file under its name."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    if stat.S_ISREG(mode):
        if problem := problem_with(path.name):
            raise UsageError(f"{str(path)!a}: {problem}")
        return {path.name: path}
    if not stat.S_ISDIR(mode):
        kind = "a link; give what it points to" if stat.S_ISLNK(mode) else "neither a file nor a folder"
        raise UsageError(f"{path}: is {kind}")
    found = {relative: file for relative, file, _ in files_below(path)}
    if not found:
        raise UsageError(f"{path}: holds no files; there is nothing to adopt")
    return found


def adopt(objects: ObjectStore, content: Content, life: float) -> tuple[Commit, bool]:
    """Copy what was hashed into the store and commit it, unless it is there.

    Args:
        life: seconds without a beat after which another's lease is taken over.

    Returns:
        The commit, and whether it was made now.

    Raises:
        InputError: when a file was written while it was copied.
        CorruptOutput: when the record of an earlier adoption is damaged.
    """
    waiting = Waiting(objects, layout.lease(content.id, content.key), life)
    while True:
        found = look(objects, content.id, content.key)
        if found.damage:
            ending = command(f"invalidate {content.key[:8]} --reason damaged", objects)
            raise CorruptOutput(f"{found.damage.rpartition('; ')[0]}; {ending}, and adopt it again")
        if found.commit is not None:
            return found.commit, False
        lease = waiting.attempt()
        if lease is not None:
            break
        time.sleep(min(POLL, life / 4))
    keeper = LeaseKeeper(objects, life)
    try:
        keeper.keep(lease)
        # Looked at again, now that nobody else can begin.
        found = look(objects, content.id, content.key)
        if found.commit is not None:
            return found.commit, False
        return _commit(objects, content, found.number, lease)
    finally:
        keeper.close()
        lease.release()


def _commit(objects: ObjectStore, content: Content, number: int, lease: Lease) -> tuple[Commit, bool]:
    id, key = content.id, content.key
    started, clock, attempt = now(), time.monotonic(), attempt_name()
    write_spec(objects, id, key, content.spec)
    path = layout.attempt(id, key, attempt)
    try:
        folder = objects.folder(f"{path}/out")
        for relative, file in content.files.items():
            _copy(file, folder / relative)
        (folder / VALUE).write_bytes(content.value)
        manifest = build_manifest(objects, folder, f"{path}/out", {})
        _refuse_changed(content, manifest)
        written = write_manifest(objects, id, key, attempt, manifest)
        if not lease.renew():
            raise StoreError(f"{objects.url}/{path}: the lease was taken over while the files were copied; adopt again")
    except BaseException:
        with suppress(MarinError):  # the error itself is what the reader needs
            objects.delete(path)
        raise
    arguments: Tree = json.loads(content.spec)["arguments"]
    commit = Commit(
        number=number,
        attempt=attempt,
        fence=lease.fence,
        manifest=written,
        output=manifest.output_digest,
        compared=manifest.output_digest,
        inputs={},
        resolved=hashlib.sha256(content.spec + digest({}).encode()).hexdigest(),
        code="",  # none ran
        pieces={},
        arguments=arguments,
        fingerprint={},  # nothing was computed here: no machine had a part in the bytes
        started=started,
        finished=now(),
        seconds=round(time.monotonic() - clock, 3),
        bytes=manifest.size,
        key=key,
    )
    return publish_commit(objects, id, key, commit)


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target, follow_symlinks=False)
    except OSError as error:
        raise explain_os_error(error, error.filename or source, "copy") from error


def _refuse_changed(content: Content, manifest: Manifest) -> None:
    """What was copied must be what the key was computed from."""
    copied = {entry.path: (entry.size, entry.sha256) for entry in manifest.entries}
    for entry in content.manifest.entries:
        if copied.get(entry.path) != (entry.size, entry.sha256):
            raise InputError(f"{content.files[entry.path]}: was written while it was copied; adopt it again")
