"""Bring files in from elsewhere: https://, gs://, s3://, hf:// and files of the machine.

The output ends as the bytes that were declared, or not at all. What a source names without fixing it (an address
without a sha256, a branch of the hub) is unpinned: it is read once, recorded, and flagged wherever it leads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin_pipeline import Context, LocalFile, Runtime, Secret, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import Address, parse
from marin_pipeline.data.remote.sources import Clients, Found, Wanted, output_path, refuse_clashes
from marin_pipeline.data.remote.transfer import Fetched

TOLD = 20
"""Sources, and files of one of them, of which the log says how to pin them; the records say it of all."""


@dataclass(frozen=True)
class Source:
    """A file elsewhere, or all files that an address with wildcards names."""

    url: str | LocalFile
    """`https://…`, `gs://bucket/object#generation`, `s3://bucket/object?versionId=…`,
    `hf://datasets/OWNER/NAME@REVISION/path`, `file:///path`, or a file of this machine by its content."""
    sha256: str | None = None
    """Of the file, 64 hex: other bytes are refused."""
    name: str | None = None
    """Its path in the output, by default the last part of the address; of several files the folder that they are in."""
    expected_bytes: Runtime[int | None] = None
    """What it is known to have in all, for the plan; a file that has more is refused."""
    token: Runtime[Secret | None] = None
    """What authorizes: sent as a bearer token to the host of the address alone; of hf:// in place of HF_TOKEN."""


@dataclass(frozen=True)
class DownloadedFile:
    """One file. It says nothing of where it is from, so that equal bytes are an equal output."""

    path: str
    """In the output."""
    size: int
    """Bytes."""
    sha256: str
    """Of the whole file, 64 hex, as `sha256sum` prints it."""


@dataclass(frozen=True)
class Downloaded:
    """What a download gives."""

    files: tuple[DownloadedFile, ...]
    """In the order of the sources, and of each source by name."""


def _sources(arguments: Mapping[str, Any]) -> list[tuple[Source, Address | None]]:
    """The sources of a declaration with their addresses.

    Raises:
        InputError: for one that cannot be used, whatever its place holds.
    """
    given = arguments["sources"]
    sources = [
        Source(each) if isinstance(each, str) else each for each in (given if isinstance(given, list) else [given])
    ]
    found = [(source, parse(source.url) if isinstance(source.url, str) else None) for source in sources]
    if not found:
        raise InputError('sources: there are none; name some, as in download("https://host/file.jsonl")')
    for source, address in found:
        _check(source, address)
    single = [(source, address) for source, address in found if address is None or not address.is_many]
    refuse_clashes(
        [
            (output_path(address, source.name or ""), address.url) if address else (source.name or "", "a local file")
            for source, address in single
        ]
    )
    return found


def _check(source: Source, address: Address | None) -> None:
    where = "a local file" if address is None else address.url
    sha256 = source.sha256
    if sha256 is not None and (len(sha256) != 64 or set(sha256) - set("0123456789abcdef")):
        raise InputError(f"{where}: sha256={sha256!r} is not 64 digits of 0-9 and a-f")
    if sha256 is not None and address is not None and address.is_many:
        raise InputError(f"{where}: names several files, and a sha256 is of one; leave it away, or name one file")
    if address is None and source.name is None:
        raise InputError(
            "a LocalFile is known by its content, which has no name; give one, as in "
            'Source(LocalFile("a.txt"), name="a.txt")'
        )
    if source.name is not None and address is not None and address.is_many:
        refuse_clashes([(source.name, where)])
    if source.token is not None and (address is None or address.scheme not in ("https", "http", "hf")):
        raise InputError(f"{where}: a token is for https:// and hf://; leave it away")


def _unpinned(arguments: Mapping[str, Any]) -> Sequence[str]:
    return [
        address.url
        for source, address in _sources(arguments)
        if address is not None and not (address.is_fixed or source.sha256)
    ]


def _transfers(arguments: Mapping[str, Any]) -> Sequence[int | None]:
    """Of what comes from elsewhere: files of this machine, by address or as a `LocalFile`, are here."""
    return [
        source.expected_bytes
        for source, address in _sources(arguments)
        if address is not None and address.scheme != "file"
    ]


@step(version=1, unpinned=_unpinned, transfers=_transfers, pinning="the log of the step says how to pin it")
def download(
    ctx: Context,
    sources: str | Source | list[str | Source],
    workers: Runtime[int] = 4,
    tries: Runtime[int] = 8,
    stall_seconds: Runtime[float] = 60.0,
    least_bytes_per_second: Runtime[float] = 1000.0,
) -> Downloaded:
    """Read files from elsewhere into the output, as they are stored there.

    Args:
        sources: an address, a `Source`, or a list of them.
        workers: files at once.
        tries: failed tries in a row, at most, without a gain (broken connections, 5xx, 429).
        stall_seconds: without a byte, after which a connection counts as broken.
        least_bytes_per_second: over a minute, below which it counts as broken, too (not of s3://).

    Raises:
        InputError: when a source cannot be had, or is not what its digest says.
    """
    from functools import partial

    from marin_pipeline.data.remote.several import fetch_all
    from marin_pipeline.data.remote.transfer import Patience, Watch, patiently

    watch, patience = Watch(), Patience(tries=max(1, tries))
    ask_again = partial(patiently, patience=patience, watch=watch, log=ctx.log)
    wanted = [
        Wanted(
            address,
            source.url.path if isinstance(source.url, LocalFile) else None,
            source.sha256 or "",
            source.name or "",
            source.expected_bytes,
            source.token.value if source.token else None,
            source.token.name if source.token else "",
        )
        for source, address in _sources({"sources": sources})
    ]
    found = Clients(stall_seconds, ask_again, least_bytes_per_second).find(wanted)

    def look(taken: int, total: int, files: int) -> None:
        ctx.progress(taken, max(taken, total), "bytes", files=files)
        if ctx.stopping:
            raise ctx.stop()

    fetched = fetch_all(
        found, ctx.stream, ctx.work, workers=workers, patience=patience, watch=watch, look=look, log=ctx.log
    )
    _record(ctx, found, fetched)
    return Downloaded(
        tuple(DownloadedFile(file.path, got.size, got.sha256) for file, got in zip(found, fetched, strict=True))
    )


def _record(ctx: Context, found: Sequence[Found], fetched: Sequence[Fetched]) -> None:
    """Keep what was read where, which is not the same each time; and say how to pin what is not."""
    rows: list[dict[str, Any]] = []
    pins: dict[str, list[str]] = {}
    for file, got in zip(found, fetched, strict=True):
        pin = file.pin(got.state, got.sha256)
        known = {"path": file.path, "source": file.url, "size": got.size, "sha256": got.sha256}
        rows.append({**known, "answers": got.answers, "kept": got.kept, **got.state.facts, **file.facts, "pin": pin})
        if pin:
            pins.setdefault(file.url, []).append(pin)
    (ctx.records / "sources.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    for url, each in list(pins.items())[:TOLD]:
        texts = list(dict.fromkeys(each))
        more = f" and {len(texts) - TOLD} more (all are in records/sources.json)" if len(texts) > TOLD else ""
        ctx.log(f"unpinned: {url}: what was read now is {', '.join(texts[:TOLD])}{more}")
    if len(pins) > TOLD:
        ctx.log(f"unpinned: {len(pins) - TOLD} more; how to pin each is in records/sources.json")
