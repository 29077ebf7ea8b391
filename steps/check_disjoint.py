"""Prove that training and held-out documents are disjoint, or fail and name what they share.

Held-out loss says something only of text that training did not read: not the same text, nor one that the rule of
membership holds out, nor a near copy. This looks at the documents as they are, whatever steps came before.

Near copies are looked for twice: by words, as `dedupe` does, and by letters and digits alone, both ways, which spacing,
punctuation, case, script and a longer text around a document do not hide from.
"""

from __future__ import annotations

from dataclasses import dataclass

from marin_pipeline import Artifact, Context, Documents, File, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.disjoint import Disjoint, Finding
from steps.dedupe import SHINGLES, shingle_part
from steps.split_held_out import SALT, is_held_out

SKETCH = ("shingles.npy", "owners.npy", "letters.npy")
LETTERS = 2


@dataclass(frozen=True)
class NearCopies:
    """Training documents of one part that are made of held-out text."""

    documents: int
    """Near copies."""
    first: list[str]
    """The first few of them."""
    most: float
    """The largest share of a document's shingles that occur in held-out documents."""


@dataclass(frozen=True)
class Copied:
    """A held-out document that one training document contains."""

    held_out: int
    """Its place among all held-out documents."""
    training: str
    """The first such training document of the part."""
    share: float
    """Share of the held-out document's shingles in that training document."""


@dataclass(frozen=True)
class Compared:
    """What one part of the training documents shares with the held-out ones, by words and by letters."""

    words: NearCopies
    letters: NearCopies
    """Of training documents that are not short."""
    copied: tuple[Copied, ...]
    """Held-out documents, each once, by place."""
    most_of_held_out: float
    """The largest share of a held-out document that is not short."""
    without_letters: int
    """Training documents without any letter or digit."""


@step(version=2)
def check_disjoint(
    ctx: Context,
    training: Artifact[Documents],
    held_out: Artifact[Documents],
    fraction: float = 0.03,
    salt: str = SALT,
    threshold: float = 0.5,
    shingle_words: int = 8,
    copy_threshold: float = 0.9,
    copy_characters: int = 32,
    short: int = 100,
    short_tolerance: float = 0.02,
) -> Disjoint:
    """Fail unless no held-out document, nor a near copy of one, is among the training documents.

    Args:
        training: what is tokenized for training.
        held_out: what the model is tried on.
        fraction: of `split_held_out`. Every held-out document must be held out by its rule, and no training document.
        salt: of `split_held_out`.
        threshold: share of a training document's shingles that may occur in held-out documents, from 0 to 1.
        shingle_words: consecutive words a shingle; both as in `dedupe`.
        copy_threshold: share of a training document's shingles of letters that may occur in held-out documents, and of
            a held-out document's that may occur in one training document, from 0 to 1.
        copy_characters: consecutive letters and digits such a shingle. A document with fewer is compared whole.
        short: letters and digits below which a document is a line that many may write. A short training document is
            not found for being part of a longer held-out one.
        short_tolerance: share of the letters of all held-out documents that short ones which training documents
            contain may have in sum, from 0 to 1. One that is not short is never tolerated.

    Raises:
        InputError: naming the first documents that are shared, on the wrong side or near copies, and what to do.
    """
    from itertools import chain

    import numpy as np

    from marin_pipeline.data.disjoint import compare, read_names

    shares = {
        "threshold": threshold,
        "fraction": fraction,
        "copy_threshold": copy_threshold,
        "short_tolerance": short_tolerance,
    }
    counts = {"shingle_words": shingle_words, "copy_characters": copy_characters, "short": short}
    wrong = [f"{name}={value} must lie between 0 and 1" for name, value in shares.items() if not 0.0 <= value <= 1.0]
    wrong += [f"{name}={value} must be at least 1" for name, value in counts.items() if value < 1]
    if wrong:
        raise InputError(f"check_disjoint: {', '.join(wrong)}")
    left, right = ([side / part for part in side.value.parts] for side in (training, held_out))
    found = compare(
        chain.from_iterable(map(read_names, left)),
        chain.from_iterable(map(read_names, right)),
        lambda id: is_held_out(id, fraction, salt),
    )
    shingled = ctx.map(shingle_part, right, shingle_words=shingle_words)
    sketched = ctx.map(sketch_part, right, characters=copy_characters)
    results = ctx.map(
        compare_part,
        left,
        shingles=[result / SHINGLES for result in shingled],
        sketches=[result / name for result in sketched for name in SKETCH],
        threshold=threshold,
        shingle_words=shingle_words,
        copy_threshold=copy_threshold,
        copy_characters=copy_characters,
        short=short,
    )
    letters = np.concatenate([np.empty(0, np.int64), *(np.load(result / SKETCH[LETTERS]) for result in sketched)])
    copied: dict[int, Copied] = {}
    for result in results:
        for each in result.value.copied:
            copied.setdefault(each.held_out, each)
    whole, lines = Finding(), Finding()
    lines_letters = 0
    for place, row in enumerate(chain.from_iterable(map(read_names, right))):
        if each := copied.get(place):
            told = f"{row}, {each.share:.0%} of it in {each.training}"
            (lines if letters[place] < short else whole).add(told)
            lines_letters += int(letters[place]) if letters[place] < short else 0
    lines_share = lines_letters / max(1, int(letters.sum()))
    if lines_share <= short_tolerance:
        tolerated, lines = lines, Finding()
    else:
        tolerated = Finding()
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
            _together([result.value.words for result in results]),
            "give `dedupe` these as `against`, with the same threshold and shingle_words",
        ),
        (
            f"training, with more than {copy_threshold:.0%} of its letters in held-out documents",
            _together([result.value.letters for result in results]),
            "remove them from the source: they are copies but for punctuation, spacing or case",
        ),
        (
            f"held out, with more than {copy_threshold:.0%} of its letters in one training document",
            whole,
            "remove those training documents from the source, or raise copy_threshold and say why",
        ),
        (
            f"held out, shorter than {short} letters, each in a training document, and with {lines_share:.2%} of the "
            f"held-out letters more than the {short_tolerance:.2%} of short_tolerance",
            lines,
            "drop short documents with `quality_filter`, or raise short_tolerance and say why",
        ),
    )
    wrong = [f"{what} ({each.documents:,}): {each}; {remedy}" for what, each, remedy in problems if each.documents]
    if wrong:
        raise InputError("training and held-out documents are not disjoint\n" + "\n".join(wrong))
    ctx.log(f"{found.training_ids:,} training ids and {found.held_out_ids:,} held-out ids, none shared")
    if tolerated.documents:
        ctx.log(f"short held-out documents in training text, {lines_share:.2%} of the held-out letters: {tolerated}")
    without = [sum(result.value.without_letters for result in results), int(np.count_nonzero(letters == 0))]
    if any(without):
        ctx.log(f"no letter or digit, and so compared by id alone: {without[0]:,} training and {without[1]:,} held-out")
    return Disjoint(
        training=found.training,
        held_out=found.held_out,
        training_ids=found.training_ids,
        held_out_ids=found.held_out_ids,
        shared_ids=found.shared.documents,
        training_digest=found.training_digest,
        held_out_digest=found.held_out_digest,
        most_overlap=max((result.value.words.most for result in results), default=0.0),
        most_of_training=max((result.value.letters.most for result in results), default=0.0),
        most_of_held_out=max((result.value.most_of_held_out for result in results), default=0.0),
        short_copied=tolerated.documents,
        short_copied_share=lines_share,
        training_without_letters=without[0],
        held_out_without_letters=without[1],
    )


def _together(parts: list[NearCopies]) -> Finding:
    """The near copies of all parts."""
    from marin_pipeline.data.disjoint import SHOWN

    found = Finding()
    for part in parts:
        found.first += part.first[: SHOWN - len(found.first)]
        found.documents += part.documents
    return found


def sketch_part(shard: ShardContext, documents: File, characters: int) -> int:
    """Write the letter shingles of one held-out part with their documents; returns the number of shingles."""
    import numpy as np

    from marin_pipeline.data.copies import letters_of, sketch
    from marin_pipeline.data.parts import read_part

    found = sketch([letters_of(document.text) for document in read_part(documents)], characters)
    for name, array in zip(SKETCH, found, strict=True):
        np.save(shard.out / name, array)
    return len(found.shingles)


def compare_part(
    shard: ShardContext,
    documents: File,
    shingles: list[File],
    sketches: list[File],
    threshold: float,
    shingle_words: int,
    copy_threshold: float,
    copy_characters: int,
    short: int,
) -> Compared:
    """Compare the documents of one part with all held-out ones."""
    import numpy as np

    from marin_pipeline.data.copies import Index, Sketch, character_shingles, letters_of, merged
    from marin_pipeline.data.parts import read_part
    from marin_pipeline.data.shingles import share_in, union
    from marin_pipeline.data.shingles import shingles as shingles_of

    known = union([np.load(file) for file in shingles])
    arrays = [np.load(file) for file in sketches]
    held_out = merged([Sketch(*arrays[at : at + len(SKETCH)]) for at in range(0, len(arrays), len(SKETCH))])
    index = Index(held_out)
    by_words, by_letters, copied = Finding(), Finding(), dict[int, Copied]()
    most_words = most_letters = most_held_out = 0.0
    without = 0
    for document in read_part(documents):
        named = f"{document.id} ({document.source}: {document.source_id}"
        share = share_in(shingles_of(document.text, shingle_words), known)
        most_words = max(most_words, share)
        if share > threshold:
            by_words.add(f"{named}, {share:.0%})")
        letters = letters_of(document.text)
        without += not letters
        share, places, shares = index.shares(character_shingles(letters, copy_characters))
        if len(letters) >= short:
            most_letters = max(most_letters, share)
            if share > copy_threshold:
                by_letters.add(f"{named}, {share:.0%})")
        most_held_out = max(most_held_out, float(shares[held_out.letters[places] >= short].max(initial=0.0)))
        for at in np.flatnonzero(shares > copy_threshold).tolist():
            copied.setdefault(int(places[at]), Copied(int(places[at]), f"{named})", float(shares[at])))
    return Compared(
        NearCopies(by_words.documents, by_words.first, most_words),
        NearCopies(by_letters.documents, by_letters.first, most_letters),
        tuple(copied[place] for place in sorted(copied)),
        most_held_out,
        without,
    )
