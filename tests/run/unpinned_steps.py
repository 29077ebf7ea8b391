"""Steps that read what no key fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marin_pipeline import Artifact, Context, step
from marin_pipeline.core.errors import InputError


def not_fixed(arguments: Mapping[str, Any]) -> Sequence[str]:
    if " " in arguments["address"]:
        raise InputError(f"address {arguments['address']!r}: no address has a space; write %20")
    return () if arguments["sha256"] else (arguments["address"],)


@step(unpinned=not_fixed, transfers=lambda arguments: [arguments["size"]])
def fetch(ctx: Context, address: str, sha256: str | None = None, size: int = 0) -> int:
    return len(address)


@step(unpinned=not_fixed, pinning="see its log")
def telling(ctx: Context, address: str, sha256: str | None = None) -> int:
    if address == "fails":
        raise InputError("fails: is not there")
    return len(address)


@step
def both(ctx: Context, parts: list[Artifact[int]]) -> int:
    return sum(part.value for part in parts)
