"""Whether the store still holds what was committed: the records of a key, and every object that its manifest names.

Objects are found by listing the folders that hold them, once each; only one that no listing shows is asked for by
itself. What is wrong is a finding: what, where, and the command that mends it. Who could not look has found nothing.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, look
from marin_pipeline.store.manifest import VALUE, Entry, Manifest, checksums_differ
from marin_pipeline.store.objects import ObjectInfo, ObjectStore, command
from marin_pipeline.store.origins import read_origin
from marin_pipeline.store.pages import PagedManifest, read_manifest
from marin_pipeline.store.provenance import named_by
from marin_pipeline.store.snapshots import read_snapshot

Level = Literal["present", "intact", "full"]
"""`present`: every object is there; `intact`: and has its size, and the store's own checksum; `full`: and its bytes,
read and hashed, are those that were committed.
"""


DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EIO)
"""Errors that say that an object is not there, is no file, or lies where the disk is broken. All others, and those of a
store, say that nobody could look.
"""

LISTED = 100_000
"""Objects that the listings name together that are kept for what is verified next: some 40 MB."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    what: str
    where: str
    """The object."""
    remedy: str
    """What to do."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


@dataclass
class Verified:
    """One key, as it was found."""

    id: str
    key: str
    """64 hex; the first 16 where the spec does not tell the rest."""
    number: int
    """Of the current commit."""
    files: int = 0
    bytes: int = 0
    """As they were committed."""
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


class Listings:
    """Listings of folders, each made once as long as those that came since name no more than `LISTED` objects."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: dict[str, Mapping[str, ObjectInfo]] = {}
        self._count = 0

    def below(self, folder: str) -> Mapping[str, ObjectInfo]:
        """What lies below a folder, by path."""
        found = self._known.pop(folder, None)
        if found is None:
            found = {info.path: info for info in self._objects.list(folder)}
            self._count += 1 + len(found)
        while self._known and self._count > LISTED:
            self._count -= 1 + len(self._known.pop(next(iter(self._known))))
        self._known[folder] = found
        return found


class Verifier:
    """Verifies keys of one store, one after the other."""

    def __init__(
        self,
        objects: ObjectStore,
        level: Level,
        told: Callable[[Verified, int, int], None] = lambda verified, files, size: None,
    ) -> None:
        """Args:
        told: told of so many more files, and so many more bytes, of an output that have been read.
        """
        self._objects = objects
        self._told = told
        self._level = level
        # Folders of other keys and of shards, which several outputs name.
        self._shared = Listings(objects).below
        self._code = functools.lru_cache(maxsize=1024)(self._find_code)

    def verify(self, id: str, short: str) -> Verified | None:
        """Verify the current commit of a key; None when it has none.

        Args:
            short: the key, or its first 16 digits.
        """
        found = look(self._objects, id, short)
        if found.commit is None and not found.damage:
            return None
        verified = Verified(id, short, found.number)
        self._check_spec(verified)
        if found.commit is None:
            what, _, remedy = found.damage.removeprefix(self._objects.url + "/").partition(": ")[2].rpartition("; ")
            self._add(verified, what, layout.commit(id, short, found.number), remedy)
            return verified
        try:
            manifest = read_manifest(self._objects, id, short, found.commit)
        except CorruptOutput as error:
            what = "the manifest is missing" if "is missing" in str(error) else "is not the manifest that was committed"
            self._add(verified, what, layout.manifest(id, short, found.commit.attempt))
            return verified
        verified.files, verified.bytes = len(manifest.entries), manifest.size
        self._check_provenance(verified, found.commit)
        own = f"{layout.attempt(id, short, found.commit.attempt)}/out"
        mine, read = Listings(self._objects).below(own), 0
        for entry in self._readable(verified, manifest):
            held = mine if entry.object.startswith(f"{own}/") else self._shared(_unit(entry.object))
            self._check_object(verified, entry, self._info(entry.object, held))
            read += 1
        if read == verified.files:  # all pages could be read
            self._check_digests(verified, found.commit, manifest)
        return verified

    def _readable(self, verified: Verified, manifest: Manifest) -> Iterator[Entry]:
        """The entries; a page that cannot be read is a finding."""
        if not isinstance(manifest, PagedManifest):
            yield from manifest.entries
            return
        for page in manifest.entries.pages:
            try:
                yield from manifest.entries.read(page)
            except CorruptOutput as error:
                what = str(error).removeprefix(f"{self._objects.url}/{page.object}: ").rpartition("; ")[0]
                self._add(verified, what, page.object)

    def _add(self, verified: Verified, what: str, path: str, remedy: str = "") -> None:
        again = "adopt it again" if verified.id.startswith("adopted/") else "run what needs it again"
        mend = f"{self._ending(verified)}, and {again}"
        verified.findings.append(Finding(what, f"{self._objects.url}/{path}", remedy or mend))

    def _check_spec(self, verified: Verified) -> None:
        path = layout.spec(verified.id, verified.key)
        what = "its sha256 is not the key"
        with suppress(CorruptOutput):  # it is larger than a spec can be
            found = self._objects.read(path)
            key = "" if found is None else hashlib.sha256(found.data).hexdigest()
            if key.startswith(verified.key):
                verified.key = key
                return
            what = "the spec is missing" if found is None else what
        self._add(verified, what, path, "delete what is there; the next run of the step writes it again")

    def _check_digests(self, verified: Verified, commit: Commit, manifest: Manifest) -> None:
        path = layout.manifest(verified.id, verified.key, commit.attempt)
        if manifest.output_digest != commit.output:
            self._add(verified, "gives another output digest than was committed", path)
        if manifest.size != commit.bytes:
            self._add(verified, f"has {manifest.size} bytes of files, but {commit.bytes} were committed", path)
        if VALUE not in manifest.files:
            self._add(verified, f"names no {VALUE}", path)

    def _check_provenance(self, verified: Verified, commit: Commit) -> None:
        """What was kept so that a stranger can make it again."""
        for path in sorted(named_by(commit)):
            if self._info(path, self._shared(path.rpartition("/")[0])) is None:
                self._add(verified, "is missing", path)
            elif path.startswith("files/") and self._level == "full":
                problem = self._problem_with(path, path.rpartition("/")[2])
                if problem:
                    self._add_damaged(verified, problem, path)
        found = self._code(commit.origin) if commit.origin else None
        if found is not None and found[0] == "is missing":
            self._add(verified, *found)
        elif found is not None:
            self._add_damaged(verified, *found)

    def _add_damaged(self, verified: Verified, what: str, path: str) -> None:
        """A run takes what is there for what was kept, so that it must go first."""
        self._add(verified, what, path, f"delete it, {self._ending(verified)}, and run what needs it again")

    def _ending(self, verified: Verified) -> str:
        return command(f"invalidate {verified.key[:8]} --reason damaged", self._objects)

    def _find_code(self, origin: str) -> tuple[str, str] | None:
        """What is wrong with an origin or with its code, and where."""
        if self._info(layout.origin(origin), self._shared("origins")) is None:
            return None  # told already
        try:
            snapshot = read_origin(self._objects, origin).snapshot
        except CorruptOutput:
            return "is not the record that was written", layout.origin(origin)
        path = layout.snapshot(snapshot)
        if self._info(path, self._shared("code")) is None:
            return "is missing", path
        if self._level == "full":
            try:
                read_snapshot(self._objects, snapshot)
            except CorruptOutput:
                return "holds other files than its name says", path
        return None

    def _info(self, path: str, listed: Mapping[str, ObjectInfo]) -> ObjectInfo | None:
        """What the store says of an object; a listing is not trusted alone that does not show it."""
        return listed.get(path) or self._objects.info(path)

    def _check_object(self, verified: Verified, entry: Entry, info: ObjectInfo | None) -> None:
        if info is None:
            self._add(verified, "is missing", entry.object)
        elif self._level == "present":
            return
        elif info.size != entry.size:
            self._add(verified, f"has {info.size} bytes, but {entry.size} were committed", entry.object)
        elif self._level == "full" or checksums_differ(info.checksum, entry.checksum):
            # A store may say something else of the same bytes, as of a copy that came in other parts: sha256 decides.
            problem = self._problem_with(entry.object, entry.sha256, functools.partial(self._told, verified, 0))
            self._told(verified, 1, 0)
            if problem:
                self._add(verified, problem, entry.object)

    def _problem_with(self, path: str, sha256: str, told: Callable[[int], None] = lambda size: None) -> str:
        """What is wrong with the bytes of an object; empty when nothing is.

        Args:
            told: told of so many more bytes that have been read.
        """
        content = ContentHash()
        try:
            for block in self._objects.blocks(path):
                content.update(block)
                told(len(block))
        except CorruptOutput as error:
            return f"cannot be read ({error})"
        except OSError as error:
            problem = f"cannot be read ({os.strerror(error.errno) if error.errno else error})"
            if error.errno in DAMAGE:
                return problem
            where = f"{self._objects.url}/{path}"
            raise StoreError(f"{where}: {problem}, so its bytes are not known; see to that, and run again") from error
        return "" if content.hexdigest() == sha256 else "its bytes are not those that were committed (sha256 differs)"


def _unit(path: str) -> str:
    """The folder to list for an object that lies outside of its output's attempt."""
    parts = path.split("/")
    if parts[0] == "shards":
        return "/".join(parts[:3])
    for name in ("attempts", "work"):
        if name in parts[:-2]:
            return "/".join(parts[: parts.index(name) + 2])
    return "/".join(parts[:-1])
