"""The quality rules: each drops what it names, can be switched off, and is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.data.document import Document, make_document
from marin_pipeline.data.measures import MEASURES
from marin_pipeline.data.parts import read_documents
from marin_pipeline.data.schema import Documents
from steps.quality_filter import QualityRules, quality_filter

StoreDocuments = Callable[[Iterable[Document]], Artifact[Documents]]

ON = QualityRules()
OFF = QualityRules(**{field.name: None for field in dataclasses.fields(QualityRules)})
PROSE = (
    "The history of the harbour is long, and those who know it have told it in many ways. In the early years ships "
    "came to the quay with salt and timber. Later the railway was built, and with it the town began to change. Old "
    "houses gave way to stores, to offices and to a station. Nobody could say whether this was for the better! That "
    "is how cities grow."
)


def _filter(
    folder: Path, documents: Artifact[Documents], rules: QualityRules = ON
) -> tuple[list[str], list[dict[str, object]]]:
    ctx = test_context(folder)
    value = quality_filter.fn(ctx, documents=documents, rules=rules)
    kept = [row.source_id for row in read_documents(local_artifact(ctx.out, value))]
    return kept, pq.read_table(ctx.out / "attributes.parquet").to_pylist()


def test_good_prose_keeps_all_rules(tmp_path: Path, stored: StoreDocuments) -> None:
    kept, attributes = _filter(tmp_path / "ctx", stored([make_document(PROSE, "s", "prose")]))
    assert kept == ["prose"]
    assert attributes[0]["reason"] is None


BROKEN = {
    "min_words": "too short",
    "max_words": "a b " * 50_001,
    "min_mean_word_length": "a b c " * 20,
    "max_mean_word_length": "extraordinarily incomprehensible " * 2,
    "max_hashes_per_word": PROSE + " #tag" * 20,
    "max_ellipses_per_word": PROSE + " more..." * 20,
    "max_bullet_lines": "- one\n- two\n* three",
    "max_ellipsis_lines": "one...\ntwo…\nthree",
    "min_alphabetic_words": "1 2 3 4 five",
    "min_stop_words": "the cat sat",
    "max_duplicate_lines": "a\na\nb",
    "max_duplicate_paragraphs": "a\n\na\n\nb",
    "max_duplicate_line_characters": "long line\nlong line\na\nb\nc\nd",
    "max_duplicate_paragraph_characters": "long one\n\nlong one\n\na\n\nb\n\nc\n\nd",
    "max_top_2_gram": "one two and one two",
    "max_top_3_gram": "one two three and one two three",
    "max_top_4_gram": "one two three four and one two three four",
    **{
        f"max_duplicate_{n}_grams": f"{' '.join(PROSE.split()[:n])} and {' '.join(PROSE.split()[:n])}"
        for n in range(5, 11)
    },
    "max_lorem_ipsum": "Lorem ipsum dolor",
    "max_curly_brackets": "f() { }",
    "max_javascript_lines": "please enable JavaScript",
    "max_policy_lines": "we use cookies",
    "min_sentences": "One. Two.",
}


def test_each_rule_has_a_case_here() -> None:
    assert set(BROKEN) == {field.name for field in dataclasses.fields(QualityRules)}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_alone_drops_what_it_names_and_keeps_the_prose(
    tmp_path: Path, stored: StoreDocuments, rule: str
) -> None:
    documents = stored([make_document(BROKEN[rule], "s", "broken"), make_document(PROSE, "s", "prose")])
    rules = dataclasses.replace(OFF, **{rule: getattr(ON, rule)})
    kept, attributes = _filter(tmp_path / "ctx", documents, rules)
    assert kept == ["prose"]
    assert {row["source_id"]: row["reason"] for row in attributes} == {"broken": rule, "prose": None}


def test_with_all_rules_off_everything_stays(tmp_path: Path, stored: StoreDocuments) -> None:
    odd = ["word", "a\0b", "{", "🙂", "...", *BROKEN.values()]
    kept, attributes = _filter(
        tmp_path / "ctx", stored(make_document(text, "s", str(place)) for place, text in enumerate(odd)), OFF
    )
    assert len(kept) == len(attributes) == len(odd)


def test_the_first_broken_rule_in_the_order_of_the_fields_is_the_reason(tmp_path: Path, stored: StoreDocuments) -> None:
    _, attributes = _filter(tmp_path / "ctx", stored([make_document("{ }", "s", "1")]))
    assert attributes[0]["reason"] == "min_words"


def test_attributes_hold_every_measure_of_every_document(tmp_path: Path, stored: StoreDocuments) -> None:
    _, attributes = _filter(
        tmp_path / "ctx", stored([make_document(PROSE, "s", "1"), make_document("short", "s", "2")])
    )
    assert len(attributes) == 2
    assert list(attributes[0]) == ["id", "source", "source_id", "reason", *MEASURES]


def test_a_rule_is_a_bound_on_a_measure() -> None:
    for field in dataclasses.fields(QualityRules):
        side, measure = field.name.split("_", 1)
        assert side in ("min", "max")
        assert measure in MEASURES


def test_no_documents_are_no_error(tmp_path: Path, stored: StoreDocuments) -> None:
    assert _filter(tmp_path / "ctx", stored([])) == ([], [])
