"""Numbers, names and times are written for people in one way."""

from __future__ import annotations

import pytest

from marin_pipeline.run.words import bytes_text, counted, few, listed, moment


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (45_431, "45.4 kB"), (3e6, "3.0 MB"), (5e16, "50000.0 TB")]
)
def test_bytes(size: float, text: str) -> None:
    assert bytes_text(size) == text


def test_things_are_counted_in_the_singular_and_the_plural() -> None:
    assert [counted(count, "file") for count in (0, 1, 1200)] == ["0 files", "1 file", "1,200 files"]
    assert counted(2, "key", "keys of it") == "2 keys of it"


def test_of_many_the_first_are_told_and_the_others_counted() -> None:
    assert (few("abc"), few("abcde"), few("abcde", 1)) == ("a, b, c", "a, b, c and 2 more", "a and 4 more")
    assert list(listed(["a", "b"], 2)) == ["a", "b"]
    assert list(listed(["a", "b"], 1)) == ["a", "  and 1 more; --json has all"]
    assert list(listed(["a", "b"], 1, "")) == ["a", "  and 1 more"]


def test_a_moment() -> None:
    assert moment("2026-01-02T03:04:05.678Z") == "2026-01-02 03:04:05"
