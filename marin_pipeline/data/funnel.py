"""What a filtering step let in, let out and took away, by reason and source, with a sample of what it took.

A `Funnel` is filled row by row inside one shard; reports of shards merge into the step's. Merging is commutative, so
the result does not depend on how the rows were spread.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from marin_pipeline.data.document import Document, excerpt
from marin_pipeline.data.schema import Count, Documents

SAMPLE_PER_REASON = 20
REMOVED_FILE = "removed.jsonl"


@dataclass(frozen=True, order=True)
class Removed:
    """A document (or a row that never became one) that a step dropped."""

    reason: str
    id: str
    """The document's id; empty for a row without usable text."""
    source: str
    source_id: str
    """The document's name in its source; for a rejected row, its file and row."""
    excerpt: str
    """The beginning of the text, or what was wrong with the row."""


@dataclass(frozen=True)
class FunnelReport:
    """Counts and a sample, small enough to travel as the value of a shard."""

    counts: tuple[Count, ...]
    """Ordered by (reason, source)."""
    removed: tuple[Removed, ...]
    """The smallest few by (id, source, source_id) of each reason, ordered."""

    @property
    def bytes_out(self) -> int:
        """UTF-8 bytes of the texts that were kept."""
        return sum(count.bytes for count in self.counts if count.reason == "out")


class Funnel:
    """Counts rows as they pass or are dropped."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        self._removed: defaultdict[str, list[Removed]] = defaultdict(list)

    def keep(self, document: Document) -> None:
        """Count a document that goes in and comes out."""
        size = document.bytes
        self._count("in", document.source, size)
        self._count("out", document.source, size)

    def drop(self, document: Document, reason: str) -> None:
        """Count a document that goes in and is taken away for `reason`."""
        self._take(
            Removed(reason, document.id, document.source, document.source_id, excerpt(document.text)), document.bytes
        )

    def reject(self, reason: str, source: str, source_id: str, detail: str, size: int = 0) -> None:
        """Count something that never became a document.

        Args:
            reason: the name of what was wrong.
            source: the source that it would have belonged to.
            source_id: the file and row, or the name.
            detail: what was found there; any text.
            size: its UTF-8 bytes of text, 0 when there is no text.
        """
        self._take(Removed(reason, "", source, excerpt(source_id), excerpt(detail)), size)

    def _take(self, removed: Removed, size: int) -> None:
        self._count("in", removed.source, size)
        self._count(removed.reason, removed.source, size)
        sample = self._removed[removed.reason]
        sample.append(removed)
        if len(sample) >= 8 * SAMPLE_PER_REASON:
            self._removed[removed.reason] = sorted(sample)[:SAMPLE_PER_REASON]

    def _count(self, reason: str, source: str, size: int) -> None:
        tally = self._counts[reason, source]
        tally[0] += 1
        tally[1] += size

    def report(self) -> FunnelReport:
        """What was counted so far."""
        counts = (
            Count(reason, source, documents, size) for (reason, source), (documents, size) in self._counts.items()
        )
        return _report(counts, (removed for sample in self._removed.values() for removed in sample))


def merge(reports: Iterable[FunnelReport]) -> FunnelReport:
    """The report of all rows of several reports."""
    reports = list(reports)
    tallies: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for count in (count for report in reports for count in report.counts):
        tally = tallies[count.reason, count.source]
        tally[0] += count.documents
        tally[1] += count.bytes
    counts = (Count(reason, source, documents, size) for (reason, source), (documents, size) in tallies.items())
    return _report(counts, (removed for report in reports for removed in report.removed))


def _report(counts: Iterable[Count], removed: Iterable[Removed]) -> FunnelReport:
    by_reason: defaultdict[str, list[Removed]] = defaultdict(list)
    for one in sorted(removed):
        if len(by_reason[one.reason]) < SAMPLE_PER_REASON:
            by_reason[one.reason].append(one)
    kept = tuple(one for reason in sorted(by_reason) for one in by_reason[reason])
    return FunnelReport(tuple(sorted(counts, key=lambda count: (count.reason, count.source))), kept)


def write_removed(folder: Path, report: FunnelReport) -> None:
    """Write the sample to `removed.jsonl` in `folder`, one JSON object a line."""
    lines = (json.dumps(dataclasses.asdict(removed), ensure_ascii=False, sort_keys=True) for removed in report.removed)
    (folder / REMOVED_FILE).write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")


def summary(documents: Documents) -> str:
    """One line for the log: what went in, what came out, what was dropped and why."""
    totals: defaultdict[str, int] = defaultdict(int)
    for count in documents.counts:
        totals[count.reason] += count.documents
    dropped = ", ".join(f"{reason} {totals[reason]:,}" for reason in sorted(totals) if reason not in ("in", "out"))
    line = f"{totals['in']:,} documents in, {totals['out']:,} out ({documents.bytes:,} bytes)"
    return f"{line}; dropped: {dropped}" if dropped else line
