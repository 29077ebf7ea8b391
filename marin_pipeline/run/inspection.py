"""What is in a store, for people and programs: `marin-pipeline show` and `ls`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import PurePath

from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, UsageError
from marin_pipeline.run.explain import artifact_of, shown, tag_of
from marin_pipeline.run.selection import find_step, running, waiting_keys
from marin_pipeline.run.words import bytes_text, counted, few, moment
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit, Invalidation, Look, acceptances, look, look_many, read_invalidation
from marin_pipeline.store.names import current_names, find_keys
from marin_pipeline.store.objects import ObjectStore
from marin_pipeline.store.origins import read_origin
from marin_pipeline.store.output import CommittedOutput
from marin_pipeline.store.records import spec_tree


def _found(objects: ObjectStore, selector: str) -> tuple[str, str, Look]:
    id, key = find_step(objects, selector)
    return id, key, look(objects, id, key)


def _status(key: str, found: Look, waits: Callable[[str], object]) -> str:
    if found.commit is not None:
        return "done"
    if found.leased is not None:
        return "running"
    if found.damage:
        return "damaged"
    if found.fallen:
        return "ended"
    if found.failure is not None:
        return "failed"
    if found.invalidation is not None:
        return "invalidated"
    return "waiting" if waits(key) else "begun"


def show(objects: ObjectStore, selector: str, as_json: bool) -> Iterator[str]:
    """What is known of one key."""
    id, key, found = _found(objects, selector)
    spec = objects.read(layout.spec(id, key))
    arguments = spec_tree(spec.data, f"{objects.url}/{layout.spec(id, key)}")["arguments"] if spec else None
    # The end of the commit before the current one: why it was made again.
    before = found.number - 1
    ended = read_invalidation(objects, id, key, before) if before else None
    accepted = acceptances(objects, id, key)
    names = current_names(objects)
    status = _status(key, found, partial(running, objects))
    if as_json:
        yield json.dumps(
            {
                "id": id,
                "key": key,
                "names": names.get(key, []),
                "status": status,
                "arguments": arguments,
                "commit": found.commit.tree() if found.commit else None,
                "origin": _origin_tree(objects, found.commit),
                "failure": asdict(found.failure) if found.failure else None,
                "fallen": found.fallen or None,
                "ended": {"number": before, **asdict(ended)} if ended else None,
                "accepted": [asdict(each) for each in accepted],
            }
        )
        return
    first = {each: sorted(known)[0] for each, known in names.items()}
    yield f"{id}  {key}"
    if key in names:
        yield f"name       {', '.join(names[key])}"
    yield f"status     {status}{f': {found.fallen}' if found.fallen else ''}"
    if ended is not None:
        yield f"ended      commit {before}: {_why(ended)}"
    for each in accepted:
        why = each.reason or "no reason given"
        yield f"accepted   commit {each.number}, code {each.code[:8]}: {why}, {moment(each.at)}"
    yield f"spec       {objects.url}/{layout.spec(id, key)}" if spec else "spec       none: it has not been tried"
    for name, value in (found.commit.arguments if found.commit else arguments or {}).items():
        yield f"argument   {name} = {_cut(_text(value, first))}"
    if found.damage:
        yield f"damage     {found.damage}"
    if found.failure is not None and found.commit is None:
        failure = found.failure
        yield f"failure    {failure.message} ({failure.kind}, {moment(failure.at)}, attempt {failure.attempt})"
    if found.commit is not None:
        yield from _output(objects, id, key, found.commit, first)


def _output(objects: ObjectStore, id: str, key: str, commit: Commit, names: Mapping[str, str]) -> Iterator[str]:
    """The lines about what was made."""
    output, source = CommittedOutput(objects, id, key, commit), commit.adopted_from
    if source is None:
        seconds = f"{commit.seconds:.1f} s"
        yield f"made       {commit.finished} in {seconds}, attempt {commit.attempt}, commit {commit.number}"
    else:
        yield f"adopted    {commit.finished}, commit {commit.number}"
        name = names.get(source.key, source.id)
        yield f"from       {name} {source.key[:8]}, made in {commit.seconds:.1f} s by its attempt {source.attempt}"
    if commit.copied_from:
        yield f"copied     from {commit.copied_from}"
    yield f"digest     {commit.output}"
    for name in commit.unpinned:
        yield f"unpinned   {name}"
    for role, record in commit.inputs.items():
        yield f"input      {role} = {_artifact(record.key, names)} with output {record.output[:8]}"
    yield f"value      {_cut(_text(output.value_tree, names))}"
    yield f"files      {len(output.files)}, and the value; {bytes_text(commit.bytes)} in {objects.url}/{output.folder}"
    yield from _origin(objects, commit)
    machine = commit.fingerprint
    if not machine:  # it was taken in from elsewhere: nothing was computed
        return
    processors = f"{machine.get('processors')} processors"
    yield f"machine    Python {machine.get('python')}, {machine.get('processor')}, {processors}"


def _origin(objects: ObjectStore, commit: Commit) -> Iterator[str]:
    """The lines about where an output comes from."""
    if not commit.origin:
        return
    try:
        origin = read_origin(objects, commit.origin)
    except CorruptOutput as error:
        yield f"origin     {error}"
        return
    git, state = origin.git, "no repository"
    if git is not None:
        where = "".join(f", {each}" for each in (git.branch, git.remote) if each)
        state = f"git {git.commit[:12]}{' with changes' if git.is_dirty else ''}{where}"
    yield f"origin     {state}"
    if git is not None and git.untracked:
        yield f"untracked  not in the commit: {few(git.untracked)}; the code below has them"
    yield f"code       {objects.url}/{layout.snapshot(origin.snapshot)}"
    yield f"packages   {len(origin.packages)}, Python {origin.python}"


def _origin_tree(objects: ObjectStore, commit: Commit | None) -> Tree:
    """Where an output comes from, for programs; None where nobody wrote it down or it cannot be read."""
    if commit is None or not commit.origin:
        return None
    try:
        return {"digest": commit.origin, **read_origin(objects, commit.origin).tree()}
    except CorruptOutput as error:
        return {"digest": commit.origin, "damage": str(error)}


def _why(ended: Invalidation) -> str:
    return f"{ended.reason}: {ended.text}, {moment(ended.at)}" if ended.text else f"{ended.reason}, {moment(ended.at)}"


def _artifact(key: str, names: Mapping[str, str]) -> str:
    return f"{names[key]} ({key[:8]})" if key in names else key[:8]


def _text(value: Tree, names: Mapping[str, str]) -> str:
    """A canonical tree as text; artifacts, local files and secrets by their names."""
    if isinstance(value, dict) and isinstance(value.get("~secret"), str):
        return f"<secret {value['~secret']}>"
    if isinstance(value, dict) and isinstance(value.get("~file"), str):
        name = PurePath(str(value["local"])).name + " " if "local" in value else ""
        return f"<local file {name}{value['~file'][:8]}>"
    key = artifact_of(value)
    if key is not None:
        return _artifact(key, names) + (f"/{value['path']}" if "path" in value else "")
    if isinstance(value, list):
        files = [_file_text(each) for each in value]
        if files and all(files):
            return f"{counted(len(files), 'file')}: {few(files)}"
        return f"[{', '.join(_text(each, names) for each in value)}]"
    if isinstance(value, dict) and "~data" in value:
        fields = (f"{name}={_text(each, names)}" for name, each in value["fields"].items())
        return _file_text(value) or f"{value['~data'].rpartition(':')[2]}({', '.join(fields)})"
    if isinstance(value, dict) and tag_of(value) is not None:
        return shown(value, names)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {_text(each, names)}' for name, each in value.items())}}}"
    return json.dumps(value)


def _file_text(value: Tree) -> str:
    """Path and size of a dataclass that describes a file; empty for anything else."""
    fields = value["fields"] if isinstance(value, dict) and "~data" in value else {}
    path, size = fields.get("path"), fields.get("size")
    if not isinstance(path, str) or not isinstance(size, int) or isinstance(size, bool):
        return ""
    return f"{path} ({bytes_text(size)})"


def _cut(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def list_steps(objects: ObjectStore, as_json: bool) -> Iterator[str]:
    """Every key in the store; a header on a terminal."""
    names, waiting, keys = current_names(objects), waiting_keys(objects), find_keys(objects, "")
    looks = look_many(objects, keys)
    if not as_json and sys.stdout.isatty():
        yield f"{'status':<12}{'key':<8}  {'made':<40}  step  names"
    for id, key in keys:
        found = looks[key]
        commit, failure, known = found.commit, found.failure, names.get(key, [])
        status = _status(key, found, waiting.__contains__)
        if as_json:
            made: dict[str, Tree] = {}
            if commit is not None:
                made = {"bytes": commit.bytes, "seconds": commit.seconds, "finished": commit.finished}
                made |= {"unpinned": list(commit.unpinned)} if commit.unpinned else {}
            elif status == "failed" and failure is not None:
                made = {"failure": {"kind": failure.kind, "message": failure.message, "at": failure.at}}
            elif found.fallen:
                made = {"fallen": found.fallen}
            yield json.dumps({"id": id, "key": key, "status": status, "names": known, **made})
            continue
        made_text = ""
        if commit is not None:
            made_text = f"{moment(commit.finished)} {commit.seconds:>8.1f} s {bytes_text(commit.bytes):>9}"
        elif status == "failed" and failure is not None:
            made_text = f"{moment(failure.at)} {failure.kind}"
        yield f"{status:<12}{key[:8]}  {made_text:<40}  {id}  {', '.join(known)}".rstrip()
        if commit is not None and commit.unpinned:
            yield f"  unpinned: {', '.join(commit.unpinned)}"
        if found.fallen:
            yield f"  {found.fallen}"
    if not keys and not as_json:
        yield f"{objects.url}: no step has been tried there"


def list_files(objects: ObjectStore, selector: str, as_json: bool) -> Iterator[str]:
    """The files of one output."""
    id, key, found = _found(objects, selector)
    if found.damage:
        raise CorruptOutput(found.damage)
    if found.fallen:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, whose output has ended: {found.fallen}; run it again")
    if found.commit is None:
        raise UsageError(f"{selector!r} is {id} {key[:8]}, which has no output in {objects.url}; run it first")
    entries = CommittedOutput(objects, id, key, found.commit).manifest.entries
    if not as_json and sys.stdout.isatty():
        yield f"{'bytes':>12}  {'sha256':<16}  path"
    for entry in entries:
        yield json.dumps(asdict(entry)) if as_json else f"{entry.size:>12}  {entry.sha256[:16]}  {entry.path}"
