"""Plan how whole documents fill training sequences, so that few positions are padding and no document is mixed.

A plan is an artifact of its own: positions and lengths only, no token is copied. Each part of the tokens is planned by
its own shard from where its documents start; the step only adds the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marin_pipeline import Artifact, Context, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.packing_ledger import PACKING_FILE, PackedPart, PackingLedger, ledger_digest
from marin_pipeline.data.schema import Packing, Tokens

if TYPE_CHECKING:
    import numpy as np

PLAN = "plan.npy"


@dataclass(frozen=True)
class DocumentStarts:
    """Where the documents of one part start."""

    files: dict[str, File]
    """Files of the array, by path within its folder."""
    sha256: str
    """Of its numbers, as the token ledger has it."""


@step(version=1)
def pack(ctx: Context, tokens: Artifact[Tokens], sequence_length: int) -> Packing:
    """The packing plan of `tokens`.

    Args:
        tokens: what is packed, part by part.
        sequence_length: positions of a row; longer documents are cut.

    Raises:
        InputError: for a sequence length below 1, or tokens that were changed.
    """
    from marin_pipeline.data.token_store import TokenStore
    from marin_pipeline.data.token_writer import OFFSETS_ARRAY

    if sequence_length < 1:
        raise InputError(f"pack: sequence_length={sequence_length}: it must be at least 1")
    ledger = TokenStore(tokens).ledger
    files: dict[str, dict[str, File]] = {}
    for path in tokens.files:
        part, found, inside = path.rpartition(f"/{OFFSETS_ARRAY}/")
        if found:
            files.setdefault(part, {})[inside] = tokens / path
    items = [DocumentStarts(files.get(part.name, {}), part.offsets_sha256) for part in ledger.parts]
    parts: list[PackedPart] = []
    for part, result in zip(ledger.parts, ctx.map(plan_part, items, sequence_length=sequence_length), strict=True):
        name = f"{part.name}.npy"
        ctx.adopt(result, PLAN, name)
        parts.append(replace(result.value, name=name))
    plan = PackingLedger(tuple(parts), sequence_length, ledger_digest(ledger))
    (ctx.out / PACKING_FILE).write_text(plan.to_json(), encoding="utf-8", newline="\n")
    ctx.log(
        f"{plan.documents} documents in {plan.rows} rows of {sequence_length}, of which {plan.efficiency:.2%} is filled"
    )
    return Packing(PACKING_FILE, sequence_length, plan.rows, plan.documents, plan.tokens)


def plan_part(shard: ShardContext, starts: DocumentStarts, sequence_length: int) -> PackedPart:
    """Write the plan of one part; what the ledger says of it, but for its name."""
    from marin_pipeline.data.packing import make_plan, write_plan

    offsets = _read(starts)
    plan = make_plan(offsets, sequence_length)
    return PackedPart(
        name="",
        rows=plan.rows,
        continued=plan.continued,
        pieces=len(plan.pieces),
        documents=len(offsets) - 1,
        tokens=int(plan.pieces[:, 1].sum()),
        sha256=write_plan(shard.out / PLAN, plan),
    )


def _read(starts: DocumentStarts) -> np.ndarray:
    """The array, from files that may lie in different places: it is opened in a folder of links to them."""
    import hashlib
    import os
    import tempfile
    from pathlib import Path

    import tensorstore

    from marin_pipeline.data.damage import remedy
    from marin_pipeline.data.token_writer import digest_bytes, zarr3

    again = remedy(None)
    with tempfile.TemporaryDirectory() as folder:
        for path, file in starts.files.items():
            link = Path(folder, path)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(file, link)
        try:
            offsets = tensorstore.open(zarr3(folder), read=True, open=True).result().read().result()
        except ValueError as error:
            raise InputError(f"pack: where documents start cannot be read ({error}); {again}") from error
    if hashlib.sha256(digest_bytes(offsets)).hexdigest() != starts.sha256:
        raise InputError(f"pack: where documents start is not as it was written; {again}")
    return offsets
