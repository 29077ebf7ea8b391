"""Records that carry their own digest: a flipped bit in one is seen when it is read, whatever it would still mean."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from marin_pipeline.core.canonical import Tree, dumps
from marin_pipeline.store.records import parsed

SCHEMA = 1

_SEAL = re.compile(rb',"seal":"([0-9a-f]{64})"')


class UnknownSchema(ValueError):
    """The record is of a schema that this version does not know."""


def seal(tree: dict[str, Tree]) -> bytes:
    """The bytes of a record: its schema, its fields, and the sha256 of the bytes without the seal."""
    record = {"schema": SCHEMA, **tree}
    return dumps({**record, "seal": hashlib.sha256(dumps(record)).hexdigest()})


def unseal(data: bytes) -> dict[str, Any]:
    """The fields of a record.

    Raises:
        UnknownSchema: when the record is of another schema.
        ValueError: when the bytes are not those that were written.
    """
    tree = parsed(data)
    if not isinstance(tree, dict):
        raise ValueError("not an object")
    if "schema" not in tree:
        raise ValueError("has no schema")
    if tree["schema"] != SCHEMA:
        raise UnknownSchema(f"schema {tree['schema']!r}")
    if not _is_intact(data, tree.pop("seal", None)):
        raise ValueError("its bytes are not those that were written")
    del tree["schema"]
    return tree


def _is_intact(data: bytes, given: object) -> bool:
    """Whether the bytes without the seal, which are canonical, have the digest that it says."""
    for found in _SEAL.finditer(data):
        if found[1].decode() == given:
            return hashlib.sha256(data[: found.start()] + data[found.end() :]).hexdigest() == given
    return False
