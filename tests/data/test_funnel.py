"""The funnel: counts and samples that do not depend on how rows were spread."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.data.document import make_document
from marin_pipeline.data.funnel import SAMPLE_PER_REASON, Funnel, FunnelReport, merge

FATES = st.lists(
    st.tuples(st.text("abc", max_size=3), st.sampled_from(["x", "y"]), st.sampled_from([None, "short", "copy"]))
)


def _report(rows: list[tuple[str, str, str | None]]) -> FunnelReport:
    funnel = Funnel()
    for place, (text, source, reason) in enumerate(rows):
        document = make_document(text, source, str(place))
        if reason is None:
            funnel.keep(document)
        else:
            funnel.drop(document, reason)
    return funnel.report()


@settings(max_examples=50)
@given(FATES, st.integers(0, 20))
def test_what_goes_in_comes_out_or_is_dropped_for_a_reason(rows: list[tuple[str, str, str | None]], cut: int) -> None:
    report = _report(rows)
    totals = {count.reason: 0 for count in report.counts}
    for count in report.counts:
        totals[count.reason] += count.documents
    assert totals.get("in", 0) == len(rows) == sum(number for reason, number in totals.items() if reason != "in")
    assert report.bytes_out == sum(len(text) for text, _, reason in rows if reason is None)


@settings(max_examples=50)
@given(FATES, st.integers(0, 20))
def test_reports_of_shards_merge_to_the_report_of_all(rows: list[tuple[str, str, str | None]], cut: int) -> None:
    numbered = [(f"{text}{place}", source, reason) for place, (text, source, reason) in enumerate(rows)]
    halves = [_report(numbered[:cut]), _report(numbered[cut:])]
    whole = merge([_report(numbered)])
    assert merge(halves).counts == merge(reversed(halves)).counts == whole.counts
    assert [one.id for one in merge(halves).removed] == [one.id for one in whole.removed]


def test_the_sample_is_the_smallest_ids_of_each_reason() -> None:
    rows: list[tuple[str, str, str | None]] = [
        (f"text {place}", "x", "short" if place % 2 else "copy") for place in range(1000)
    ]
    removed = _report(rows).removed
    for reason in ("short", "copy"):
        ids = sorted(make_document(text, source, "").id for text, source, fate in rows if fate == reason)
        assert [one.id for one in removed if one.reason == reason] == ids[:SAMPLE_PER_REASON]
