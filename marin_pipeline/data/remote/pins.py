"""How a source is written so that it is pinned: what is pasted into the file of an experiment in place of the source
that was declared, and brings the same files under the same paths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from marin_pipeline.data.remote.address import Address, parse
from marin_pipeline.data.remote.place import State

Pin = Callable[[State, str], str]
"""Given what was read and its sha256, the text; empty for what is pinned already."""


def no_pin(state: State, sha256: str) -> str:
    """Of what is pinned already."""
    return ""


def at_address(url: str, name: str, options: Mapping[str, str]) -> Pin:
    """By an address that fixes the bytes of all files that it names."""
    return lambda state, sha256: _source(url, {}, name, options)


def at_object(url: str, path: str, options: Mapping[str, str], of_many: bool, generation: str = "") -> Pin:
    """Of one object of a bucket: by its generation or version, else by its digest.

    Args:
        url: of the object, without a version.
        path: of the file in the output.
        options: of the declared source.
        of_many: whether that names other objects as well, so that what it says of all is said of this one alone.
        generation: of gs://; the version of s3:// is known when it is read.
    """

    def pin(state: State, sha256: str) -> str:
        if parse(url).is_many:
            return f"{url}, which no source can name alone, since it ends in a slash or has a * or a ?"
        own = dict(options)
        if of_many and "expected_bytes" in own and state.size is not None:
            own["expected_bytes"] = str(state.size)
        version = state.facts.get("version", "")
        if generation:
            return _source(f"{url}#{generation}", {}, path, own)
        if version and version != "null":
            return _source(f"{url}?versionId={version}", {}, path, own)
        return _source(url, {"sha256": _quoted(sha256)}, path, own)

    return pin


def by_digest(address: Address, path: str, options: Mapping[str, str]) -> Pin:
    """Of one file, by the digest of what was read."""
    return lambda state, sha256: _source(address.url, {"sha256": _quoted(sha256)}, path, options)


def options_of(expected_bytes: int | None, secret: str) -> dict[str, str]:
    """What a source says beside address, digest and name, as it is written."""
    found = {} if expected_bytes is None else {"expected_bytes": str(expected_bytes)}
    return found | ({"token": f"Secret({_quoted(secret)})"} if secret else {})


def _source(url: str, digest: Mapping[str, str], path: str, options: Mapping[str, str]) -> str:
    """The text; `name` only where the address alone would give another one."""
    address = parse(url)
    name = {"name": _quoted(path)} if path != ("" if address.is_many else address.name) else {}
    given = {**digest, **name, **options}
    more = "".join(f", {each}={text}" for each, text in given.items())
    return f"Source({_quoted(url)}{more})" if more else _quoted(url)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
