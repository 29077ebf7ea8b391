"""What training and held-out documents may not share, planted and found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.disjoint import Disjoint, Named, compare
from marin_pipeline.data.document import Document, make_document
from marin_pipeline.data.schema import Documents
from steps.check_disjoint import check_disjoint
from steps.dedupe import dedupe
from steps.split_held_out import SALT, is_held_out, split_held_out

StoreDocuments = Callable[[Iterable[Document]], Artifact[Documents]]

FRACTION = 0.2


def _row(number: int, source: str = "web", words: str = "") -> Document:
    text = words or " ".join(f"word{number * 50 + place}" for place in range(40))
    return make_document(text, source, f"page {number}")


ROWS = [_row(number) for number in range(300)]
HELD_OUT = [row for row in ROWS if is_held_out(row.id, FRACTION, SALT)]
TRAINING = [row for row in ROWS if not is_held_out(row.id, FRACTION, SALT)]


def _check(folder: Path, training: Artifact[Documents], held_out: Artifact[Documents], **arguments: object) -> Disjoint:
    given = {"fraction": FRACTION, **arguments}
    return check_disjoint.fn(test_context(folder), training=training, held_out=held_out, **given)  # pyright: ignore[reportArgumentType]


def test_both_sides_of_a_division_are_disjoint_and_counted(tmp_path: Path, stored: StoreDocuments) -> None:
    found = _check(tmp_path, stored([*TRAINING, TRAINING[0]._replace(source_id="again")]), stored(HELD_OUT))
    assert (found.training, found.training_ids) == (len(TRAINING) + 1, len(TRAINING))
    assert (found.held_out, found.held_out_ids, found.shared_ids) == (len(HELD_OUT), len(HELD_OUT), 0)
    assert found.most_overlap == 0
    fewer = _check(tmp_path / "fewer", stored(TRAINING[1:]), stored(HELD_OUT))
    assert fewer.held_out_digest == found.held_out_digest
    assert fewer.training_digest != found.training_digest


def test_a_shared_document_is_named_with_both_its_places(tmp_path: Path, stored: StoreDocuments) -> None:
    planted = HELD_OUT[7]._replace(source="mirror", source_id="copy of 7")
    with pytest.raises(InputError) as caught:
        _check(tmp_path, stored([*TRAINING, planted]), stored(HELD_OUT))
    told = str(caught.value)
    assert f"{planted.id} (mirror: copy of 7), held out as web: {HELD_OUT[7].source_id}" in told
    assert "training, held out as well (1): " in told
    assert "against" in told


def test_a_training_document_that_the_rule_holds_out_is_found(tmp_path: Path, stored: StoreDocuments) -> None:
    with pytest.raises(
        InputError, match=rf"training, held out by the rule .*{HELD_OUT[0].id} \(web: {HELD_OUT[0].source_id}\)"
    ):
        _check(tmp_path, stored([*TRAINING, HELD_OUT[0]]), stored(HELD_OUT[1:]))


def test_a_held_out_document_that_the_rule_does_not_hold_out_is_found(tmp_path: Path, stored: StoreDocuments) -> None:
    with pytest.raises(InputError, match=rf"held out, not by the rule .*{TRAINING[0].id}"):
        _check(tmp_path, stored(TRAINING[1:]), stored([*HELD_OUT, TRAINING[0]]))


@pytest.mark.parametrize("changed", [{"salt": "another"}, {"fraction": 0.02}])
def test_another_rule_than_that_of_the_division_is_found(
    tmp_path: Path, stored: StoreDocuments, changed: dict[str, object]
) -> None:
    with pytest.raises(InputError, match="not disjoint"):
        _check(tmp_path, stored(TRAINING), stored(HELD_OUT), **changed)


def _near_copy(shared: int) -> Document:
    """A training document with the first `shared` words of a held-out one: `shared - 7` of 33 shingles."""
    words = HELD_OUT[3].text.split()[:shared]
    for number in range(1000):
        row = _row(1, "mirror", " ".join([*words, *(f"own{number}x{place}" for place in range(40 - shared))]))
        if not is_held_out(row.id, FRACTION, SALT):
            return row
    raise AssertionError("the rule holds out everything")


def test_a_near_copy_is_found_above_the_threshold_and_not_below(tmp_path: Path, stored: StoreDocuments) -> None:
    found = _check(tmp_path / "below", stored([*TRAINING, _near_copy(23)]), stored(HELD_OUT))
    assert found.most_overlap == 16 / 33
    planted = _near_copy(24)
    with pytest.raises(InputError, match=rf"more than 50% of its passages .*{planted.id} \(mirror: page 1, 52%\)"):
        _check(tmp_path / "above", stored([*TRAINING, planted]), stored(HELD_OUT))


def test_what_the_steps_before_leave_is_disjoint(tmp_path: Path, stored: StoreDocuments) -> None:
    everything = stored([*ROWS, _near_copy(30), *(row._replace(source="mirror") for row in ROWS[::5])])

    def made(name: str, made_by: Callable[..., Documents], **arguments: object) -> Artifact[Documents]:
        ctx = test_context(tmp_path / name)
        return local_artifact(ctx.out, made_by(ctx, **arguments))

    split = [
        made(part, split_held_out.fn, documents=everything, part=part, fraction=FRACTION)
        for part in ("train", "held_out")
    ]
    with pytest.raises(InputError, match="of its passages"):
        _check(tmp_path / "too early", *split)
    clean = made("clean", dedupe.fn, documents=split[0], against=split[1])
    assert _check(tmp_path / "clean-check", clean, split[1]).shared_ids == 0


def test_of_many_documents_the_first_few_are_named(tmp_path: Path, stored: StoreDocuments) -> None:
    with pytest.raises(InputError) as caught:
        _check(tmp_path, stored(ROWS), stored(HELD_OUT))
    line = str(caught.value).splitlines()[1]
    assert len(re.findall(r"[0-9a-f]{32}", line)) == 5
    assert f"and {len(HELD_OUT) - 5} more" in line
    assert min(row.id for row in HELD_OUT) in line


def test_a_side_without_documents_is_no_error(tmp_path: Path, stored: StoreDocuments) -> None:
    assert _check(tmp_path, stored(TRAINING), stored([])).held_out == 0


def test_a_share_that_is_none_is_refused(tmp_path: Path, stored: StoreDocuments) -> None:
    with pytest.raises(InputError, match="threshold=50"):
        _check(tmp_path, stored([]), stored([]), threshold=50.0)


IDS = st.lists(st.sampled_from([f"{number:02x}" for number in range(20)]), max_size=30).map(sorted)


@given(training=IDS, held_out=IDS)
def test_the_merge_finds_what_sets_find(training: list[str], held_out: list[str]) -> None:
    def rule(id: str) -> bool:
        return int(id, 16) % 3 == 0

    found = compare((Named(id, "a", "1") for id in training), (Named(id, "b", "2") for id in held_out), rule)
    assert (found.training, found.held_out) == (len(training), len(held_out))
    assert (found.training_ids, found.held_out_ids) == (len(set(training)), len(set(held_out)))
    assert found.shared.documents == sum(id in held_out for id in training)
    assert found.kept.documents == sum(map(rule, training))
    assert found.strange.documents == sum(not rule(id) for id in held_out)
    assert (found.training_digest == found.held_out_digest) == (set(training) == set(held_out))


def test_documents_out_of_order_are_refused() -> None:
    rows = [Named("02", "a", "1"), Named("01", "a", "2")]
    with pytest.raises(InputError, match=r"training documents are not in the order.*01 \(a: 2\)"):
        compare(rows, [], lambda id: False)
