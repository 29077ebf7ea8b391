"""A manifest of many files, in pages: the manifest itself names the pages, with their digests and what they span, so
that its own digest covers all of them, and whoever reads one file reads one page.

A page is a manifest of some of the files, sorted; what is hashed as the output does not see the pages.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, overload

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, StoreError
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.manifest import Entry, Manifest, is_digest
from marin_pipeline.store.objects import RECORD, ObjectStore, Wanted, put, together
from marin_pipeline.store.records import parsed, typed

MOST = 10_000
"""Files of a manifest without pages."""

PAGE = 4096
"""Files of a page: about one MiB."""

KEPT = 16
"""Pages that a reader keeps at hand."""

AT_ONCE = 16
"""Pages that are written at the same time."""

_REMEDY = "run the step again with --force"


@dataclass(frozen=True)
class Page:
    """One page, as the manifest names it."""

    object: str
    """Where it lies, relative to the prefix; it may be in another folder than the attempt's."""
    size: int
    """Bytes of the page itself."""
    sha256: str
    first: str
    """Path of its first file."""
    last: str
    """Path of its last file."""
    files: int
    bytes: int
    """Of its files."""


class PagedEntries(Sequence[Entry]):
    """The entries of all pages, read page by page when they are asked for."""

    def __init__(self, objects: ObjectStore, pages: Sequence[Page]) -> None:
        self.pages = pages
        self._objects = objects
        self._firsts = [page.first for page in pages]
        self._starts = [0, *itertools.accumulate(page.files for page in pages)]
        self.read = functools.lru_cache(maxsize=KEPT)(self._read)
        """The entries of a page. Raises CorruptOutput when it is missing, or not the one that was committed."""

    def _read(self, page: Page) -> Sequence[Entry]:
        where = f"{self._objects.url}/{page.object}"
        found, state = None, "is not the one that was committed"
        with suppress(CorruptOutput):  # it is larger
            found = self._objects.read(page.object, page.size)
            state = "is missing" if found is None else state
        if found is None or hashlib.sha256(found.data).hexdigest() != page.sha256:
            raise CorruptOutput(f"{where}: the page of the manifest {state}; {_REMEDY}")
        entries = Manifest.loads(found.data, where).entries
        paths = [entry.path for entry in entries]
        if len(paths) != page.files or [*paths[:1], *paths[-1:]] != [page.first, page.last] or paths != sorted(paths):
            raise CorruptOutput(f"{where}: the page of the manifest has other files than the manifest says; {_REMEDY}")
        return entries

    def find(self, path: str) -> Entry | None:
        """The entry of a file; reads one page at most."""
        at = bisect.bisect_right(self._firsts, path) - 1
        if at < 0 or path > self.pages[at].last:
            return None
        entries = self.read(self.pages[at])
        index = bisect.bisect_left(entries, path, key=lambda entry: entry.path)
        return entries[index] if index < len(entries) and entries[index].path == path else None

    def below(self, folder: str) -> Iterator[Entry]:
        """The entries of the files below a folder; reads the pages that may hold some."""
        start, stop = f"{folder}/", f"{folder}0"  # "0" follows "/"
        for page in self.pages[max(bisect.bisect_right(self._firsts, start) - 1, 0) :]:
            if page.first >= stop:
                return
            yield from (entry for entry in self.read(page) if entry.path.startswith(start))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Entry]:
        for page in self.pages:
            yield from self.read(page)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        at = bisect.bisect_right(self._starts, numbers) - 1
        return self.read(self.pages[at])[numbers - self._starts[at]]


class _Files(Mapping[str, Entry]):
    """The entries of all pages by path."""

    def __init__(self, entries: PagedEntries) -> None:
        self._entries = entries

    def __getitem__(self, path: str) -> Entry:
        found = self._entries.find(path)
        if found is None:
            raise KeyError(path)
        return found

    def __iter__(self) -> Iterator[str]:
        return (entry.path for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True)
class PagedManifest(Manifest):
    """A manifest whose files are named by pages."""

    entries: PagedEntries

    @property
    def files(self) -> Mapping[str, Entry]:
        return _Files(self.entries)

    @property
    def size(self) -> int:
        return sum(page.bytes for page in self.entries.pages)

    def below(self, folder: str) -> Iterable[Entry]:
        return self.entries.below(folder)

    def named_objects(self) -> Iterator[Wanted]:
        yield from (Wanted(page.object, page.size, page.sha256) for page in self.entries.pages)
        yield from super().named_objects()


def write_manifest(objects: ObjectStore, id: str, key: str, attempt: str, manifest: Manifest) -> str:
    """Create the manifest of an attempt, in pages when it names many files; its sha256.

    Raises:
        StoreError: when another attempt has this name.
    """
    path = layout.manifest(id, key, attempt)
    if len(manifest.entries) <= MOST:
        return _create(objects, path, manifest.dumps())[1]
    starts, pages = iter(range(0, len(manifest.entries), PAGE)), list[Page]()
    while some := list(itertools.islice(starts, AT_ONCE)):
        pages += together(
            objects,
            *(
                functools.partial(
                    _write_page,
                    objects,
                    layout.manifest_page(id, key, attempt, start // PAGE),
                    manifest.entries[start : start + PAGE],
                )
                for start in some
            ),
        )
    return _create(objects, path, dumps({"schema": 2, "pages": [vars(page) for page in pages]}))[1]


def _write_page(objects: ObjectStore, path: str, entries: Sequence[Entry]) -> Page:
    page = Manifest(entries)
    size, sha256 = _create(objects, path, page.dumps())
    return Page(path, size, sha256, entries[0].path, entries[-1].path, len(entries), page.size)


def _create(objects: ObjectStore, path: str, data: bytes) -> tuple[int, str]:
    """Create an object; its size and sha256."""
    if put(objects, path, data).data != data:
        raise StoreError(f"{objects.url}/{path}: another attempt has this name; run again")
    return len(data), hashlib.sha256(data).hexdigest()


def read_manifest(objects: ObjectStore, id: str, key: str, commit: Commit) -> Manifest:
    """The manifest of a commit.

    Raises:
        CorruptOutput: when it is missing, or not the one that was committed.
    """
    path = layout.manifest(id, key, commit.attempt)
    return manifest_of(objects, manifest_bytes(objects, id, key, commit), f"{objects.url}/{path}")


def manifest_bytes(objects: ObjectStore, id: str, key: str, commit: Commit) -> bytes:
    """What the manifest's own object holds: of one in pages it names the pages.

    Raises:
        CorruptOutput: when it is missing, or not the one that was committed.
    """
    path = layout.manifest(id, key, commit.attempt)
    found = objects.read(path)
    if found is None or hashlib.sha256(found.data).hexdigest() != commit.manifest:
        state = "is missing" if found is None else "is not the one that was committed"
        raise CorruptOutput(f"{objects.url}/{path}: the manifest {state}; {_REMEDY}")
    return found.data


def _refuse_wrong(pages: Sequence[Page]) -> None:
    """Raises ValueError for a page that lies elsewhere, or pages that do not follow each other."""
    for page in pages:
        if not layout.is_of_an_output(page.object) or not is_digest(page.sha256):
            raise ValueError(f"a page is said to lie at {page.object!a}, where none lies")
        if min(page.size, page.files, page.bytes) < 0 or page.size > RECORD or page.first > page.last:
            raise ValueError(f"the page {page.object!a} is damaged")
    if any(page.last >= after.first for page, after in itertools.pairwise(pages)):
        raise ValueError("its pages are not sorted")


def manifest_of(objects: ObjectStore, data: bytes, where: str) -> Manifest:
    """Read a manifest back; its pages are read when they are asked for.

    Raises:
        CorruptOutput: when it is not one.
    """
    try:
        tree: Any = parsed(data)
        if "pages" not in tree:
            return Manifest.loads(data, where)
        pages = typed(tree["pages"], list[Page])
        _refuse_wrong(pages)
        return PagedManifest(PagedEntries(objects, pages))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptOutput(f"{where}: not a manifest ({error}); {_REMEDY}") from error
