"""Dedupe: content alone decides who survives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document, make_document
from marin_pipeline.data.parts import read_documents
from marin_pipeline.data.schema import Documents
from steps.dedupe import dedupe

StoreDocuments = Callable[[Iterable[Document]], Artifact[Documents]]

ODD = ["word", " x", "a\0b", "\u2028y", "seven words are one too few here"]
ROWS = st.lists(
    st.builds(make_document, st.sampled_from(["a", "b", *ODD]), st.sampled_from("xyz"), st.sampled_from("123")),
    max_size=30,
)


def _dedupe(
    folder: Path, documents: Artifact[Documents], **arguments: object
) -> tuple[list[Document], list[dict[str, object]], Documents]:
    ctx = test_context(folder)
    value = dedupe.fn(ctx, documents=documents, **arguments)  # pyright: ignore[reportArgumentType]
    return (
        list(read_documents(local_artifact(ctx.out, value))),
        pq.read_table(ctx.out / "drop_list.parquet").to_pylist(),
        value,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_one_survivor_a_text_the_smallest_by_source_and_name(
    tmp_path_factory: pytest.TempPathFactory, stored: StoreDocuments, rows: list[Document]
) -> None:
    kept, dropped, value = _dedupe(tmp_path_factory.mktemp("ctx"), stored(rows))
    smallest: dict[str, Document] = {}
    for row in sorted(rows, key=lambda row: (row.source, row.source_id), reverse=True):
        smallest[row.id] = row
    assert sorted(kept) == sorted(smallest.values())
    assert len(kept) + len(dropped) == len(rows)
    assert {row["reason"] for row in dropped} <= {"exact_duplicate"}
    assert sum(count.documents for count in value.counts if count.reason == "exact_duplicate") == len(dropped)


WORDS = [f"word{place}" for place in range(100)]
HELD_OUT = " ".join(WORDS)


def test_what_overlaps_held_out_text_by_more_than_half_is_dropped(tmp_path: Path, stored: StoreDocuments) -> None:
    # Of the 93 shingles of 100 words, a text that shares the first n words shares n - 7 shingles.
    texts = {n: " ".join([*WORDS[:n], *(f"other{place}" for place in range(100 - n))]) for n in (0, 7, 50, 53, 54, 90)}
    texts[100] = HELD_OUT.upper().replace(" ", "\n")
    documents = stored(make_document(text, "train", str(n)) for n, text in texts.items())
    held_out = stored([make_document(HELD_OUT, "held", "1")])
    kept, dropped, _ = _dedupe(tmp_path / "ctx", documents, against=held_out)
    assert {int(row.source_id) for row in kept} == {0, 7, 50, 53}
    assert {(row["source_id"], row["reason"], row["share"]) for row in dropped} == {
        ("54", "held_out_overlap", 47 / 93),
        ("90", "held_out_overlap", 83 / 93),
        ("100", "held_out_overlap", 1.0),
    }


def test_a_short_text_is_dropped_only_when_it_is_held_out_as_it_is(tmp_path: Path, stored: StoreDocuments) -> None:
    documents = stored(make_document(text, "train", "1") for text in ODD)
    kept, dropped, _ = _dedupe(tmp_path / "ctx", documents, against=stored([make_document("word", "held", "1")]))
    assert sorted(row.text for row in kept) == sorted(set(ODD) - {"word"})
    assert [row["reason"] for row in dropped] == ["held_out_exact"]


def test_empty_inputs_are_no_error(tmp_path: Path, stored: StoreDocuments) -> None:
    some, none = stored([make_document("text", "a", "1")]), stored([])
    assert len(_dedupe(tmp_path / "a", some, against=none)[0]) == 1
    assert _dedupe(tmp_path / "b", none, against=some)[:2] == ([], [])


def test_a_threshold_that_is_no_share_is_refused(tmp_path: Path, stored: StoreDocuments) -> None:
    with pytest.raises(InputError, match=r"threshold=50"):
        _dedupe(tmp_path, stored([]), threshold=50.0)
