"""What is in a store, for people and programs: `marin-pipeline show` and `ls`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.run.screen import bytes_text
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Look, look
from marin_pipeline.store.names import current_names, find_keys, resolve
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.output import CommittedOutput


def _found(objects: ObjectStore, selector: str) -> tuple[str, str, Look]:
    id, key = resolve(objects, selector)
    return id, key, look(objects, id, key)


def _status(found: Look) -> str:
    if found.commit is not None:
        return "done"
    if found.leased is not None:
        return "running"
    if found.damage:
        return "damaged"
    return "failed" if found.failure is not None else "invalidated" if found.invalidation is not None else "begun"


def show(objects: ObjectStore, selector: str, as_json: bool) -> Iterator[str]:
    """What is known of one key."""
    id, key, found = _found(objects, selector)
    spec = objects.read(layout.spec(id, key))
    try:
        arguments = json.loads(spec.data)["arguments"] if spec else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptOutput(
            f"{objects.url}/{layout.spec(id, key)}: not a spec ({error}); delete it, a run writes it again"
        ) from error
    if as_json:
        commit = found.commit.tree() if found.commit else None
        failure = asdict(found.failure) if found.failure else None
        yield json.dumps(
            {
                "id": id,
                "key": key,
                "status": _status(found),
                "arguments": arguments,
                "commit": commit,
                "failure": failure,
            }
        )
        return
    yield f"{id}  {key}"
    yield f"status     {_status(found)}"
    yield f"spec       {objects.url}/{layout.spec(id, key)}"
    for name, value in (found.commit.arguments if found.commit else arguments or {}).items():
        yield f"argument   {name} = {_short(value)}"
    if found.damage:
        yield f"damage     {found.damage}"
    if found.failure is not None and found.commit is None:
        yield f"failure    {found.failure.message}"
    if found.commit is None:
        return
    commit, output = found.commit, CommittedOutput(objects, id, key, found.commit)
    yield f"made       {commit.finished} in {commit.seconds:.1f} s, attempt {commit.attempt}, commit {commit.number}"
    yield f"digest     {commit.output}"
    for role, record in commit.inputs.items():
        yield f"input      {role} = {record.key[:8]} with output {record.output[:8]}"
    yield f"value      {_short(output.value_tree)}"
    yield f"files      {len(output.files)}, and the value; {bytes_text(commit.bytes)} in {objects.url}/{output.folder}"
    machine = commit.fingerprint
    if not machine:  # it was adopted: nothing was computed
        return
    processors = f"{machine.get('processors')} processors"
    yield f"machine    Python {machine.get('python')}, {machine.get('processor')}, {processors}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."


def list_steps(objects: ObjectStore, as_json: bool) -> Iterator[str]:
    """Every key in the store."""
    names = current_names(objects)
    for id, key in find_keys(objects, ""):
        found = look(objects, id, key)
        commit, known = found.commit, names.get(key, [])
        if as_json:
            made = (
                {}
                if commit is None
                else {"bytes": commit.bytes, "seconds": commit.seconds, "finished": commit.finished}
            )
            yield json.dumps({"id": id, "key": key, "status": _status(found), "names": known, **made})
            continue
        made = (
            f"{commit.finished[:16].replace('T', ' ')} {commit.seconds:>8.1f} s {bytes_text(commit.bytes):>9}"
            if commit
            else ""
        )
        yield f"{_status(found):<12}{key[:8]}  {made:<37}  {id}  {', '.join(known)}".rstrip()


def list_files(objects: ObjectStore, selector: str, as_json: bool) -> Iterator[str]:
    """The files of one output."""
    id, key, found = _found(objects, selector)
    if found.damage:
        raise CorruptOutput(found.damage)
    if found.commit is None:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has no output in {objects.url}; run it first")
    for entry in CommittedOutput(objects, id, key, found.commit).manifest.entries:
        yield json.dumps(asdict(entry)) if as_json else f"{entry.size:>12}  {entry.sha256[:16]}  {entry.path}"
