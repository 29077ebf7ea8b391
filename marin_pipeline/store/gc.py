"""Removes what nothing needs any more, in two steps a grace period apart: first it is ended, then its bytes go.

A commit that is believed never has missing bytes, at whatever moment this is killed and whatever runs beside it. What
is ended is believed by nobody who looks from then on; who looked before has the grace period to finish, and an attempt
that began before keeps the bytes for as long as it holds its lease. Ages are told by what records say and by the names
of attempts, never by the times of files. What cannot be read keeps what it might need, and a listing that does not show
what is there ends the pass.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store import layout
from marin_pipeline.store.clock import moment, utc, written
from marin_pipeline.store.collection import Collection, Item, Sightings
from marin_pipeline.store.commit import Commit, Invalidation, invalidate, look
from marin_pipeline.store.held import held_keys
from marin_pipeline.store.inventory import KeyState, key_folder, read_json, read_state, read_states
from marin_pipeline.store.lease import Lease, Waiting
from marin_pipeline.store.listed import Listed
from marin_pipeline.store.objects import ObjectInfo, ObjectStore, put
from marin_pipeline.store.provenance import FOLDERS, with_code
from marin_pipeline.store.roots import ROOT_FOLDERS, read_roots

GRACE = datetime.timedelta(days=7)
SKEW = datetime.timedelta(hours=1)
"""By how much the clocks of two machines may differ: attempts are named by one, and what is ended is dated by another.
"""
_SHARD = re.compile(r"(shards/[0-9a-f]{2}/[0-9a-f]+)/.+")
_SCRATCH = re.compile(r"(tmp/(\d+)d/[^/]+)(/.*)?")


def collect(
    objects: ObjectStore,
    grace: datetime.timedelta = GRACE,
    *,
    delete: bool = False,
    life: float = 30.0,
    clock: Callable[[], datetime.datetime] = utc,
    sleep: Callable[[float], None] = time.sleep,
) -> Collection:
    """One pass over a store.

    Args:
        grace: what was needed, made or ended since is kept.
        delete: do it; else only say what would be done.
        life: seconds without a beat after which a lease counts as given up.
    """
    objects = Listed(objects, mark=delete)
    if not delete:
        pass_ = _Pass(objects, grace, False, life, clock, sleep)
        pass_.end()
        pass_.delete()
        return pass_.report
    first = _Pass(objects, grace, True, life, clock, sleep)
    first.end()
    # What is deleted is decided by what is there now that the leases were looked at again: an attempt that could have
    # read what has been ended holds its lease still, or what it committed is seen.
    second = _Pass(objects, grace, True, life, clock, sleep, first.report)
    second.delete()
    return second.report


class _Pass:
    """One look at a store, and what follows from it."""

    def __init__(
        self,
        objects: ObjectStore,
        grace: datetime.timedelta,
        do: bool,
        life: float,
        clock: Callable[[], datetime.datetime],
        sleep: Callable[[float], None],
        report: Collection | None = None,
    ) -> None:
        self._objects = objects
        self._do = do
        self._life = life
        self._clock = clock
        self.report = report or Collection(do)
        self._now = clock()
        self._since = self._now - grace
        self._sightings = Sightings(objects, self.report)
        self._seen, self._gone = self._sightings.seen, self._sightings.gone
        self._held, problems = held_keys(objects, life, sleep, take_over=do)
        for problem in problems:
            self.report.keep(problem)
        self._states = read_states(objects)
        self._shards: dict[str, list[ObjectInfo]] = {}
        for info in objects.list("shards"):
            if matched := _SHARD.fullmatch(info.path):
                self._shards.setdefault(matched[1], []).append(info)
        for state in self._states.values():
            for problem in state.damaged:
                self.report.keep(problem)
        self._live: set[str] = set()
        self._known: dict[str, dict[str, Any]] = {}
        self._roots_from: list[str] | None = None

    # Leases -----------------------------------------------------------------------------------------------------------

    def _read_by(self, ended: str) -> bool:
        """Whether an attempt is going on that began before something was ended, and may have read it."""
        limit = moment(ended)
        for folder in self._held:
            state = self._states.get(folder)
            began = [at for name in state.below("attempts") if (at := moment(name))] if state else []
            if limit is None or not began or max(began) <= limit + SKEW:
                return True
        return False

    @contextmanager
    def _leased(self, state: KeyState) -> Iterator[Lease | None]:
        """The lease of a key, so that nobody begins to work on it meanwhile; None when somebody is at work on it."""
        lease = None
        if state.path not in self._held:
            try:
                lease = Waiting(self._objects, layout.lease(state.id, state.short), self._life).attempt()
            except CorruptOutput as error:
                self.report.keep(str(error))
        try:
            yield lease
        finally:
            if lease is not None:
                lease.release()

    # Ending -----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the outputs that no root reaches, and the shards that no output points into."""
        # What was adopted comes first: what it was taken from is ended only with it, so that nothing falls that is kept
        # for another reason than a root, as what is young is.
        kept: set[str] = set()
        for state in sorted(self._states.values(), key=lambda each: each.source is None):
            commit = state.current
            if commit is None:
                continue
            if state.path not in kept and self._is_garbage(state, commit) and self._end_output(state):
                self.report.items.append(Item("output", "end", state.path, commit.bytes))
                state.ended[commit.attempt] = self._at()
                state.current = None
            elif state.source is not None:
                kept.add(state.source)
        self._end_shards()

    def _is_garbage(self, state: KeyState, commit: Commit) -> bool:
        """Whether the output of a key that nobody is at work on is old, and no root reaches it."""
        if not self._is_old(commit.finished) or state.path in self._held or state.damaged:
            return False
        return not self._is_live(state.path)

    def _end_output(self, state: KeyState) -> bool:
        if not self._do:
            return True
        with self._leased(state) as lease:
            # Looked at again, now that nobody can begin: it may have been made again, or a run may have begun that
            # counts on it.
            if lease is None or self._is_live(state.path, anew=True):
                return False
            found = look(self._objects, state.id, state.short)
            # What has fallen since is ended too: nothing counts on it.
            if (found.commit is None and not found.fallen) or found.number != state.number:
                return False
            record = Invalidation("collected", "gc: no root reached it", self._at())
            invalidate(self._objects, state.id, state.short, state.number, record)
        return True

    def _is_live(self, path: str, anew: bool = False) -> bool:
        """Whether a key is a root or an ancestor of one, or may be.

        Args:
            anew: look whether there are other roots by now.
        """
        if anew or self._roots_from is None:
            records = [info.path for folder in ROOT_FOLDERS for info in self._objects.list(folder)]
            if records != self._roots_from:
                self._roots_from, self._live = records, self._reach()
        return path in self._live

    def _reach(self) -> set[str]:
        roots = read_roots(self._objects, self._since, self._held.__contains__, self._known)
        for problem in sorted(roots.unreadable):
            self.report.keep(f"{problem} (it may be a root: no output is ended)")
        if roots.unreadable:
            return set(self._states)
        by_short: dict[str, list[str]] = {}
        for state in self._states.values():
            by_short.setdefault(state.short, []).append(state.path)
        found: set[str] = set()
        todo = [*roots.folders, *self._held]
        while todo:
            path = todo.pop()
            if path in found:
                continue
            found.add(path)
            state = self._states.get(path)
            if state is None:  # it was begun after the listing, with what it needs among the roots
                continue
            if state.needs_unknown:
                self.report.keep(f"{self._objects.url}/{path}: nothing says what it was made from: no output is ended")
                return set(self._states)
            for key in state.needs:
                todo += by_short.get(key[: layout.SHORT], [])
            named = state.refers.get(state.current.attempt, ()) if state.current else ()
            todo += {folder for each in named if (folder := key_folder(each))}
            if state.source is not None:  # what was adopted falls with what it was taken from
                todo.append(state.source)
        return found

    def _end_shards(self) -> None:
        """Shards go on being found by `ctx.map` until their record is deleted; their files stay for now."""
        named = self._named()
        ended: list[str] = []
        unknown: list[str] = []
        for folder, infos in self._shards.items() if named is not None else ():
            key = folder.rpartition("/")[2]
            record = layout.shard_record(key)
            has_record = any(info.path == record for info in infos)
            if (named and folder in named) or (folder in self._gone and not has_record):
                continue
            since = self._shard_time(folder, infos)
            if since is None:
                unknown.append(folder)
            if not self._is_old(since or written(self._now)):
                continue
            if self._do and (found := self._objects.read(record)) is not None:
                put(self._objects, layout.shard_ended(key), found.data)
                self._objects.delete(record)
            ended.append(folder)
            self._shards[folder] = [info for info in infos if info.path != record]
            self.report.items.append(Item("shard", "end", folder, sum(info.size for info in infos)))
        # After the records have gone: who began after this was written has not read them.
        self._sightings.add(self._at(), [*unknown, *self._unknown_others()], ended, self._do)

    def _shard_time(self, folder: str, infos: list[ObjectInfo]) -> str | None:
        """When a shard was last worked on: by the names of its attempts, by its record, by when it was first seen."""
        names = [info.path[len(folder) + 1 :].partition("/")[0] for info in infos]
        times = [name for name in names if moment(name)]
        if not times and f"{folder}/record.json" in {info.path for info in infos}:
            try:
                times = [str(read_json(self._objects, f"{folder}/record.json").get("attempt"))]
            except CorruptOutput as error:
                self.report.keep(str(error))
        times = [name for name in times if moment(name)]
        return max(times) if times else self._seen.get(folder)

    def _unknown_others(self) -> set[str]:
        """What tells no time itself, and is seen for the first time."""
        found = {folder for folder, _, time in self._works(self._states.values()) if time is None}
        found |= {folder for folder, (_, _, time) in self._scratch().items() if time is None}
        found |= {
            self._attempt(state, name)
            for state in self._states.values()
            for name in state.below("attempts")
            if self._unneeded_since(state, name) == ""
        }
        found |= self._unnamed_provenance().keys()
        return {path for path in found if path not in self._seen}

    # Deleting ---------------------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete what was ended a grace period ago, and what was never committed and is as old."""
        named = self._named()
        if named is not None:
            self._delete_attempts(named)
            self._delete_work(named)
            self._delete_shards(named)
        self._delete_scratch()
        self._delete_provenance()
        if self._do:
            self._sightings.forget()

    def _named(self) -> set[str] | None:
        """All objects that committed attempts name outside of themselves, and the folders that hold them; None when a
        manifest cannot be read.
        """
        unknown = [state.path for state in self._states.values() if state.refers_unknown]
        if unknown:
            self.report.keep(
                f"{self._objects.url}/{unknown[0]}: a commit or manifest cannot be read, and may name anything: "
                "no attempts, parts and shards are deleted"
            )
            return None
        found: set[str] = set()
        for state in self._states.values():
            for attempt, paths in state.refers.items():
                if attempt not in state.ended or not self._is_old(state.ended[attempt]):
                    for path in paths:
                        while path and path not in found:
                            found.add(path)
                            path = path.rpartition("/")[0]
        return found

    def _attempt(self, state: KeyState, name: str) -> str:
        return layout.attempt(state.id, state.short, name)

    def _unneeded_since(self, state: KeyState, attempt: str) -> str | None:
        """Since when an attempt counts no more: None for one that does, empty when that cannot be told."""
        if state.refers_unknown or (state.current is not None and state.current.attempt == attempt):
            return None
        time = state.ended.get(attempt, attempt)
        if moment(time) is None:
            return self._seen.get(self._attempt(state, attempt), "")
        return max([time, *state.copied(attempt)], key=lambda each: moment(each) or self._since)

    def _garbage_attempts(self, state: KeyState, named: set[str]) -> dict[str, int]:
        """Attempts of a key that can go, with their bytes."""
        found: dict[str, int] = {}
        for name, size in state.below("attempts").items():
            since = self._unneeded_since(state, name)
            if since is None or not self._is_old(since or written(self._now)):
                continue
            if self._attempt(state, name) in named or (name in state.ended and self._read_by(since)):
                continue
            found[name] = size
        return found

    def _delete_attempts(self, named: set[str]) -> None:
        for state in self._states.values():
            if state.path in self._held or not self._garbage_attempts(state, named):
                continue
            if not self._do:
                self._add_attempts(state, self._garbage_attempts(state, named))
                continue
            with self._leased(state) as lease:
                if lease is None:
                    continue
                fresh = read_state(self._objects, state.id, state.short)
                if fresh.refers_unknown:
                    continue
                found = self._garbage_attempts(fresh, named)
                for name in found:
                    self._objects.delete(self._attempt(state, name))
                self._add_attempts(state, found)

    def _add_attempts(self, state: KeyState, found: Mapping[str, int]) -> None:
        for name, size in found.items():
            self.report.items.append(Item("attempt", "delete", self._attempt(state, name), size))

    def _works(self, states: Iterable[KeyState]) -> Iterator[tuple[str, KeyState, str | None]]:
        """Each folder of finished parts, its key, and when it was last worked on."""
        for state in states:
            start = len(state.path) + 1
            by_folder: dict[str, list[str]] = {}
            for info in state.infos:
                parts = info.path[start:].split("/")
                if parts[0] == "work" and len(parts) > 2:
                    by_folder.setdefault(f"{state.path}/work/{parts[1]}", []).extend(parts[2:])
            for folder, names in by_folder.items():
                times = [name for name in names if moment(name)]
                yield folder, state, max(times) if times else self._seen.get(folder)

    def _delete_work(self, named: set[str]) -> None:
        for state in self._states.values():
            if state.path in self._held or not self._garbage_work(state, named):
                continue
            if not self._do:
                self._add_work(self._garbage_work(state, named))
                continue
            with self._leased(state) as lease:
                if lease is None:
                    continue
                found = self._garbage_work(read_state(self._objects, state.id, state.short), named)
                for folder, inside in found.items():
                    for info in inside:  # first the records, so that nobody believes what is left
                        if info.path.endswith("/record.json"):
                            self._objects.delete(info.path)
                    self._objects.delete(folder)
                self._add_work(found)

    def _garbage_work(self, state: KeyState, named: set[str]) -> dict[str, list[ObjectInfo]]:
        """Folders of finished parts that can go, with what lies in them."""
        mine = [path for paths in state.refers.values() for path in paths]
        found: dict[str, list[ObjectInfo]] = {}
        for folder, _, since in self._works([state]):
            needed = state.refers_unknown or folder in named or any(path.startswith(f"{folder}/") for path in mine)
            if not needed and self._is_old(since or written(self._now)):
                found[folder] = [info for info in state.infos if info.path.startswith(f"{folder}/")]
        return found

    def _add_work(self, found: Mapping[str, list[ObjectInfo]]) -> None:
        for folder, inside in found.items():
            self.report.items.append(Item("work", "delete", folder, sum(info.size for info in inside)))

    def _delete_shards(self, named: set[str]) -> None:
        for folder, infos in self._shards.items():
            ended = self._gone.get(folder)
            if ended is None or not self._is_old(ended) or self._read_by(ended):
                continue
            if folder in named or any(info.path == f"{folder}/record.json" for info in infos):
                continue  # it was made again, or taken before it was ended
            if self._do:  # attempt by attempt: it may be made again at this moment, by an attempt of another name
                for name in sorted({info.path[len(folder) + 1 :].partition("/")[0] for info in infos}):
                    self._objects.delete(f"{folder}/{name}")
            self.report.items.append(Item("shard", "delete", folder, sum(info.size for info in infos)))

    def _scratch(self) -> dict[str, tuple[int, int, str | None]]:
        """Scratch by its path: how many days it may live, its bytes, and since when it is known."""
        found: dict[str, tuple[int, int, str | None]] = {}
        for info in self._objects.list("tmp"):
            if matched := _SCRATCH.fullmatch(info.path):
                path, name = matched[1], matched[1].rpartition("/")[2]
                since = name if moment(name) else self._seen.get(path)
                found[path] = (int(matched[2]), found.get(path, (0, 0))[1] + info.size, since)
        return found

    def _delete_scratch(self) -> None:
        young: list[int] = []
        for path, (days, size, since) in self._scratch().items():
            known = moment(since) if since else None
            if known is None or known + datetime.timedelta(days=days) > self._clock():
                young.append(size)
                continue
            if self._do:
                self._objects.delete(path)
            self.report.items.append(Item("scratch", "delete", path, size))
        if sum(young):
            self.report.keep(
                f"tmp/: {sum(young):,} bytes of scratch, which goes as many days as its folder says after the first "
                "`gc --delete` that has seen it"
            )

    def _unnamed_provenance(self) -> dict[str, int]:
        """Origins, code and local files that no commit of the grace period names, with their bytes."""
        if any(state.refers_unknown for state in self._states.values()):  # `_named` says so
            return {}
        named = {
            path
            for state in self._states.values()
            for attempt, paths in state.names.items()
            if attempt not in state.ended or not self._is_old(state.ended[attempt])
            for path in paths
        }
        kept, problems = with_code(self._objects, named)
        for problem in problems:
            self.report.keep(f"{problem}: no code is deleted")
        folders = [folder for folder in FOLDERS if not (problems and folder == "code")]
        there = [info for folder in folders for info in self._objects.list(folder)]
        return {info.path: info.size for info in there if info.path not in kept}

    def _delete_provenance(self) -> None:
        """It is written before the commit that names it: by an attempt, whose lease is held meanwhile."""
        found = self._unnamed_provenance()
        old = {path: size for path, size in found.items() if self._is_old(self._seen.get(path, written(self._now)))}
        if not old or (self._do and self._may_be_named_by_now()):
            return
        for path, size in old.items():
            if self._do:
                self._objects.delete(path)
            self.report.items.append(Item("provenance", "delete", path, size))

    def _may_be_named_by_now(self) -> bool:
        """Whether somebody is at work, or has committed something since this pass looked."""
        if held_keys(self._objects, self._life, time.sleep, take_over=False)[0]:
            return True
        seen = {info.path for state in self._states.values() for info in state.infos}
        return any("/commits/" in info.path and info.path not in seen for info in self._objects.list("steps"))

    def _at(self) -> str:
        """The time at which something is ended."""
        return written(self._clock() if self._do else self._now)

    def _is_old(self, time: str) -> bool:
        """Whether something happened before the grace period began."""
        known = moment(time)
        return known is not None and known <= self._since
