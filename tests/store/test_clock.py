"""Times sort as text, and the names of attempts tell when they began."""

from __future__ import annotations

import datetime

import pytest

from marin_pipeline.core.errors import UsageError
from marin_pipeline.store.clock import attempt_name, duration, moment, now, utc, written


def test_what_is_written_is_read_back_to_the_second_and_sorts_as_text() -> None:
    times = [datetime.datetime(2026, 1, 31, 23, 59, second, tzinfo=datetime.UTC) for second in range(3)]
    assert [moment(written(time)) for time in times] == times
    assert sorted(map(written, reversed(times))) == [written(time) for time in times]


def test_the_name_of_an_attempt_tells_when_it_began_and_is_nobody_elses() -> None:
    before = utc().replace(microsecond=0)
    names = [attempt_name() for _ in range(100)]
    assert len(set(names)) == 100
    assert all(before <= (moment(name) or before) <= utc() for name in names)
    assert moment(now()) is not None


@pytest.mark.parametrize(
    "text", ["20260131T235959-0a1b2c3d", "2026-01-31T235959.123456Z-abc", "2026-01-31T23:59:59.123456Z"]
)
def test_every_form_of_a_time_is_read(text: str) -> None:
    assert moment(text) == datetime.datetime(2026, 1, 31, 23, 59, 59, tzinfo=datetime.UTC)


@pytest.mark.parametrize("text", ["", "now", "deadbeef", "20261331T235959", "20260131", "x20260131T235959"])
def test_what_tells_no_time_is_none(text: str) -> None:
    assert moment(text) is None


def test_lengths_of_time() -> None:
    texts = {"7d": 604_800, "0s": 0, "90m": 5400, "2h": 7200}
    assert {text: duration(text).total_seconds() for text in texts} == texts
    for text in ("", "7", "d", "-1d", "1w", "1.5h", "9" * 30 + "d", "9" * 5000 + "d", "800000d", "²d"):
        with pytest.raises(UsageError, match=r"length of time|too long"):
            duration(text)
