"""Whether a commit can be what it says: each field against what it is used for, the other fields and the spec.

A commit may be anybody's, and its seal says only that nobody changed it since it was sealed. Whatever hands one on, in
a bundle or into another store, asks this first. What is read where it lies is held to its types alone (`Commit.loads`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from marin_pipeline.core.adopted import PREFIX as ADOPTED
from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.key import artifact_keys
from marin_pipeline.core.paths import LONGEST_PART, is_path
from marin_pipeline.core.secrets import is_variable
from marin_pipeline.core.source import digest_of
from marin_pipeline.store import layout
from marin_pipeline.store.commit import Commit
from marin_pipeline.store.resolved import resolved_digest

CHAIN = {"initial", "recipe", "step"}
"""Arguments of a spec that stands for a state on a chain (see `core.key`)."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHORT = re.compile(r"[0-9a-f]{16}")
_ATTEMPT = re.compile(r"\d{8}T\d{6}\.\d{6}-[0-9a-f]{8}", re.ASCII)


def problem_with(id: str, key: str, spec: bytes, commit: Commit) -> str:
    """What is wrong with the commit of a key; empty when nothing is.

    Args:
        spec: hashes to the key.
    """
    try:
        return next(_problems(id, key, spec, commit), "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its commit contradicts itself ({error})"


def _problems(id: str, key: str, spec: bytes, commit: Commit) -> Iterator[str]:
    tree = json.loads(spec)
    if commit.key not in ("", key):
        yield f"its commit is that of {commit.key[:8]!a}"
    if not _ATTEMPT.fullmatch(commit.attempt) or commit.number < 1 or commit.bytes < 0:
        yield "its commit names no attempt"
    digests = [commit.manifest, commit.output, commit.resolved, *filter(None, [commit.compared, commit.origin])]
    digests += [record.output for record in commit.inputs.values()]
    for each in digests:
        if not is_digest(each):
            yield f"a digest in its commit is {each[:80]!a}, not 64 hex digits"
    read = {record.key: record.compared or record.output for record in commit.inputs.values()}
    needed, elsewhere = artifact_keys(tree["arguments"]), id.startswith(ADOPTED)
    # What was taken in from elsewhere was made from nothing, and what lies on a chain not from all that its spec names.
    if needed <= read.keys() and not elsewhere and commit.resolved != resolved_digest(spec, read):
        yield "its commit says that it was made from other inputs"
    ran = "" if elsewhere else digest_of(commit.pieces)
    if commit.code != ran or tree["code"].get("source", commit.code) != commit.code:
        yield "its commit says that other code ran than its spec or the pieces of it say"
    if not tree["arguments"].keys() <= commit.arguments.keys() and tree["arguments"].keys() != CHAIN:
        yield "its commit lacks arguments that its spec has"
    for problem in _wrong_references(commit.arguments, needed | read.keys()):
        yield f"an argument in its commit {problem}"
    source = commit.adopted_from
    if source is not None:
        if not is_digest(source.key):
            yield f"the key that it was adopted from is {source.key[:80]!a}, not 64 hex digits"
        if not is_id(source.id) or not _ATTEMPT.fullmatch(source.attempt):
            yield "what it was adopted from is none"
    target = commit.target
    if target is not None and not (layout.is_name(target["module"]) and layout.is_name(target["qualname"])):
        yield "where its function is found is not said"
    if target is not None and not is_id(target["file"]):
        yield "the file of its function lies outside of its project"


def _wrong_references(arguments: Tree, keys: set[str]) -> Iterator[str]:
    """What is wrong with what the arguments refer to: outputs that were read, files and secrets."""
    todo: list[Any] = [arguments]
    while todo:
        each = todo.pop()
        if isinstance(each, list):
            todo += each
        elif isinstance(each, dict):
            todo += each.values()
            if "~artifact" in each and not (each["~artifact"] in keys and is_path(each.get("path", "file"))):
                yield "names an output that was not read"
            if "~file" in each and not (is_digest(each["~file"]) and _is_of_a_file(each.get("local", "file"))):
                yield "names what can be no file"
            if "~secret" in each and not is_variable(each["~secret"]):
                yield "names a secret that can be no variable of the environment"


def _is_of_a_file(path: object) -> bool:
    """Whether a file can be called as the path's last part is, by bytes that need not be UTF-8."""
    if not isinstance(path, str):
        return False
    try:
        name = path.replace("\\", "/").rpartition("/")[2].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return len(name) <= LONGEST_PART


def is_digest(text: object) -> bool:
    """Whether something is 64 hex digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Whether a text can be a step's id: as a path it stays inside the folder of the steps, and hides no key."""
    parts = text.split("/")
    plain = text.isprintable() and "\\" not in text and len(text) <= 1000
    return plain and not any(part in ("", ".", "..") or _SHORT.fullmatch(part) for part in parts)
