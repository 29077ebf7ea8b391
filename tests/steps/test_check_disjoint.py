"""What training and held-out documents may not share, planted and found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.disjoint import Disjoint, Named, compare
from marin_pipeline.data.document import Document, make_document, sort_key
from marin_pipeline.data.schema import Documents
from marin_pipeline.data.writers import write_part
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


def _of_training(text: str) -> Document:
    """A training document with a text that holds nothing but what is given, or as good as."""
    for number in range(1000):
        row = make_document(text + " " * number, "mirror", "page 1")
        if not is_held_out(row.id, FRACTION, SALT):
            return row
    raise AssertionError("the rule holds out everything")


def _of_held_out(text: str) -> Document:
    for number in range(1000):
        row = make_document(text + " " * number, "web", "the held-out page")
        if is_held_out(row.id, FRACTION, SALT):
            return row
    raise AssertionError("the rule holds out nothing")


CHINESE = (
    "人工智能是计算机科学的一个分支它企图了解智能的实质并生产出一种新的能以人类智能相似的方式做出反应的智能机器" * 3
)
WORDS = HELD_OUT[3].text.split()
SEVEN = "the answer is forty two my friend"


def _each_eighth(change: Callable[[str], str]) -> str:
    return " ".join(change(word) if place % 8 == 0 else word for place, word in enumerate(WORDS))


HIDDEN = {
    "text without spaces": (CHINESE, CHINESE + "。"),
    "text without spaces, one letter more": (CHINESE, CHINESE + "人"),
    "fewer words than a shingle": (SEVEN, SEVEN + "!"),
    "fewer words and letters than a shingle": ("Forty-two, my friend", "forty two — my friend"),
    "commas": (" ".join(WORDS), _each_eighth(lambda word: word + ",")),
    "zero-width spaces": (" ".join(WORDS), _each_eighth(lambda word: f"{word[:2]}\u200b{word[2:]}")),
    "soft hyphens": (" ".join(WORDS), _each_eighth(lambda word: f"{word[:2]}\u00ad{word[2:]}")),
    "no spaces at all": (" ".join(WORDS), "".join(WORDS)),
    "full width": (" ".join(WORDS), _each_eighth(lambda word: "".join(chr(ord(letter) + 0xFEE0) for letter in word))),
    "within a text of 2.1 times its length": (
        " ".join(WORDS),
        " ".join([*(f"own{place}x" for place in range(25)), *WORDS, *(f"own{place}y" for place in range(25))]),
    ),
    "within a text of 50 times its length": (
        " ".join(WORDS),
        " ".join([*WORDS, *(f"own{place}" for place in range(2000))]),
    ),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_copy_is_found_whatever_hides_it_from_words(tmp_path: Path, stored: StoreDocuments, case: str) -> None:
    held_out, training = HIDDEN[case]
    sides = stored([*TRAINING, _of_training(training)]), stored([_of_held_out(held_out)])
    with pytest.raises(InputError, match=r"(?s)letters.*mirror: page 1"):
        _check(tmp_path / "found", *sides)
    # Words alone do not find it: what is left of the check passes.
    assert _check(tmp_path / "words", *sides, copy_threshold=1.0, short_tolerance=1.0).most_overlap <= 0.5


def test_a_training_document_cut_from_a_long_held_out_one_is_found(tmp_path: Path, stored: StoreDocuments) -> None:
    cut = _of_training(CHINESE[40:145])
    book = _of_held_out(CHINESE + "".join(chr(0x4E00 + place) for place in range(3000)))
    with pytest.raises(InputError, match=r"training, with more than 90% of its letters.*mirror: page 1, 100%"):
        _check(tmp_path, stored([*TRAINING, cut]), stored([book]))


def test_half_a_text_is_no_copy_and_its_share_is_told(tmp_path: Path, stored: StoreDocuments) -> None:
    half = _of_training(" ".join([*WORDS[:20], *(f"own{place}" for place in range(60))]))
    found = _check(tmp_path, stored([*TRAINING, half]), stored(HELD_OUT))
    assert 0.3 < found.most_of_held_out < 0.5
    assert 0 < found.most_of_training < 0.5


def test_short_documents_are_tolerated_by_their_share_of_the_letters(tmp_path: Path, stored: StoreDocuments) -> None:
    training, held_out = stored([*TRAINING, _of_training(SEVEN + "!")]), stored([*HELD_OUT, _of_held_out(SEVEN)])
    found = _check(tmp_path / "tolerated", training, held_out)
    total = sum(len(row.text.replace(" ", "")) for row in HELD_OUT) + 27
    assert (found.short_copied, found.short_copied_share) == (1, 27 / total)
    with pytest.raises(InputError, match=r"shorter than 100 letters.* \(1\): .*the held-out page"):
        _check(tmp_path / "not", training, held_out, short_tolerance=26 / total)


def test_documents_without_letters_are_counted(tmp_path: Path, stored: StoreDocuments) -> None:
    found = _check(tmp_path, stored([*TRAINING, _of_training("-- !! --")]), stored([_of_held_out("-- !! --?")]))
    assert (found.training_without_letters, found.held_out_without_letters) == (1, 1)


def test_the_division_into_parts_changes_nothing(tmp_path: Path, stored: StoreDocuments) -> None:
    copies = [_of_training(" ".join([*row.text.split(), f"own{place}"])) for place, row in enumerate(HELD_OUT[:3])]
    sides = sorted([*TRAINING, *copies], key=sort_key), sorted([*HELD_OUT, _of_held_out(SEVEN)], key=sort_key)
    told = set[str]()
    for count in (1, 3):
        made = []
        for place, rows in enumerate(sides):
            folder = tmp_path / f"{count}-{place}"
            folder.mkdir()
            for part in range(count):
                write_part(
                    folder / f"{part}.parquet", rows[len(rows) * part // count : len(rows) * (part + 1) // count]
                )
            value = stored(rows).value
            made.append(local_artifact(folder, replace(value, parts=tuple(f"{part}.parquet" for part in range(count)))))
        with pytest.raises(InputError) as caught:
            _check(tmp_path / f"check {count}", *made)
        told.add(str(caught.value))
    assert len(told) == 1


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
