"""Keeping a store in order, for people and programs: `marin-pipeline name`, `verify`, `invalidate`, `gc` and `adopt`.

What each does is in `store` and in `adoption`; here are its lines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.core.visible import say, visible
from marin_pipeline.run.adoption import Content, adopt
from marin_pipeline.run.selection import find_step
from marin_pipeline.run.words import bytes_text, counted, moment
from marin_pipeline.store import layout
from marin_pipeline.store.clock import duration, now
from marin_pipeline.store.commit import Invalidation, invalidate, look, look_many
from marin_pipeline.store.gc import Collection, collect
from marin_pipeline.store.names import current_names, drop_root, find_keys, give_name, history_of, is_root, key_folders
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.verify import Level, Verified, Verifier

VERIFICATION_FAILED = 4
"""Exit code when something is not as it was committed."""

EVERY = 10.0
"""Seconds between two lines that say how far an output is read."""


# Names ----------------------------------------------------------------------------------------------------------------


def name(objects: ObjectStore, words: Sequence[str], drop: str | None, as_json: bool) -> Iterator[str]:
    """Give a key a name, list what a name has stood for, or take a root away."""
    if drop is not None:
        if words:
            raise UsageError("name --drop takes one name and its number, as in `name --drop train@2`")
        dropped = drop_root(objects, drop)
        yield json.dumps({"name": str(dropped), "root": False}) if as_json else f"{dropped}  is no root any more"
    elif len(words) == 2:
        id, key = find_step(objects, words[0])
        given = give_name(objects, words[1], id, key)
        yield json.dumps({"name": str(given), "id": id, "key": key, "root": True}) if as_json else str(given)
    elif len(words) == 1:
        for record in history_of(objects, words[0]):
            root = is_root(objects, record)
            if as_json:
                tree = {"name": str(record), "id": record.id, "key": record.key, "at": record.at}
                yield json.dumps({**tree, "root": root})
            else:
                mark = "  root" if root else ""
                yield f"{record.number:>4}  {record.key[:8]}  {moment(record.at)}  {record.id}{mark}"
    else:
        raise UsageError("name takes a key and a name (`name KEY NAME`), or one name (`name NAME`)")


# Verify ---------------------------------------------------------------------------------------------------------------


def verify(objects: ObjectStore, selectors: Sequence[str], level: Level, as_json: bool) -> int:
    """Verify what was committed, key by key; the exit code. A line is printed as soon as its key is done."""
    asked = [_asked(objects, selector) for selector in selectors] or list(key_folders(objects))
    done, wrong, damaged = list[Verified](), 0, 0
    with _progress(len(asked), f"verify ({level})") as (told, at):
        verifier = Verifier(objects, level, _Reading(at))
        for id, key in asked:
            verified = verifier.verify(id, key)
            if verified is None:
                told(())
                if selectors:
                    raise UsageError(f"{id} {key[:8]} has no output in {objects.url}; run it first")
                continue
            done.append(verified)
            damaged += not verified.ok
            wrong += len(verified.findings)
            told(_verified_lines(verified, as_json))
    count, size = sum(each.files for each in done), sum(each.bytes for each in done)
    if as_json:
        summary = {"event": "summary", "ok": not wrong, "level": level, "keys": len(done), "files": count}
        say(json.dumps({**summary, "bytes": size, "damaged": damaged, "findings": wrong}))
    else:
        verdict = f"{damaged} damaged" if wrong else _verdict(objects, level)
        found = f"{counted(len(done), 'output')}, {counted(count, 'file')}, {bytes_text(size)}: {verdict}"
        say(found if done else f"{objects.url}: there is no output to verify")
    return VERIFICATION_FAILED if wrong else 0


_VERDICTS: Mapping[Level, str] = {
    "present": "all objects are there",
    "intact": "all objects are there, with the sizes that were committed",
    "full": "all bytes as they were committed",
}


def _verdict(objects: ObjectStore, level: Level) -> str:
    """What was found of a store in which nothing is wrong. One whose objects are plain files has no checksums."""
    verdict = _VERDICTS[level]
    return verdict if objects.in_place else verdict.replace("with the sizes", "with the sizes and checksums")


def _verified_lines(verified: Verified, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps({"event": "verified", "ok": verified.ok, **asdict(verified)})
        return
    state = "ok" if verified.ok else "damaged"
    files = counted(verified.files, "file")
    yield f"{state:<9}{verified.key[:8]}  {files:>12} {bytes_text(verified.bytes):>9}  {verified.id}"
    yield from (f"  {finding}" for finding in verified.findings)


def _asked(objects: ObjectStore, selector: str) -> tuple[str, str]:
    """Step's id and key; a damaged spec is a finding, and does not hide its key."""
    try:
        return find_step(objects, selector)
    except CorruptOutput:
        fits = [each for each in key_folders(objects) if each[1].startswith(selector[: layout.SHORT])]
        if len(fits) != 1:
            raise
        return fits[0]


class _Reading:
    """Says how far an output is read."""

    def __init__(self, say_at: Callable[[str], None]) -> None:
        self._say_at = say_at
        self._of = ""
        self._files = self._bytes = 0

    def __call__(self, verified: Verified, files: int, size: int) -> None:
        if self._of != verified.key:
            self._of, self._files, self._bytes = verified.key, 0, 0
        self._files += files
        self._bytes += size
        read = f"{bytes_text(self._bytes)} of {bytes_text(verified.bytes)}"
        self._say_at(f"{verified.key[:8]}  {read}, {self._files:,} of {counted(verified.files, 'file')}")


@contextmanager
def _progress(total: int, what: str) -> Iterator[tuple[Callable[[Iterable[str]], None], Callable[[str], None]]]:
    """Prints the lines of one after the other, and says on stderr how far it is: below them with a bar where that is a
    terminal, else in a line now and then.
    """
    if not sys.stderr.isatty():
        last = time.monotonic()

        def one_by_one(lines: Iterable[str]) -> None:
            for line in lines:
                say(line)

        def now_and_then(at: str) -> None:
            nonlocal last
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                say(f"{what}  {at}", sys.stderr)

        yield one_by_one, now_and_then
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(what, total=total)

        def told(lines: Iterable[str]) -> None:
            progress.advance(task)
            for line in lines:
                if sys.stdout.isatty():  # the same terminal: the bar makes room
                    progress.console.print(visible(line), soft_wrap=True, highlight=False, markup=False)
                else:
                    say(line)

        yield told, lambda at: progress.update(task, description=f"{what}  {at}")


# Invalidate -----------------------------------------------------------------------------------------------------------


def end_output(objects: ObjectStore, selector: str, reason: str, dry: bool, as_json: bool) -> Iterator[str]:
    """End the current commit of a key, and say what hangs on it."""
    if not reason.strip():
        raise UsageError("invalidate: --reason is empty; say why, it is kept")
    id, key = find_step(objects, selector)
    found = look(objects, id, key)
    if found.fallen:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, whose output has ended already: {found.fallen}")
    if found.commit is None and not found.damage:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has no current output in {objects.url}")
    fall, below = _hanging(objects, key, found.number)
    if not dry:
        invalidate(objects, id, key, found.number, Invalidation("invalidated", reason, now()))
    if as_json:
        tree = {"id": id, "key": key, "number": found.number, "reason": reason, "done": not dry}
        yield json.dumps(
            {**tree, "adopted": [each.tree() for each in fall], "descendants": [each.tree() for each in below]}
        )
        return
    yield f"{'would end' if dry else 'ended'} commit {found.number} of {id} {key[:8]}: {reason}"
    for each in fall:
        yield f"  {each.label}  {'would fall' if dry else 'falls'} with it: it was adopted from it"
    for each in below:
        hangs = "is stale if that is made again with other bytes" if each.direct else "hangs on those"
        yield f"  {each.label}  {hangs}"
    if not fall and not below:
        yield "  nothing else hangs on it"


@dataclass(frozen=True)
class Descendant:
    """An output that hangs on another."""

    id: str
    key: str
    """64 hex; the first 16 where the spec does not tell the rest."""
    names: list[str]
    direct: bool
    """Whether it was made from that one itself, or taken from it."""

    @property
    def label(self) -> str:
        """For people: what it is called, else its step and key."""
        return ", ".join(self.names) or f"{self.id} {self.key[:8]}"

    def tree(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


def _hanging(objects: ObjectStore, key: str, number: int) -> tuple[list[Descendant], list[Descendant]]:
    """What was adopted from a commit, and falls with it; and the outputs that were made from it or from those, nearest
    first.
    """
    ids = {short: id for id, short in key_folders(objects)}
    looks = look_many(objects, [(id, short) for short, id in ids.items()])
    commits = {short: found.commit for short, found in looks.items() if found.commit is not None}
    users: dict[str, list[str]] = {}
    for short, commit in commits.items():
        for record in commit.inputs.values():
            users.setdefault(record.key[: layout.SHORT], []).append(short)
    names = current_names(objects)

    def descendant(short: str, direct: bool) -> Descendant:
        whole = commits[short].key or next((each for _, each in _whole_key(objects, ids[short], short)), short)
        return Descendant(ids[short], whole, sorted(names.get(whole, [])), direct)

    sources = {short: commit.falls_with for short, commit in commits.items() if commit.falls_with is not None}
    taken = [short for short, source in sources.items() if (source.key, source.number) == (key, number)]
    todo, below, direct = [key[: layout.SHORT], *taken], list[Descendant](), True
    seen = set(todo)
    while todo:
        reached = dict.fromkeys(each for short in todo for each in users.get(short, ()) if each not in seen)
        seen.update(reached)
        todo = list(reached)
        below += [descendant(short, direct) for short in todo]
        direct = False
    return [descendant(short, True) for short in taken], below


def _whole_key(objects: ObjectStore, id: str, short: str) -> Iterator[tuple[str, str]]:
    """Of an output whose commit is of an earlier version and does not say it."""
    with suppress(CorruptOutput):  # a damaged spec hides no output
        yield from (each for each in find_keys(objects, short, f"steps/{id}") if each[0] == id)


# Garbage --------------------------------------------------------------------------------------------------------------


def gc(objects: ObjectStore, grace: str, delete: bool, life: float, as_json: bool) -> Iterable[str]:
    """Collect garbage, or say what would be collected."""
    report = collect(objects, duration(grace), delete=delete, life=life)
    return _gc_json(report) if as_json else _gc_table(report, grace)


def _totals(report: Collection) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for item in report.items:
        count, size = found.get((item.action, item.kind), (0, 0))
        found[item.action, item.kind] = (count + 1, size + item.bytes)
    return found


def _gc_json(report: Collection) -> Iterator[str]:
    for item in report.items:
        yield json.dumps({"event": item.action, "kind": item.kind, "path": item.path, "bytes": item.bytes})
    for why in report.kept:
        yield json.dumps({"event": "kept", "why": why})
    totals: dict[str, dict[str, dict[str, int]]] = {"end": {}, "delete": {}}
    for (action, kind), (count, size) in _totals(report).items():
        totals[action][kind] = {"count": count, "bytes": size}
    freed = sum(item.bytes for item in report.items if item.action == "delete")
    yield json.dumps({"event": "summary", "deleted": report.deleted, **totals, "bytes": freed})


_KINDS: Mapping[str, tuple[str, ...]] = {
    "output": ("output",),
    "attempt": ("attempt",),
    "work": ("part",),
    "shard": ("shard",),
    "scratch": ("scratch", "scratch"),
    "provenance": ("origin", "origins"),
}
"""What each kind is called: one, and many where that is not one with an s."""


def _gc_table(report: Collection, grace: str) -> Iterator[str]:
    totals = _totals(report)
    for action, title in (("end", f"ended, their bytes go after {grace}"), ("delete", "deleted")):
        rows = [(_KINDS[kind], *totals[action, kind]) for kind in _KINDS if (action, kind) in totals]
        if rows:
            yield title if report.deleted else f"would be {title}"
            yield from (
                f"  {counted(count, *name).partition(' ')[2]:<16}{count:>8}  {bytes_text(size):>9}"
                for name, count, size in rows
            )
            if action == "delete":
                yield f"  {'in all':<16}{sum(row[1] for row in rows):>8}  {bytes_text(sum(row[2] for row in rows)):>9}"
    if not report.items:
        yield f"nothing to collect with --grace {grace}"
    elif not report.deleted:
        yield "nothing was changed; add --delete to do it"
    for why in report.kept:
        yield f"kept: {why}"


# Adopt ----------------------------------------------------------------------------------------------------------------


def take_in(
    objects: ObjectStore, path: str, name: str, value: str, dry: bool, life: float, as_json: bool
) -> Iterator[str]:
    """Take a file or folder into the store under a name."""
    content = Content.of(Path(path), name, value)
    given, new = None, False
    if not dry:
        _, new = adopt(objects, content, life)
        given = str(give_name(objects, name, content.id, content.key))
    if as_json:
        tree = {"id": content.id, "key": content.key, "digest": content.digest, "bytes": content.manifest.size}
        yield json.dumps({**tree, "files": len(content.files), "name": given, "adopted": new})
        return
    yield f"key     {content.key}"
    yield f"digest  {content.digest}"
    if given is not None:
        yield f"name    {given}{'' if new else '  (was there already)'}"
    yield f'declare it as adopted("{name}", "{content.digest}")'
