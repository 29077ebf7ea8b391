"""What a step printed: found by name, by key, or in a run that goes on; followed until the attempt has ended.

A log is a file that the step's process writes as it goes, so it outlives the process, however that ends.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.run.history import RunAt, RunRecord, all_runs
from marin_pipeline.store import layout
from marin_pipeline.store.commit import look
from marin_pipeline.store.lease import LeaseRecord, is_dead
from marin_pipeline.store.names import owner, resolve
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.records import parsed, typed

State = Literal["running", "done", "failed", "ended"]
"""`ended`: it left neither a commit nor a failure; it was stopped or killed."""

RECENT = 50
"""Runs, the newest first, in which a name is looked for."""

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


def find_step(objects: ObjectStore, selector: str) -> tuple[str, str]:
    """The step's id and key that a name or a prefix of a key stands for.

    A name is looked for in the newest runs first, those that go on among them: what it stands for in the store is the
    last good result, and what is asked for may be running, or have failed.

    Raises:
        UsageError: when nothing, or more than one key, fits.
    """
    recent = list(_recent(objects))
    for run, record in recent if "@" not in selector else ():
        step = _named(record, selector)
        if step is not None and (_attempts(objects, *step) or run.state(record) == "running"):
            return step
    try:
        return resolve(objects, selector)
    except UsageError:
        known = {step for _, record in recent for step in record.steps.values()}
        found = [step for step in known if len(selector) >= 6 and step[1].startswith(selector)]
        if len(found) == 1:
            return found[0]
        raise


def _recent(objects: ObjectStore) -> Iterator[tuple[RunAt, RunRecord]]:
    for run in reversed(all_runs(objects)[-RECENT:]):
        with suppress(CorruptOutput):  # it only helps to find a name
            record = run.read(objects)
            if record is not None:
                yield run, record


def _named(record: RunRecord, selector: str) -> tuple[str, str] | None:
    """The step with a name in a run of its owner, who is named before a name of somebody else's."""
    if record.owner == owner() and selector in record.steps:
        return record.steps[selector]
    holder, _, name = selector.partition("/")
    return record.steps.get(name) if holder == record.owner else None


def _attempts(objects: ObjectStore, id: str, key: str) -> list[str]:
    """The attempts at a step, the newest last."""
    return objects.names(f"{layout.step(id, key)}/attempts")


def shown_attempt(objects: ObjectStore, id: str, key: str) -> str | None:
    """The attempt that counts; of a step that is not done, the newest."""
    commit = look(objects, id, key).commit
    attempts = _attempts(objects, id, key)
    return commit.attempt if commit is not None else attempts[-1] if attempts else None


@dataclass
class _Reader:
    """Reads what an attempt and the shards of its maps have printed since the last time."""

    objects: ObjectStore
    id: str
    key: str
    attempt: str
    _offsets: dict[str, int] = field(default_factory=dict[str, int])
    _rest: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _told: Counter[str] = field(default_factory=Counter[str])
    """Lines of shards that were given out already: the step copies them to its own log when its map is done."""

    def read(self, last: bool = False) -> Iterator[Line]:
        """The lines since the last call; with `last`, also one that has no end yet."""
        # The shards are read first: what the step has copied by now is known then.
        shards, found = self._shards(), list[Line]()
        for name, path in shards:
            for text in self._lines(path, last):
                self._told[f"{name} {text}"] += 1
                found.append(Line(self.attempt, text, name))
        unfinished = {
            f"{name} {self._rest[path].decode('utf-8', 'replace')}": path
            for name, path in shards
            if self._rest.get(path)
        }
        for text in self._lines(layout.attempt_log(self.id, self.key, self.attempt), last):
            if self._told[text]:
                self._told[text] -= 1
                # What the step printed after it had copied this comes after what the shards printed.
                yield from found
                found = []
                continue
            if text in unfinished:  # the last line of a shard, which has no end
                self._rest[unfinished.pop(text)] = b""
            yield Line(self.attempt, text)
        yield from found

    def _shards(self) -> list[tuple[str, str]]:
        """Name and log of each shard that the attempt has asked for."""
        found = self.objects.read(layout.attempt_shards(self.id, self.key, self.attempt))
        if found is None:
            return []
        whole = found.data[: found.data.rfind(b"\n") + 1]
        try:
            asked = [typed(parsed(line), tuple[str, str, str]) for line in whole.splitlines()]
            return [(name, layout.shard_log(key, attempt)) for name, key, attempt in asked]
        except ValueError as error:
            path = layout.attempt_shards(self.id, self.key, self.attempt)
            raise CorruptOutput(f"{self.objects.url}/{path}: not a list of shards ({error}); delete it") from error

    def _lines(self, path: str, last: bool) -> list[str]:
        try:
            with self.objects.local(path).open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return []
        self._offsets[path] = self._offsets.get(path, 0) + len(data)
        data = self._rest.get(path, b"") + data
        end = len(data) if last else data.rfind(b"\n") + 1
        self._rest[path] = data[end:]
        return data[:end].decode("utf-8", "replace").splitlines()


def printed(objects: ObjectStore, id: str, key: str, attempt: str) -> list[Line]:
    """What an attempt has printed so far: its own lines, then those of shards that it has not copied."""
    log = objects.read(layout.attempt_log(id, key, attempt))
    own = log.data.decode("utf-8", "replace").splitlines() if log else []
    copied = Counter(own)
    found = [Line(attempt, text) for text in own]
    for line in _Reader(objects, id, key, attempt).read(last=True):
        if line.shard and not copied[str(line)]:
            found.append(line)
        elif line.shard:
            copied[str(line)] -= 1
    return found


class Following:
    """Follows a step from attempt to attempt until it has come out."""

    def __init__(
        self,
        objects: ObjectStore,
        id: str,
        key: str,
        *,
        life: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._id = id
        self._key = key
        self._run = _running(objects, key)
        self._life = life
        self._sleep = sleep
        self._clock = clock
        self._beat: tuple[int, int] | None = None
        self._since = 0.0
        self._free_since: float | None = None
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
            state = self._look(None if reader is None else reader.attempt)
            if reader is not None:
                yield from reader.read()
            newest = shown_attempt(self._objects, self._id, self._key)
            if newest is not None and (reader is None or newest != reader.attempt):
                if reader is not None:
                    yield from reader.read(last=True)
                reader = _Reader(self._objects, self._id, self._key, newest)
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
        if self._run is None or (attempt is not None and attempt >= _as_attempt(self._run)):
            return False
        self._run = _running(self._objects, self._key)
        return self._run is not None

    def _is_held(self) -> bool:
        """Whether somebody is at work: the lease has an owner that is not known to be gone, and that renews it."""
        found = self._objects.read(layout.lease(self._id, self._key))
        if found is None:
            return False
        try:
            record = LeaseRecord.loads(found.data, "lease")
        except CorruptOutput:
            return False
        if record.owner is None or is_dead(record.owner):
            return False
        beat = (record.fence, record.beat)
        if beat != self._beat:
            self._beat, self._since = beat, self._clock()
        return self._clock() - self._since < self._life


def _running(objects: ObjectStore, key: str) -> RunAt | None:
    """The newest run that goes on and has a step with this key."""
    for run, record in _recent(objects):
        if run.state(record) == "running" and any(key == each for _, each in record.steps.values()):
            return run
    return None


def _as_attempt(run: RunAt) -> str:
    """The start of a run as the names of attempts are written."""
    return run.stem[:10].replace("-", "") + run.stem[10:24]


def lines(objects: ObjectStore, selector: str, as_json: bool) -> Iterator[str]:
    """What the attempt that counts printed; of a step that is not done, its newest attempt.

    Raises:
        UsageError: for a step that has not been tried.
    """
    id, key = find_step(objects, selector)
    attempt = shown_attempt(objects, id, key)
    if attempt is None:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has not been tried in {objects.url}")
    found = printed(objects, id, key, attempt)
    yield from (_shown(line, id, key, as_json) for line in found)
    if not found and not as_json:
        yield f"{id} {key[:8]}: the attempt {attempt} printed nothing"


def _shown(line: Line, id: str, key: str, as_json: bool) -> str:
    return json.dumps({"id": id, "key": key, **line.tree()}) if as_json else str(line)


def follow(objects: ObjectStore, selector: str, as_json: bool, show: Callable[[str], None]) -> int:
    """Show what a step prints until it has come out; 0 when it is done, 1 when it failed or was stopped.

    Raises:
        UsageError: for a step that has not been tried, and is in no run that goes on.
    """
    id, key = find_step(objects, selector)
    following = Following(objects, id, key)
    if shown_attempt(objects, id, key) is None and not following.expected:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has not been tried in {objects.url}, and does not run")
    for line in following:
        show(_shown(line, id, key, as_json))
    if as_json:
        show(json.dumps({"id": id, "key": key, "event": following.state, "message": following.failure}))
    elif following.state != "done":
        show(f"{following.state}  {following.failure or 'it was stopped or killed, and left no result'}")
    return 0 if following.state == "done" else 1
