"""What a commit names beside its files: the record of its origin, the code of that, and the local files that its step
was given. Each is written once, by its digest, and kept for as long as a commit that counts names it.
"""

from __future__ import annotations

from collections.abc import Iterable

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.kept_files import file_digests
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.origins import read_origin

FOLDERS = ("origins", "code", "files")
"""Where it lies."""


def named_by(commit: Commit) -> set[str]:
    """The record of a commit's origin and the local files that were kept for it; nothing for one of an earlier version,
    which kept none.
    """
    if not commit.origin:
        return set()
    return {layout.origin(commit.origin), *map(layout.kept_file, file_digests(commit.arguments))}


def with_code(objects: ObjectStore, paths: Iterable[str]) -> tuple[set[str], list[str]]:
    """What is named, with the code that the origins among it name; and the origins that cannot be read."""
    found, problems = set(paths), list[str]()
    for path in sorted(found):
        if path.startswith("origins/"):
            try:
                found.add(layout.snapshot(read_origin(objects, path[8:-5]).snapshot))
            except CorruptOutput as error:
                problems.append(str(error))
    return found, problems
