"""Whether a store tells the truth: everything that a record in it states is so, to the last byte."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass

from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, read_commit
from marin_pipeline.store.lease import LeaseRecord
from marin_pipeline.store.manifest import Entry, Manifest
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.sealed import unseal

_RECORD = re.compile(r"steps/(?P<id>.+)/(?P<short>[0-9a-f]{16})/(?P<kind>commits|invalidations)/(?P<number>\d+)\.json")

_PART = re.compile(
    r"steps/(?P<id>.+)/(?P<short>[0-9a-f]{16})/work/[0-9a-f]{8}-(?P<number>\d+)-[0-9a-f]{8}/[^/]+/record\.json"
)


@dataclass(frozen=True)
class Truth:
    """What a store states, when all of it has been checked."""

    current: dict[tuple[str, str], Commit]
    """The commit that counts, by step's id and key."""
    commits: int
    divergences: frozenset[str]
    """Attempts that came second with other bytes."""
    held: tuple[str, ...]
    """Leases that somebody holds."""
    objects: int
    """Objects whose bytes were hashed."""


def bytes_of(objects: ObjectStore, path: str) -> bytes:
    found = objects.read(path)
    assert found is not None, f"{path} is missing"
    return found.data


def _sha256(data: bytes) -> str:
    """As docs/store.md says it: above 64 MiB that of the digests of the chunks."""
    chunks = [hashlib.sha256(data[start : start + 2**26]).digest() for start in range(0, len(data), 2**26)]
    return hashlib.sha256(b"".join(chunks) if len(chunks) > 1 else data).hexdigest()


def _check_files(objects: ObjectStore, manifest: Manifest, whose: str) -> int:
    for entry in manifest.entries:
        try:
            data = b"".join(objects.blocks(entry.object))
        except FileNotFoundError:
            raise AssertionError(f"{whose}: {entry.object} is missing") from None
        assert len(data) == entry.size, f"{whose}: {entry.object}"
        assert _sha256(data) == entry.sha256, f"{whose}: {entry.object}"
    return len(manifest.entries)


def check(objects: ObjectStore) -> Truth:
    """Read every record, and hash every byte that one of them names.

    Raises:
        AssertionError: when a record states what is not so.
    """
    paths = [info.path for info in objects.list("steps")]
    numbers: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(
        lambda: {"commits": set(), "invalidations": set()}
    )
    parts: list[tuple[str, str, int, str]] = []
    hashed = 0
    divergences: set[str] = set()
    held: list[str] = []
    for path in paths:
        found = _RECORD.fullmatch(path)
        if found is not None:
            spec = bytes_of(objects, f"steps/{found['id']}/{found['short']}/spec.json")
            key = hashlib.sha256(spec).hexdigest()
            assert key.startswith(found["short"]), path
            numbers[found["id"], key][found["kind"]].add(int(found["number"]))
        elif "/divergences/" in path:
            divergences.add(path.rpartition("/")[2].removesuffix(".json"))
        elif path.endswith("/lease.json") and LeaseRecord.loads(bytes_of(objects, path), path).owner is not None:
            held.append(path)
        elif (part := _PART.fullmatch(path)) is not None:
            parts.append((part["id"], part["short"], int(part["number"]), path))
    for id, short, number, path in parts:
        # What is left of a commit's parts is scrap that nobody reads: a driver that slept through its lease may still
        # add to it.
        if not any(
            each == id and key.startswith(short) and number in known["commits"]
            for (each, key), known in numbers.items()
        ):
            hashed += _check_sealed_files(objects, path)
    for info in objects.list("shards"):
        if info.path.endswith("/record.json"):
            hashed += _check_sealed_files(objects, info.path)
    current: dict[tuple[str, str], Commit] = {}
    for (id, key), known in numbers.items():
        made, ended = known["commits"], known["invalidations"]
        # One commit a number without a gap, every one but the last ended: so at most one counts.
        assert made == set(range(1, len(made) + 1)), f"{id} {key[:8]}: {made}"
        assert made - ended <= {max(made, default=0)}, f"{id} {key[:8]}: {made - ended} count"
        assert ended <= made, f"{id} {key[:8]}: {ended - made} ended before it was made"
        for number in made:
            commit = read_commit(objects, id, key, number)
            assert commit is not None
            assert commit.number == number
            manifest_data = bytes_of(objects, layout.manifest(id, key, commit.attempt))
            assert hashlib.sha256(manifest_data).hexdigest() == commit.manifest, f"{id} {key[:8]} {number}"
            manifest = Manifest.loads(manifest_data, id)
            assert manifest.output_digest == commit.output
            assert manifest.size == commit.bytes
            hashed += _check_files(objects, manifest, f"{id} {key[:8]} {number}")
            if commit.adopted_from is not None:
                source = commit.adopted_from
                taken = read_commit(objects, source.id, source.key, source.number)
                assert taken is not None
                assert (taken.attempt, taken.output) == (source.attempt, commit.output)
            if number not in ended:
                current[id, key] = commit
    for info in objects.list("resolved"):
        entry = unseal(bytes_of(objects, info.path))
        assert read_commit(objects, entry["id"], entry["key"], entry["number"]) is not None, info.path
    return Truth(
        current, sum(len(known["commits"]) for known in numbers.values()), frozenset(divergences), tuple(held), hashed
    )


def _check_sealed_files(objects: ObjectStore, path: str) -> int:
    return _check_files(
        objects, Manifest(tuple(Entry(**entry) for entry in unseal(bytes_of(objects, path))["files"])), path
    )
