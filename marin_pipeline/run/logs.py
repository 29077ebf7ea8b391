"""What a step printed: found by name, by key, or in a run that goes on; followed until the attempt has ended.

A log is a file that the step's process writes as it goes, so it outlives the process, however that ends.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.run.history import RunAt, RunRecord
from marin_pipeline.run.options import lease_life
from marin_pipeline.run.selection import find_step, running, tried
from marin_pipeline.store import layout
from marin_pipeline.store.commit import look, look_many
from marin_pipeline.store.lease import LIFE, LeaseRecord, is_alive, is_dead
from marin_pipeline.store.objects import LOCAL, ObjectStore, together
from marin_pipeline.store.records import parsed, typed

State = Literal["running", "done", "failed", "ended"]
"""`ended`: it left neither a commit nor a failure; it was stopped or killed."""

MOST = 5
"""Names that are told in one line."""

POLL = 0.25
"""Seconds between two looks at an attempt that goes on."""

GRACE = 5.0
"""Seconds after which an attempt without an owner, a commit or a failure has ended: between two tries of a step the
lease is free for a moment."""


@dataclass(frozen=True)
class Line:
    """One line that was printed."""

    attempt: str
    text: str
    shard: str = ""
    """Name of the shard of a `ctx.map` that printed it; empty for the step itself."""

    def tree(self) -> dict[str, Any]:
        """As JSON values."""
        return {"attempt": self.attempt, **({"shard": self.shard} if self.shard else {}), "line": self.text}

    def __str__(self) -> str:
        return f"{self.shard} {self.text}" if self.shard else self.text


@dataclass(frozen=True)
class Place:
    """Where an attempt lies."""

    id: str
    key: str
    attempt: str
    adopted: bool = False
    """Whether the output was taken over from there: nothing was computed for the key that was asked about."""
    elsewhere: str = ""
    """URL of the store that it was copied from, where what it printed lies; empty for what was made here."""

    def __str__(self) -> str:
        return f"{self.id} {self.key[:8]}"

    @property
    def silence(self) -> str:
        """What is said where nothing was printed, or where that lies in another store."""
        log = layout.attempt_log(self.id, self.key, self.attempt)
        if self.elsewhere == LOCAL:
            return f"{self} was copied from a local store, without what it printed; its log is {log} there"
        if self.elsewhere:
            return f"{self} was copied, without what it printed; its log is at {self.elsewhere}/{log}"
        return f"{self}: the attempt {self.attempt} printed nothing"


def shown_attempt(objects: ObjectStore, id: str, key: str) -> Place | None:
    """The attempt that made the output; of a step that is not done, the newest."""
    commit = look(objects, id, key).commit
    if commit is not None:
        source, elsewhere = commit.adopted_from, commit.copied_from
        if source is not None:
            return Place(source.id, source.key, source.attempt, True, elsewhere)
        return Place(id, key, commit.attempt, elsewhere=elsewhere)
    attempts = tried(objects, id, key)
    return Place(id, key, attempts[-1]) if attempts else None


@dataclass
class _Reader:
    """Reads what an attempt and the shards of its maps have printed since the last time."""

    objects: ObjectStore
    place: Place
    _offsets: dict[str, int] = field(default_factory=dict[str, int])
    _rest: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _told: Counter[str] = field(default_factory=Counter[str])
    """Lines of shards that were given out already: the step copies them to its own log when its map is done."""

    def read(self, last: bool = False) -> Iterator[Line]:
        """The lines since the last call; with `last`, also one that has no end yet."""
        # The step's own log is read first: what it has copied by then is in the logs of its shards, read after it.
        own = self._lines(self._path(layout.attempt_log), last)
        shards, found = _shards(self.objects, self.place), list[Line]()
        for name, path in shards:
            for text in self._lines(path, last):
                self._told[f"{name} {text}"] += 1
                found.append(Line(self.place.attempt, text, name))
        unfinished = {
            f"{name} {self._rest[path].decode('utf-8', 'replace')}": path
            for name, path in shards
            if self._rest.get(path)
        }
        for text in own:
            if self._told[text]:
                self._told[text] -= 1
                # What the step printed after it had copied this comes after what the shards printed.
                yield from found
                found = []
                continue
            if text in unfinished:  # the last line of a shard, which has no end
                self._rest[unfinished.pop(text)] = b""
            yield Line(self.place.attempt, text)
        yield from found

    def _path(self, of: Callable[[str, str, str], str]) -> str:
        return of(self.place.id, self.place.key, self.place.attempt)

    def _lines(self, path: str, last: bool) -> list[str]:
        try:
            data = b"".join(self.objects.blocks(path, self._offsets.get(path, 0)))
        except FileNotFoundError:
            return []
        self._offsets[path] = self._offsets.get(path, 0) + len(data)
        data = self._rest.get(path, b"") + data
        end = len(data) if last else data.rfind(b"\n") + 1
        self._rest[path] = data[end:]
        return data[:end].decode("utf-8", "replace").splitlines()


def _shards(objects: ObjectStore, place: Place) -> list[tuple[str, str]]:
    """Name and log of each shard that an attempt has asked for."""
    path = layout.attempt_shards(place.id, place.key, place.attempt)
    found = objects.read(path)
    if found is None:
        return []
    whole = found.data[: found.data.rfind(b"\n") + 1]
    try:
        asked = [typed(parsed(line), tuple[str, str, str]) for line in whole.splitlines()]
        return [(name, layout.shard_log(key, attempt)) for name, key, attempt in asked]
    except ValueError as error:
        raise CorruptOutput(f"{objects.url}/{path}: not a list of shards ({error}); delete it") from error


def _printed(objects: ObjectStore, place: Place) -> Iterator[Line]:
    """What an attempt has printed so far: its own lines, then those of shards that it has not copied."""
    shards, copied = _shards(objects, place), Counter[str]()
    for text in _lines_of(objects, layout.attempt_log(place.id, place.key, place.attempt)):
        if shards:
            copied[text] += 1
        yield Line(place.attempt, text)
    for name, path in shards:
        for text in _lines_of(objects, path):
            line = Line(place.attempt, text, name)
            if not copied[str(line)]:
                yield line
            else:
                copied[str(line)] -= 1


def _lines_of(objects: ObjectStore, path: str) -> Iterator[str]:
    """The lines of a log, block by block; none where there is none."""
    rest: list[bytes] = []
    try:
        for block in objects.blocks(path):
            end = block.rfind(b"\n") + 1
            if end:
                yield from b"".join([*rest, block[:end]]).decode("utf-8", "replace").splitlines()
                rest = []
            rest.append(block[end:])
    except FileNotFoundError:
        return
    yield from b"".join(rest).decode("utf-8", "replace").splitlines()


class Following:
    """Follows a step from attempt to attempt until it has come out."""

    def __init__(
        self,
        objects: ObjectStore,
        id: str,
        key: str,
        *,
        life: float = LIFE,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._id = id
        self._key = key
        self._run = running(objects, key)
        self._life = life
        self._sleep = sleep
        self._clock = clock
        self._beat: tuple[int, int] | None = None
        self._since = 0.0
        self._free_since: float | None = None
        self._leases: list[bytes | None] = []
        """Of the steps of the run that is expected to try it."""
        self._moved = 0.0
        """When the last of them was taken, renewed or released."""
        self.state: State = "running"
        """How it came out."""
        self.failure = ""
        """Why, where it failed."""

    @property
    def expected(self) -> bool:
        """Whether a run goes on that has this step."""
        return self._run is not None

    def __iter__(self) -> Iterator[Line]:
        reader: _Reader | None = None
        while True:
            begun = self._clock()
            state = self._look(None if reader is None else reader.place.attempt)
            if reader is not None:
                yield from reader.read()
            newest = shown_attempt(self._objects, self._id, self._key)
            if newest is not None and (reader is None or newest != reader.place):
                if reader is not None:
                    yield from reader.read(last=True)
                reader = _Reader(self._objects, newest)
                self._free_since = None
                continue
            if state != "running":
                if reader is not None:
                    yield from reader.read(last=True)
                self.state = state
                return
            # A step may have thousands of shards: looking takes a tenth of the time at most.
            self._sleep(max(POLL, 10 * (self._clock() - begun)))

    def _look(self, attempt: str | None) -> State:
        """What has become of the step."""
        found = look(self._objects, self._id, self._key)
        if found.commit is not None:
            return "done"
        if self._is_held():
            self._free_since = None
            return "running"
        if self._is_expected(attempt):
            return "running"
        if found.failure is not None and found.failure.attempt == attempt:
            self.failure = found.failure.message
            return "failed"
        now = self._clock()
        self._free_since = now if self._free_since is None else self._free_since
        return "ended" if now - self._free_since >= GRACE else "running"

    def _is_expected(self, attempt: str | None) -> bool:
        """Whether a run goes on that has not tried the step yet: the attempt is of an earlier one."""
        if self._run is None or (attempt is not None and attempt >= _as_attempt(self._run[0])):
            return False
        self._run = running(self._objects, self._key)
        return self._run is not None and self._goes_on(self._run[1])

    def _goes_on(self, run: RunRecord) -> bool:
        """Whether a run that has not told its end goes on. One of another machine may have been killed there: it does
        so while its leases move.
        """
        if run.process is not None and is_alive(run.process):
            return True
        paths = [layout.lease(id, key) for id, key in run.steps.values()]
        found = together(self._objects, *(partial(self._objects.read, path) for path in paths))
        leases = [None if each is None else each.data for each in found]
        if leases != self._leases:
            self._leases, self._moved = leases, self._clock()
        return self._clock() - self._moved < self._life

    def _is_held(self) -> bool:
        """Whether somebody is at work: the lease has an owner that is known to be there, or renews it."""
        found = self._objects.read(layout.lease(self._id, self._key))
        if found is None:
            return False
        try:
            record = LeaseRecord.loads(found.data, "lease")
        except CorruptOutput:
            return False
        if record.owner is None or is_dead(record.owner):
            return False
        if is_alive(record.owner):  # it may renew its leases less often than is expected here
            return True
        beat = (record.fence, record.beat)
        if beat != self._beat:
            self._beat, self._since = beat, self._clock()
        return self._clock() - self._since < self._life


def _as_attempt(run: RunAt) -> str:
    """The start of a run as the names of attempts are written."""
    return run.stem[:10].replace("-", "") + run.stem[10:24]


def lines(objects: ObjectStore, selector: str, as_json: bool) -> Iterator[str]:
    """What the attempt that counts printed; of a step that is not done, its newest attempt; of an output that was
    adopted, the attempt that made it.

    Raises:
        UsageError: for a step that has not been tried.
    """
    id, key = find_step(objects, selector, newest=True)
    place = shown_attempt(objects, id, key)
    if place is None:
        waits = f"; it waits for {waits_for(objects, key)}" if running(objects, key) else ""
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has not been tried in {objects.url}{waits}")
    if place.adopted and not as_json:
        yield _adopted(id, key, place)
    silent = True
    for line in _printed(objects, place):
        silent = False
        yield _shown(line, id, key, place, as_json)
    if silent and not as_json:
        yield place.silence


def _adopted(id: str, key: str, place: Place) -> str:
    return f"{id} {key[:8]} was adopted from {place.id} {place.key[:8]}, whose attempt {place.attempt} printed:"


def _shown(line: Line, id: str, key: str, place: Place | None, as_json: bool) -> str:
    adopted = {"adopted_from": {"id": place.id, "key": place.key}} if place and place.adopted else {}
    return json.dumps({"id": id, "key": key, **line.tree(), **adopted}) if as_json else str(line)


def waits_for(objects: ObjectStore, key: str) -> str:
    """What a step that a run has not begun waits for: the steps of that run that have no output yet."""
    found = running(objects, key)
    if found is None:
        return "nothing: no run has it"
    run, record = found
    looks = look_many(objects, [(id, each) for id, each in record.steps.values() if each != key])
    at_work = [name for name, (_, each) in record.steps.items() if each in looks and looks[each].leased]
    told = ", ".join(at_work[:MOST]) + (f" and {len(at_work) - MOST} more" if len(at_work) > MOST else "")
    return f"its turn in {run.name}" + (f", where {told} {'runs' if len(at_work) == 1 else 'run'}" if told else "")


def follow(objects: ObjectStore, selector: str, as_json: bool, show: Callable[[str], None]) -> int:
    """Show what a step prints until it has come out; 0 when it is done, 1 when it failed or was stopped.

    Raises:
        UsageError: for a step that has not been tried, and is in no run that goes on.
    """
    id, key = find_step(objects, selector, newest=True)
    following = Following(objects, id, key, life=lease_life())
    place = shown_attempt(objects, id, key)
    if place is None and not following.expected:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has not been tried in {objects.url}, and does not run")
    if place is None and as_json:
        show(json.dumps({"id": id, "key": key, "event": "waiting", "message": waits_for(objects, key)}))
    elif place is None:
        show(f"{id} {key[:8]} waits for {waits_for(objects, key)}")
    if place is not None and place.adopted and not as_json:
        show(_adopted(id, key, place))
    silent = True
    for line in following:
        silent = False
        show(_shown(line, id, key, place, as_json))
    if silent and place is not None and place.elsewhere and not as_json:
        show(place.silence)
    if as_json:
        show(json.dumps({"id": id, "key": key, "event": following.state, "message": following.failure}))
    elif following.state != "done":
        show(f"{following.state}  {following.failure or 'it was stopped or killed, and left no result'}")
    return 0 if following.state == "done" else 1
