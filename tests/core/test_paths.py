"""What may be the path of a file in an output: the same on every store."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath

import hypothesis
import pytest
from hypothesis import strategies as st

from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.paths import is_path, problem_with, relative_path

TEXTS = st.one_of(st.text(max_size=12), st.text("a./\\\0\n ", max_size=8), st.sampled_from(["..", "a/..", "/", "~"]))


@hypothesis.given(TEXTS)
def test_what_is_a_path_leads_down_and_is_in_its_one_form(path: str) -> None:
    pure = PurePosixPath(path)
    good = (
        path not in ("", ".")
        and not pure.is_absolute()
        and ".." not in pure.parts
        and str(pure) == path
        and not any(unicodedata.category(each) in ("Cc", "Cs") for each in path)
    )
    assert is_path(path) == good
    assert bool(problem_with(path)) == (not good)


@hypothesis.given(TEXTS)
def test_a_path_is_brought_to_its_form_or_refused(path: str) -> None:
    try:
        found = relative_path(path)
    except DeclarationError:
        assert not is_path(path)
        return
    assert is_path(found)
    assert PurePosixPath(found) == PurePosixPath(path)
    assert relative_path(found) == found


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("../a", "not a path inside an output"),
        ("/a", "not a path inside an output"),
        ("a\0b", "a control character in its name, such as a line break; rename it"),
        ("a/b\nc", "a control character"),
        ("\x1b[2J", "a control character"),
        ("\x85", "a control character"),
        ("\udcff", "a name that is not UTF-8; rename it"),
        ("a/" + "x" * 256, "a name of more than 255 bytes; choose a shorter one"),
        ("\u00fc" * 128 + "/a", "a name of more than 255 bytes"),
    ],
)
def test_a_path_that_cannot_be_is_refused_with_the_reason(path: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        relative_path(path)


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"], {}])
def test_what_is_no_text_is_no_path(value: object) -> None:
    assert not is_path(value)
