"""Records that carry their own digest: a flipped bit in one is seen when it is read, whatever it would still mean."""

from __future__ import annotations

import json
from typing import Any

from marin_pipeline.core.canonical import Tree, digest, dumps

SCHEMA = 1


class UnknownSchema(ValueError):
    """The record is of a schema that this version does not know."""


def seal(tree: dict[str, Tree]) -> bytes:
    """The bytes of a record: its schema, its fields, and a digest over both."""
    record = {"schema": SCHEMA, **tree}
    return dumps({**record, "seal": digest(record)})


def unseal(data: bytes) -> dict[str, Any]:
    """The fields of a record.

    Raises:
        UnknownSchema: when the record is of another schema.
        ValueError: when the bytes are not those that were written.
    """
    try:
        tree = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(tree, dict):
        raise ValueError("not an object")
    if "schema" not in tree:
        raise ValueError("has no schema")
    if tree["schema"] != SCHEMA:
        raise UnknownSchema(f"schema {tree['schema']!r}")
    if tree.pop("seal", None) != digest(tree):
        raise ValueError("its bytes are not those that were written")
    del tree["schema"]
    return tree
