"""Names: what a key is called by its owner. A name is an alias, `owner/name@n`: each change of what it stands for is
one more record, and none is ever replaced.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from marin_pipeline.core.artifact import LONGEST_NAME, NAME
from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now
from marin_pipeline.store.objects import ObjectStore, command, holds, put, together
from marin_pipeline.store.records import parsed, typed

_KEY16 = re.compile(r"[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{1,18}")
NUMBERED = re.compile(r"[0-9]{1,18}\.json")
"""Names of the records of a name."""
_NOT_IN_OWNER = re.compile(r"[^A-Za-z0-9_.@-]")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


def owner() -> str:
    """Whose names these are: `MARIN_OWNER`, else the user's name, with `_` for what cannot be in a folder's name."""
    given = os.environ.get("MARIN_OWNER")
    if given:
        if not _OWNER.fullmatch(given):
            raise UsageError(
                f"MARIN_OWNER={given!r}: may hold letters, digits, '_', '-', '.' and '@', and begins with one"
            )
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
    # Whatever a machine calls its users: it becomes a folder's name.
    return _NOT_IN_OWNER.sub("_", user).lstrip(".@-")[:64] or "somebody"


@dataclass(frozen=True)
class NameRecord:
    """What a name has stood for since one of its changes."""

    owner: str
    name: str
    number: int
    """1, 2, …: the largest one is what the name stands for now."""
    id: str
    """Of the step."""
    key: str
    at: str
    """UTC; when it was given."""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}@{self.number}"


@dataclass(frozen=True)
class _Standing:
    """What one record of a name holds; whose name and which is in its path."""

    id: str
    key: str
    at: str


def enter_name(objects: ObjectStore, owner: str, name: str, id: str, key: str, anew: bool = False) -> NameRecord:
    """Append to what a name has stood for, unless it stands for that key already.

    Args:
        anew: append in any case.
    """
    folder = layout.names(owner, name)
    while True:
        latest = max(_numbers(objects, folder), default=0)
        if latest and not anew:
            known = _read_name(objects, owner, name, latest)
            if known is not None and (known.id, known.key) == (id, key):
                return known
        record = NameRecord(owner, name, latest + 1, id, key, now())
        # Of two at once both get a number of their own: the second one is refused this one and takes the next.
        if objects.create(f"{folder}/{record.number}.json", dumps({"id": id, "key": key, "at": record.at})) is not None:
            return record


def keep_name(objects: ObjectStore, owner: str, name: str, id: str, key: str, seen: int | None) -> int:
    """Let a name stand for a key; its number.

    Args:
        seen: a number that stands for this key, so that it is only asked whether the name was given to another since.
    """
    if seen is not None and objects.read(f"{layout.names(owner, name)}/{seen + 1}.json") is None:
        return seen
    return enter_name(objects, owner, name, id, key).number


def give_name(objects: ObjectStore, text: str, id: str, key: str) -> NameRecord:
    """Give a key a name that a person chose: what it stands for is a root, which `gc` keeps with all that it needs.

    Args:
        text: `name` or `owner/name`.

    Raises:
        UsageError: for what cannot be a name.
    """
    holder, name = _holder(objects, text)
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME or not _OWNER.fullmatch(holder):
        raise UsageError(
            f"{text!r}: a name is made of a-z, 0-9, '_', '-' and '/', in at most {LONGEST_NAME} characters"
        )
    record = enter_name(objects, holder, name, id, key)
    if holds(objects, layout.root_end(holder, name, record.number)):
        record = enter_name(objects, holder, name, id, key, anew=True)
    put(objects, layout.root(holder, name, record.number), dumps(asdict(record)))
    return record


def drop_root(objects: ObjectStore, text: str) -> NameRecord:
    """Take the root away that `name@n` is. The name goes on standing for what it stood for; nothing is removed.

    Raises:
        UsageError: when it is no root.
    """
    short, _, number = text.rpartition("@")
    if not short or not _NUMBER.fullmatch(number):
        raise UsageError(f"{text!r}: say which number of the name, as in `--drop train@2`")
    holder, name = _holder(objects, short)
    path = layout.root(holder, name, int(number))
    known = _numbers(objects, layout.names(holder, name))
    found = _read_name(objects, holder, name, int(number)) if int(number) in known else None
    if found is None or not holds(objects, path):
        raise UsageError(
            f"{text!r} is no root in {objects.url}: nobody gave that name with `marin-pipeline name`; "
            f"{command(f'name {short}', objects)} lists what it has stood for"
        )
    put(objects, layout.root_end(holder, name, int(number)), dumps({"at": now()}))
    return found


def is_root(objects: ObjectStore, record: NameRecord) -> bool:
    """Whether a person gave this name, and has not taken the root away."""
    place = (record.owner, record.name, record.number)
    return holds(objects, layout.root(*place)) and not holds(objects, layout.root_end(*place))


def history_of(objects: ObjectStore, text: str) -> list[NameRecord]:
    """All that a name has stood for, oldest first.

    Raises:
        UsageError: when there is no such name.
        CorruptOutput: when one of its records cannot be read.
    """
    holder, name = _holder(objects, text)
    numbers = _numbers(objects, layout.names(holder, name))
    found = [record for number in numbers if (record := _read_name(objects, holder, name, number)) is not None]
    if not found:
        raise UsageError(f"{text!r} is no name in {objects.url}{_known(objects)}")
    return found


def latest_record(objects: ObjectStore, owner: str, name: str) -> NameRecord | None:
    """What a name stands for now; None for one that stands for nothing, or whose record is damaged."""
    numbers = _numbers(objects, layout.names(owner, name))
    with suppress(CorruptOutput):
        return _read_name(objects, owner, name, numbers[-1]) if numbers else None
    return None


def latest_of_name(objects: ObjectStore, owner: str, name: str) -> tuple[str, str] | None:
    """Step's id and key that a name stands for now."""
    found = latest_record(objects, owner, name)
    return None if found is None else (found.id, found.key)


def _holder(objects: ObjectStore, text: str) -> tuple[str, str]:
    """Whose name `text` is, and which. The first part is an owner when it is one in this store, or the present one; a
    name of one's own that has that form goes first.
    """
    first, _, rest = text.partition("/")
    if not rest or _numbers(objects, layout.names(owner(), text)):
        return owner(), text
    return (first, rest) if first == owner() or first in objects.names("names") else (owner(), text)


def _numbers(objects: ObjectStore, folder: str) -> list[int]:
    """Numbers of what a name has stood for, ascending; none for what can be no name."""
    if ".." in folder.split("/") or "\0" in folder:
        return []
    return sorted(int(each[:-5]) for each in objects.names(folder) if NUMBERED.fullmatch(each))


def _read_name(objects: ObjectStore, owner: str, name: str, number: int) -> NameRecord | None:
    path = f"{layout.names(owner, name)}/{number}.json"
    found = objects.read(path)
    if found is None:
        return None
    try:
        stands = typed(parsed(found.data), _Standing)
        return NameRecord(owner, name, number, stands.id, stands.key, stands.at)
    except ValueError as error:
        raise CorruptOutput(f"{objects.url}/{path}: not what a name stands for ({error}); delete it") from error


def find_keys(objects: ObjectStore, prefix: str, folder: str = "steps") -> list[tuple[str, str]]:
    """Step's id and full key of every key below `folder` that begins with `prefix`."""
    begun = [each for each in key_folders(objects, folder) if each[1].startswith(prefix[: layout.SHORT])]
    found = together(objects, *(partial(_key_of, objects, *each) for each in begun))
    return [(id, key) for (id, _), key in zip(begun, found, strict=True) if key is not None and key.startswith(prefix)]


def _key_of(objects: ObjectStore, id: str, short: str) -> str | None:
    """The full key of the spec in a folder; None where there is none."""
    path = layout.spec(id, short)
    found = objects.read(path)
    if found is None:
        return None
    key = hashlib.sha256(found.data).hexdigest()
    if not key.startswith(short):
        remedy = "delete it; the next run of the step writes it again"
        raise CorruptOutput(f"{objects.url}/{path}: its bytes are not those of the key {short}; {remedy}")
    return key


def key_folders(objects: ObjectStore, folder: str = "steps") -> Iterator[tuple[str, str]]:
    """Step's id and first 16 digits of every key that has a folder."""
    for name in objects.names(folder):
        if _KEY16.fullmatch(name):
            yield folder.removeprefix("steps/"), name
        elif name != layout.LISTED:
            yield from key_folders(objects, f"{folder}/{name}")


def resolve(objects: ObjectStore, selector: str) -> tuple[str, str]:
    """Step's id and key that a name (`train`, `owner/train@2`) or a prefix of a key stands for.

    Raises:
        UsageError: when nothing, or more than one key, fits, or there is no store.
    """
    text, _, number = selector.rpartition("@") if re.search(r"@[0-9]*$", selector) else (selector, "", "")
    holder, name = _holder(objects, text)
    numbers = _numbers(objects, layout.names(holder, name))
    if numbers:
        if "@" in selector and (not _NUMBER.fullmatch(number) or int(number) not in numbers):
            raise UsageError(f"{selector!r}: {text} has the numbers {numbers[0]} to {numbers[-1]}")
        found = _read_name(objects, holder, name, int(number or numbers[-1]))
        if found is not None:
            return found.id, found.key
    if re.fullmatch(r"[0-9a-f]{6,64}", selector):
        keys = find_keys(objects, selector)
        if len(keys) == 1:
            return keys[0]
        if len(keys) > 1:
            raise UsageError(
                f"{selector!r} fits several keys in {objects.url}: {', '.join(key[:12] for _, key in keys)}"
            )
    if not objects.is_there():
        raise UsageError(f"{selector!r}: there is no store in {objects.url}; say where it is (--prefix, MARIN_PREFIX)")
    raise UsageError(f"{selector!r} is no name and no key (6 hex digits or more) in {objects.url}{_known(objects)}")


def _known(objects: ObjectStore) -> str:
    known = sorted(each.removesuffix("@") for each in _names_below(objects, f"names/{owner()}"))
    return f"; names here: {', '.join(known[:20])}" if known else ""


def _names_below(objects: ObjectStore, folder: str, above: str = "") -> Iterator[str]:
    for name in objects.names(folder):
        if name.endswith("@"):
            yield above + name
        else:
            yield from _names_below(objects, f"{folder}/{name}", f"{above}{name}/")


def current_names(objects: ObjectStore) -> dict[str, list[str]]:
    """Names by the key that they stand for now; other people's begin with who they are."""
    given = [
        (holder, name.removesuffix("@"))
        for holder in objects.names("names")
        if holder != layout.LISTED
        for name in _names_below(objects, f"names/{holder}")
    ]
    found: dict[str, list[str]] = {}
    latest = together(objects, *(partial(latest_of_name, objects, *each) for each in given))
    for (holder, name), stands in zip(given, latest, strict=True):
        if stands is not None:
            found.setdefault(stands[1], []).append(name if holder == owner() else f"{holder}/{name}")
    return found
