"""The baselines' step: every document of every source counts once, and the numbers are those of the models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import zstandard

from marin_pipeline import test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document, make_document, sort_key
from marin_pipeline.evaluate.ngrams import NgramModel
from steps.baselines import baselines
from tests.steps.conftest import StoreDocuments

TRAINING = [
    make_document(f"def name_{place}(value): return value + {place}\n", "code", str(place)) for place in range(50)
]
HELD_OUT = [
    *(make_document(f"def other_{place}(value): return {place}", "code", str(place)) for place in range(20)),
    *(make_document(f"Some prose \N{EM DASH} {place}.", "prose", str(place)) for place in range(10)),
]


def test_scores_are_those_of_the_models_by_source_and_overall(tmp_path: Path, stored: StoreDocuments) -> None:
    ctx = test_context(tmp_path / "out")
    found = baselines.fn(ctx, documents=stored(TRAINING), held_out=stored(HELD_OUT), orders=(3, 1), zstd_level=3)
    assert [ngram.order for ngram in found.ngrams] == [3, 1]
    assert (found.training_documents, found.training_bytes) == (50, sum(row.bytes for row in TRAINING))
    model = NgramModel([[row.text.encode() for row in TRAINING]], 3)
    for ngram in found.ngrams:
        nats = model.nats([row.text.encode() for row in HELD_OUT])[ngram.order - 1]
        size = sum(row.bytes for row in HELD_OUT)
        assert ngram.scores.overall.bits_per_byte == pytest.approx(nats.sum() / math.log(2) / size)
        assert ngram.scores.overall.tokens == size + len(HELD_OUT)
        assert [score.source for score in ngram.scores.by_source] == ["code", "prose"]
        assert [score.documents for score in ngram.scores.by_source] == [20, 10]
        assert ngram.scores.by_source[0].bits_per_byte < ngram.scores.by_source[1].bits_per_byte


def test_zstd_compresses_all_held_out_text_as_one(tmp_path: Path, stored: StoreDocuments) -> None:
    ctx = test_context(tmp_path / "out")
    zstd = baselines.fn(ctx, documents=stored(TRAINING), held_out=stored(HELD_OUT), orders=(1,)).zstd
    joined = "".join(row.text for row in sorted(HELD_OUT, key=sort_key)).encode()
    assert zstd.bytes == len(joined)
    assert zstd.compressed_bytes == len(zstandard.ZstdCompressor(level=19).compress(joined))
    assert zstd.bits_per_byte == 8 * zstd.compressed_bytes / len(joined)


@pytest.mark.parametrize(
    ("training", "held_out", "orders", "level", "message"),
    [
        ([], HELD_OUT, (1,), 19, "no text in documents"),
        (TRAINING, [], (1,), 19, "no text in held_out"),
        (TRAINING, HELD_OUT, (), 19, r"orders=\(\): give at least one"),
        (TRAINING, HELD_OUT, (1, 8), 19, r"orders=\(1, 8\).*between 1 and 7"),
        (TRAINING, HELD_OUT, (1,), 23, "zstd_level=23 must lie between 1 and 22"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    tmp_path: Path,
    stored: StoreDocuments,
    training: list[Document],
    held_out: list[Document],
    orders: tuple[int, ...],
    level: int,
    message: str,
) -> None:
    ctx = test_context(tmp_path / "out")
    with pytest.raises(InputError, match=message):
        baselines.fn(ctx, documents=stored(training), held_out=stored(held_out), orders=orders, zstd_level=level)
