"""Where everything lies under a prefix. Functions from ids and keys to paths; the format is described in docs/store.md.

Ids, keys and names of attempts may come from a record that somebody else has written: what cannot be one is refused
here, so that no record leads to a path outside of its place.
"""

from __future__ import annotations

import functools
import re

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.core.paths import is_path

SHORT = 16
"""Hex digits of a key in paths. Records hold and compare all 64."""

_KEY = re.compile(r"[0-9a-f]{16,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OF_OUTPUTS = ("steps/", "shards/", "work/")
"""Where files of outputs lie; `work/` in a test of a step's function."""


def is_of_an_output(path: object) -> bool:
    """Whether an object may be a file of an output: one of an attempt, of a finished part, or of a shard."""
    return isinstance(path, str) and path.startswith(_OF_OUTPUTS) and is_path(path)


def is_id(id: object) -> bool:
    """Whether something may be the id of a step."""
    return is_path(id)


def is_key(key: object) -> bool:
    """Whether something may be a key, or the beginning of one that stands in paths."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def is_name(name: object) -> bool:
    """Whether something may be one part of a path, such as the name of an attempt."""
    return isinstance(name, str) and "/" not in name and is_path(name)


def _part(name: str, what: str) -> str:
    if not is_name(name):
        raise CorruptOutput(f"{name!a}: is no {what}; the record that says so is damaged")
    return name


def _numbered(number: int) -> str:
    if type(number) is not int or number < 0:
        raise CorruptOutput(f"{number!a}: is no number of a commit; the record that says so is damaged")
    return str(number)


def _digest(digest: str, what: str) -> str:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CorruptOutput(f"{digest!a}: is no {what}; the record that says so is damaged")
    return digest


@functools.lru_cache(maxsize=65536, typed=True)
def step(id: str, key: str) -> str:
    """Folder of everything about one key.

    Raises:
        CorruptOutput: for what cannot be an id or a key.
    """
    if not is_id(id):
        raise CorruptOutput(f"{id!a}: is no id of a step; the record that says so is damaged")
    if not is_key(key):
        raise CorruptOutput(f"{key!a}: is no key; the record that says so is damaged")
    return f"steps/{id}/{key[:SHORT]}"


def spec(id: str, key: str) -> str:
    """The exact bytes that the key hashes; written once."""
    return f"{step(id, key)}/spec.json"


def lease(id: str, key: str) -> str:
    """The right to try; replaced by compare-and-swap, never deleted."""
    return f"{step(id, key)}/lease.json"


def attempt(id: str, key: str, attempt: str) -> str:
    """Folder of one try: `out/`, `records/`, `log.txt`, `manifest.json`."""
    return f"{step(id, key)}/attempts/{_part(attempt, 'name of an attempt')}"


def manifest(id: str, key: str, attempt_name: str) -> str:
    """The files of an attempt."""
    return f"{attempt(id, key, attempt_name)}/manifest.json"


def manifest_page(id: str, key: str, attempt_name: str, number: int) -> str:
    """One page of a manifest of many files."""
    return f"{attempt(id, key, attempt_name)}/manifest/{number}.json"


def commit(id: str, key: str, number: int) -> str:
    """The record that makes an attempt the step's output; written once."""
    return f"{step(id, key)}/commits/{_numbered(number)}.json"


def invalidation(id: str, key: str, number: int) -> str:
    """The record that ends a commit; written once."""
    return f"{step(id, key)}/invalidations/{_numbered(number)}.json"


def divergence(id: str, key: str, attempt: str) -> str:
    """The record of an attempt that came second with other bytes."""
    return f"{step(id, key)}/divergences/{_part(attempt, 'name of an attempt')}.json"


def failure(id: str, key: str, attempt: str) -> str:
    """Why an attempt failed."""
    return f"{step(id, key)}/failures/{_part(attempt, 'name of an attempt')}.json"


def accepted(id: str, key: str, number: int, code: str) -> str:
    """Drift that a person accepted: the output of this commit counts as made by the code with this digest."""
    return f"{step(id, key)}/accepted/{number}-{code[:SHORT]}.json"


def work(id: str, key: str, code: str, number: int, read: str) -> str:
    """Folder of a resumable step's finished parts: of one code, for one commit, over inputs of one content (`read`)."""
    return f"{step(id, key)}/work/{code[:8]}-{number}-{read[:8]}"


def shard(key: str) -> str:
    """Folder of one result of `ctx.map`."""
    return f"shards/{_digest(key, 'key of a shard')[:2]}/{key}"


def shard_record(key: str) -> str:
    """What `ctx.map` finds a result by."""
    return f"{shard(key)}/record.json"


def shard_ended(key: str) -> str:
    """The record of a result that `gc` has ended: for steps that had taken it already, and for nobody else."""
    return f"{shard(key)}/ended.json"


LISTED = "~listed"
"""Last part of a mark's path: what no owner, step and experiment is called, and comes after them in a listing."""


def listed(folder: str) -> str:
    """The mark that every listing of a folder shows (see `store.listed`)."""
    return f"{folder}/{LISTED}"


LOGS = ("log.txt", "shards.jsonl")
"""What there is in the folder of a log."""


def attempt_log(id: str, key: str, attempt_name: str) -> str:
    """What an attempt printed."""
    return f"{attempt(id, key, attempt_name)}/log/log.txt"


def attempt_shards(id: str, key: str, attempt_name: str) -> str:
    """The shards that an attempt has asked for, a line each: name, key and attempt. Their logs are found by it."""
    return f"{attempt(id, key, attempt_name)}/log/shards.jsonl"


def shard_log(key: str, attempt: str) -> str:
    """What one attempt at a shard printed, where it ran in a process of its own."""
    return f"{shard(key)}/{_part(attempt, 'name of an attempt')}-log/log.txt"


def resolved(digest: str) -> str:
    """The entry of what was made by a step from inputs of these contents, whatever made the inputs."""
    return f"resolved/{_digest(digest, 'digest')[:2]}/{digest}"


def chain(initial: str) -> str:
    """Folder of the committed states that begin with the same initial state."""
    return f"chains/{initial[:SHORT]}"


def chain_entry(initial: str, step_number: int, key: str) -> str:
    """The entry of one committed state."""
    return f"{chain(initial)}/{step_number}-{key[:SHORT]}"


def names(owner: str, name: str) -> str:
    """Folder of what a name has stood for, one record a change."""
    return f"names/{_part(owner, 'owner of a name')}/{name}@"


def root(owner: str, name: str, number: int) -> str:
    """The record that keeps what a name, given by a person, stands for."""
    return f"roots/{_part(owner, 'owner of a name')}/{name}@{_numbered(number)}.json"


def root_end(owner: str, name: str, number: int) -> str:
    """The record that takes a root away."""
    return f"roots/{_part(owner, 'owner of a name')}/{name}@{_numbered(number)}.dropped.json"


def runs(experiment: str) -> str:
    """Folder of an experiment's runs, one record a run."""
    return f"experiments/{experiment}"


def collection(name: str) -> str:
    """What one pass of `gc` saw or ended, so that a later pass knows since when."""
    return f"gc/{name}.json"


def origin(digest: str) -> str:
    """The record of where the outputs of a run come from, by the sha256 of its bytes."""
    return f"origins/{digest}.json"


def snapshot(digest: str) -> str:
    """The code of a run, by the digest over its paths and contents."""
    return f"code/{digest}.zip"


def kept_file(sha256: str) -> str:
    """The bytes of a `LocalFile` that a step was given."""
    return f"files/{sha256[:2]}/{sha256}"
