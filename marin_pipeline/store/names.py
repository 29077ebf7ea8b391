"""Names: what a key is called by its owner. A name is an alias, `owner/name@n`: each change of what it stands for is
one more record, and none is ever replaced.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress

from marin_pipeline.core.canonical import dumps
from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.store import layout
from marin_pipeline.store.clock import now
from marin_pipeline.store.objects import ObjectStore

_KEY16 = re.compile(r"[0-9a-f]{16}")
_NUMBERED = re.compile(r"[0-9]+\.json")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


def owner() -> str:
    """Whose names these are: `MARIN_OWNER`, else the user's name."""
    given = os.environ.get("MARIN_OWNER")
    if given:
        if not _OWNER.fullmatch(given):
            raise UsageError(
                f"MARIN_OWNER={given!r}: may hold letters, digits, '_', '-', '.' and '@', and begins with one"
            )
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def enter_name(objects: ObjectStore, owner: str, name: str, id: str, key: str) -> None:
    """Append to what a name has stood for."""
    folder = layout.names(owner, name)
    while True:
        latest = max(_numbers(objects, folder), default=0)
        if latest and _read_name(objects, f"{folder}/{latest}.json") == (id, key):
            return
        if objects.create(f"{folder}/{latest + 1}.json", dumps({"id": id, "key": key, "at": now()})):
            return


def latest_of_name(objects: ObjectStore, owner: str, name: str) -> tuple[str, str] | None:
    """Step's id and key that a name stands for now."""
    folder = layout.names(owner, name)
    numbers = _numbers(objects, folder)
    with suppress(CorruptOutput):
        return _read_name(objects, f"{folder}/{numbers[-1]}.json") if numbers else None
    return None


def _numbers(objects: ObjectStore, folder: str) -> list[int]:
    """Numbers of what a name has stood for, ascending."""
    return sorted(int(each[:-5]) for each in objects.names(folder) if _NUMBERED.fullmatch(each))


def _read_name(objects: ObjectStore, path: str) -> tuple[str, str] | None:
    found = objects.read(path)
    if found is None:
        return None
    try:
        tree = json.loads(found.data)
        return tree["id"], tree["key"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptOutput(f"{objects.url}/{path}: not what a name stands for ({error}); delete it") from error


def find_keys(objects: ObjectStore, prefix: str, folder: str = "steps") -> Iterator[tuple[str, str]]:
    """Step's id and full key of every key in the store that begins with `prefix`."""
    for name in objects.names(folder):
        path = f"{folder}/{name}"
        if _KEY16.fullmatch(name) and not name.startswith(prefix[: layout.SHORT]):
            continue
        found = objects.read(f"{path}/spec.json") if _KEY16.fullmatch(name) else None
        if found is not None:
            key = hashlib.sha256(found.data).hexdigest()
            if not key.startswith(name):
                remedy = "delete it; the next run of the step writes it again"
                raise CorruptOutput(
                    f"{objects.url}/{path}/spec.json: its bytes are not those of the key {name}; {remedy}"
                )
            if key.startswith(prefix):
                yield folder.removeprefix("steps/"), key
        elif not _KEY16.fullmatch(name):
            yield from find_keys(objects, prefix, path)


def resolve(objects: ObjectStore, selector: str) -> tuple[str, str]:
    """Step's id and key that a name (`train`, `owner/train@2`) or a prefix of a key stands for.

    Raises:
        UsageError: when nothing, or more than one key, fits.
    """
    name, _, number = selector.partition("@")
    for holder, short in ((owner(), name), name.partition("/")[::2] if "/" in name else ("", "")):
        folder = layout.names(holder, short)
        numbers = _numbers(objects, folder) if holder and short else []
        if numbers:
            if number and (not number.isdigit() or int(number) not in numbers):
                raise UsageError(f"{selector!r}: {name} has the numbers {numbers[0]} to {numbers[-1]}")
            found = _read_name(objects, f"{folder}/{number or numbers[-1]}.json")
            if found is not None:
                return found
    if re.fullmatch(r"[0-9a-f]{6,64}", selector):
        keys = list(find_keys(objects, selector))
        if len(keys) == 1:
            return keys[0]
        if len(keys) > 1:
            raise UsageError(
                f"{selector!r} fits several keys in {objects.url}: {', '.join(key[:12] for _, key in keys)}"
            )
    known = sorted(each.removesuffix("@") for each in _names_below(objects, f"names/{owner()}"))
    listed = f"; names here: {', '.join(known[:20])}" if known else ""
    raise UsageError(f"{selector!r} is no name and no key (6 hex digits or more) in {objects.url}{listed}")


def _names_below(objects: ObjectStore, folder: str, above: str = "") -> Iterator[str]:
    for name in objects.names(folder):
        if name.endswith("@"):
            yield above + name
        else:
            yield from _names_below(objects, f"{folder}/{name}", f"{above}{name}/")


def current_names(objects: ObjectStore) -> dict[str, list[str]]:
    """Names by the key that they stand for now; other people's begin with who they are."""
    found: dict[str, list[str]] = {}
    for holder in objects.names("names"):
        for name in _names_below(objects, f"names/{holder}"):
            latest = latest_of_name(objects, holder, name.removesuffix("@"))
            if latest is not None:
                shown = name.removesuffix("@") if holder == owner() else f"{holder}/{name.removesuffix('@')}"
                found.setdefault(latest[1], []).append(shown)
    return found
