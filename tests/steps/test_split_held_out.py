"""The division: by a salted hash of the id alone, without a remainder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.document import Document, make_document
from marin_pipeline.data.parts import read_documents
from marin_pipeline.data.schema import Documents
from steps.split_held_out import split_held_out

StoreDocuments = Callable[[Iterable[Document]], Artifact[Documents]]

ROWS = [make_document(f"text {place}", f"source {place % 3}", str(place)) for place in range(5000)]


def _split(folder: Path, documents: Artifact[Documents], **arguments: object) -> list[Document]:
    ctx = test_context(folder)
    return list(read_documents(local_artifact(ctx.out, split_held_out.fn(ctx, documents=documents, **arguments))))  # pyright: ignore[reportArgumentType]


def test_each_document_is_on_one_side(tmp_path: Path, stored: StoreDocuments) -> None:
    documents = stored(ROWS)
    train = _split(tmp_path / "train", documents, part="train")
    held_out = _split(tmp_path / "held_out", documents, part="held_out")
    assert sorted([*train, *held_out]) == sorted(ROWS)
    # 3 % of 5,000 is 150, with a standard deviation of 12.
    assert 100 < len(held_out) < 200


def test_membership_does_not_depend_on_source_or_company(tmp_path: Path, stored: StoreDocuments) -> None:
    held_out = {row.id for row in _split(tmp_path / "all", stored(ROWS), part="held_out")}
    others = [make_document(row.text, "another source", "n") for row in ROWS[::7]]
    alone = {row.id for row in _split(tmp_path / "some", stored(others), part="held_out")}
    assert alone == held_out & {row.id for row in others}


def test_a_smaller_fraction_holds_out_a_subset(tmp_path: Path, stored: StoreDocuments) -> None:
    documents = stored(ROWS)
    small, large = (
        {row.id for row in _split(tmp_path / str(fraction), documents, part="held_out", fraction=fraction)}
        for fraction in (0.01, 0.05)
    )
    assert small < large


def test_another_salt_draws_another_set(tmp_path: Path, stored: StoreDocuments) -> None:
    documents = stored(ROWS)
    first, second = (
        {row.id for row in _split(tmp_path / salt, documents, part="held_out", salt=salt)} for salt in ("a", "b")
    )
    assert len(first & second) < 30


@pytest.mark.parametrize(("fraction", "kept"), [(0.0, 0), (1.0, 5000)])
def test_nothing_and_everything_can_be_held_out(
    tmp_path: Path, stored: StoreDocuments, fraction: float, kept: int
) -> None:
    assert len(_split(tmp_path / "out", stored(ROWS), part="held_out", fraction=fraction)) == kept


def test_a_fraction_that_is_no_share_is_refused(tmp_path: Path, stored: StoreDocuments) -> None:
    with pytest.raises(InputError, match=r"fraction=3\.0"):
        _split(tmp_path / "out", stored(ROWS[:1]), part="train", fraction=3.0)
