"""Prove that training and held-out documents are disjoint, or fail and name what they share.

Held-out loss says something only of text that training did not read: not the same text, nor one that the rule of
membership holds out, nor a near copy. This looks at the documents as they are, whatever steps came before.
"""

from __future__ import annotations

from dataclasses import dataclass

from marin_pipeline import Artifact, Context, Documents, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.disjoint import Disjoint
from steps.dedupe import SHINGLES, shingle_part
from steps.split_held_out import SALT, is_held_out


@dataclass(frozen=True)
class NearCopies:
    """What one part of the training documents shares with the held-out ones."""

    documents: int
    """Near copies."""
    first: list[str]
    """The first few of them."""
    most: float
    """The largest share of a document's shingles that occur in held-out documents."""


@step(version=1)
def check_disjoint(
    ctx: Context,
    training: Artifact[Documents],
    held_out: Artifact[Documents],
    fraction: float = 0.03,
    salt: str = SALT,
    threshold: float = 0.5,
    shingle_words: int = 8,
) -> Disjoint:
    """Fail unless no held-out document, nor a near copy of one, is among the training documents.

    Args:
        training: what is tokenized for training.
        held_out: what the model is tried on.
        fraction: of `split_held_out`. Every held-out document must be held out by its rule, and no training document.
        salt: of `split_held_out`.
        threshold: share of a training document's shingles that may occur in held-out documents, from 0 to 1.
        shingle_words: consecutive words a shingle; both as in `dedupe`.

    Raises:
        InputError: naming the first documents that are shared, on the wrong side or near copies, and what to do.
    """
    from itertools import chain

    from marin_pipeline.data.disjoint import SHOWN, Finding, compare, read_names

    if not 0.0 <= threshold <= 1.0 or not 0.0 <= fraction <= 1.0 or shingle_words < 1:
        raise InputError(
            f"check_disjoint: threshold={threshold} and fraction={fraction} must lie between 0 and 1, "
            f"shingle_words={shingle_words} must be at least 1"
        )
    left, right = ([side / part for part in side.value.parts] for side in (training, held_out))
    found = compare(
        chain.from_iterable(map(read_names, left)),
        chain.from_iterable(map(read_names, right)),
        lambda id: is_held_out(id, fraction, salt),
    )
    shingled = ctx.map(shingle_part, right, shingle_words=shingle_words)
    results = ctx.map(
        near_copies,
        left,
        shingles=[result / SHINGLES for result in shingled],
        threshold=threshold,
        shingle_words=shingle_words,
    )
    near = Finding()
    for result in results:
        near.first += result.value.first[: SHOWN - len(near.first)]
        near.documents += result.value.documents
    rule = f"the rule (fraction={fraction}, salt={salt!r})"
    problems = (
        ("training, held out as well", found.shared, "give `dedupe` the held-out documents as `against`"),
        (
            f"training, held out by {rule}",
            found.kept,
            "take the training side of `split_held_out`, and give its fraction and salt here",
        ),
        (
            f"held out, not by {rule}",
            found.strange,
            "another source may bring them into training: take the held-out side of `split_held_out`, and give its "
            "fraction and salt here",
        ),
        (
            f"training, with more than {threshold:.0%} of its passages in held-out documents",
            near,
            "give `dedupe` these as `against`, with the same threshold and shingle_words",
        ),
    )
    wrong = [f"{what} ({each.documents:,}): {each}; {remedy}" for what, each, remedy in problems if each.documents]
    if wrong:
        raise InputError("training and held-out documents are not disjoint\n" + "\n".join(wrong))
    ctx.log(f"{found.training_ids:,} training ids and {found.held_out_ids:,} held-out ids, none shared")
    return Disjoint(
        training=found.training,
        held_out=found.held_out,
        training_ids=found.training_ids,
        held_out_ids=found.held_out_ids,
        shared_ids=found.shared.documents,
        training_digest=found.training_digest,
        held_out_digest=found.held_out_digest,
        most_overlap=max((result.value.most for result in results), default=0.0),
    )


def near_copies(
    shard: ShardContext, documents: File, shingles: list[File], threshold: float, shingle_words: int
) -> NearCopies:
    """Compare the documents of one part with all held-out shingles."""
    import numpy as np

    from marin_pipeline.data.disjoint import Finding
    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.shingles import share_in, union
    from marin_pipeline.data.shingles import shingles as shingles_of

    known = union([np.load(file) for file in shingles])
    near, most = Finding(), 0.0
    for document in read_part(documents):
        share = share_in(shingles_of(document.text, shingle_words), known)
        most = max(most, share)
        if share > threshold:
            near.add(f"{document.id} ({document.source}: {document.source_id}, {share:.0%})")
    return NearCopies(near.documents, near.first, most)
