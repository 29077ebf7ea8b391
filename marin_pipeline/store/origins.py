"""Where the outputs of a run come from: its code, the state of its repository, the packages and the machine.

One record a run, named by the sha256 of its bytes, so that runs of one state share it. It holds no time, no path of a
machine and no environment beyond the fingerprint.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from marin_pipeline.core.canonical import Tree, dumps
from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import layout
from marin_pipeline.store.guard import put_record
from marin_pipeline.store.objects import ObjectStore, write_anew
from marin_pipeline.store.records import parsed, typed

SCHEMA = 1


@dataclass(frozen=True)
class Git:
    """The state of the repository that a project lies in."""

    commit: str
    """The one that was checked out."""
    remote: str | None
    """URL without user and password; None for a remote that is not plainly a URL, and without one."""
    branch: str | None
    """None when no branch was checked out."""
    patch: str | None
    """What tracked files have beyond the commit, as `git apply` takes it; empty for a clean tree. None where it is
    not kept, and `note` says why."""
    root: str
    """The project's folder, relative to the repository; empty when it is the same."""
    note: str = ""
    untracked: tuple[str, ...] = ()
    """Files of the snapshot, relative to the project, that git does not track: neither the commit nor the patch has
    them. The snapshot does."""

    @property
    def is_dirty(self) -> bool:
        """Whether the code was another than in the commit."""
        return self.patch != "" or bool(self.untracked)


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str
    record: str | None
    """sha256 over the lines of its RECORD that name installed files with their hashes (see `run.installed`); None
    where it has no RECORD."""


@dataclass(frozen=True)
class Origin:
    """Where the outputs of a run come from."""

    snapshot: str
    """Digest of the code."""
    git: Git | None
    """None where the project lies in no repository, or git is not there."""
    python: str
    packages: Mapping[str, Package]
    """By normalized name, as in `typing-extensions`."""
    fingerprint: Mapping[str, Any]
    """Of the process that ran the steps' driver."""
    schema: int = SCHEMA

    @functools.cached_property
    def data(self) -> bytes:
        """The bytes of the record."""
        return dumps(self.tree())

    @property
    def digest(self) -> str:
        """sha256 of the bytes, 64 hex."""
        return hashlib.sha256(self.data).hexdigest()

    def tree(self) -> Tree:
        """The record as JSON values."""
        tree = asdict(self)
        # What there is not is left out, so that records of earlier versions keep their digests.
        if self.git is not None and not tree["git"].pop("untracked"):
            return tree
        return tree if self.git is None else {**tree, "git": {**tree["git"], "untracked": list(self.git.untracked)}}

    @classmethod
    def of_tree(cls, tree: Any) -> Origin:
        """Read the JSON values back.

        Raises:
            ValueError: when they are no origin, or one of a schema that is not known here.
        """
        if isinstance(tree, dict) and tree.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"schema {str(tree['schema'])[:20]}, and {SCHEMA} is known here")
        return typed(tree, cls)


def keep_origin(objects: ObjectStore, origin: Origin) -> None:
    """Write the record of a run, unless the store has it; other bytes in its place are replaced."""
    path = layout.origin(origin.digest)
    found = objects.read(path) or put_record(objects, path, origin.data)
    if found.data != origin.data:
        write_anew(objects, path, origin.data)


def read_origin(objects: ObjectStore, digest: str) -> Origin:
    """The record with a digest.

    Raises:
        CorruptOutput: when it is missing, or not the one that was kept.
    """
    path = layout.origin(digest)
    found = objects.read(path)
    if found is None:
        raise CorruptOutput(f"{objects.url}/{path}: the record of where an output comes from is missing")
    try:
        if hashlib.sha256(found.data).hexdigest() != digest:
            raise ValueError("its bytes are not those that were written")
        return Origin.of_tree(parsed(found.data))
    except ValueError as error:
        raise CorruptOutput(f"{objects.url}/{path}: not the record of where an output comes from ({error})") from error
