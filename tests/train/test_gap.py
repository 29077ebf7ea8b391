"""A gap is told from noise and from other shares of the sources; beyond the bound it stops the run with its figures."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from marin_pipeline.core.errors import MarinError
from marin_pipeline.train.gap import Difference, Gap, Losses, Score, compared, difference, judge, score

ONE = np.zeros(64, np.int64)
AUDIT = "python -m marin_pipeline.data audit 1a2b3c4d --sequence-length 128 --batch-size 8 --seed 3"


def gap(unseen: float | None, held_out: float | None, error: float = 0.02) -> Gap:
    """Text that was read has a loss of 2."""

    def above(nats: float | None) -> tuple[Score | None, Difference | None]:
        if nats is None:
            return None, None
        other = Score(2 + nats, error, 64)
        return other, Difference(nats, error, Score(2, error, 64), other)

    (unseen_score, unseen_difference), (held_score, held_difference) = above(unseen), above(held_out)
    scores = (Score(2, error, 64), unseen_score, held_score)
    return Gap(950, *scores, unseen_difference, held_difference, epochs=0.43, most_read="web")


@pytest.mark.parametrize(
    ("unseen", "held_out"), [(0.0, 0.0), (0.31, 0.31), (None, 0.31), (0.31, None), (None, None), (-1, -1)]
)
def test_a_gap_within_bound_and_noise_passes(unseen: float | None, held_out: float | None):
    judge(gap(unseen, held_out), 0.25, AUDIT)


@pytest.mark.parametrize(("unseen", "held_out"), [(0.32, 0.0), (0.0, 0.32), (None, 0.32), (0.32, None)])
def test_a_gap_beyond_bound_and_noise_stops(unseen: float | None, held_out: float | None):
    with pytest.raises(MarinError, match=r"more than 0\.25 above what was read"):
        judge(gap(unseen, held_out), 0.25, AUDIT)


def test_the_error_has_all_figures_and_says_what_to_do():
    with pytest.raises(MarinError) as caught:
        judge(gap(0.7, 0.8), 0.25, AUDIT)
    told = str(caught.value)
    for words in ("step 950", "2.000 ± 0.020 (64 sequences)", "2.700", "2.800", "+0.700 ± 0.020", "+0.800", "0.25"):
        assert words in told
    for words in (f"`{AUDIT}`", "'web' 0.43 times", "raise maximum_gap", "committed without training again"):
        assert words in told
    assert "differs in kind" not in told


def test_held_out_text_of_another_kind_is_suspected_where_unread_text_is_as_good_as_read():
    with pytest.raises(MarinError, match="differs in kind, since unread training text is as good as read"):
        judge(gap(0.0, 0.8), 0.25, AUDIT)


def test_an_infinite_bound_stops_nothing():
    judge(gap(99.0, 99.0), math.inf, AUDIT)


def test_a_loss_that_is_no_number_does_not_pass():
    broken = dataclasses.replace(gap(0.0, 0.0), held_out=Score(math.nan, math.nan, 64))
    with pytest.raises(MarinError, match="not finite"):
        judge(broken, 0.25, AUDIT)


@pytest.mark.parametrize("bound", [0.25, math.inf])
@pytest.mark.parametrize("nats", [math.nan, math.inf])
def test_a_difference_that_is_no_number_does_not_pass_for_want_of_a_comparison(nats: float, bound: float):
    with pytest.raises(MarinError, match="not finite"):
        judge(gap(nats, 0.0, error=0.0), bound, AUDIT)
    finite = gap(0.0, 0.0)
    assert finite.unseen_difference is not None
    broken = dataclasses.replace(finite, unseen_difference=dataclasses.replace(finite.unseen_difference, nats=math.nan))
    with pytest.raises(MarinError, match=r"Text that was not read yet: more than"):
        judge(broken, bound, AUDIT)


def test_losses_of_one_kind_raise_no_alarm_by_chance():
    random = np.random.default_rng(0)
    beyond = 0
    for _ in range(2000):
        # As the quick start's: a deviation of 0.7 nats between sequences.
        seen, other = random.normal(3, 0.7, (2, 64))
        found = difference(seen, ONE, other, ONE)
        assert found is not None
        beyond += found.least > 0
    # 1 in 740 for a normal deviate; with a bound of 0.5 nats above that, none in a lifetime.
    assert beyond <= 10


def test_the_standard_error_is_that_of_repeated_draws():
    random = np.random.default_rng(1)
    sources = np.repeat(np.arange(8), 8)
    level = np.arange(8) / 2
    draws = [random.normal(level[sources], 0.3) for _ in range(2000)]
    found = [difference(one, sources, other, sources) for one, other in zip(draws[::2], draws[1::2], strict=True)]
    nats = np.array([each.nats for each in found if each is not None])
    errors = np.array([each.error for each in found if each is not None])
    assert errors.mean() == pytest.approx(nats.std(), rel=0.1)
    assert abs(nats.mean()) < 0.01


def test_another_share_of_the_sources_is_no_difference():
    """Code is predicted two nats better than prose; all unread sequences but 8 are prose."""
    seen_sources, other_sources = np.repeat([0, 1], [48, 16]), np.repeat([0, 1], [8, 56])
    random = np.random.default_rng(2)
    seen, other = (1 + 2.0 * sources + random.normal(0, 0.1, 64) for sources in (seen_sources, other_sources))
    assert other.mean() - seen.mean() > 1
    found = difference(seen, seen_sources, other, other_sources)
    assert found is not None
    assert abs(found.nats) < 0.1
    # What is printed adds up, and so do the errors.
    assert found.nats == found.other.loss - found.read.loss
    assert found.error == pytest.approx(math.hypot(found.other.error, found.read.error))
    assert found.read.loss == pytest.approx(seen.mean())
    assert str(found).startswith(f"{found.other} beside {found.read} ")
    worse = difference(seen, seen_sources, other + 0.5, other_sources)
    assert worse is not None
    assert worse.nats == pytest.approx(found.nats + 0.5)


def test_a_source_weighs_what_it_does_among_the_text_that_was_read():
    seen_sources, other_sources = np.repeat([0, 1], [48, 16]), np.repeat([0, 1], 32)
    found = difference(np.zeros(64), seen_sources, np.where(other_sources == 0, 1.0, 0.0), other_sources)
    assert found == Difference(0.75, 0.0, read=Score(0.0, 0.0, 64), other=Score(0.75, 0.0, 64))


def test_sources_of_one_side_only_are_not_compared():
    seen, sources = np.array([1.0] * 10 + [9.0] * 10), np.repeat([0, 1], 10)
    found = difference(seen, sources, np.full(10, 1.5), np.zeros(10, np.int64))
    assert found == Difference(0.5, 0.0, read=Score(1.0, 0.0, 10), other=Score(1.5, 0.0, 10))


@pytest.mark.parametrize(("seen", "other"), [(7, 64), (64, 7), (0, 0), (1, 1)])
def test_too_few_sequences_say_nothing(seen: int, other: int):
    assert difference(np.zeros(seen), ONE[:seen], np.ones(other), ONE[:other]) is None


def test_many_sources_of_one_sequence_each_are_compared():
    random = np.random.default_rng(3)
    places = np.arange(64)
    seen = random.normal(3, 0.5, 64)
    found = difference(seen, places, seen + 1, places)
    assert found is not None
    assert found.nats == pytest.approx(1)
    assert 0.05 < found.error < 0.2


def test_a_score_is_mean_and_standard_error():
    found = score(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (found.loss, found.sequences) == (2.5, 4)
    assert found.error == pytest.approx(math.sqrt(5 / 3 / 4))
    assert score(np.array([1.5])) == Score(1.5, 0.0, 1)


def test_a_gap_is_plain_json():
    assert json.loads(json.dumps(gap(0.1, None).plain()))["seen"] == {"loss": 2, "error": 0.02, "sequences": 64}
    assert json.loads(json.dumps(gap(0.1, None).plain(judged_by=0.5)))["judged_by"] == 0.5


def test_what_is_not_finite_is_json_all_the_same():
    plain = json.dumps(gap(math.nan, 0.1).plain(judged_by=math.inf), allow_nan=False)
    assert json.loads(plain)["judged_by"] == "inf"
    assert json.loads(plain)["unseen"]["loss"] == "nan"


def test_that_there_is_no_verdict_is_said_and_why():
    seen = Losses(np.zeros(64), ONE)
    for other, words in (
        (Losses(np.ones(7), ONE[:7]), r"64 sequences that were read and 7 others were scored, and it takes 8 of each"),
        (Losses(np.ones(9), ONE[:9] + 1), "no source has sequences of both"),
        (Losses(np.ones(0), ONE[:0]), "there is none of it"),
    ):
        found, why = compared(seen, other)
        assert found is None
        assert words in why
        told = str(dataclasses.replace(gap(0.1, None), no_verdict={"held_out": why}, held_out=other.score()))
        assert f"no verdict: {why}" in told.partition("held-out text")[2]


def test_sources_without_a_part_in_the_comparison_are_named_up_to_a_number():
    left = {f"source {number}": "all of it was read" for number in range(7)}
    told = str(dataclasses.replace(gap(0.1, 0.2), not_compared={"unseen": left}))
    assert "(not compared: source 0 (all of it was read), " in told
    assert "source 4 (all of it was read), 2 more)" in told
    assert "source 5" not in told
