"""Which keys somebody is at work on."""

from __future__ import annotations

from collections.abc import Callable

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.store.lease import Waiting, read_lease, this_process
from marin_pipeline.store.objects import ObjectStore


def held_keys(
    objects: ObjectStore, life: float, sleep: Callable[[float], None], *, take_over: bool
) -> tuple[set[str], list[str]]:
    """Folders of the keys whose lease is held, and what could not be read: such a lease counts as held.

    Args:
        life: seconds without a beat after which a lease counts as given up.
        take_over: watch the leases of other machines for a life, and free those that nobody holds any more; without
            it every lease counts as held whose holder is not certainly dead.
    """
    found: set[str] = set()
    problems: list[str] = []
    watched: dict[str, Waiting] = {}
    for info in objects.list("steps"):
        folder, _, name = info.path.rpartition("/")
        if name != "lease.json":
            continue
        try:
            holder = read_lease(objects, info.path)
        except CorruptOutput as error:
            problems.append(str(error))
            found.add(folder)
            continue
        if holder is None:
            continue
        found.add(folder)
        if take_over and (not holder.machine or holder.machine != this_process().machine):
            watched[folder] = Waiting(objects, info.path, life)
    for elapsed in (False, True) if watched else ():
        if elapsed:  # whoever works on another machine is seen by its beats only
            sleep(life)
        for folder in sorted(watched.keys() & found):
            try:
                lease = watched[folder].attempt()
            except CorruptOutput as error:
                problems.append(str(error))
                continue
            if lease is not None:
                lease.release()
                found.discard(folder)
    return found, problems
